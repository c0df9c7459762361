"""The Trainer of pipelines with length-grouped batches; its results do not depend on the number of processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from headwise.training.core.batches import EpochDataLoader, LengthGroupedSampler, build_sampler
from headwise.training.core.failures import CheckedTrainer


class LengthGroupedTrainer(CheckedTrainer):
    """A Trainer with batches of examples of similar length, which all processes share.

    The loss of a process is the mean over its share of a batch. It is weighted by the size of the share, so that all
    shares of a step's batches together have the gradient of one batch.

    Args:
        batch_size: examples per batch, over all processes.
        batch_tokens: maximum tokens per batch, with padding, over all processes; by default there is none.
        row_numbers: the training examples' row numbers in the user's file, for messages; by default counted from 0.
        others: see `transformers.Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        batch_size: int,
        batch_tokens: int | None = None,
        row_numbers: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.batch_size, self.batch_tokens, self.row_numbers = batch_size, batch_tokens, row_numbers
        self._num_targets: Tensor | int = 1  # of a step's batches, over all processes
        self.model_accepts_loss_kwargs = False  # compute_loss weights the means, for every type of loss

    def row_lengths(self) -> Any:
        """Return the length of each training example."""
        dataset: Any = self.train_dataset
        return dataset.lengths

    def get_batch(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return some training examples as a batch."""
        dataset: Any = self.train_dataset
        batch: dict[str, Any] = self.data_collator(dataset.__getitems__(list(rows)))
        return batch

    def build_sampler(self) -> LengthGroupedSampler:
        return build_sampler(
            self.row_lengths(),
            self.batch_size,
            self.batch_tokens,
            seed=self.args.seed,
            process=self.args.process_index,
            num_processes=self.args.world_size,
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        dataset: Any = self.train_dataset
        return EpochDataLoader(
            dataset,
            batch_sampler=self.build_sampler(),
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Create the scheduler, without a warm-up of less than one step: it would set the first learning rate to 0."""
        if num_training_steps * self.args.warmup_steps < 1:
            self.args.warmup_steps = 0
        return super().create_scheduler(num_training_steps, *args, **kwargs)

    def rows_at_step(self, step: int) -> Sequence[int]:
        sampler, batches_per_step = self.build_sampler(), self.args.gradient_accumulation_steps
        sampler.epoch, index = divmod(step, -(-len(sampler) // batches_per_step))
        start = index * batches_per_step
        rows = [row for batch in list(sampler)[start : start + batches_per_step] for row in batch]
        return rows if self.row_numbers is None else [int(self.row_numbers[row]) for row in rows]

    def largest_batch(self, max_size: int) -> tuple[int, dict[str, Any]]:
        lengths = np.asarray(self.row_lengths())
        by_length, batch_size = np.argsort(lengths, kind="stable")[::-1], self.batch_size
        if self.batch_tokens is not None:
            batch_size = min(batch_size, self.batch_tokens // int(lengths.max()))
        rows = by_length[: min(max_size, -(-batch_size // self.args.world_size))].tolist()
        return len(rows), self.get_batch(rows)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        # With several processes, accelerate distributes the rows in order and gathers the outputs in order.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        if batches and self.weights_losses:
            count = torch.stack([count_targets(batch["labels"]) for batch in batches]).sum().to(self.args.device)
            self._num_targets = self.accelerator.reduce(count, "sum") if self.args.world_size > 1 else count
        return batches, num_items

    @property
    def weights_losses(self) -> bool:
        """Whether a step has several losses: of several processes or of accumulated batches."""
        return bool(self.args.world_size > 1 or self.args.gradient_accumulation_steps > 1)

    def _prepare_input(self, data: Any) -> Any:
        """Move a batch from pinned memory to the device asynchronously."""
        if isinstance(data, Tensor) and not self.is_deepspeed_enabled:
            return data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # the Trainer would count the model's parameters at every step

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training and self.weights_losses:
            num_losses = self.args.world_size * self.current_gradient_accumulation_steps
            loss = loss * (count_targets(inputs["labels"]) * num_losses / self._num_targets)
        return (loss, outputs) if return_outputs else loss


def count_targets(labels: Tensor) -> Tensor:
    """Count the targets that the loss of a batch is the mean of: examples, or tokens with a label."""
    is_per_token = labels.dim() == 2 and not labels.is_floating_point()
    return (labels != -100).sum() if is_per_token else torch.tensor(len(labels), device=labels.device)
