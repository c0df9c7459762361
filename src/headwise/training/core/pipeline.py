"""The training pipeline: one run, from its configuration to a directory with the model, metrics and model card.

`Pipeline.run` executes all steps of a run. The subclasses in `text`, `translation` and `recommendation` implement the
steps that depend on the task type.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedModel, set_seed

from headwise.inspection.inspected_model import InspectedModel
from headwise.training.core import run_dir
from headwise.training.core.arguments import get_trackers
from headwise.training.core.callbacks import TrainingTimer
from headwise.training.core.card import Card, render_card
from headwise.training.core.checkpointing import fit, gather_weights
from headwise.training.core.config import RunConfig
from headwise.training.core.distributed import main_process_first, main_process_only, state
from headwise.training.core.environment import describe_device, get_versions, reset_peak_memory
from headwise.training.core.failures import CheckedTrainer
from headwise.training.core.metrics import Evaluation, build_metrics, count_parameters
from headwise.training.core.pretrained import is_scheme
from headwise.training.core.report import write_report
from headwise.training.core.run_data import RunData
from headwise.training.core.run_settings import get_settings
from headwise.training.core.tune import describe_tuning, read_tuning
from headwise.training.core.verdict import judge_run

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ModelBundle:
    """A model with its tokenizer. Each task type has a subclass with the other inputs of its Trainer.

    Args:
        model: the model, which is trained in place.
        tokenizer: its tokenizer.
        notes: remarks on the model and the data, such as truncated texts, for the log, `metrics.json` and model card.
    """

    model: PreTrainedModel
    tokenizer: Any
    notes: list[str] = field(default_factory=list)


ConfigT = TypeVar("ConfigT", bound=RunConfig)
DataT = TypeVar("DataT", bound=RunData)
BundleT = TypeVar("BundleT", bound=ModelBundle)


class Pipeline(ABC, Generic[ConfigT, DataT, BundleT]):
    """The steps of a run. Each task type has a subclass.

    Args:
        config: the run's configuration, with absolute paths.
    """

    #: `evaluate(run_dir, data=None, **options)`: evaluate a finished run and return `build_evaluation(...)`. Without
    #: `data`, the run's own data is used, after `check_unchanged`.
    evaluate: ClassVar[Callable[..., dict[str, Any]]]
    #: `predict(run_dir, data, out, **options)`: write predictions and return the number of rows without a prediction.
    predict: ClassVar[Callable[..., int]]
    #: `open_inspected(run_dir, name)`: load a finished run for `headwise inspect`.
    open_inspected: ClassVar[Callable[..., InspectedModel]]

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    @abstractmethod
    def load(self) -> DataT:
        """Load the data.

        Raises:
            UserError: the data is missing or invalid.
        """

    def fill_unset(self, data: DataT) -> ConfigT:
        """Return the configuration with values for all options that the user did not set."""
        return self.config

    @abstractmethod
    def build(self, data: DataT, scratch_dir: Path) -> BundleT:
        """Build the untrained model and its tokenizer. The run directory does not exist yet.

        Raises:
            UserError: the model cannot be built, or does not match the data.
        """

    def tokenize(self, data: DataT, bundle: BundleT, scratch_dir: Path) -> None:
        """Tokenize the data into `scratch_dir`, unless `build` has done so, and add notes to the bundle.

        Raises:
            UserError: the tokens do not match the model or the options.
        """

    @abstractmethod
    def build_trainer(self, data: DataT, bundle: BundleT, out_dir: Path) -> CheckedTrainer:
        """Build the Trainer."""

    def tune(self, data: DataT, bundle: BundleT, scratch_dir: Path, out_dir: Path) -> dict[str, Any]:
        """Search the learning rate on dev and return the contents of `tuning.json`. All processes call this method."""
        raise NotImplementedError

    def after_training(self, bundle: BundleT, trainer: Any, out_dir: Path) -> None:
        """Change the trained model before it is evaluated, for example average its checkpoints."""

    @abstractmethod
    def evaluate_splits(self, data: DataT, bundle: BundleT, trainer: Any) -> Evaluation:
        """Evaluate the trained model on dev and test, with baselines. All processes call this method."""

    @abstractmethod
    def describe(self, data: DataT, bundle: BundleT, metrics: dict[str, Any]) -> Card:
        """Return the parts of the model card that depend on the task type."""

    def run(self, out_dir: Path, *, resume: bool) -> dict[str, Any]:
        """Train and evaluate a model and write it to the run directory.

        All processes of a distributed run call this method. With `main_process_first`, the main process runs a step
        first, and the others then use its cached files. With `main_process_only`, only the main process runs the step.

        Args:
            out_dir: the run directory.
            resume: continue an unfinished run from its last checkpoint.

        Returns:
            The contents of `metrics.json`.

        Raises:
            UserError: the configuration or the data is invalid, or memory or disk space runs out. Errors in `load`,
                `build` and `tokenize` do not change an existing run in `out_dir`.
        """
        is_main_process = state().is_main_process
        get_trackers(self.config)  # raises an error before the data is read
        data = main_process_first(self.load)
        self.config = config = self.fill_unset(data)
        with (
            run_dir.report_full_disk(out_dir),
            run_dir.scratch_dir(out_dir, is_main_process=is_main_process) as scratch_dir,
        ):
            set_seed(config.seed)
            bundle = main_process_first(lambda: self.build(data, scratch_dir))

            main_process_first(lambda: self.tokenize(data, bundle, scratch_dir))
            main_process_only(lambda: run_dir.begin(out_dir, header() + config.to_yaml(), resume=resume))
            if is_main_process:
                self.log_notes(data, bundle)

            if getattr(config, "tune", False):
                chosen = self.tune(data, bundle, scratch_dir, out_dir)["chosen"]
                self.config = config = replace(config, learning_rate=chosen, tune=False)  # type: ignore[call-arg]
            tuning = read_tuning(out_dir)
            if tuning is not None:
                bundle.notes.append(describe_tuning(tuning))
                comment = f"# {describe_tuning(tuning)}\n"
                main_process_only(
                    lambda: run_dir.atomic_write(out_dir / run_dir.CONFIG, header() + comment + config.to_yaml())
                )

            if is_main_process and resume and run_dir.last_checkpoint(out_dir) is None:
                logger.info("no complete checkpoint yet: training starts at the first epoch")
            trainer = self.build_trainer(data, bundle, out_dir)
            timer = TrainingTimer()
            trainer.add_callback(timer)
            reset_peak_memory()
            output = fit(trainer, out_dir, resume=resume)

            self.after_training(bundle, trainer, out_dir)
            evaluation = self.evaluate_splits(data, bundle, trainer)
            metrics = build_metrics(
                data,
                bundle,
                evaluation,
                model=config.model,
                trainer=trainer,
                output=output,
                train_seconds=timer.seconds,
            )
            if tuning is not None:
                metrics["tuning"] = tuning
            metrics["verdict"] = judge_run(
                metrics, from_scratch=is_scheme(config.model), can_tune=hasattr(config, "tune")
            )

            keep_model = not get_settings().results_only
            weights = gather_weights(trainer) if keep_model else None
            if is_main_process:
                with run_dir.staging_dir(out_dir) as stage:
                    if keep_model:
                        self.write_model(stage, data, bundle, metrics, weights)
                    write_predictions(stage / run_dir.PREDICTIONS, evaluation)
                    (stage / run_dir.METRICS).write_text(run_dir.to_json(metrics), encoding="utf-8")
            state().wait_for_everyone()
            return metrics

    def write_model(self, stage: Path, data: DataT, bundle: BundleT, metrics: dict[str, Any], weights: Any) -> None:
        """Write the model, its card and the report. `weights` are those of a model that FSDP shards, otherwise None."""
        bundle.model.save_pretrained(stage, state_dict=weights)
        bundle.tokenizer.save_pretrained(stage)
        card = self.describe(data, bundle, metrics)
        text = render_card(card, metrics, seed=self.config.seed)
        (stage / run_dir.CARD).write_text(text, encoding="utf-8")
        write_report(stage, metrics, title=card.title)

    def log_notes(self, data: DataT, bundle: BundleT) -> None:
        """Log the data, the model and its notes."""
        logger.info("%s: %s", data.task_name, data.description)
        logger.info(
            "  model %s, %s parameters, on %s",
            self.config.model,
            f"{count_parameters(bundle.model):,}",
            describe_device(),
        )
        for note in bundle.notes:
            logger.info("  %s", note)


def header() -> str:
    """Return the first line of `run.yaml`, a comment."""
    versions = ", ".join(f"{name} {version}" for name, version in get_versions().items())
    return f"# To repeat this run: headwise train --config run.yaml --out NEW ({versions})\n"


def write_predictions(path: Path, evaluation: Evaluation) -> None:
    """Write the predictions of all splits to a Parquet file."""
    tables = [result.predictions for result in evaluation.splits.values()]
    if tables:
        pq.write_table(pa.concat_tables(tables), path)
