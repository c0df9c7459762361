"""The Hugging Face Trainer of recommenders."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from headwise.training.core.batches import EpochDataLoader
from headwise.training.core.scheme_rate import SchemeRateTrainer
from headwise.training.core.trainer import LengthGroupedTrainer
from headwise.training.recommendation.batches import EpochBatchSampler, unwrap_batch

#: With a GPU, a forked worker builds the batches and shares the memory-mapped files.
WORKER_OPTIONS: dict[str, Any] = (
    {"num_workers": 1, "multiprocessing_context": "fork"} if torch.cuda.is_available() else {}
)


class RecommendationTrainer(LengthGroupedTrainer, SchemeRateTrainer):
    """Trains on batches of impressions with histories of similar length; dev is evaluated by ranking.

    Args:
        history_lengths: the number of clicks in the history of each training impression.
        compute_dev_metrics: returns the metrics of a model on dev; called in every process.
        args, kwargs: as for `LengthGroupedTrainer`.
    """

    def __init__(
        self,
        *args: Any,
        history_lengths: Any,
        compute_dev_metrics: Callable[[Any], dict[str, float]] | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.history_lengths, self.compute_dev_metrics = history_lengths, compute_dev_metrics

    def row_lengths(self) -> Any:
        return self.history_lengths

    def get_batch(self, rows: Sequence[int]) -> dict[str, Any]:
        dataset: Any = self.train_dataset
        batch: dict[str, Any] = dataset[0, rows]
        return batch

    def get_train_dataloader(self) -> DataLoader[Any]:
        dataset: Any = self.train_dataset
        sampler = EpochBatchSampler(
            self.history_lengths,
            self.batch_size,
            seed=self.args.seed,
            process=self.args.process_index,
            num_processes=self.args.world_size,
        )
        return EpochDataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=unwrap_batch,
            pin_memory=self.args.dataloader_pin_memory,
            **WORKER_OPTIONS,
        )

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Compute and log the metrics of dev."""
        assert self.compute_dev_metrics is not None
        metrics = {f"eval_{name}": value for name, value in self.compute_dev_metrics(self.model).items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics
