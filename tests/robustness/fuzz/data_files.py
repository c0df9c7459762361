"""Data files: tables, CoNLL, click logs, titles, line-aligned texts and word vectors."""

import csv
import gzip
import io
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.robustness.fuzz.kinds import Kind, mutate_file, write_file
from tests.robustness.fuzz.mutations import TEXTS, Mutation, mutate_bytes, mutate_gzip, mutate_jsonl, mutate_text

CSV = b"text,label\n" + b"".join(b'"text, %d",%d\n' % (i, i % 2) for i in range(30))
JSONL = b"".join(b'{"text": "text %d", "label": %d}\n' % (i, i % 2) for i in range(30))
CONLL = b"".join(b"the O\ncity B-LOC\nno%d O\n\n" % i for i in range(20))
NEWS = b"".join(b"N%d\tnews\tnews\ttitle %d\t\t\t[]\t[]\n" % (i, i) for i in range(5))
CLICKS = b"".join(b"%d\tU1\t11/9/2019 9:00:00 AM\tN1 N2\tN3-1 N4-0\n" % i for i in range(5))
GLOVE = b"a 0.1 0.2 0.3\nthe 1 2 3\nother 1e-3 2 -3\n"


def read_table(directory: Path, out: Path) -> None:
    """Load a file for training. No row may be lost."""
    from headwise.tasks import load_files

    (path,) = directory.iterdir()
    size = path.stat().st_size
    label_type: Any = ("regression", "multi-label", "classification", "classification")[size % 4]
    _, examples = load_files(path, label_type=label_type, cache=out)
    num_rows = sum(len(split) for split in examples.splits.values())
    expected = count_rows(path)
    assert expected is None or num_rows == expected, f"the file has {expected} rows, {num_rows} were read"


def count_rows(path: Path) -> int | None:
    """Return the number of rows that a file has, counted independently; None for Parquet."""
    if "parquet" in path.name:
        return None
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    if "jsonl" in path.name:
        return sum(not line.isspace() for line in io.StringIO(text, newline="\n"))
    if "tsv" in path.name:
        return sum(line.strip("\r\n") != "" for line in io.StringIO(text, newline="\n")) - 1
    csv.field_size_limit(2**30)
    return sum(bool(row) for row in csv.reader(io.StringIO(text, newline=""))) - 1


def read_rows(directory: Path, out: Path) -> None:
    """Read all columns of a file, as predict does, and write them in the same format."""
    import pyarrow as pa

    from headwise.tasks.formats import read_batches, read_head
    from headwise.tasks.formats.parts import plan_parts
    from headwise.training.core.table_writer import TableFormat

    (path,) = directory.iterdir()
    table = TableFormat.from_head(out / path.name, read_head(path), {"predicted": pa.string()})
    outputs: list[Path] = []
    for part in plan_parts(path, 1000, copy=out / "copy"):
        outputs.append(out / f"part-{len(outputs)}")
        with table.open_part(outputs[-1], is_first=part.first_row == 0) as write:
            for batch in read_batches(path, part=part):
                write(dict(batch.columns) | {"predicted": ["a"] * len(batch.rows)})
    table.join(outputs)
    for temporary in (out / "copy", *outputs):
        temporary.unlink(missing_ok=True)


def read_sentences(directory: Path, out: Path) -> None:
    from headwise.tasks import load_files

    load_files(directory / "data.conll", label_type="tokens", cache=out)


def prepare_log(directory: Path) -> None:
    (directory / "train").mkdir()
    (directory / "train" / "news.tsv").write_bytes(NEWS)
    (directory / "train" / "behaviors.tsv").write_bytes(CLICKS)


def mutate_log(random: Random, directory: Path) -> None:
    for name in random.choice([["news.tsv"], ["behaviors.tsv"], ["news.tsv", "behaviors.tsv"]]):
        mutate_file(f"train/{name}", mutate_text)(random, directory)


def read_log(directory: Path, out: Path) -> None:
    from headwise.tasks import mind

    log = mind.read(directory, cache=out)
    _ = log.splits["train"].counts


def simulate_log(directory: Path, out: Path) -> None:
    """Simulate a click log with the titles of a file."""
    from headwise.simulation.config import SimulationConfig
    from headwise.simulation.mind import simulate

    options: dict[str, Any] = {"impressions": 10, "users": 2, "candidates": 2, "history": 2, "past": 1}
    simulate(SimulationConfig(titles=directory / "titles.csv", **options), out / "log")


def prepare_pairs(directory: Path) -> None:
    (directory / "train.en").write_bytes(b"a cat\na dog\n" * 20)
    (directory / "train.de").write_bytes(b"eine Katze\nein Hund\n" * 20)


def mutate_pairs(random: Random, directory: Path) -> None:
    for name in random.choice([["train.en"], ["train.de"], ["train.en", "train.de"]]):
        mutate_file(name, mutate_text)(random, directory)


def read_aligned(directory: Path, out: Path) -> None:
    from headwise.tasks.translation import read_pairs

    read_pairs(directory, "en", "de", cache=out)


def read_word_vectors(directory: Path, out: Path) -> None:
    from headwise.models import read_vectors

    (path,) = directory.iterdir()
    vectors, _ = read_vectors(path, {"[PAD]": 0, "a": 1, "the": 2})
    assert vectors.isfinite().all(), "vectors are not finite"


def prepare_parquet(directory: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"text": [f"text {i}" for i in range(30)], "label": [i % 2 for i in range(30)]}
    pq.write_table(pa.table(columns), directory / "data.parquet")


def prepare_gzipped_parquet(directory: Path) -> None:
    prepare_parquet(directory)
    path = directory / "data.parquet"
    (directory / "data.parquet.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def mutate_parquet(random: Random, directory: Path) -> None:
    """Change a column to another type, or change bytes of the file."""
    path = directory / "data.parquet"
    if random.random() < 0.5:
        write_odd_parquet(random, path)
    if random.random() < 0.6:
        path.write_bytes(mutate_bytes(random, path.read_bytes()))


def write_odd_parquet(random: Random, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = random.choice([0, 1, 30])
    arrays: list[Any] = [
        pa.array([[("a", 1)]] * count, pa.map_(pa.string(), pa.int64())),
        pa.array([2**50] * count, pa.timestamp("s")),
        pa.array([-(2**61)] * count, pa.timestamp("us", "UTC")),
        pa.array([2**30] * count, pa.date32()),
        pa.array([2**62] * count, pa.duration("s")),
        pa.array([b"\xff\xfe"] * count, pa.binary()),
        pa.array([b"\xff\xfe"] * count, pa.binary()).view(pa.string()),
        pa.array([None] * count, pa.null()),
        pa.array([{"a": [1, 2]}] * count),
        pa.array([["a", None]] * count),
        pa.array([float("nan")] * count),
        pa.array([True] * count),
        pa.array(["a", "b", None, "", " "] * (count // 5), pa.string()).dictionary_encode(),
        pa.array([10**30] * count, pa.decimal256(60, 3)),
        pa.array([random.choice(TEXTS) for _ in range(count)]),
        pa.array([f"text {i}" for i in range(count)], pa.large_string()),
        pa.array([i % 2 for i in range(count)], pa.uint64()),
        pa.array(["x" * 10**6] * min(count, 2)),
    ]
    names = random.choice([["text", "label"], ["text", "text"], ["a", "b"], ["text", random.choice(TEXTS)], ["text"]])
    chosen = random.choices(arrays, k=len(names))
    length = min(map(len, chosen))
    table = pa.Table.from_arrays([array.slice(0, length) for array in chosen], names=names)
    pq.write_table(table, path, compression=random.choice(["snappy", "gzip", "zstd", "none"]))


def write_archive(directory: Path) -> None:
    import numpy as np

    np.savez(directory / "vectors.npz", words=np.array(["a", "the"]), vectors=np.ones((2, 3), np.float32))


def mutate_archive(random: Random, directory: Path) -> None:
    """Store arrays of other types and shapes, which include pickled objects, or change bytes of the file."""
    import numpy as np

    path = directory / "vectors.npz"
    if random.random() < 0.5:
        words = [np.array(["a", "the"]), np.array(["a"]), np.array([b"a", b"\xff"]), np.array([1, 2]), np.array("a")]
        words += [
            np.array([Path("a"), "the"], dtype=object),
            np.array([]),
            np.array(["a", "a"]),
            np.zeros((2, 2), "U1"),
        ]
        vectors: list[Any] = [
            np.ones((2, 3), np.float32),
            np.ones((2, 0)),
            np.ones(2),
            np.ones((3, 2, 1)),
            np.array(1.0),
        ]
        vectors += [np.full((2, 3), np.nan), np.array([["x"] * 3] * 2), np.ones((2, 3), complex), np.ones((2, 3), bool)]
        vectors += [np.array([[None] * 3] * 2, dtype=object), np.ones((2, 3), "M8[s]"), np.ones((2, 3), "V4")]
        name = random.choice(["vectors", "vectors", "x", "words.npy"])
        np.savez(path, **{"words": random.choice(words), name: random.choice(vectors)})
    if random.random() < 0.6:
        path.write_bytes(mutate_bytes(random, path.read_bytes()))


def table(name: str, content: bytes, mutation: Mutation, *, shares: tuple[int, int]) -> list[Kind]:
    """Return the kinds of one table format: as training data, and as a file to label, which is read much faster."""
    path = f"data.{name}"
    make = partial(
        Kind,
        requires=("headwise.tasks", "headwise.training.core.table_writer"),
        prepare=write_file(path, content),
        mutate=mutate_file(path, mutation),
    )
    return [
        make(name=name, share=shares[0], read=read_table),
        make(name=f"{name}, predict", share=shares[1], read=read_rows),
    ]


PARQUET: dict[str, Any] = {
    "requires": ("headwise.tasks", "headwise.training.core.table_writer"),
    "prepare": prepare_parquet,
    "mutate": mutate_parquet,
}

KINDS = [
    *table("csv", CSV, mutate_text, shares=(7, 14)),
    *table("tsv", CSV.replace(b", ", b" ").replace(b",", b"\t"), mutate_text, shares=(6, 14)),
    *table("jsonl", JSONL, mutate_jsonl, shares=(7, 14)),
    *table("csv.gz", gzip.compress(CSV), mutate_gzip(mutate_text), shares=(6, 6)),
    *table("jsonl.gz", gzip.compress(JSONL), mutate_gzip(mutate_jsonl), shares=(6, 6)),
    Kind(name="parquet", share=8, **PARQUET, read=read_table),
    Kind(name="parquet, predict", share=10, **PARQUET, read=read_rows),
    Kind(
        name="parquet.gz",
        share=6,
        requires=("headwise.tasks",),
        prepare=prepare_gzipped_parquet,
        mutate=mutate_file("data.parquet.gz", mutate_gzip(mutate_bytes)),
        read=read_table,
    ),
    Kind(
        name="conll",
        share=6,
        requires=("headwise.tasks",),
        prepare=write_file("data.conll", CONLL),
        mutate=mutate_file("data.conll", mutate_text),
        read=read_sentences,
    ),
    Kind(
        name="click log",
        share=6,
        requires=("headwise.tasks.mind",),
        prepare=prepare_log,
        mutate=mutate_log,
        read=read_log,
    ),
    Kind(
        name="titles, simulate",
        share=6,
        requires=("headwise.simulation.mind",),
        prepare=write_file("titles.csv", CSV),
        mutate=mutate_file("titles.csv", mutate_text),
        read=simulate_log,
    ),
    Kind(
        name="line-aligned texts",
        share=8,
        requires=("headwise.tasks.translation",),
        prepare=prepare_pairs,
        mutate=mutate_pairs,
        read=read_aligned,
    ),
    Kind(
        name="word vectors",
        share=12,
        requires=("headwise.models",),
        prepare=write_file("vectors.txt", GLOVE),
        mutate=mutate_file("vectors.txt", mutate_text),
        read=read_word_vectors,
    ),
    Kind(
        name="word vectors, gzip",
        share=6,
        requires=("headwise.models",),
        prepare=write_file("vectors.gz", gzip.compress(GLOVE)),
        mutate=mutate_file("vectors.gz", mutate_gzip(mutate_text)),
        read=read_word_vectors,
    ),
    Kind(
        name="word vectors, npz",
        share=10,
        requires=("headwise.models",),
        prepare=write_archive,
        mutate=mutate_archive,
        read=read_word_vectors,
    ),
]
