"""Tasks and their examples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset

from headwise.errors import UserError
from headwise.tasks import metrics
from headwise.tasks.metrics.labels import ClassificationMetrics, MultiLabelMetrics

LabelType = Literal["classification", "multi-label", "regression", "tokens", "ranking", "clicks", "translation"]


@dataclass(frozen=True)
class Examples:
    """Labeled rows for training and evaluation.

    Every split has the columns `text`, `label` and `row` (the index of the row in its file); text pairs also have
    `pair`. A label is a class index, a rating, or a vector of 0 and 1 for multi-label tasks. Token tasks have `words`
    instead of `text`, and a list of class indices as label. Rankings also have `query` and `document`: in dev and test,
    the rows of a query are the candidates to rank.

    Args:
        splits: The rows of train, dev and test; splits may be missing, as the recipe states.
        labels: The class names, in the order of their indices; empty for regression.
        recipe: The origin of the rows and how they were split; printed with every result.
        ordered_by: The method that ordered each query's candidates in dev and test, best first; None without order.
        duplicates: How many texts are in two splits; empty if there are none.
    """

    splits: Mapping[str, Dataset]
    labels: tuple[str, ...]
    recipe: str
    ordered_by: str | None = None
    duplicates: str = ""


@dataclass(frozen=True)
class TrainingDefaults:
    """Hyperparameters of a task's paper, for `headwise reproduce`. `headwise train` uses only `max_length`."""

    epochs: int
    learning_rate: float
    batch_size: int
    max_length: int


#: Attention guiding (Wang et al. 2022): Adam 1e-5, L = 256, batches of 64. The number of epochs depends on the task.
FINE_TUNING = TrainingDefaults(epochs=5, learning_rate=1e-5, batch_size=64, max_length=256)

#: Distance-aware transformer (Wu et al. 2021): Adam 1e-3. The paper does not state the rest; training stops early.
FROM_SCRATCH = TrainingDefaults(epochs=10, learning_rate=1e-3, batch_size=64, max_length=256)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task.

    Args:
        name: The name on the command line.
        label_type: The type of its labels.
        about: A short description.
        paper: The paper that uses the task; empty if there is none.
        source: The origin of the data: the file layout, or a name on the hub.
        read: A function of a path (None: the hub), a seed and a cache directory that returns the examples; None for the
            user's own data, which is loaded by `headwise.tasks.load_files`.
        pair: Whether a row has two texts.
        hierarchical: Whether texts are long, so that sentences are encoded before documents.
        fine_tuning: Hyperparameters for pretrained models.
        from_scratch: Hyperparameters for models that are trained from scratch.
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
        """The metric that selects the best epoch and model."""
        return metrics.primary_metric(self.label_type)

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the primary metric is better."""
        return self.label_type != "regression"

    def load(self, data: Path | str | None = None, *, seed: int = 0, cache: Path | None = None) -> Examples:
        """Load the examples.

        Args:
            data: A directory or file with the layout that `source` describes; None loads from the hub.
            seed: The seed of random splits and of sampled negative examples.
            cache: The cache directory; by default a subdirectory of the cache of Hugging Face's datasets.

        Raises:
            UserError: The data does not exist or is invalid.
        """
        if self.read is None:
            reader = {"mind": "mind.read", "translation": "translation.read_pairs"}.get(self.name, "load_files")
            raise UserError(f"{self.name}: use headwise.tasks.{reader} to load the data")
        return self.read(None if data is None else Path(data), seed, cache)

    def metrics(self, scores: Any, rows: Dataset) -> dict[str, float]:
        """Compute all metrics of the label type, including the primary metric.

        Args:
            scores: The outputs of a model: (rows, classes); for regression (rows,) or (rows, 1); for tokens one array
                (words, classes) per row; for ranking (rows,), (rows, 1) or (rows, 2).
            rows: A split or some of its rows, in the order of the scores.
        """
        return metrics.get_metrics(self.label_type).compute(scores, rows)

    def standard_error(self, scores: Any, rows: Dataset, *, metric: str | None = None, seed: int = 0) -> float:
        """Estimate the standard error of a metric by bootstrap over rows, or over queries for rankings.

        Args:
            scores: The outputs of a model, as in `metrics`.
            rows: A split or some of its rows, in the order of the scores.
            metric: The primary metric (default), or macro_f1 of label types that have it.
            seed: The seed of the bootstrap samples.
        """
        label_metrics = metrics.get_metrics(self.label_type)
        if metric == "macro_f1" and isinstance(label_metrics, ClassificationMetrics | MultiLabelMetrics):
            counts = label_metrics.class_counts(scores, rows)
            return metrics.standard_error(counts, label_metrics.macro_f1_from_sums, seed=seed)
        if metric not in (None, self.primary):
            raise ValueError(f"metric must be {self.primary} or, for classes, macro_f1; got {metric!r}")
        return metrics.standard_error(label_metrics.row_statistics(scores, rows), label_metrics.from_sums, seed=seed)
