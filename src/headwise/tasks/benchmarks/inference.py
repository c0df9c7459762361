"""Natural language inference: SNLI, MultiNLI, MedNLI, RTE and HealthVer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from headwise.tasks.arrow_cache import Read
from headwise.tasks.benchmarks.layout import Patterns, find_sources, format_files
from headwise.tasks.build_examples import build_examples, read_sources
from headwise.tasks.formats import Batch
from headwise.tasks.labels import EXCLUDED
from headwise.tasks.task import FINE_TUNING, Examples, Task

NLI_CLASSES = ("entailment", "neutral", "contradiction")


def exclude_empty_texts(read: Read, path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read batches, and mark rows with an empty text, of which published data sets have a few, as excluded."""
    for batch in read(path, columns):
        if columns is None:
            yield batch
            continue
        values = [batch.columns[name] for name in columns]
        rows = [row if all(row) else [EXCLUDED] * len(row) for row in zip(*values, strict=True)]
        yield replace(batch, columns=dict(zip(columns, zip(*rows, strict=True), strict=True)))


@dataclass(frozen=True)
class PairLoader:
    """Loads a data set of text pairs.

    Args:
        title: The name in the recipe.
        patterns: The files of each split. Without train, dev is used for training; test alone is split.
        class_names: The classes.
        hub_name: The name on the hub.
        text, pair, label: The columns; by default they are chosen by their names.
        dev_fraction: The fraction of train that becomes dev if there is no dev split.
        note: A remark on the splits without a dev file, for the recipe.
    """

    title: str
    patterns: Patterns
    class_names: Sequence[str]
    hub_name: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    dev_fraction: float = 0.1
    note: str = ""

    def __call__(self, data: Path | None, seed: int, cache: Path | None) -> Examples:
        """Load the pairs."""
        sources = find_sources(data, self.patterns, hub_name=self.hub_name)
        sources = {
            split: replace(
                source, read=partial(exclude_empty_texts, source.read), cache_key=f"{source.cache_key} marked"
            )
            for split, source in sources.items()
        }
        note = "" if "dev" in sources else self.note
        if "train" not in sources and "dev" in sources:
            sources = {"train" if split == "dev" else split: source for split, source in sources.items()}
            note = "no train file: the published dev is used for training"
        if list(sources) == ["test"]:
            sources = {"all": sources["test"]}
            note = "no train file"
        rows = read_sources(sources, "classification", text=self.text, pair=self.pair, label=self.label, cache=cache)
        return build_examples(
            rows,
            seed=seed,
            origin=f"{self.title} ({format_files(data, sources)}){note and '; '}{note}",
            class_names=self.class_names,
            exclusion_reason="no majority label, or an empty text",
            dev_fraction=self.dev_fraction,
        )


SNLI = Task(
    name="snli",
    label_type="classification",
    about="relation of two image captions: entailment, neutral or contradiction",
    paper="distance-aware transformer, Table 4. It states 55k rows and 2 classes; SNLI has 550k rows and 3 classes",
    source="hub:stanfordnlp/snli; snli_1.0_{train,dev,test}.jsonl; {train,dev,test}.csv: label, premise, hypothesis",
    read=PairLoader(
        "SNLI",
        {
            "train": ("snli_1.0_train.jsonl", "train.*", "train-*", "train_subset.*", "train"),
            "dev": ("snli_1.0_dev.jsonl", "dev.*", "validation.*", "validation-*", "validation"),
            "test": ("snli_1.0_test.jsonl", "test.*", "test-*", "test"),
        },
        NLI_CLASSES,
        hub_name="stanfordnlp/snli",
    ),
    pair=True,
)

MULTINLI = Task(
    name="multinli",
    label_type="classification",
    about="relation of two sentences of ten genres: entailment, neutral or contradiction; test is dev-matched",
    paper="attention guiding, Table 1: 5 epochs",
    source="hub:nyu-mll/multi_nli; multinli_1.0_{train,dev_matched}.jsonl; mnli_{train,dev}.csv; {train,dev,test}.csv",
    read=PairLoader(
        "MultiNLI",
        {
            "train": ("multinli_1.0_train.jsonl", "mnli_train.*", "train.*", "train-*", "train"),
            "dev": ("dev.*",),
            "test": ("multinli_1.0_dev_matched.jsonl", "mnli_dev.*", "dev_matched.*", "validation_matched*", "test.*"),
        },
        NLI_CLASSES,
        hub_name="nyu-mll/multi_nli",
        dev_fraction=0.025,
        note="test is the published dev-matched, as the published test has no labels",
    ),
    pair=True,
)

MEDNLI = Task(
    name="mednli",
    label_type="classification",
    about="relation of two sentences of clinical notes: entailment, neutral or contradiction",
    paper="attention guiding, Table 1: 20 epochs",
    source="mli_{train,dev,test}_v1.jsonl from PhysioNet, which requires credentials",
    read=PairLoader("MedNLI", {split: (f"mli_{split}_v1.jsonl",) for split in ("train", "dev", "test")}, NLI_CLASSES),
    pair=True,
    fine_tuning=replace(FINE_TUNING, epochs=20),
)

RTE = Task(
    name="rte",
    label_type="classification",
    about="relation of two texts from news and Wikipedia: entailment or not",
    source="hub:nyu-mll/glue:rte; {train,dev}.tsv of GLUE; or rte_{train,dev}.csv",
    read=PairLoader(
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
    about="relation of evidence to a health claim: supports, refutes or neutral",
    source="healthver_{train,dev,test}.csv with claim, evidence, label. Without a train file, dev is used for training",
    read=PairLoader(
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
