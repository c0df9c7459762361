"""What may break while a model trains, told so that it helps: a loss that is no number, too little memory."""

import gc
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import Trainer

from headwise.errors import UserError

#: Losses are looked at after so many steps: on a GPU each look makes the host wait. The step that broke is known.
TOGETHER = 20
#: So many rows of a batch are named.
NAMED = 20


class CheckedTrainer(Trainer):
    """A Trainer that stops where a loss, or its gradient, is not finite, and says what fits where memory does not
    suffice. It comes before the Trainer whose steps it watches among a class's bases.
    """

    counted: str = "rows"  # what --batch-size counts
    _losses: dict[str, Tensor] | None = None  # of the step, by term, where there are several
    _seen: dict[int, dict[str, Tensor]] | None = None  # by step, those that were not looked at yet

    def rows_at(self, step: int) -> Sequence[int]:
        """The numbers, in the user's file, of the rows that this process learnt from in a step; steps count from 0."""
        raise NotImplementedError

    def largest(self, size: int) -> tuple[int, dict[str, Any]]:
        """The size of a batch, at most the one given and the run's own; and such a batch of what takes most memory."""
        raise NotImplementedError

    def step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """A step's forward and backward pass."""
        return super().training_step(model, inputs, num_items_in_batch)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        self._losses, fault = None, ""
        try:
            loss = self.step(model, inputs, num_items_in_batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            fault = str(error).splitlines()[0]
        if fault:  # outside the except, which keeps alive what the step had made
            del inputs
            raise UserError(self.too_large(model, fault))
        self._seen = self._seen or {}
        self._seen[self.state.global_step] = self._losses or {"the task's loss": loss}
        if len(self._seen) >= TOGETHER:
            self.look()
        return loss

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)
        if self._seen and isinstance(norm, Tensor):
            self._seen.setdefault(self.state.global_step, {})["the gradient"] = norm.detach()
        return norm

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:  # always before a checkpoint: none is written of a model that broke
            self.look()
        super().log(logs, *args, **kwargs)

    def look(self) -> None:
        """Look at the losses since the last look.

        Raises:
            UserError: one of them is not finite.
        """
        seen, self._seen = self._seen or {}, None
        steps = [(step, name) for step, terms in seen.items() for name in terms]
        if not steps:
            return
        values = torch.stack([number(x) for terms in seen.values() for x in terms.values()])
        finite = values.isfinite()
        if self.args.world_size > 1:
            broken = self.accelerator.reduce((~finite).sum(), "sum")
            if not int(broken):
                return
        elif bool(finite.all()):
            return
        found = [(*steps[i], float(values[i])) for i in (~finite).nonzero().flatten().tolist()[:1]]
        told = [(step, name, value, list(self.rows_at(step))) for step, name, value in found]
        told = gather_object(told) if self.args.world_size > 1 else told
        first = min(step for step, *_ in told)
        _, name, value, _ = next(one for one in told if one[0] == first)
        rows = sorted(row for step, *_, rows in told if step == first for row in rows)
        raise UserError(
            f"step {first + 1}: {name} is {value:g}, on rows {listed(rows)} (from 0); "
            "a lower --learning-rate or --precision float32 may help, or these rows are odd"
        )

    def too_large(self, model: nn.Module, fault: str) -> str:
        """What to do where a batch does not fit in memory: the half of it that does is tried out."""
        size, _ = self.largest(2**62)
        what = f"step {self.state.global_step + 1}: out of memory with batches of {size} {self.counted}"
        if self.args.world_size > 1:  # a process cannot try out by itself what all do together
            return f"{what} a process; try half of --batch-size ({fault})"
        reserve = self.optimizer_memory(model)
        while size > 1:
            size, inputs = self.largest(size // 2)
            if self.fits(model, inputs):
                del reserve
                return f"{what}; --batch-size {size} fits, tried out with what is longest"
        return f"{what}, and of 1: a smaller model or shorter texts are needed ({fault})"

    def fits(self, model: nn.Module, inputs: dict[str, Any]) -> bool:
        """Whether a step's forward and backward pass fit in memory."""
        gc.collect()
        torch.cuda.empty_cache()
        model.zero_grad()
        try:
            self.step(model, self._prepare_inputs(inputs))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True

    def optimizer_memory(self, model: nn.Module) -> list[Tensor]:
        """As much memory as Adam takes at its first step, if that is still to come."""
        if self.optimizer is None or self.optimizer.state:
            return []
        try:
            return [torch.empty_like(p) for p in model.parameters() for _ in range(2) if p.requires_grad]
        except RuntimeError:
            return []


def number(x: Tensor) -> Tensor:
    """A loss or norm, of which each process may have a part (FSDP)."""
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().float().reshape(())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory did not suffice, of a GPU or of the CPU.

    >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory")), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "not enough memory" in str(error)
        or ("DefaultCPUAllocator" in str(error) and "allocate" in str(error))
    )


def listed(rows: Sequence[int]) -> str:
    """Numbers with commas, the first ones of many.

    >>> listed([3, 1]), listed(range(30))[-16:]
    ('3, 1', '19 and 10 others')
    """
    more = len(rows) - NAMED
    return ", ".join(map(str, rows[:NAMED])) + (f" and {more} others" if more > 0 else "")
