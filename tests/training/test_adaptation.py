"""`headwise adapt`: continued pre-training on unlabelled texts."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertModel, TrainerCallback

from headwise.errors import UserError
from headwise.models import build_tokenizer
from headwise.training import AdaptConfig, adapt
from headwise.training.adaptation.blocks import MaskedBlocks, read_texts, split_texts, write_tokens
from headwise.training.core.callbacks import extra_callbacks
from tests.training.conftest import BAD, GOOD, OTHERS, Headwise, write

FAST = ("--batch-size", 4, "--max-length", 32, "--report-to", "none")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in which every word is followed by the same other word, so that masked words can be learned."""
    generator, pairs = random.Random(0), dict(zip(OTHERS, GOOD + BAD, strict=True))
    lines = []
    for _ in range(200):
        words = generator.choices(OTHERS, k=10)
        lines.append(" ".join(f"{word} {pairs[word]}" for word in words))
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, without a language-model head, whose tokenizer has a mask token."""
    path = tmp_path_factory.mktemp("encoder")
    tokenizer = build_tokenizer([" ".join((*GOOD, *BAD, *OTHERS))], framed=True, max_tokens=64)
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    tokenizer.save_pretrained(path)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        intermediate_size=32,
        **sizes,
    )
    BertModel(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(encoder: Path) -> Any:
    return AutoTokenizer.from_pretrained(encoder)


@pytest.fixture(scope="module")
def adapted(texts: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapted") / "model"
    config = AdaptConfig(
        model=str(encoder), data=(str(texts),), steps=80, learning_rate=0.01, batch_size=8, max_length=100,
        extend_positions="tile", report_to="none",
    )  # fmt: skip
    adapt(config, out)
    return out


def blocks(path: Path, tokenizer: Any, **options: Any) -> MaskedBlocks:
    return MaskedBlocks(path, tokenizer, **{"max_length": 16, "probability": 0.15, "seed": 0} | options)


def test_blocks_contain_all_tokens_in_order(texts: Path, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.tokens"
    num_texts = write_tokens(read_texts([str(texts)], None), tokenizer, path)
    dataset = blocks(path, tokenizer)
    assert num_texts == 200
    rows = dataset.__getitems__(range(len(dataset)))
    original = torch.where(rows["labels"] == -100, rows["input_ids"], rows["labels"])
    found = [
        int(token)
        for ids, mask in zip(original, rows["attention_mask"], strict=True)
        for token in ids[mask.bool()][1:-1]
    ]
    sep = tokenizer.sep_token_id
    lines = [line for line in texts.read_text().splitlines() if line]
    assert found == [
        token for line in lines for token in (*tokenizer(line, add_special_tokens=False)["input_ids"], sep)
    ]
    is_special = torch.isin(rows["labels"], torch.tensor(tokenizer.all_special_ids))
    assert not is_special.any(), "special tokens are never masked"
    share = (rows["labels"] != -100).sum() / rows["attention_mask"].sum()
    assert 0.1 < share < 0.2


def test_masks_depend_on_the_epoch_and_not_on_the_batch(texts: Path, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.tokens"
    write_tokens(read_texts([str(texts)], None), tokenizer, path)
    dataset = blocks(path, tokenizer)
    together, alone = dataset.__getitems__([3, 5]), dataset.__getitems__([5])
    assert torch.equal(together["labels"][1], alone["labels"][0])
    assert torch.equal(together["input_ids"][1], alone["input_ids"][0])

    class Sampler:
        epoch = 1

    dataset.sampler = Sampler()
    assert not torch.equal(dataset.__getitems__([3, 5])["labels"], together["labels"])


def test_tokenizers_with_invalid_settings_are_one_line(encoder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.model_input_names = 1e308  # type: ignore[assignment]  # as read from a tokenizer_config.json
    with pytest.raises(UserError, match="cannot be tokenized"):
        write_tokens(["a text"], tokenizer, tmp_path / "tokens")


def test_dev_has_other_texts_than_train() -> None:
    texts = [str(i) for i in range(50)]
    dev, train = (list(split_texts(texts, dev=dev)) for dev in (True, False))
    assert dev == ["0", "20", "40"]
    assert sorted(dev + train) == sorted(texts)


def test_tables_have_a_text_column(tmp_path: Path) -> None:
    table = write(tmp_path / "table.csv", ("id", "body", "label"), [("1", "a text", "x"), ("2", "another text", "y")])
    assert list(read_texts([str(table)], None)) == ["a text", "another text"]
    with pytest.raises(UserError, match="words"):
        list(read_texts([str(table)], "words"))


def test_the_loss_decreases_and_the_model_is_an_ordinary_one(adapted: Path, encoder: Path) -> None:
    metrics = json.loads((adapted / "metrics.json").read_text())
    before, after = (metrics["metrics"][name]["loss"] for name in ("before", "after"))
    assert after < before - 0.1
    notes = " ".join(metrics["notes"])
    assert "new language-model head" in notes
    assert "positions: 64 -> 100, tiled" in notes
    model = AutoModelForMaskedLM.from_pretrained(adapted)
    assert model.config.max_position_embeddings == 100
    assert AutoTokenizer.from_pretrained(adapted).model_max_length == 100
    pooler = AutoModel.from_pretrained(encoder).pooler.dense.weight
    assert torch.equal(AutoModel.from_pretrained(adapted).pooler.dense.weight, pooler), "classifiers use the pooler"


def test_train_and_inspect_use_the_adapted_model(
    adapted: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    options = ("--model", adapted, "--max-length", 100, "--epochs", 1, "--report-to", "none")
    code, _, stderr = headwise("train", "--data", reviews, "--out", tmp_path / "run", *options)
    assert code == 0, stderr
    assert "not in the pretrained model" not in stderr, "the classifier is always new"
    code, _, stderr = headwise("inspect", adapted, "--text", "a good film", "--out", tmp_path / "page.html")
    assert code == 0, stderr


@pytest.mark.long
def test_a_resumed_run_ends_with_the_same_weights(
    texts: Path, encoder: Path, tmp_path: Path, headwise: Headwise
) -> None:
    options = ("--data", texts, "--steps", 12, "--save-steps", 5, *FAST)
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert headwise("adapt", encoder, *options, "--out", whole)[0] == 0

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 7:
                raise KeyboardInterrupt

    with extra_callbacks(Stop()):
        code, _, stderr = headwise("adapt", encoder, *options, "--out", part)
    assert code == 130
    assert f"stopped; --resume continues: headwise adapt --resume --out {part}" in stderr
    assert not (part / "metrics.json").exists()
    code, _, stderr = headwise("adapt", "--resume", "--out", part)
    assert code == 0, stderr
    assert "step 5 of 12" in stderr
    expected, actual = (AutoModelForMaskedLM.from_pretrained(path).state_dict() for path in (whole, part))
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_the_command_prints_the_loss_and_refuses_to_overwrite(
    texts: Path, encoder: Path, tmp_path: Path, headwise: Headwise
) -> None:
    out = tmp_path / "model"
    code, stdout, stderr = headwise("adapt", encoder, "--data", texts, "--steps", 2, *FAST, "--out", out)
    assert code == 0, stderr
    loss = json.loads((out / "metrics.json").read_text())["metrics"]
    assert f"dev: loss {loss['before']['loss']:.4f} -> {loss['after']['loss']:.4f}, perplexity " in stdout
    assert f"headwise train --model {out} --max-length 32 --data FILE" in stdout
    epochs = [line.split()[1].rstrip(":") for line in stderr.splitlines() if line.strip().startswith("epoch ")]
    assert epochs
    assert all(len(epoch) <= len("0.0123") for epoch in epochs), "parts of an epoch are rounded"
    code, _, stderr = headwise("adapt", encoder, "--data", texts, "--steps", 2, *FAST, "--out", out)
    assert code == 2
    assert "contains an adapted model; --force replaces it" in stderr
    code, _, stderr = headwise("adapt", "--resume", "--out", out)
    assert code == 2
    assert "is already finished" in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("BERT", "--data", "TEXTS"), "--out is required"),
        (("--data", "TEXTS", "--out", "OUT"), "MODEL is required"),
        (("BERT", "--out", "OUT"), "--data is required"),
        (("BERT", "--data", "none.txt", "--out", "OUT"), "none.txt: no such file"),
        (("BERT", "--data", "ONE", "--out", "OUT"), "expected at least two texts, one of them for dev"),
        (("missing/model", "--data", "TEXTS", "--out", "OUT"), "missing/model: no such directory"),
        (("BERT", "--data", "TEXTS", "--out", "OUT", "--mlm-probability", "1"), "--mlm-probability must be above 0"),
        (
            ("BERT", "--data", "TEXTS", "--out", "OUT", "--max-length", "100"),
            "--max-length 100: this model accepts at most 64 tokens; add --extend-positions tile",
        ),
        (("BERT", "--data", "TEXTS", "--out", "OUT", "--extend-positions", "tile"), "requires --max-length"),
        (
            ("BERT", "--data", "TEXTS", "--out", "OUT", "--scheme-learning-rate", "1"),
            "unknown option --scheme-learning-ra",
        ),
        (("NO_MASK", "--data", "TEXTS", "--out", "OUT"), "the tokenizer has no mask_token"),
        (("FOREIGN", "--data", "TEXTS", "--out", "OUT"), "the tokenizer has 24 tokens and the model 21 embeddings"),
        (("--resume", "--out", "OUT"), "contains nothing to resume"),
        (("BERT", "--data", "TEXTS", "--out", "FULL"), "contains files of something else"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], message: str, texts: Path, encoder: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    one, full = tmp_path / "one.txt", tmp_path / "full"
    one.write_text("one text\n")
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    foreign = tmp_path / "foreign"
    shutil.copytree(encoder, foreign)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.add_tokens(["new", "words", "here"])
    tokenizer.save_pretrained(foreign)
    models = {"BERT": encoder, "NO_MASK": bert, "FOREIGN": foreign}
    names = models | {"TEXTS": texts, "OUT": tmp_path / "out", "ONE": one, "FULL": full}
    code, _, stderr = headwise("adapt", *(names.get(word, word) for word in arguments))
    assert code == 2
    assert message in stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
