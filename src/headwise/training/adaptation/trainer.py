"""The Trainer of continued pre-training; its losses do not depend on the number of processes."""

import logging
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.training.core.trainer import LengthGroupedTrainer

logger = logging.getLogger(__name__)


class AdaptTrainer(LengthGroupedTrainer):
    """A Trainer whose blocks get other masks in each epoch, and whose loss on dev is the mean over masked tokens.

    The mean of transformers' Trainer over batches would depend on which blocks are in a batch.
    """

    batch_unit = "blocks"

    def get_train_dataloader(self) -> Any:
        loader: Any = super().get_train_dataloader()
        loader.dataset.sampler = loader.batch_sampler
        return loader

    def prediction_step(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> tuple[Tensor, None, None]:
        """Add the losses of a batch to the sums, and return their mean."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        is_masked = labels != -100
        losses = cross_entropy(logits[is_masked].float(), labels[is_masked], reduction="none")
        counts = is_masked.sum(dim=1)
        sums = torch.zeros(len(labels), device=labels.device).index_add_(0, is_masked.nonzero()[:, 0], losses)
        # Accelerate repeats blocks if processes would have different numbers of them; those are not gathered.
        gathered = self.accelerator.gather_for_metrics(torch.stack([sums.double(), counts.double()], dim=1))
        self.dev_sums += gathered.sum(dim=0).cpu()
        return sums.sum() / counts.sum().clamp(min=1), None, None

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        if self.state.global_step == 0:
            logger.info("  before: dev loss %.4f", metrics["eval_loss"])
        return metrics

    def dev_loss(self) -> float:
        """Return the loss on dev."""
        return self.evaluate()["eval_loss"]

    def initial_loss(self) -> float:
        """Return the loss on dev before the first step, which is logged."""
        logs = self.state.log_history
        return float(next(log["eval_loss"] for log in logs if log["step"] == 0 and "eval_loss" in log))

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self.dev_sums = torch.zeros(2, dtype=torch.float64)
        output: Any = super().evaluation_loop(*args, **kwargs)
        loss_sum, num_masked = self.dev_sums.tolist()
        output.metrics["eval_loss"] = loss_sum / max(1, num_masked)
        return output
