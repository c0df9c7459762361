"""A transformers Trainer with guides."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from headwise import _compat
from headwise.guidance.guided import Guided, check_guides, guiding
from headwise.guides import Guide
from headwise.integrations import add_scheme_group, all_scheme_parameters, eval_mode, scheme_parameters
from headwise.scheme_names import RETROFIT_RATE_FACTOR
from headwise.small_files import read_json

#: The file of a checkpoint with the state of the guides.
GUIDES_FILE = "guides.json"


class GuidedTrainer(Trainer):
    """A `transformers.Trainer` that adds guides to the loss, and logs each of them by name and the task's own loss.

    Args:
        guides: the guides to add; without guides, the class behaves like `Trainer`.
        scheme_learning_rate: the learning rate of the parameters of position schemes: those that `headwise.retrofit`
            added, by default 10 times that of the model, because they are not pretrained; or those of headwise's own
            models, by default that of the model. It is not applied to an optimizer passed in `optimizers`.
        example: see `headwise.guiding`.
        others: the arguments of `transformers.Trainer`.

    Example:
        ```python
        trainer = hw.GuidedTrainer(
            model=model,
            args=TrainingArguments("runs/guided"),
            train_dataset=train,
            guides=[hw.guides.MapDiscrimination("auto")],
        )
        trainer.train()  # logs loss, task_loss and guide/MapDiscrimination
        ```
    """

    def __init__(
        self,
        *args: Any,
        guides: Sequence[Guide] = (),
        scheme_learning_rate: float | None = None,
        example: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        self._creates_optimizer = self.optimizer is None
        self.guides, self.scheme_learning_rate = check_guides(guides), scheme_learning_rate
        self.guided: Guided | None = None
        self._unlogged: dict[str, list[Tensor]] = {}  # values by name since the last log
        self._losses: dict[str, Tensor] | None = None  # of the last step, by term
        self._divides_loss: bool | None = None  # whether the task's loss is divided by num_items_in_batch

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train the model; see `transformers.Trainer.train`."""
        if not self.guides or _compat.has_inner_training_loop(Trainer):
            return super().train(resume_from_checkpoint, *args, **kwargs)
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(str(self.args.output_dir))
        with self._guided_training(resume_from_checkpoint):
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        with self._guided_training(kwargs.get("resume_from_checkpoint")) if self.guides else nullcontext():
            return super()._inner_training_loop(*args, **kwargs)

    @contextmanager
    def _guided_training(self, checkpoint: Any) -> Iterator[None]:
        """Guide the model, from the state of a checkpoint if there is one."""
        if self.args.n_gpu > 1:
            raise ValueError("guides need one process per GPU: start training with torchrun or accelerate launch")
        with guiding(cast(nn.Module, self.model), self.guides, example=self.example) as self.guided:
            path = Path(checkpoint or "", GUIDES_FILE)
            if path.is_file():
                self.guided.load_state_dict(read_json(path))
            try:
                yield
            finally:
                self.guided = None

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.guided is not None and self.args.should_save:
            checkpoint_dir = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            checkpoint_dir.mkdir(parents=True, exist_ok=True)
            (checkpoint_dir / GUIDES_FILE).write_text(json.dumps(self.guided.state_dict()), encoding="utf-8")
        super()._save_checkpoint(model, trial)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the task's loss, in training with the guides' losses added."""
        is_guided = self.guided is not None and model.training
        steps = self._loss_divisor(model, inputs, num_items_in_batch) if is_guided else 1
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.guided is not None and is_guided:
            progress = self.state.global_step / max(1, self.state.max_steps)
            terms = self.guided.losses(loss * steps, progress=progress)
            self._losses = {"the task's loss": loss.detach()} | {
                f"the guide {name}": term.detach() for name, term in terms.items()
            }
            loss = loss + sum(terms.values()) / steps
            for name, term in self.guided.terms.items():
                self._unlogged.setdefault(f"guide/{name}", []).append(term)
            for guide in self.guides:
                if guide.auto:
                    self._unlogged.setdefault(f"guide/{guide.name}/weight", []).append(torch.tensor(guide.weight))
            self._unlogged.setdefault("task_loss", []).append(self._losses["the task's loss"] * steps)
        return (loss, outputs) if return_outputs else loss

    def _loss_divisor(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None) -> int:
        """Return the number of accumulation steps if the task's loss is already divided by it, otherwise 1.

        transformers passes the number of items of all accumulation steps to every model that accepts it. Some divide
        by it. Others ignore it, so that their losses are summed over the steps, and so must be those of the guides. A
        model's behavior is found once, from its losses with the number of items and with twice that number.
        """
        steps: int = self.current_gradient_accumulation_steps
        if steps == 1 or num_items_in_batch is None:
            return 1
        if self._divides_loss is None:
            with eval_mode(model):
                losses: list[Any] = [
                    super(GuidedTrainer, self).compute_loss(model, dict(inputs), False, num_items)
                    for num_items in (num_items_in_batch, 2 * num_items_in_batch)
                ]
            loss, half_loss = (abs(float(x)) for x in losses)
            if not 0 < loss < math.inf:
                return steps  # try again with the next batch
            self._divides_loss = half_loss < 0.75 * loss
        return steps if self._divides_loss else 1

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs |= {name: float(torch.stack(xs).float().mean()) for name, xs in self._unlogged.items()}
            self._unlogged.clear()
        super().log(logs, *args, **kwargs)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Create the Trainer's optimizer, with a separate group for the parameters of position schemes."""
        optimizer = super().create_optimizer(*args, **kwargs)
        model, rate = cast(nn.Module, self.model), self.scheme_learning_rate
        if self._creates_optimizer and (parameters := scheme_parameters(model)):  # those that `retrofit` added
            default_rate = RETROFIT_RATE_FACTOR * self.args.learning_rate
            add_scheme_group(optimizer, parameters, default_rate if rate is None else rate)
        elif self._creates_optimizer and rate is not None:
            add_scheme_group(optimizer, all_scheme_parameters(model), rate)
        return optimizer

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        keys = [key for guide in self.guides for key in guide.input_keys]
        columns: list[str] = self._signature_columns or []
        self._signature_columns: Any = [*columns, *keys]
