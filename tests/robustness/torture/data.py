"""Small data of all kinds, a small model and a finished run."""

from pathlib import Path

from headwise.models import build_tokenizer
from headwise.simulation.config import SimulationConfig
from headwise.simulation.mind import simulate
from headwise.training import TextConfig, train
from tests.robustness.torture.jobs import Data
from tests.training.conftest import BAD, GOOD, OTHERS, rows, write
from tests.training.recommendation.conftest import write_titles
from tests.training.translation.conftest import sentences
from tests.training.translation.conftest import write as write_pairs


def write_bert(directory: Path) -> Path:
    """Save a BERT with two small layers and the vocabulary of the data."""
    from transformers import BertConfig, BertModel

    tokenizer = build_tokenizer([" ".join((*GOOD, *BAD, *OTHERS, "."))], framed=True, max_tokens=64)
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def write_data(directory: Path) -> Data:
    """Write all data to a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    reviews = write(directory / "reviews.csv", ("text", "label"), list(rows(100)))
    for split, count in (("train", 120), ("dev", 10), ("test", 10)):
        write_pairs(directory / "pairs", split, sentences(count, seed=count))
    titles = write_titles(directory / "titles.csv")
    log = SimulationConfig(titles=titles, impressions=200, users=20, candidates=8, history=12, past=6, interest=3.0)
    simulate(log, directory / "log")
    config = TextConfig(data=(str(reviews),), heads=2, head_dim=4, word_dim=8, epochs=1, batch_size=16)
    return Data(
        reviews=reviews,
        texts=write(directory / "texts.csv", ("text", "label"), list(rows(3000, seed=1))),
        titles=titles,
        pairs=directory / "pairs",
        log=directory / "log",
        bert=write_bert(directory / "bert"),
        run=train(config, directory / "run").run_dir,
    )
