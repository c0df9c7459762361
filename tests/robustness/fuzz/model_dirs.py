"""Run directories of all task types, and directories of Hugging Face models.

Accepted models are run on a text, twice with different random seeds. If the results differ, some weights were missing
and have been initialized at random, which the user must be told.
"""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.robustness.fuzz.kinds import Kind, mutate_file, write_file
from tests.robustness.fuzz.mutations import (
    HOSTILE_VALUES,
    Mutation,
    mutate_bytes,
    mutate_json,
    mutate_safetensors,
    mutate_yaml,
    random_value,
)

#: Python code in the model's directory. The guard reports it when it is run.
CODE = """
from pathlib import Path
Path(__file__).with_name("CODE_HAS_RUN").touch()
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
class OwnConfig(BertConfig):
    model_type = "own-model"
class OwnModel(BertModel):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
#: A pickle that creates a file when it is loaded.
PICKLE = b"cbuiltins\neval\n(S\"__import__('pathlib').Path('CODE_HAS_RUN').touch()\"\ntR."
WORDS = "good fine great bad poor awful film plot actor scene music story"

#: The files of a model, and how they are mutated.
MODEL_FILES: dict[str, Mutation] = {
    "config.json": mutate_json,
    "tokenizer.json": mutate_json,
    "tokenizer_config.json": mutate_json,
    "model.safetensors": mutate_safetensors,
}
RUN_FILES: dict[str, Mutation] = MODEL_FILES | {"run.yaml": mutate_yaml, "metrics.json": mutate_json}
#: Files that libraries look for in a model's directory.
EXTRA_FILES = [
    "adapter_config.json", "pytorch_model.bin", "model.safetensors.index.json", "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "chat_template.jinja", "generation_config.json", "own.py",
    "preprocessor_config.json", "headwise.json", "tf_model.h5", "flax_model.msgpack", "model.safetensors/x",
    "tokenizer.model",
    "config.json/x", "sentencepiece.bpe.model", "processor_config.json", "quantize_config.json",
    "consolidated.safetensors",
    "custom_generate/generate.py", "adapter_model.safetensors", "adapter_model.bin", "training_args.bin",
]  # fmt: skip


def mutate_files(files: dict[str, Mutation]) -> Callable[[Random, Path], None]:
    """Return a mutation of two files of a directory, or of its list of files."""

    def mutate(random: Random, directory: Path) -> None:
        names = random.sample(list(files), 2)
        match random.randrange(4):
            case 0:
                (directory / names[0]).unlink()
            case 1:
                shutil.copyfile(directory / names[0], directory / names[1])
            case 2:
                add_file(random, directory)
            case _:
                mutate_file(names[0], files[names[0]])(random, directory)
        if (directory / names[1]).is_file():
            mutate_file(names[1], files[names[1]])(random, directory)

    return mutate


def add_file(random: Random, directory: Path) -> None:
    """Add or replace a file that libraries look for. Pickled weights take the place of safetensors."""
    name = random.choice(EXTRA_FILES)
    contents = [
        json.dumps(random_value(random)).encode(),
        json.dumps(
            {"peft_type": "LORA", "base_model_name_or_path": random.choice(["owner/name", str(directory)])}
        ).encode(),
        json.dumps(
            {"metadata": {}, "weight_map": {"a": random.choice(["../x.safetensors", "pytorch_model.bin"])}}
        ).encode(),
        PICKLE,
        CODE.encode(),
        mutate_bytes(random, (directory / "model.safetensors").read_bytes()),
        b"",
    ]
    if name.endswith("/x"):
        (directory / Path(name).parent).unlink()
    elif name == "pytorch_model.bin" or random.random() < 0.1:
        (directory / "model.safetensors").unlink()
    write_file(name, random.choice(contents))(directory)


def prepare_code(directory: Path) -> None:
    """Add Python code, and the options that ask for it are among the values that mutations insert."""
    assert any("own.OwnModel" in str(value) for value in HOSTILE_VALUES)
    (directory / "own.py").write_text(CODE, encoding="utf-8")


def write_reviews(path: Path) -> Path:
    """Write a table that a model can be trained on."""
    words = WORDS.split()
    rows = [f"{words[i % 6]} {words[6 + i % 5]},{'positive' if i % 6 < 3 else 'negative'}\n" for i in range(40)]
    path.write_text("text,label\n" + "".join(rows), encoding="utf-8")
    return path


def move_run(run: Path, directory: Path, **paths: Path) -> None:
    """Move the files of a finished run to a directory, and replace the paths of data in its configuration."""
    import yaml

    for path in run.iterdir():
        if path.name != "checkpoints":
            shutil.move(path, directory / path.name)
    options = yaml.safe_load((directory / "run.yaml").read_text(encoding="utf-8"))
    (directory / "run.yaml").write_text(yaml.safe_dump(options | {"data": ["reviews.csv"]}), encoding="utf-8")
    prepare_code(directory)


def prepare_text_run(directory: Path) -> None:
    """Train a classifier."""
    from headwise.training import TextConfig, train

    data = write_reviews(directory / "reviews.csv")
    train(TextConfig(data=(str(data),), heads=2, head_dim=4, word_dim=8, epochs=1), directory / "run")
    move_run(directory / "run", directory)


def prepare_document_run(directory: Path) -> None:
    """Train a hierarchical classifier of text pairs."""
    from headwise.training import TextConfig, train

    data = directory / "reviews.csv"
    rows = [f"a film {i}. a plot.,a story {i},{i % 2}\n" for i in range(40)]
    data.write_text("text,pair,label\n" + "".join(rows), encoding="utf-8")
    options: dict[str, Any] = {"model": "rpr", "hierarchy": (4, 3), "heads": 2, "head_dim": 4, "word_dim": 8}
    train(TextConfig(data=(str(data),), epochs=1, **options), directory / "run")
    move_run(directory / "run", directory)


def prepare_translation_run(directory: Path) -> None:
    """Train a translator."""
    from headwise.training import train
    from headwise.training.translation.config import TranslationConfig

    for split in ("train", "dev", "test"):
        for language, words in (("en", "one two three"), ("de", "eins zwei drei")):
            (directory / f"{split}.{language}").write_text(f"{words}\n" * 20, encoding="utf-8")
    config = TranslationConfig(
        data=(str(directory),), source="en", target="de", model="small", layers=1, heads=2, head_dim=4, feedforward=8,
        vocabulary=60, batch_size=80, warmup=2, steps=2, max_length=8, beams=2,
    )  # fmt: skip
    train(config, directory / "run")
    move_run(directory / "run", directory)


def prepare_recommendation_run(directory: Path) -> None:
    """Train a recommender."""
    from headwise.training import train
    from headwise.training.recommendation.config import RecommendationConfig

    log = directory / "log"
    for split in ("train", "dev"):
        (log / split).mkdir(parents=True)
        news = "".join(f"N{i}\tnews\tnews\ta title of {i % 5}\t\t\t[]\t[]\n" for i in range(9))
        clicks = "".join(f"{i}\tU{i % 3}\tt\tN1 N2\tN3-{i % 2} N4-{1 - i % 2}\n" for i in range(20))
        (log / split / "news.tsv").write_text(news, encoding="utf-8")
        (log / split / "behaviors.tsv").write_text(clicks, encoding="utf-8")
    options: dict[str, Any] = {"heads": 2, "head_dim": 4, "word_dim": 8, "history": 3, "epochs": 1, "negatives": 1}
    train(RecommendationConfig(task="mind", data=(str(log),), **options), directory / "run")
    move_run(directory / "run", directory)


def prepare_bert(directory: Path, *, scheme: str | None = None) -> None:
    """Write a BERT classifier with one layer of width 8, optionally with a retrofitted scheme."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from headwise.integrations import retrofit
    from headwise.models import build_tokenizer

    torch.manual_seed(0)
    tokenizer = build_tokenizer([WORDS], framed=True, max_tokens=16)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, pad_token_id=tokenizer.pad_token_id, num_labels=2,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    if scheme is not None:
        retrofit(model, scheme)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    prepare_code(directory)
    write_reviews(directory / "reviews.csv")


def read_twice(read: Callable[[Path, Path], bytes]) -> Callable[[Path, Path], None]:
    """Return a function that reads a directory with two random seeds and compares the results."""

    def read_and_compare(directory: Path, out: Path) -> None:
        import torch

        results = []
        for seed in range(2):
            torch.manual_seed(seed)
            (out / str(seed)).mkdir()
            results.append(read(directory, out / str(seed)))
        assert results[0] == results[1], "the result depends on the random seed: weights are initialized at random"

    return read_and_compare


def predict_with_run(directory: Path, out: Path, *, data: str, name: str) -> bytes:
    """Return the predictions of a run."""
    from headwise.training import predict

    predict(directory, directory / data, out / name)
    result = (out / name).read_bytes()
    is_table = not name.endswith(".de")
    assert not (is_table and re.search(rb"[,\t](nan|inf|-inf)\b", result)), "the result contains NaN"
    return result


def inspect_model(directory: Path, out: Path) -> bytes:
    """Return the inspection page of a model. Its metadata must be JSON."""
    from headwise.training.inspect import inspect

    page = inspect([str(directory)], out / "page.html", texts=[("a good film",)]).page.read_text(encoding="utf-8")
    metadata = page.partition('id="metadata">')[2].partition("</script>")[0]
    json.loads(metadata, parse_constant=refuse_constant)
    return page.encode()


def refuse_constant(name: str) -> None:
    """Fail for NaN and Infinity, which browsers do not parse."""
    raise AssertionError(f"the page contains {name}, which is not JSON")


def build_for_training(directory: Path, out: Path) -> bytes:
    """Return the scores of a model that `headwise train --model DIRECTORY` starts with."""
    import torch

    from headwise.tasks import load_files
    from headwise.training import TextConfig
    from headwise.training.text.model import build_model

    data = directory / "reviews.csv"
    task, examples = load_files(data, cache=out)
    model, encoder, _ = build_model(TextConfig(data=(str(data),), model=str(directory)), task, examples)
    encoded = encoder.encode({"text": ["a good film"], "label": [0]})
    batch = encoder.collate([{name: values[0] for name, values in encoded.items()}])
    with torch.inference_mode():
        scores = model.eval()(**batch).logits
    assert scores.isfinite().all(), "the result contains NaN"
    return str(scores.tolist()).encode()


def read_checkpoints(directory: Path, out: Path) -> None:
    """Find the last complete checkpoint. All files of its manifest must exist."""
    from headwise.training.core import run_dir

    found = run_dir.last_checkpoint(directory)
    if found is not None:
        manifest = json.loads((Path(found) / run_dir.MANIFEST).read_text(encoding="utf-8"))
        assert all((Path(found) / name).is_file() for name in manifest), "a file of the manifest is missing"


def prepare_checkpoint(directory: Path) -> None:
    checkpoint = directory / "checkpoints" / "checkpoint-3"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"0123456789")
    (checkpoint / "trainer_state.json").write_bytes(b"{}\n")
    (checkpoint / "manifest.json").write_bytes(b'{"model.safetensors": 10, "trainer_state.json": 3}')


def read_config(directory: Path, out: Path) -> None:
    """Load a run.yaml. The configuration must be the same when it is written and loaded again."""
    from headwise.training.registry import load_config

    config = load_config(directory / "run.yaml")
    copy = out / "run.yaml"
    copy.write_text(config.to_yaml(), encoding="utf-8")
    assert str(load_config(copy)) == str(config), "the configuration changes when it is written and loaded"


YAML = b"data: [a.csv]\nmodel: plain\nepochs: 3\nseed: 1\nheads: 4\nguides: [mdg]\nhierarchy: [3, 4]\n"


def model_kinds(
    name: str,
    files: dict[str, Mutation],
    *,
    requires: str,
    prepare: Callable[[Path], None],
    read: Callable[[Path, Path], bytes],
    share: int = 2,
) -> list[Kind]:
    """Return the kinds of one type of directory: one for each mutated file, and one for several files."""
    make = partial(Kind, share=share, requires=(requires,), prepare=prepare, read=read_twice(read))
    kinds = [make(name=f"{name}, {file}", mutate=mutate_file(file, mutation)) for file, mutation in files.items()]
    return [*kinds, make(name=f"{name}, several files", mutate=mutate_files(files))]


KINDS = [
    *model_kinds(
        "text run",
        RUN_FILES,
        requires="headwise.training.text.pipeline",
        prepare=prepare_text_run,
        read=partial(predict_with_run, data="reviews.csv", name="labelled.csv"),
    ),
    *model_kinds(
        "document run",
        RUN_FILES,
        requires="headwise.training.text.pipeline",
        prepare=prepare_document_run,
        read=partial(predict_with_run, data="reviews.csv", name="labelled.csv"),
        share=1,
    ),
    *model_kinds(
        "translation run",
        RUN_FILES,
        requires="headwise.training.translation.pipeline",
        prepare=prepare_translation_run,
        read=partial(predict_with_run, data="test.en", name="test.de"),
        share=1,
    ),
    *model_kinds(
        "recommendation run",
        RUN_FILES,
        requires="headwise.training.recommendation.pipeline",
        prepare=prepare_recommendation_run,
        read=partial(predict_with_run, data="log/dev", name="ranked.tsv"),
        share=1,
    ),
    *model_kinds(
        "BERT, inspect",
        MODEL_FILES,
        requires="headwise.training.inspect",
        prepare=prepare_bert,
        read=inspect_model,
    ),
    *model_kinds(
        "BERT, train",
        MODEL_FILES,
        requires="headwise.training.text.model",
        prepare=prepare_bert,
        read=build_for_training,
    ),
    *model_kinds(
        "retrofitted BERT",
        MODEL_FILES,
        requires="headwise.training.inspect",
        prepare=partial(prepare_bert, scheme="DistanceAware"),
        read=inspect_model,
        share=1,
    ),
    Kind(
        name="run.yaml",
        share=10,
        requires=("headwise.training.registry",),
        prepare=write_file("run.yaml", YAML),
        mutate=mutate_file("run.yaml", mutate_yaml),
        read=read_config,
    ),
    Kind(
        name="checkpoint manifest",
        share=4,
        requires=("headwise.training.core.run_dir",),
        prepare=prepare_checkpoint,
        mutate=mutate_file("checkpoints/checkpoint-3/manifest.json", mutate_json),
        read=read_checkpoints,
    ),
]
