"""A transformers Trainer with guides."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Trainer

from headwise.guidance.guided import Guided, guiding
from headwise.guides import Guide
from headwise.integrations import scheme_parameters

GUIDES = "guides.json"  # in a checkpoint


class GuidedTrainer(Trainer):
    """`transformers.Trainer` that adds guides to the loss and logs each of them by name.

    Args:
        guides: what to push heads towards; none trains as `Trainer` does.
        scheme_learning_rate: the learning rate of the parameters that `headwise.retrofit` added, which start from
            nothing; by default 100 times the model's. An optimizer that was given stays as it is.
        example: see `headwise.guiding`.
        others: as `transformers.Trainer`.
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
        self._own_optimizer = self.optimizer is None
        self.guides, self.scheme_learning_rate = tuple(guides), scheme_learning_rate
        self.guided: Guided | None = None
        self._heard: dict[str, list[Tensor]] = {}
        self._losses: dict[str, Tensor] | None = None  # of the last step, by term

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        if not self.guides:
            return super()._inner_training_loop(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError("on several GPUs start one process each (torchrun, accelerate launch): guides need DDP")
        with guiding(cast(nn.Module, self.model), self.guides, example=self.example) as self.guided:
            kept = Path(kwargs.get("resume_from_checkpoint") or "", GUIDES)
            if kept.is_file():
                self.guided.restore(json.loads(kept.read_text(encoding="utf-8")))
            try:
                return super()._inner_training_loop(*args, **kwargs)
            finally:
                self.guided = None

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.guided is not None and self.args.should_save:
            folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / GUIDES).write_text(json.dumps(self.guided.state()), encoding="utf-8")
        super()._save_checkpoint(model, trial)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.guided is not None and model.training:
            divided = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            steps = self.current_gradient_accumulation_steps if divided or self.compute_loss_func is not None else 1
            # Where the Trainer does not divide the loss by the steps, the task's is divided already.
            terms = self.guided.losses(loss * steps, progress=self.state.global_step / max(1, self.state.max_steps))
            self._losses = {"the task's loss": loss.detach()} | {
                f"the guide {name}": term.detach() for name, term in terms.items()
            }
            loss = loss + sum(terms.values()) / steps
            for name, term in self.guided.terms.items():
                self._heard.setdefault(name, []).append(term)
            for one in self.guides:
                if one.auto:
                    self._heard.setdefault(f"{one.name}/weight", []).append(torch.tensor(one.weight))
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs |= {f"guide/{name}": float(torch.stack(terms).float().mean()) for name, terms in self._heard.items()}
            self._heard.clear()
        super().log(logs, *args, **kwargs)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's, with a group of its own for the parameters that `headwise.retrofit` added."""
        optimizer = super().create_optimizer(*args, **kwargs)
        own = {id(parameter) for parameter in scheme_parameters(cast(nn.Module, self.model))}
        if own and self._own_optimizer and not any(group.get("headwise") for group in optimizer.param_groups):
            moved = [p for group in optimizer.param_groups for p in group["params"] if id(p) in own]
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in own]
            rate = 100 * self.args.learning_rate if self.scheme_learning_rate is None else self.scheme_learning_rate
            optimizer.add_param_group({"params": moved, "lr": rate, "weight_decay": 0.0, "headwise": True})
        return optimizer

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        keys = [key for guide in self.guides for key in guide.keys]
        columns: list[str] = self._signature_columns or []
        self._signature_columns: Any = [*columns, *keys]
