"""What a task is, and what it gives to training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks import metrics

LabelType = Literal["classification", "multi-label", "regression", "tokens", "ranking", "clicks"]


@dataclass(frozen=True)
class Examples:
    """Rows to learn from and to be judged by.

    Every split has the columns `text`, `label` and `row` (the row's number in its file), pairs also `pair`. A label is
    a class's number, a rating, or, for several labels a text, a vector of 0 and 1. Tokens have `words` instead of
    `text`, and a list of numbers as label. Ranking has `query` and `document` besides: in dev and test, a query's rows
    are the candidates to be ranked.

    Args:
        splits: by name: train, dev and test. Where one is missing, the recipe says so.
        labels: the classes' names in the order of their numbers; none for regression.
        recipe: where the rows come from and how they were split; it is printed with every result.
        ordered_by: what a query's candidates in dev and test are in the order of, the best first; None for no order.
    """

    splits: Mapping[str, Dataset]
    labels: tuple[str, ...]
    recipe: str
    ordered_by: str | None = None


@dataclass(frozen=True)
class TrainingDefaults:
    """How a task is trained unless the user says otherwise."""

    epochs: int
    learning_rate: float
    batch_size: int
    max_length: int


#: Attention guiding (Wang et al. 2022): Adam 1e-5, L = 256, batches of 64. Its epochs are each task's own.
FINE_TUNING = TrainingDefaults(epochs=5, learning_rate=1e-5, batch_size=64, max_length=256)

#: Distance-aware transformer (Wu et al. 2021): Adam 1e-3. The paper leaves the rest open; epochs end early.
FROM_SCRATCH = TrainingDefaults(epochs=10, learning_rate=1e-3, batch_size=64, max_length=256)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learnt.

    Args:
        name: what the command line calls it.
        label_type: what a label is.
        about: what it asks, in a few words.
        paper: which paper uses it; empty for none of ours.
        source: where its data comes from: files of which layout, or a name on the hub.
        read: the data → examples, given a path (None: from the hub), a seed and a cache folder; None for the user's
            own data, which is read already.
        pair: whether a row has two texts.
        hierarchical: whether texts are so long that sentences are read first, then the document.
        fine_tuning: how a trained model is trained further.
        from_scratch: how a model of ours is trained.
    """

    name: str
    label_type: LabelType
    about: str
    paper: str = ""
    source: str = ""
    read: Callable[[Path | None, int, Path | None], Examples] | None = None
    pair: bool = False
    hierarchical: bool = False
    fine_tuning: TrainingDefaults = FINE_TUNING
    from_scratch: TrainingDefaults = FROM_SCRATCH

    @property
    def primary(self) -> str:
        """The metric that picks the best epoch and model."""
        return metrics.get_metrics(self.label_type).PRIMARY

    @property
    def higher_is_better(self) -> bool:
        return self.label_type != "regression"

    def load(self, data: Path | str | None = None, *, seed: int = 0, cache: Path | None = None) -> Examples:
        """The examples.

        Args:
            data: a folder or file with the layout that `source` tells; when not given, the data comes from the hub.
            seed: of what is drawn: splits that are not published, and negative examples.
            cache: the folder for what was read; by default one beside Hugging Face's data sets.

        Raises:
            UserError: the data is not there or not sound.
        """
        if self.read is None:
            raise UserError(f"{self.name}: the user's own data is read by headwise.tasks.load_files")
        return self.read(None if data is None else Path(data), seed, cache)

    def metrics(self, scores: Any, rows: Dataset) -> dict[str, float]:
        """All metrics of the kind; `primary` is one of them.

        Args:
            scores: a model's output for each row: (rows, classes), for regression (rows,) or (rows, 1), for tokens one
                (words, classes) for each row, for ranking (rows,), (rows, 1) or (rows, 2).
            rows: a split, or rows of one, in the order of the scores.
        """
        return metrics.get_metrics(self.label_type).compute(scores, rows)

    def standard_error(self, scores: Any, rows: Dataset, *, seed: int = 0) -> float:
        """The standard error of the primary metric, by bootstrap over rows (over queries, for ranking)."""
        label_type = metrics.get_metrics(self.label_type)
        return metrics.standard_error(label_type.row_statistics(scores, rows), label_type.from_sums, seed=seed)
