"""Run directories of all task types, and directories of Hugging Face models.

Accepted models are run on a text. If the weights or the configuration were mutated, they are run twice, with different
random seeds. If the results differ, some weights were missing and have been initialized at random.
"""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from tests.robustness.fuzz.kinds import Kind, mutate_file, write_file
from tests.robustness.fuzz.model_seeds import (
    CODE,
    prepare_bert,
    prepare_checkpoint,
    prepare_document_run,
    prepare_recommendation_run,
    prepare_text_run,
    prepare_translation_run,
    prepare_unfinished_run,
    without_rendering,
)
from tests.robustness.fuzz.mutations import (
    Mutation,
    mutate_bytes,
    mutate_json,
    mutate_safetensors,
    mutate_yaml,
    random_value,
)

#: A pickle that creates a file when it is loaded.
PICKLE = b"cbuiltins\neval\n(S\"__import__('pathlib').Path('CODE_HAS_RUN').touch()\"\ntR."

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
                return
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


def mutate_checkpoint(random: Random, directory: Path) -> None:
    """Mutate a file of a checkpoint, and adapt its manifest, so that the checkpoint looks complete."""
    from headwise.training.core import run_dir

    checkpoint = random.choice(sorted((directory / "checkpoints").glob("checkpoint-*")))
    files = sorted(path for path in checkpoint.iterdir() if path.name != run_dir.MANIFEST)
    path = random.choice(files)
    mutations = {".json": mutate_json, ".safetensors": mutate_safetensors}
    content = mutations.get(path.suffix, mutate_bytes)(random, path.read_bytes())
    path.write_bytes(PICKLE if path.suffix in (".pt", ".pth", ".bin") and random.random() < 0.3 else content)
    run_dir.write_manifest(checkpoint)


def resume_run(directory: Path, out: Path) -> None:
    """Resume a run."""
    from headwise.training import train
    from headwise.training.registry import load_config

    config = replace(load_config(directory / "run.yaml"), report_to="none")  # trackers write after the end of the run
    size = sum(path.stat().st_size for path in directory.rglob("*"))
    figures: AbstractContextManager[None] = nullcontext() if size % 8 == 0 else without_rendering()
    with figures:
        result = train(config, directory, resume=True)
    json.dumps(result.metrics, allow_nan=False)


@cache
def compare_seeds(read: Callable[[Path, Path], bytes], num_seeds: int) -> Callable[[Path, Path], None]:
    """Return a function that reads a directory with several random seeds and compares the results."""

    def read_and_compare(directory: Path, out: Path) -> None:
        import torch

        results = []
        for seed in range(num_seeds):
            torch.manual_seed(seed)
            (out / str(seed)).mkdir()
            results.append(read(directory, out / str(seed)))
        assert len(set(results)) == 1, "the result depends on the random seed: weights are initialized at random"

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
    from datasets import Dataset

    from headwise.tasks import load_files
    from headwise.training import TextConfig
    from headwise.training.core.callbacks import quiet_libraries
    from headwise.training.core.pretrained import check_finite
    from headwise.training.text.model import build_model
    from headwise.training.text.pipeline import check_token_ids

    data = directory / "reviews.csv"
    task, examples = load_files(data, cache=out)
    with quiet_libraries():  # as `train` does
        model, encoder, _ = build_model(TextConfig(data=(str(data),), model=str(directory)), task, examples)
    encoded = encoder.encode({"text": ["a good film"], "label": [0]})
    check_token_ids({"train": Dataset.from_dict(encoded)}, model, str(directory))
    batch = encoder.collate([{name: values[0] for name, values in encoded.items()}])
    with torch.inference_mode():
        scores = model.eval()(**batch).logits
    check_finite(scores, model)  # `train` refuses a loss that is not finite
    return str(scores.tolist()).encode()


def load_for_adaptation(directory: Path, out: Path) -> bytes:
    """Return the scores of a model that `headwise adapt DIRECTORY` starts with, for a text with a masked token."""
    import torch

    from headwise.training import AdaptConfig
    from headwise.training.adaptation.blocks import MaskedBlocks
    from headwise.training.adaptation.run import load_model, write_splits
    from headwise.training.core.callbacks import quiet_libraries

    config = AdaptConfig(model=str(directory), data=(str(directory / "reviews.csv"),))
    with quiet_libraries():
        model, tokenizer, _, max_length, _ = load_model(config)
        write_splits(config, tokenizer, out)
    blocks = MaskedBlocks(out / "train.tokens", tokenizer, max_length=max_length, probability=0.15, seed=0)
    batch = blocks[0]
    with torch.inference_mode():
        scores = model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert scores.isfinite().all(), "the result contains NaN"
    return str(scores.tolist()).encode()


def read_checkpoints(directory: Path, out: Path) -> None:
    """Find the last complete checkpoint. All files of its manifest must exist."""
    from headwise.training.core import run_dir

    found = run_dir.last_checkpoint(directory)
    if found is not None:
        manifest = json.loads((Path(found) / run_dir.MANIFEST).read_text(encoding="utf-8"))
        assert all((Path(found) / name).is_file() for name in manifest), "a file of the manifest is missing"


def read_config(directory: Path, out: Path) -> None:
    """Load a run.yaml. The configuration must be the same when it is written and loaded again."""
    from headwise.training.registry import load_config

    check_config(load_config, directory / "run.yaml", out)


def read_adapt_config(directory: Path, out: Path) -> None:
    """Load an adapt.yaml. The configuration must be the same when it is written and loaded again."""
    from headwise.training import AdaptConfig

    check_config(AdaptConfig.load, directory / "adapt.yaml", out)


def check_config(load: Callable[[Path], Any], path: Path, out: Path) -> None:
    """Load a configuration, write it and load it again."""
    config = load(path)
    copy = out / path.name
    copy.write_text(config.to_yaml(), encoding="utf-8")
    assert str(load(copy)) == str(config), "the configuration changes when it is written and loaded"


YAML = b"data: [a.csv]\nmodel: plain\nepochs: 3\nseed: 1\nheads: 4\nguides: [mdg]\nhierarchy: [3, 4]\n"
ADAPT_YAML = b"model: bert\ndata: [a.txt]\nsteps: 3\nmax_length: 64\nextend_positions: tile\nmlm_probability: 0.2\n"


def model_kinds(
    name: str,
    files: dict[str, Mutation],
    *,
    requires: str,
    prepare: Callable[[Path], None],
    read: Callable[[Path, Path], bytes],
    share: int,
) -> list[Kind]:
    """Return the kinds of one type of directory, which divide its share: one for each file, and one for several."""
    make = partial(Kind, share=share / (len(files) + 1), requires=(requires,), prepare=prepare)
    kinds = [
        make(
            name=f"{name}, {file}",
            mutate=mutate_file(file, mutation),
            read=compare_seeds(read, 2 if file in ("config.json", "model.safetensors") else 1),
        )
        for file, mutation in files.items()
    ]
    return [*kinds, make(name=f"{name}, several files", mutate=mutate_files(files), read=compare_seeds(read, 2))]


KINDS = [
    *model_kinds(
        "text run",
        RUN_FILES,
        requires="headwise.training.text.pipeline",
        prepare=prepare_text_run,
        read=partial(predict_with_run, data="reviews.csv", name="labelled.csv"),
        share=7,
    ),
    *model_kinds(
        "document run",
        RUN_FILES,
        requires="headwise.training.text.pipeline",
        prepare=prepare_document_run,
        read=partial(predict_with_run, data="reviews.csv", name="labelled.csv"),
        share=6,
    ),
    *model_kinds(
        "translation run",
        RUN_FILES,
        requires="headwise.training.translation.pipeline",
        prepare=prepare_translation_run,
        read=partial(predict_with_run, data="sentence.en", name="sentence.de"),
        share=6,
    ),
    *model_kinds(
        "recommendation run",
        RUN_FILES,
        requires="headwise.training.recommendation.pipeline",
        prepare=prepare_recommendation_run,
        read=partial(predict_with_run, data="log/dev", name="ranked.tsv"),
        share=6,
    ),
    *model_kinds(
        "BERT, inspect",
        MODEL_FILES,
        requires="headwise.training.inspect",
        prepare=prepare_bert,
        read=inspect_model,
        share=6,
    ),
    *model_kinds(
        "BERT, train",
        MODEL_FILES,
        requires="headwise.training.text.pipeline",
        prepare=prepare_bert,
        read=build_for_training,
        share=6,
    ),
    *model_kinds(
        "BERT, adapt",
        MODEL_FILES,
        requires="headwise.training.adaptation.run",
        prepare=prepare_bert,
        read=load_for_adaptation,
        share=6,
    ),
    *model_kinds(
        "retrofitted BERT",
        MODEL_FILES,
        requires="headwise.training.inspect",
        prepare=partial(prepare_bert, scheme="DistanceAware"),
        read=inspect_model,
        share=6,
    ),
    Kind(
        name="checkpoint, resume",
        share=5,
        requires=("headwise.training.text.pipeline",),
        prepare=prepare_unfinished_run,
        mutate=mutate_checkpoint,
        read=resume_run,
    ),
    Kind(
        name="run.yaml",
        share=6,
        requires=("headwise.training.registry",),
        prepare=write_file("run.yaml", YAML),
        mutate=mutate_file("run.yaml", mutate_yaml),
        read=read_config,
    ),
    Kind(
        name="adapt.yaml",
        share=5,
        requires=("headwise.training.adaptation.config",),
        prepare=write_file("adapt.yaml", ADAPT_YAML),
        mutate=mutate_file("adapt.yaml", mutate_yaml),
        read=read_adapt_config,
    ),
    Kind(
        name="checkpoint manifest",
        share=5,
        requires=("headwise.training.core.run_dir",),
        prepare=prepare_checkpoint,
        mutate=mutate_file("checkpoints/checkpoint-3/manifest.json", mutate_json),
        read=read_checkpoints,
    ),
]
