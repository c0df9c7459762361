"""The Hugging Face Trainer of a run: its batches, and the same figures from any number of processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from headwise.guidance import GuidedTrainer
from headwise.training.core.failures import CheckedTrainer
from headwise.training.text.batches import Batches, Loader


class RunTrainer(CheckedTrainer, GuidedTrainer):
    """Learns from batches of texts of about one length, and is judged by rows in their order.

    Processes share each batch. A share's loss is a mean over its rows, so it counts by their number: all shares
    together give the gradient of the whole batch.

    Args:
        batch_size: rows in a batch, all processes together.
        numbers: of the training rows in the user's file; by default they are counted.
        others: as `GuidedTrainer`.
    """

    def __init__(self, *args: Any, batch_size: int, numbers: Sequence[int] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batch_size, self.numbers = batch_size, numbers
        self.model_accepts_loss_kwargs = False  # its means are weighed here, for every kind of loss

    def row_lengths(self) -> Any:
        """Of the training rows."""
        rows: Any = self.train_dataset
        return rows.lengths

    def batch_of(self, rows: Sequence[int]) -> dict[str, Any]:
        """Some training rows as a batch."""
        data: Any = self.train_dataset
        batch: dict[str, Any] = self.data_collator(data.__getitems__(list(rows)))
        return batch

    def batches(self) -> Batches:
        return Batches(
            self.row_lengths(),
            self.batch_size,
            seed=self.args.seed,
            process=self.args.process_index,
            processes=self.args.world_size,
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        rows: Any = self.train_dataset
        return Loader(
            rows,
            batch_sampler=self.batches(),
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's, but without a warm-up of less than a step: its first step has rate 0."""
        if num_training_steps * self.args.warmup_steps < 1:
            self.args.warmup_steps = 0
        return super().create_scheduler(num_training_steps, *args, **kwargs)

    def rows_at(self, step: int) -> Sequence[int]:
        batches = self.batches()
        batches.epoch, place = divmod(step, len(batches))
        chosen = list(batches)[place]
        return chosen if self.numbers is None else [int(self.numbers[row]) for row in chosen]

    def largest(self, size: int) -> tuple[int, dict[str, Any]]:
        longest = np.argsort(self.row_lengths(), kind="stable")[::-1]
        chosen = longest[: min(size, -(-self.batch_size // self.args.world_size))].tolist()
        return len(chosen), self.batch_of(chosen)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        # With several processes, accelerate deals out the rows in order, and puts the answers back in order.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None

    def _prepare_input(self, data: Any) -> Any:
        """As the Trainer's, but without a wait for every tensor: batches lie in pinned memory."""
        if isinstance(data, Tensor) and not self.is_deepspeed_enabled:
            return data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # the Trainer's would count the parameters at every step

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.args.world_size > 1 and model.training:
            own = judged(inputs["labels"])
            loss = loss * (own * self.args.world_size / self.accelerator.reduce(own, "sum"))
        return (loss, outputs) if return_outputs else loss


def judged(labels: Tensor) -> Tensor:
    """How many answers the loss of a batch is a mean of: rows, or words that have a tag."""
    words = labels.dim() == 2 and not labels.is_floating_point()
    return (labels != -100).sum() if words else torch.tensor(len(labels), device=labels.device)
