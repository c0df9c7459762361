"""Checks during training: losses that are not finite, and batches that do not fit in memory."""

import gc
import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headwise.errors import UserError, first_line
from headwise.native_errors import is_out_of_memory
from headwise.training.core.checkpointing import CheckpointTrainer

#: Steps between two checks of the losses. Each check synchronizes with the GPU.
CHECK_INTERVAL = 20
#: Number of rows that a message names.
MAX_NAMED_ROWS = 20


class CheckedTrainer(CheckpointTrainer):
    """A Trainer that stops when a loss or gradient is not finite, and suggests a batch size when memory runs out.

    In the bases of a class, it precedes the Trainer whose steps it checks.
    """

    batch_unit: str = "rows"  # the unit of --batch-size
    _losses: dict[str, Tensor] | None = None  # the terms of a step's loss, if there are several
    _unchecked: dict[int, dict[str, Tensor]] | None = None  # losses by step since the last check
    _clipped: list[nn.Parameter] | None = None  # the parameters that are trained

    def rows_at_step(self, step: int) -> Sequence[int]:
        """Return the rows of the user's file in this process's batch at a step; steps count from 0."""
        raise NotImplementedError

    def largest_batch(self, max_size: int) -> tuple[int, dict[str, Any]]:
        """Return the batch that takes most memory and its size, at most `max_size` and the run's batch size."""
        raise NotImplementedError

    def forward_backward(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Run the forward and backward pass of a step."""
        return super().training_step(model, inputs, num_items_in_batch)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        self._losses, memory_error = None, ""
        try:
            loss = self.forward_backward(model, inputs, num_items_in_batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            memory_error = first_line(error)
        if memory_error:  # outside of the except block, which keeps the step's tensors alive
            del inputs
            raise UserError(self.suggest_batch_size(model, memory_error))
        self._unchecked = self._unchecked or {}
        self._unchecked[self.state.global_step] = self._losses or {"the task's loss": loss}
        if len(self._unchecked) >= CHECK_INTERVAL:
            self.check_losses()
        return loss

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        if self.accelerator.distributed_type == DistributedType.NO and self.accelerator.scaler is None:
            if self._clipped is None:
                self._clipped = [parameter for parameter in model.parameters() if parameter.requires_grad]
            # accelerate would search the modules for their parameters in each step
            norm = nn.utils.clip_grad_norm_(self._clipped, self.args.max_grad_norm)
        else:
            norm = super()._clip_grad_norm(model)
        if self._unchecked and isinstance(norm, Tensor):
            self._unchecked.setdefault(self.state.global_step, {})["the gradient"] = norm.detach()
        return norm

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:  # logged before each checkpoint, so that no broken model is saved
            self.check_losses()
        for name, value in logs.items():  # evaluated before each checkpoint
            if name in ("eval_loss", self.args.metric_for_best_model) and not math.isfinite(value):
                raise UserError(
                    f"step {self.state.global_step}: {name.removeprefix('eval_')} on dev is {value}; try a lower "
                    "--learning-rate or --precision float32"
                )
        super().log(logs, *args, **kwargs)

    def check_losses(self) -> None:
        """Check the losses since the last check.

        Raises:
            UserError: one of them is not finite.
        """
        unchecked, self._unchecked = self._unchecked or {}, None
        steps = [(step, name) for step, terms in unchecked.items() for name in terms]
        if not steps:
            return
        values = torch.stack([to_scalar(x) for terms in unchecked.values() for x in terms.values()])
        finite = values.isfinite()
        if self.args.world_size > 1:
            num_broken = self.accelerator.reduce((~finite).sum(), "sum")
            if not int(num_broken):
                return
        elif bool(finite.all()):
            return
        broken = [(*steps[i], float(values[i])) for i in (~finite).nonzero().flatten().tolist()[:1]]
        failures = [(step, name, value, list(self.rows_at_step(step))) for step, name, value in broken]
        failures = gather_object(failures) if self.args.world_size > 1 else failures
        first_step = min(step for step, *_ in failures)
        _, name, value, _ = next(failure for failure in failures if failure[0] == first_step)
        rows = sorted(row for step, *_, rows in failures if step == first_step for row in rows)
        raise UserError(
            f"step {first_step + 1}: {name} is {value:g}, on rows {format_rows(rows)} (from 0); "
            "try a lower --learning-rate or --precision float32, or inspect these rows"
        )

    def suggest_batch_size(self, model: nn.Module, memory_error: str) -> str:
        """Return a message with a batch size that fits in memory, found by halving."""
        size, _ = self.largest_batch(2**62)
        problem = f"step {self.state.global_step + 1}: out of memory with batches of {size} {self.batch_unit}"
        if self.args.world_size > 1:  # a process cannot run a step without the others
            return f"{problem} per process; try half of --batch-size ({memory_error})"
        reserve = self.reserve_optimizer_memory(model)
        while size > 1:
            size, inputs = self.largest_batch(size // 2)
            if self.fits_in_memory(model, inputs):
                del reserve
                return f"{problem}; --batch-size {size} fits, even with the longest examples"
        return f"{problem}, and even with a batch of 1: use a smaller model or shorter texts ({memory_error})"

    def fits_in_memory(self, model: nn.Module, inputs: dict[str, Any]) -> bool:
        """Return whether the forward and backward pass of a batch fit in memory."""
        gc.collect()
        torch.cuda.empty_cache()
        model.zero_grad()
        try:
            self.forward_backward(model, self._prepare_inputs(inputs))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True

    def reserve_optimizer_memory(self, model: nn.Module) -> list[Tensor]:
        """Allocate the memory of Adam's state, unless its first step has allocated it already."""
        if self.optimizer is None or self.optimizer.state:
            return []
        try:
            return [torch.empty_like(p) for p in model.parameters() for _ in range(2) if p.requires_grad]
        except RuntimeError:
            return []


def to_scalar(x: Tensor) -> Tensor:
    """Convert a loss or norm, which FSDP may shard, to a float32 scalar."""
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().float().reshape(())


def format_rows(rows: Sequence[int]) -> str:
    """Return row numbers separated by commas, at most `MAX_NAMED_ROWS` of them.

    >>> format_rows([3, 1]), format_rows(range(30))[-16:]
    ('3, 1', '19 and 10 others')
    """
    num_hidden = len(rows) - MAX_NAMED_ROWS
    return ", ".join(map(str, rows[:MAX_NAMED_ROWS])) + (f" and {num_hidden} others" if num_hidden > 0 else "")
