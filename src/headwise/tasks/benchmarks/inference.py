"""Does one text follow from another? SNLI, MultiNLI, MedNLI, RTE and HealthVer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from headwise.tasks.arrow_cache import Read
from headwise.tasks.benchmarks.layout import Patterns, named, sources
from headwise.tasks.build_examples import examples, read_sources
from headwise.tasks.formats import Batch
from headwise.tasks.labels import LEFT_OUT
from headwise.tasks.task import FINE_TUNING, Examples, Task

THREE = ("entailment", "neutral", "contradiction")


def marked(read: Read, path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """The batches, where a row with an empty text is one to be left out: the published sets have a few."""
    for batch in read(path, columns):
        if columns is None:
            yield batch
            continue
        values = [batch.columns[name] for name in columns]
        rows = [row if all(row) else [LEFT_OUT] * len(row) for row in zip(*values, strict=True)]
        yield replace(batch, columns=dict(zip(columns, zip(*rows, strict=True), strict=True)))


@dataclass(frozen=True)
class Pairs:
    """How the files of a set of pairs become examples.

    Args:
        title: what the set is called.
        patterns: the files of each split. Without train, dev is learnt from; test alone is split.
        names: the classes.
        hub_name: what it is called on the hub.
        text, pair, label: the columns; found when not given.
        dev: the share of train that becomes dev where dev has no file.
        note: what a reader should know of the splits, when all are there.
    """

    title: str
    patterns: Patterns
    names: Sequence[str]
    hub_name: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    dev: float = 0.1
    note: str = ""

    def __call__(self, data: Path | None, seed: int, cache: Path | None) -> Examples:
        found = sources(data, self.patterns, hub_name=self.hub_name)
        found = {
            split: replace(source, read=partial(marked, source.read), way=f"{source.way} marked")
            for split, source in found.items()
        }
        note = self.note
        if "train" not in found and "dev" in found:
            found = {"train" if split == "dev" else split: source for split, source in found.items()}
            note = "no train file: learnt from is the published dev"
        if list(found) == ["test"]:
            found = {"all": found["test"]}
            note = "no train file"
        rows = read_sources(found, "classification", text=self.text, pair=self.pair, label=self.label, cache=cache)
        origin = f"{self.title} ({named(data, found)}){note and '; '}{note}"
        left_out = "no label that its annotators agree on, or an empty text"
        return examples(rows, seed=seed, origin=origin, names=self.names, left_out=left_out, dev=self.dev)


SNLI = Task(
    name="snli",
    label_type="classification",
    about="entailment, neutral or contradiction: captions of pictures",
    paper="distance-aware transformer, Table 4 (its 55k rows and 2 classes do not match SNLI's 550k and 3)",
    source="hub:stanfordnlp/snli; snli_1.0_{train,dev,test}.jsonl; {train,dev,test}.csv: label, premise, hypothesis",
    read=Pairs(
        "SNLI",
        {
            "train": ("snli_1.0_train.jsonl", "train.*", "train-*", "train_subset.*", "train"),
            "dev": ("snli_1.0_dev.jsonl", "dev.*", "validation.*", "validation-*", "validation"),
            "test": ("snli_1.0_test.jsonl", "test.*", "test-*", "test"),
        },
        THREE,
        hub_name="stanfordnlp/snli",
    ),
    pair=True,
)

MULTINLI = Task(
    name="multinli",
    label_type="classification",
    about="entailment, neutral or contradiction: ten genres; judged on the matched ones",
    paper="attention guiding, Table 1: 5 epochs",
    source="hub:nyu-mll/multi_nli; multinli_1.0_{train,dev_matched}.jsonl; mnli_{train,dev}.csv",
    read=Pairs(
        "MultiNLI",
        {
            "train": ("multinli_1.0_train.jsonl", "mnli_train.*", "train.*", "train-*", "train"),
            "test": ("multinli_1.0_dev_matched.jsonl", "mnli_dev.*", "dev_matched.*", "validation_matched*"),
        },
        THREE,
        hub_name="nyu-mll/multi_nli",
        dev=0.025,
        note="test is the published dev-matched, as the published test has no labels",
    ),
    pair=True,
)

MEDNLI = Task(
    name="mednli",
    label_type="classification",
    about="entailment, neutral or contradiction: clinical notes",
    paper="attention guiding, Table 1: 20 epochs",
    source="mli_{train,dev,test}_v1.jsonl, from PhysioNet, for those with credentials",
    read=Pairs("MedNLI", {split: (f"mli_{split}_v1.jsonl",) for split in ("train", "dev", "test")}, THREE),
    pair=True,
    fine_tuning=replace(FINE_TUNING, epochs=20),
)

RTE = Task(
    name="rte",
    label_type="classification",
    about="entailment or not: news and encyclopedia",
    source="hub:nyu-mll/glue:rte; GLUE's {train,dev}.tsv; rte_{train,dev}.csv",
    read=Pairs(
        "RTE",
        {
            "train": ("rte_train.*", "train.*", "train-*", "train"),
            "test": ("rte_dev.*", "dev.*", "validation.*", "validation-*", "validation"),
        },
        ("entailment", "not_entailment"),
        hub_name="nyu-mll/glue:rte",
        note="test is the published dev, as the published test has no labels",
    ),
    pair=True,
    fine_tuning=replace(FINE_TUNING, epochs=20),
)

HEALTHVER = Task(
    name="healthver",
    label_type="classification",
    about="does the evidence support the health claim, refute it or neither?",
    source="healthver_{train,dev,test}.csv with claim, evidence, label; without train, dev is learnt from",
    read=Pairs(
        "HealthVer",
        {split: (f"healthver_{split}.csv", f"{split}.*") for split in ("train", "dev", "test")},
        ("Supports", "Neutral", "Refutes"),
        text="claim",
        pair="evidence",
        label="label",
    ),
    pair=True,
    fine_tuning=replace(FINE_TUNING, epochs=20),
)
