"""Record what a fixed list of short CPU runs computes, to prove that a refactoring changes no number.

    python tools/fingerprint.py record --out before.json
    python tools/fingerprint.py record --out after.json      # with the other checkout
    python tools/fingerprint.py compare before.json after.json

A record holds, bit for bit, every run's weights, losses, metrics and predictions, and outputs and gradients of the
operators. Names are kept beside the values, so that what was only renamed is told from what has changed: a run is
IDENTICAL, RENAMED (the same values under other names, which are listed), MORE (the same values, and new metrics or
columns) or DIFFERENT, with which `compare` exits with 1. All data is made here from fixed seeds.

Where options of commands or arguments of functions get other names, change COMMANDS, or the function of that API:
`attended`, `schemes_of`, `received_together`, `layers_of`, `guides` and `guides_of`. Without --python it is the
interpreter's own headwise that is recorded, or that of PYTHONPATH.
"""

import argparse
import csv
import hashlib
import json
import multiprocessing
import os
import platform
import random
import re
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

OURS = "--heads 2 --head-dim 8 --word-dim 12 --epochs 2 --batch-size 16 --learning-rate 1e-2"
BERT = "--model bert --epochs 3 --batch-size 8 --learning-rate 5e-3"
REVIEWS = "--data reviews.csv --out {out}/run"
TRANSLATION = (
    "train --task translation --data words --source en --target de --model small --layers 1 --heads 2 --head-dim 32 "
    "--feedforward 64 --vocabulary 300 --batch-size 300 --warmup 20 --learning-rate 5e-3 --dropout 0.1 --max-length 16 "
    "--beams 2 --out {out}/run"
)
CLICKS = "train --task mind --data {out}/log --history 10 --epochs 2 --batch-size 32 --out {out}/run"
SIMULATED = "simulate mind --titles titles.csv --impressions 160 --users 20 --candidates 8 --history 12 --past 6"

#: The commands of each run; {out} is the run's own folder, all other paths are made by `make_data`.
COMMANDS: dict[str, tuple[str, ...]] = {
    "text-distance-aware": (
        f"train --model distance-aware {OURS} {REVIEWS}",
        "evaluate {out}/run --data other.csv --out {out}/evaluated.json",
        "predict {out}/run new.csv --out {out}/predicted.csv",
        "inspect {out}/run --data other.csv --rows 1 --out {out}/inspected",
    ),
    "text-vectors": (f"train --model distance-aware --vectors glove.txt --heads 2 --head-dim 8 --epochs 2 {REVIEWS}",),
    "text-none": (f"train --model none {OURS} {REVIEWS}",),
    "text-plain": (f"train --model plain {OURS} {REVIEWS}",),
    "text-rpr": (f"train --model rpr {OURS} {REVIEWS}",),
    "text-tener": (f"train --model tener {OURS} {REVIEWS}",),
    "text-transformer-xl": (f"train --model transformer-xl {OURS} {REVIEWS}",),
    "text-options": (
        f"train --model distance-aware --scheme-options mapping=sigmoid adjust=late-add --layers 2 --pooling cls "
        f"--positions learned --rows 0.5 --seed 3 {OURS} {REVIEWS}",
    ),
    "text-patience": (
        f"train --model plain --heads 2 --head-dim 8 --word-dim 12 --epochs 8 --patience 1 "
        f"--learning-rate 1e-2 --batch-size 8 {REVIEWS}",
    ),
    "text-splits": (
        f"train --train reviews.csv long.csv --dev other.csv --text text --label label --model plain {OURS} "
        "--out {out}/run",
    ),
    "text-ag-news": (f"train --task ag-news --data ag_news --model distance-aware {OURS} --out {{out}}/run",),
    "text-hierarchy": (f"train --data long.csv --model rpr --hierarchy 6 4 {OURS} --out {{out}}/run",),
    "multi-label": (
        f"train --data topics.csv --kind multi-label --model distance-aware {OURS} --out {{out}}/run",
        "predict {out}/run new.csv --out {out}/predicted.csv",
    ),
    "rating": (
        f"train --data ratings.csv --kind regression --model distance-aware {OURS} --out {{out}}/run",
        "predict {out}/run new.csv --out {out}/predicted.csv",
    ),
    "tagging": (
        f"train --data tags.conll --kind tokens --model tener {OURS} --out {{out}}/run",
        "predict {out}/run new.conll --out {out}/predicted.conll",
    ),
    "pairs-siamese": (f"train --data pairs.csv --model distance-aware {OURS} --out {{out}}/run",),
    "pairs-joint": (f"train --data pairs.csv --model distance-aware --pairs joint {OURS} --out {{out}}/run",),
    "bert": (
        f"train {BERT} {REVIEWS}",
        "evaluate {out}/run --out {out}/evaluated.json",
        "predict {out}/run new.csv --out {out}/predicted.csv",
        "inspect {out}/run --data other.csv --rows 1 --out {out}/inspected",
    ),
    "bert-first-token": (f"train {BERT} --classifier first-token {REVIEWS}",),
    "bert-guided": (f"train {BERT} --guides mdg pdg {REVIEWS}",),
    "bert-guided-fixed": (f"train {BERT} --guides mdg=0.05 pdg@1=0.02 {REVIEWS}",),
    "bert-guided-next": (f"train {BERT} --guides next=0.05 {REVIEWS}",),
    "bert-guided-others": (
        f"train {BERT} --guides first=0.02 previous delimiter=0.01 period=0.01 disagreement pmi=0.02 {REVIEWS}",
    ),
    "bert-retrofit": (f"train {BERT} --retrofit distance-aware {REVIEWS}",),
    "bert-retrofit-rpr": (f"train {BERT} --retrofit rpr {REVIEWS}",),
    "bert-retrofit-guided": (f"train {BERT} --retrofit distance-aware --guides mdg pdg=0.02 next=0.01 {REVIEWS}",),
    "bert-pairs": (f"train --data pairs.csv {BERT} --out {{out}}/run",),
    "bert-rating": (f"train --data ratings.csv --kind regression {BERT} --out {{out}}/run",),
    "bert-tagging": (f"train --data tags.conll --kind tokens {BERT} --out {{out}}/run",),
    "bert-ranking": (f"train --task scifact --data science {BERT} --out {{out}}/run",),
    "ranking": (f"train --task scifact --data science --model distance-aware {OURS} --out {{out}}/run",),
    "translation-rpr": (
        f"{TRANSLATION} --epochs 12",
        "evaluate {out}/run --data words/test.en --out {out}/evaluated.json",
        "predict {out}/run words/dev.en --out {out}/predicted.de",
    ),
    "translation-distance-aware": (
        f"{TRANSLATION} --scheme distance-aware --decoder-scheme plain --positions sinusoidal --norm after "
        "--choose bleu --average 2 --patience 20 --steps 60",
    ),
    "recommendation": (
        f"{SIMULATED} --out {{out}}/log",
        f"{CLICKS} --model distance-aware --heads 2 --head-dim 4 --word-dim 8",
        "evaluate {out}/run --out {out}/evaluated.json",
        "predict {out}/run {out}/log/test --out {out}/predicted.tsv",
    ),
    "recommendation-recent": (
        f"{SIMULATED} --drift 1 --seed 1 --out {{out}}/log",
        f"{CLICKS} --model none --news-scheme rpr --pooling recent --causal --heads 2 --head-dim 4 --word-dim 8",
    ),
    "recommendation-bert": (
        f"{SIMULATED} --out {{out}}/log",
        f"{CLICKS} --model bert --heads 2 --head-dim 4 --title-length 12",
    ),
    "study": (f"compare --data reviews.csv --methods plain distance-aware --seeds 2 {OURS} --out {{out}}/study",),
    "sweep": (f"sweep --data reviews.csv {BERT} --guides mdg --over mdg 0.1 --rows 60 --out {{out}}/sweep",),
}

#: What every process finds in its environment: one thread, no GPU, no network, one instruction set.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "agg",
}

#: Names of numbers that no two runs share, or that say nothing about results.
LEFT_OUT = re.compile(
    r"(?<![a-z])(seconds?|(run)?times?|durations?|memory|mib|flos|versions?|dates?|paths?|folders?)(?![a-z])",
    re.IGNORECASE,
)
#: JSON files that hold settings, or what belongs to a tokenizer.
NO_RESULTS = re.compile(r"config|tokenizer|special_tokens|vocab|merges|adapter|index|whole")
#: Splits that may be called otherwise one day, as cells of a table tell them.
SPLITS = {"validation": "dev", "valid": "dev", "val": "dev"}
#: Sections in which more than was there before is no difference.
MAY_GROW = ("losses", "metrics", "tables")

#: A value: a number as `float.hex()`, the start of a hash, or the numbers of a curve.
Value = str | list[str]
Sections = dict[str, dict[str, Value]]


def hashed(*parts: bytes | str) -> str:
    """The start of the SHA-256 of some parts, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        found.update(struct.pack("<Q", len(raw)) + raw)
    return found.hexdigest()[:24]


# Data


GOOD, BAD = ("good", "fine", "great", "lovely"), ("bad", "poor", "awful", "dull")
OTHERS = ("film", "plot", "actor", "scene", "music", "story", "ending", "start", "camera", "joke")
NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
TOPICS = {"sports": ("goal", "team", "coach", "match", "cup"), "money": ("bank", "stock", "price", "trade", "fund")}


def make_data(folder: Path) -> None:
    """All files that runs read, the same each time."""
    folder.mkdir(parents=True)
    for name, count in (("reviews", 120), ("other", 24), ("long", 80)):
        draw = random.Random(name)
        labels = ["positive" if i % 2 else "negative" for i in range(count)]
        rows = [(text(draw, label, 4 if name == "long" else 1), label) for label in labels]
        write_csv(folder / f"{name}.csv", ("text", "label"), rows)
    draw = random.Random("more")
    write_csv(folder / "new.csv", ("id", "text"), [(i, text(draw)) for i in range(20)])
    ratings = [(text(draw, draw.choice(("positive", "negative"))), draw.randint(2, 10) / 2) for _ in range(100)]
    write_csv(folder / "ratings.csv", ("text", "stars"), ratings)
    topics = [" ".join(draw.sample(OTHERS, 4)) for _ in range(100)]
    write_csv(
        folder / "topics.csv",
        ("text", "labels"),
        [(topic, "|".join(w for w in ("actor", "music", "plot") if w in topic)) for topic in topics],
    )
    pairs = [(text(draw), text(draw), ("entailment", "neutral", "contradiction")[i % 3]) for i in range(120)]
    write_csv(folder / "pairs.csv", ("premise", "hypothesis", "label"), pairs)
    (folder / "ag_news").mkdir()
    for split, count in (("train", 80), ("test", 20)):  # as published, without a header
        first, *others = [(i % 4 + 1, text(draw), text(draw)) for i in range(count)]
        write_csv(folder / "ag_news" / f"{split}.csv", first, others)
    make_vectors(folder / "glove.txt", draw)
    make_tags(folder, draw)
    make_science(folder / "science", draw)
    make_translations(folder / "words", draw)
    titles = [(title(draw, topic), topic) for topic in list(TOPICS) * 30]
    write_csv(folder / "titles.csv", ("title", "label"), titles)
    make_bert(folder / "bert")


def text(draw: random.Random, label: str = "", sentences: int = 1) -> str:
    found = []
    for _ in range(sentences):
        words = draw.choices(OTHERS, k=draw.randint(3, 9))
        for word in draw.choices(GOOD if label == "positive" else BAD, k=4) if label else ():
            words.insert(draw.randrange(len(words)), word)
        found.append(" ".join(words) + " .")
    return " ".join(found)


def title(draw: random.Random, topic: str) -> str:
    return " ".join([*draw.sample(TOPICS[topic], draw.randint(1, 3)), *draw.sample(OTHERS, draw.randint(1, 3))])


def write_csv(path: Path, header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def make_vectors(path: Path, draw: random.Random) -> None:
    """Word vectors in GloVe's format, of all words but a few."""
    lines = [" ".join([word, *(f"{draw.gauss(0, 0.4):.5f}" for _ in range(12))]) for word in (*GOOD, *BAD, *OTHERS[:8])]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def make_tags(folder: Path, draw: random.Random) -> None:
    """Sentences in CoNLL's format, with tags of adjectives and of pairs of nouns; and some without tags."""
    sentences = []
    for _ in range(90):
        lines = []
        for _ in range(draw.randint(2, 5)):
            lines += [f"{draw.choice(GOOD + BAD)} B-ADJ"] if draw.random() < 0.5 else []
            lines += [f"{draw.choice(OTHERS)} B-NOUN", f"{draw.choice(OTHERS)} I-NOUN", "end O"]
        sentences.append("".join(f"{line}\n" for line in lines))
    (folder / "tags.conll").write_text("\n".join(sentences), encoding="utf-8")
    bare = ["".join(f"{line.split()[0]}\n" for line in sentence.splitlines()) for sentence in sentences[:10]]
    (folder / "new.conll").write_text("\n".join(bare), encoding="utf-8")


def make_science(folder: Path, draw: random.Random) -> None:
    """Claims and abstracts in SciFact's layout."""
    folder.mkdir()
    documents = [
        {"doc_id": n, "title": f"Topic{n} {draw.choice(OTHERS)}", "abstract": [text(draw), f"About topic{n} ."]}
        for n in range(30)
    ]
    claims = [
        {"id": 100 + n, "claim": f"{draw.choice(GOOD)} topic{n} {draw.choice(OTHERS)}", "cited_doc_ids": [n]}
        for n in range(30)
    ]
    lost = {"id": 999, "claim": "Unlike anything", "cited_doc_ids": [29]}
    for name, rows in (("corpus", documents), ("claims_train", claims), ("claims_dev", [*claims[:4], lost])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_translations(folder: Path, draw: random.Random) -> None:
    """Line-aligned files of a language that has one word for each."""
    folder.mkdir()
    for split, count in (("train", 200), ("dev", 20), ("test", 20)):
        rows = [draw.sample(list(NUMBERS), k=draw.randint(3, 6)) for _ in range(count)]
        for ending, words in (("en", dict(zip(NUMBERS, NUMBERS, strict=True))), ("de", NUMBERS)):
            lines = (" ".join(words[word] for word in row) + "\n" for row in rows)
            (folder / f"{split}.{ending}").write_text("".join(lines), encoding="utf-8")


def make_bert(folder: Path) -> None:
    """A BERT of two small layers with random weights, and a WordPiece tokenizer that knows some words whole."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [*special, ".", *letters, *(f"##{x}" for x in letters), *"0123456789", *(f"##{x}" for x in "0123456789")]
    pieces += [*GOOD[:3], *BAD[:3], *OTHERS[:7], "##ly", "##ul", "goal", "team", "bank", "stock", "topic"]
    made = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **names).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    BertModel(config).save_pretrained(folder)


# What runs leave


def found_in(folder: Path) -> Sections:
    """All that a run's commands left in its folder, whatever files are called."""
    found: Sections = {"weights": {}, "losses": {}, "metrics": {}, "tables": {}}
    curves: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, checkpoint = str(path.relative_to(folder)), "checkpoint" in str(path.relative_to(folder))
        if path.suffix == ".safetensors" and not checkpoint:
            found["weights"] |= {f"{name}: {tensor}": value for tensor, value in tensors_in(path)}
        elif path.suffix == ".json" and (not checkpoint or is_last(path)) and not NO_RESULTS.search(path.name):
            owner = name.partition("/checkpoint")[0] if checkpoint else str(Path(name).parent)
            read = json.loads(path.read_text(encoding="utf-8"))
            for key, curve in curves_in(read):
                curves[f"{owner}: {key}"].add(curve)
            if not checkpoint:
                found["metrics"] |= {f"{name}: {key}": value for key, value in numbers_in(read)}
        elif path.suffix in (".de", ".conll") or path.name in ("behaviors.tsv", "news.tsv"):
            found["tables"][name] = hashed(path.read_bytes())
        elif path.suffix in (".csv", ".tsv", ".parquet"):
            found["tables"] |= {f"{name}: {column}": value for column, value in columns_in(path)}
    for name, different in curves.items():
        for number, curve in enumerate(sorted(different, key=len, reverse=True)):
            found["losses"][name if number == 0 else f"{name} ({number + 1})"] = list(curve)
    return {section: values for section, values in found.items() if values}


def is_last(path: Path) -> bool:
    """Whether a file belongs to the last checkpoint of its run."""
    steps = {int(other.name.rpartition("-")[2]): other for other in path.parent.parent.glob("checkpoint-*")}
    return steps[max(steps)] == path.parent


def tensors_in(path: Path) -> Iterator[tuple[str, str]]:
    """The tensors of a safetensors file: their names, and hashes of type, shape and bytes."""
    raw = path.read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    for name, about in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            yield name, hashed(about["dtype"], str(about["shape"]), raw[start + begin : start + end])


def is_log(value: Any) -> bool:
    """Whether a value of a JSON file is what a Trainer logs: a list of dictionaries that say after which step."""
    return isinstance(value, list) and bool(value) and all(isinstance(x, dict) and "step" in x for x in value)


def curves_in(value: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The curves of a Trainer's log, wherever in a JSON file it is: of each name all numbers, and their steps."""
    if is_log(value):
        for key in sorted({key for entry in value for key in entry if key != "step" and not LEFT_OUT.search(key)}):
            points = [(entry["step"], entry[key]) for entry in value if is_number(entry.get(key))]
            yield key, tuple(f"{step}: {float(number).hex()}" for step, number in points)
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from curves_in(part)


def numbers_in(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The numbers of a JSON file by name, without logs; long lists of numbers are hashed."""
    if is_log(value) or LEFT_OUT.search(name):
        return
    if is_number(value):
        yield name, float(value).hex()
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from numbers_in(part, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and value and not any(isinstance(x, dict | str) for x in value):
        yield name, hashed(canonical(value))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from numbers_in(part, f"{name}[{number}]")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def columns_in(path: Path) -> Iterator[tuple[str, str]]:
    """The columns of a table: their names, and hashes of their cells. Of tables other than predictions only numbers."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        columns: dict[str, list[Any]] = pq.read_table(path).to_pydict()
    else:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        columns = {name: [as_number(row[place]) for row in rows] for place, name in enumerate(header)}
    answers = path.suffix == ".parquet" or path.stem == "predicted"
    for name, cells in columns.items():
        if not LEFT_OUT.search(name) and (answers or not any(isinstance(x, str) and x for x in cells)):
            yield name, hashed(canonical(cells))


def as_number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell


def canonical(value: Any) -> str:
    """Numbers, texts and lists of them as text: equal for equal values, whatever type or layout they come in."""
    if is_number(value):
        return float(value).hex()
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(SPLITS.get(value, value) if isinstance(value, str) else value, sort_keys=True, default=str)


# Operators


#: What `attended` may be asked for besides the output.
ASKED = ("received", "squares", "log_sums", "weights")

#: Problems for `attend`: sizes, and options.
PROBLEMS: dict[str, dict[str, Any]] = {
    "bare": {},
    "padded": {"padded": True},
    "causal": {"causal": True, "offset": 8},
    "masked": {"masked": True, "scale": 0.3},
    "grouped": {"key_heads": 2, "padded": True, "causal": True},
    "packed": {"packed": [0, 3, 3, 20, 21, 37], "m": 37, "batch": 1, "asked": ASKED[:3]},
    "dropout": {"dropout": 0.3, "padded": True},
    "output": {"asked": (), "padded": True},
    "long": {"n": 300, "m": 290, "batch": 1, "asked": ASKED[:3], "causal": True},
}


def attended(
    inputs: Sequence[Any], scheme: Any, backend: Any, options: Mapping[str, Any], asked: Sequence[str]
) -> tuple[Any, ...]:
    """`attend`, called by the names that its arguments have."""
    from headwise import attend

    names = {"lengths": "key_padding", "query_lengths": "query_padding", "bias": "position_bias", "packed": "packed"}
    returned = {
        "received": "return_received",
        "squares": "return_squares",
        "log_sums": "return_log_sums",
        "weights": "return_weights",
    }
    given = {names.get(name, name): value for name, value in options.items()} | {returned[x]: True for x in asked}
    results = attend(*inputs, scheme=scheme, backend=backend, **given)
    return results if asked else (results,)


def schemes_of(heads: int, width: int) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """The five schemes, and their variants."""
    from headwise import DistanceAware, Plain, RelativePositions, Tener, TransformerXL

    five: dict[str, Callable[[], Any]] = {
        "plain": Plain,
        "distance-aware": lambda: DistanceAware(heads),
        "rpr": lambda: RelativePositions(heads, width, k=3),
        "transformer-xl": lambda: TransformerXL(heads, width),
        "tener": lambda: Tener(heads, width),
    }
    variants: dict[str, Callable[[], Any]] = {
        "distance-aware-unrectified": lambda: DistanceAware(heads, rectify=False),
        "rpr-per-head": lambda: RelativePositions(heads, width, k=3, per_head=True),
        "rpr-keys": lambda: RelativePositions(heads, width, k=2, values=False),
        "rpr-values": lambda: RelativePositions(heads, width, k=2, keys=False),
        "transformer-xl-narrow": lambda: TransformerXL(heads, width, dim=6),
        "tener-released": lambda: Tener(heads, width, released=True),
    }
    mappings: tuple[Any, ...] = ("learnable-sigmoid", "clip", "linear", "exponent", "sigmoid")
    adjusts: tuple[Any, ...] = ("early-multiply", "early-add", "late-multiply", "late-add")
    for mapping, adjust in [*product(mappings, adjusts)][1:]:
        variants[f"distance-aware-{mapping}-{adjust}"] = partial(
            DistanceAware, heads, mapping=mapping, adjust=adjust, threshold=0.8
        )
    return five, variants


def filled(module: Any, spread: float = 0.3) -> Any:
    """A module whose parameters are drawn anew, so that none is 0 and none depends on how it is initialised."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, spread)
    return module


def problem(
    scheme: Callable[[], Any],
    backend: str,
    dtype: str,
    *,
    heads: int = 4,
    width: int = 8,
    key_heads: int = 4,
    batch: int = 2,
    n: int = 37,
    m: int = 45,
    padded: bool = False,
    masked: bool = False,
    asked: Sequence[str] = ASKED,
    **options: Any,
) -> dict[str, Value]:
    """Hashes of what `attend` returns for one problem, and of the gradients of all that goes in."""
    import torch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    precise = torch.float32 if kind.itemsize < 4 else kind
    made = filled(scheme()).to(precise)
    leaves = {
        name: torch.randn(batch, number, length, width, dtype=torch.float64).to(kind).requires_grad_()
        for name, number, length in (("q", heads, n), ("k", key_heads, m), ("v", key_heads, m))
    }
    given = list(leaves.values())
    if padded:
        options |= {"lengths": torch.tensor([m, m // 3]), "query_lengths": torch.tensor([n, n // 2])}
    if masked:
        options["mask"] = torch.rand(batch, 1, n, m) > 0.3
        options["mask"][:, :, 5] = False  # a query without any key
        leaves["bias"] = torch.randn(1, heads, n, m, dtype=torch.float64).to(kind).requires_grad_()
        options["bias"] = leaves["bias"]
    results = attended(given, made, backend, options, asked)
    leaves |= dict(made.named_parameters())
    return results_and_gradients(dict(zip(("output", *asked), results, strict=True)), leaves)


def results_and_gradients(results: dict[str, Any], leaves: dict[str, Any]) -> dict[str, Value]:
    """Hashes of results, and of the gradients that leaves get where each result gets one that is drawn."""
    import torch

    directions = [torch.randn(x.shape, dtype=torch.float64).to(x.dtype) for x in results.values()]
    gradients = torch.autograd.grad(
        list(results.values()), list(leaves.values()), directions, allow_unused=True, materialize_grads=True
    )
    of_leaves = {f"gradient of {name}": x for name, x in zip(leaves, gradients, strict=True)}
    return {name: hash_of_tensor(x) for name, x in (results | of_leaves).items()}


def hash_of_tensor(x: Any) -> str:
    import torch

    raw = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashed(str(x.dtype), str(tuple(x.shape)), raw)


def named(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    return {f"{prefix}: {name}": value for name, value in values.items()}


def operators() -> dict[str, Value]:
    """`attend` with all schemes, by whole maps, by blocks and, where it can, by torch's own kernels."""
    five, variants = schemes_of(heads=4, width=8)
    found: dict[str, Value] = {}
    for backend, dtype in product(("reference", "blockwise"), ("float32", "float64")):
        for (name, scheme), (task, options) in product(five.items(), PROBLEMS.items()):
            found |= named(f"{name} {backend} {dtype} {task}", problem(scheme, backend, dtype, **options))
        for name, scheme in variants.items():
            for task in ("padded", "causal"):
                found |= named(f"{name} {backend} {dtype} {task}", problem(scheme, backend, dtype, **PROBLEMS[task]))
    for dtype in ("float32", "float64"):
        found |= named(f"plain sdpa {dtype}", problem(five["plain"], "sdpa", dtype, padded=True, asked=()))
    for name, scheme in five.items():
        found |= named(f"{name} auto bfloat16", problem(scheme, "auto", "bfloat16", padded=True))
    return found


def kernels() -> dict[str, Value]:
    """The fused kernels, in Triton's interpreter."""
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    sizes: dict[str, Any] = {"heads": 2, "width": 16, "asked": ASKED[:3]}
    problems: dict[str, dict[str, Any]] = {
        "padded": {"n": 20, "m": 27, "key_heads": 2, "padded": True},
        "causal": {"n": 40, "m": 40, "key_heads": 1, "batch": 1, "causal": True, "offset": 5, "dropout": 0.2},
        "masked": {"n": 20, "m": 27, "key_heads": 2, "batch": 1, "masked": True},
        "packed": {"n": 37, "m": 37, "key_heads": 2, "batch": 1, "packed": [0, 3, 3, 20, 21, 37]},
        "output": {"n": 20, "m": 40, "key_heads": 2, "batch": 1, "asked": ()},
    }
    five, variants = schemes_of(heads=2, width=16)
    kept = {"distance-aware": [*problems], "rpr": [*problems]}  # interpreted kernels are slow
    kept |= {name: ["padded", "causal"] for name in ("plain", "transformer-xl", "tener")}
    kept |= {name: ["masked"] for name in ("distance-aware-unrectified", "rpr-per-head", "rpr-keys", "tener-released")}
    found: dict[str, Value] = {}
    for name, tasks in kept.items():
        scheme = (five | variants)[name]
        for task in tasks:
            found |= named(f"{name} float32 {task}", problem(scheme, "triton", "float32", **(sizes | problems[task])))
        if name in five:
            found |= named(f"{name} float16", problem(scheme, "triton", "float16", **(sizes | problems["masked"])))
    for dtype in ("float32", "float16"):
        found |= named(f"together {dtype}", received_together(dtype))
    return found


def received_together(dtype: str) -> dict[str, Value]:
    """What tokens receive in several layers at once, which guides on a GPU ask for."""
    import torch
    from headwise.attention.triton.bunch import Look, received

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    leaves = {
        f"{name}{layer}": torch.randn(2, 40, 2, 16).to(kind).transpose(1, 2).detach().requires_grad_()
        for layer, name in product(range(2), "qk")
    }
    padding = torch.arange(40) < torch.tensor([40, 13])[:, None]
    looks = [
        Look(q=leaves[f"q{layer}"], k=leaves[f"k{layer}"], scale=0.2, causal=False, padding=padding)
        for layer in range(2)
    ]
    return results_and_gradients({f"received{n}": x for n, x in enumerate(received(looks))}, leaves)


def layers() -> dict[str, Value]:
    """Layers with each scheme, in training, with dropout."""
    import torch

    five, _ = schemes_of(heads=4, width=8)
    found: dict[str, Value] = {}
    for name, scheme in five.items():
        for kind, make in layers_of().items():
            torch.manual_seed(0)
            layer, call = make(scheme())
            filled(layer).train()
            x = torch.randn(2, 11, 32, requires_grad=True)
            results = {f"output{n}": y for n, y in enumerate(call(layer, x))}
            found |= named(f"{name} {kind}", results_and_gradients(results, {"x": x, **dict(layer.named_parameters())}))
    return found


def layers_of() -> dict[str, Callable[[Any], tuple[Any, Callable[[Any, Any], tuple[Any, ...]]]]]:
    """What makes each layer of a scheme, with how to call it: with padding, and all that it returns."""
    import torch

    from headwise import DecoderLayer, EncoderLayer, MultiheadAttention

    real = torch.arange(11) < torch.tensor([11, 6])[:, None]
    return {
        "attention": lambda scheme: (
            MultiheadAttention(32, 4, scheme=scheme, dropout=0.2),
            lambda layer, x: layer(x, x, x, key_padding_mask=~real),
        ),
        "encoder": lambda scheme: (
            EncoderLayer(32, 4, scheme=scheme, feedforward=24, dropout=0.2),
            lambda layer, x: (layer(x, key_padding=real),),
        ),
        "decoder": lambda scheme: (
            DecoderLayer(32, 4, scheme=scheme, feedforward=24, dropout=0.2, norm_first=True),
            lambda layer, x: (layer(x, x.flip(1), encoded_padding=real),),
        ),
    }


def guides(bert: Path) -> dict[str, Value]:
    """Every guide's loss, and its gradients, on a batch of a small BERT."""
    import torch
    from transformers import BertForSequenceClassification

    from headwise import guiding

    torch.manual_seed(0)
    begun = BertForSequenceClassification.from_pretrained(bert).train()
    ids = torch.randint(5, 60, (3, 12))
    ids[:, 0], ids[:, 5], ids[:, 11] = 2, 5, 3
    batch = {"input_ids": ids, "attention_mask": (torch.arange(12) < torch.tensor([12, 9, 5])[:, None]).long()}
    labels, rationale = torch.tensor([0, 1, 1]), torch.rand(3, 12)
    found: dict[str, Value] = {}
    for name, guide in guides_of(ids.tolist()).items():
        torch.manual_seed(0)
        model = deepcopy(begun)
        with guiding(model, [guide]) as guided:
            more = {"rationale": rationale} if name == "rationale" else {}
            task = model(**batch, labels=labels, **more).loss
            results = {"task": task, "guide": guided.loss(task)}
            found |= named(name, results_and_gradients(results, dict(model.named_parameters())))
    return found


def guides_of(texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """All guides that need nothing but a model and its tokens."""
    import headwise as hw

    found: dict[str, Any] = {
        "first": hw.First(0.5),
        "next": hw.Next(0.5, layers=[-1]),
        "previous": hw.Previous(0.5, heads=[0, 2]),
        "delimiter": hw.Delimiter(0.5, tokens=[3]),
        "period": hw.Period(0.5, tokens=[5]),
        "pmi": hw.MutualInformation(0.5, texts=texts),
        "rationale": hw.Rationale(0.5),
    }
    for reduction in ("mean", "paper", "released"):
        found[f"mdg-{reduction}"] = hw.MapDiscrimination(0.5, reduction=reduction)
        found[f"pdg-{reduction}"] = hw.PatternDecorrelation(0.5, reduction=reduction)
    for what in ("output", "position", "subspace"):
        found[f"disagreement-{what}"] = hw.Disagreement(0.5, on=what)
    return found | {"mdg-auto": hw.MapDiscrimination("auto"), "next-auto": hw.Next("auto")}


#: What is recorded through Python instead of the command line.
PARTS: dict[str, Callable[..., dict[str, Value]]] = {
    "operators": operators,
    "kernels": kernels,
    "layers": layers,
    "guides": guides,
}


# Recording


def record(out: Path, only: Sequence[str], work: Path) -> int:
    """Do all runs, or some, one after another, and write what they computed."""
    begun = time.perf_counter()
    preload()
    os.chdir(work)
    make_data(work / "data")
    inputs: dict[str, Value] = {
        str(path.relative_to(work)): hashed(path.read_bytes())
        for path in sorted((work / "data").rglob("*"))
        if path.is_file()
    }
    runs: dict[str, Any] = {"data": {"inputs": inputs}}
    failed = []
    for name in only or (*PARTS, *COMMANDS):
        start = time.perf_counter()
        runs[name], why = part(name, work) if name in PARTS else run(name, work)
        if why:
            failed.append(name)
        told = why or ", ".join(f"{len(values)} {section}" for section, values in runs[name].items())
        print(f"{name:<28}{time.perf_counter() - start:6.1f} s  {told}", flush=True)
    about = {**versions(), "seconds": round(time.perf_counter() - begun)}
    out.write_text(json.dumps({"about": about, "runs": runs}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(runs) - 1} runs of headwise {about['headwise']} in {about['seconds']} s, written to {out}")
    print(f"failed: {', '.join(failed)}" if failed else "none failed")
    return 1 if failed else 0


def preload() -> None:
    """Import once what takes long, so that processes that are forked need not; nothing of headwise."""
    import datasets
    import matplotlib.figure
    import scipy.stats
    import sklearn.metrics
    import torch
    from transformers import BertModel, Trainer

    torch.set_num_threads(1)
    assert all((datasets, matplotlib, scipy, sklearn, BertModel, Trainer))
    assert not any(name.partition(".")[0] == "headwise" for name in sys.modules)


def run(name: str, work: Path) -> tuple[Sections, str]:
    """What the commands of a run leave, and the last that was said by one that failed."""
    folder = work / "runs" / name
    folder.mkdir(parents=True)
    for number, line in enumerate(COMMANDS[name]):
        log = work / f"{name}-{number}.log"
        if in_process("fork", command, shlex.split(line.format(out=folder)), work / "data", log):
            return {}, f"FAILED: headwise {line}: {last_line(log)} (see {log})"
    return found_in(folder), ""


def part(name: str, work: Path) -> tuple[Sections, str]:
    """What a part in Python computes, in a process of its own; for kernels one that has not imported Triton yet."""
    log, result = work / f"{name}.log", work / f"{name}.json"
    if in_process("spawn" if name == "kernels" else "fork", computed, name, work / "data" / "bert", result, log):
        return {}, f"FAILED: {last_line(log)} (see {log})"
    return {"tensors": json.loads(result.read_text(encoding="utf-8"))}, ""


def in_process(how: str, target: Callable[..., None], *args: Any) -> int:
    process: Any = multiprocessing.get_context(how).Process(target=target, args=args)  # type: ignore[attr-defined]
    process.start()
    process.join()
    return int(process.exitcode)


def command(args: Sequence[str], folder: Path, log: Path) -> None:
    """`python -m headwise …`, in a process that is forked."""
    said_to(log)
    os.chdir(folder)
    sys.argv = ["headwise", *args]
    runpy.run_module("headwise", run_name="__main__", alter_sys=True)


def computed(name: str, bert: Path, result: Path, log: Path) -> None:
    said_to(log)
    found = guides(bert) if name == "guides" else PARTS[name]()
    result.write_text(json.dumps(found), encoding="utf-8")


def said_to(log: Path) -> None:
    """Send all that this process says to a file."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def last_line(log: Path) -> str:
    return (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing was said"])[-1]


def versions() -> dict[str, str]:
    """What was recorded, and by what; numbers may differ where this does."""
    asked = "import headwise; print(headwise.__file__, headwise.__version__)"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    names = ("torch", "transformers", "numpy", "tokenizers", "triton")
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", lines)
    return {
        "headwise": " ".join(found),
        "python": platform.python_version(),
        **{name: version_of(name) for name in names},
        "processor": model[1] if model else platform.processor(),
    }


def version_of(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not there"


def start_recording(args: argparse.Namespace) -> int:
    """Record in another process, whose environment is fixed, in a work folder of its own."""
    unknown = [name for name in args.only if name not in {**PARTS, **COMMANDS}]
    if unknown:
        print(f"no run {unknown[0]!r}; there: {', '.join([*PARTS, *COMMANDS])}", file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="fingerprint-")) if args.work is None else args.work.absolute()
    if args.work is not None:
        work.mkdir(parents=True)
    (work / "tmp").mkdir()
    own = {"HF_HOME": work / "hf", "HF_DATASETS_CACHE": work / "hf" / "datasets", "TMPDIR": work / "tmp"}
    environment = os.environ | ENVIRONMENT | {name: str(path) for name, path in own.items()}
    asked = [args.python, __file__, "record-here", "--out", args.out.absolute(), "--work", work, "--only", *args.only]
    code = subprocess.run([str(x) for x in asked], env=environment, check=False).returncode
    if code == 0 and args.work is None:
        shutil.rmtree(work)
    else:
        print(f"what the runs left is in {work}")
    return code


# Comparing


def compare(before: Path, after: Path, only: Sequence[str], shown: int) -> int:
    """Tell of each run whether its values are the same; 1 if they are not."""
    a, b = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    for name in a["about"]:
        if name not in ("headwise", "seconds") and a["about"][name] != b["about"].get(name):
            print(f"note: {name} was {a['about'][name]}, is {b['about'].get(name)}: numbers may differ by that alone")
    verdicts = Counter[str]()
    for name in [name for name in a["runs"] if not only or name in only]:
        if name not in b["runs"]:
            verdict, lines = "MISSING", [f"  was not recorded in {after}"]
        else:
            verdict, lines = compared(a["runs"][name], b["runs"][name], shown)
        verdicts[verdict] += 1
        print(f"{name:<28}{verdict}")
        print("".join(f"{line}\n" for line in lines), end="")
    for name in b["runs"].keys() - a["runs"].keys():
        print(f"{name:<28}new, compared with nothing")
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    return 1 if verdicts.keys() & {"DIFFERENT", "MISSING"} else 0


def compared(a: Sections, b: Sections, shown: int) -> tuple[str, list[str]]:
    """The verdict on a run, and what there is to tell: IDENTICAL, RENAMED, MORE or DIFFERENT."""
    verdicts, lines = set(), []
    for section in {**a, **b}:
        verdict, told = compared_section(section, a.get(section, {}), b.get(section, {}))
        verdicts.add(verdict)
        lines += told[:shown]
        if len(told) > shown:
            lines.append(f"  {section}: … and {len(told) - shown} lines more (--lines shows them)")
    ranked = ("DIFFERENT", "MORE", "RENAMED", "IDENTICAL")
    if not a and not b:
        return "DIFFERENT", ["  failed in both"]
    return next(verdict for verdict in ranked if verdict in verdicts), lines


def compared_section(section: str, a: Mapping[str, Value], b: Mapping[str, Value]) -> tuple[str, list[str]]:
    """Values that have the same name and are equal are one thing; others may be found under other names."""
    gone = {name: value for name, value in a.items() if b.get(name) != value}
    new = {name: value for name, value in b.items() if a.get(name) != value}
    by_value: dict[str, list[str]] = defaultdict(list)
    for name, value in new.items():
        by_value[str(value)].append(name)
    renamed, changed, lost = [], [], []
    for name, value in gone.items():
        if name in b:
            changed.append(f"  {section}: CHANGED {name}: {difference(value, b[name])}")
        elif by_value[str(value)]:
            found = by_value[str(value)].pop(0)
            renamed.append(f"  {section}: {name} is now {found}")
            del new[found]
        else:
            lost.append(f"  {section}: LOST {name}: {readable(value)}")
    more = [f"  {section}: NEW {name}: {readable(value)}" for name, value in new.items() if name not in a]
    wrong = [*changed, *lost] or (more if section not in MAY_GROW else [])
    verdict = "DIFFERENT" if wrong else "MORE" if more else "RENAMED" if renamed else "IDENTICAL"
    return verdict, [*changed, *lost, *more, *renamed]


def readable(value: Value) -> str:
    if isinstance(value, list):
        return ", ".join(map(readable, value[:4])) + (" …" if len(value) > 4 else "")
    step, _, number = value.rpartition(": ")
    try:
        return f"{step}: {float.fromhex(number)!r}".removeprefix(": ") if "x" in number else value
    except ValueError:
        return value


def difference(before: Value, after: Value) -> str:
    """The first difference of two values."""
    if isinstance(before, list) and isinstance(after, list):
        pairs = [(x, y) for x, y in zip(before, after, strict=False) if x != y]
        if not pairs:
            return f"{len(before)} numbers, now {len(after)}"
        return f"{len(pairs)} of {len(before)} numbers, first {readable(pairs[0][0])}, now {readable(pairs[0][1])}"
    return f"{readable(before)}, now {readable(after)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record", help="do all runs and write what they computed")
    recording.add_argument("--python", default=sys.executable, help="the interpreter to run headwise with")
    here = commands.add_parser("record-here")  # what the process does that `record` starts
    for one in (recording, here):
        one.add_argument("--out", type=Path, required=True, metavar="FILE.json")
        one.add_argument("--only", nargs="*", default=[], metavar="NAME", help="some runs instead of all")
        one.add_argument("--work", type=Path, metavar="FOLDER", help="a new folder for data and runs, to be kept")
    comparing = commands.add_parser("compare", help="tell whether two records hold the same values")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--only", nargs="*", default=[], metavar="NAME", help="some runs instead of all")
    comparing.add_argument("--lines", type=int, default=12, help="the most lines of a section (12)")
    args = parser.parse_args()
    if args.command == "compare":
        return compare(args.before, args.after, args.only, args.lines)
    return start_recording(args) if args.command == "record" else record(args.out, args.only, args.work)


if __name__ == "__main__":
    sys.exit(main())
