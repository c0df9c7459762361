"""The Hugging Face Trainer of a run on a click log."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from headwise.training.core.batches import EpochDataLoader
from headwise.training.core.trainer import LengthGroupedTrainer
from headwise.training.recommendation.clicks import EpochBatches, keep_rows

#: With a GPU, another process makes the batches: a fork, which shares what is mapped.
BESIDE: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"} if torch.cuda.is_available() else {}


class ClicksTrainer(LengthGroupedTrainer):
    """Learns from batches of impressions, those with histories of about one length together; judged by ranking.

    Args:
        lengths: of the impressions' histories.
        judge: a model → its figures on dev; every process asks it.
        others: as `LengthGroupedTrainer`.
    """

    def __init__(self, *args: Any, lengths: Any, judge: Callable[[Any], dict[str, float]] | None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.lengths, self.judge = lengths, judge

    def row_lengths(self) -> Any:
        return self.lengths

    def get_batch(self, rows: Sequence[int]) -> dict[str, Any]:
        clicks: Any = self.train_dataset
        batch: dict[str, Any] = clicks[0, rows]
        return batch

    def get_train_dataloader(self) -> DataLoader[Any]:
        clicks: Any = self.train_dataset
        batches = EpochBatches(
            self.lengths,
            self.batch_size,
            seed=self.args.seed,
            process=self.args.process_index,
            num_processes=self.args.world_size,
        )
        return EpochDataLoader(
            clicks,
            batch_sampler=batches,
            collate_fn=keep_rows,
            pin_memory=self.args.dataloader_pin_memory,
            **BESIDE,
        )

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        assert self.judge is not None
        figures = {f"eval_{name}": value for name, value in self.judge(self.model).items()}
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures
