"""The Hugging Face Trainer of a translator: its batches, its loss, and dev judged by tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from headwise.training.core.failures import CheckedTrainer
from headwise.training.translation.batches import Batched, Loader, TokenBatches
from headwise.training.translation.tokens import Tokens


class TranslationTrainer(CheckedTrainer):
    """Learns from batches of about so many tokens; dev's loss is the mean over its tokens, without smoothing.

    Processes share each batch, and each share counts by its tokens: together they give the whole batch's gradient.

    Args:
        tokens: of training and dev; without dev there is no evaluation.
        numbers: of the training pairs in the user's file.
        batch_size: tokens in a batch, all processes together.
        smoothing: of labels, in training.
        judge: further figures of dev, such as BLEU; by name.
        others: as `Trainer`.
    """

    def __init__(
        self,
        *,
        tokens: Mapping[str, Tokens],
        numbers: Sequence[int],
        batch_size: int,
        smoothing: float,
        judge: Callable[[], dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.numbers, self.batch_unit = numbers, "tokens"
        self.tokens, self.batch_size, self.smoothing, self.judge = tokens, batch_size, smoothing, judge
        data: dict[str, Any] = {"train_dataset": tokens["train"], "eval_dataset": tokens["dev"]}
        super().__init__(**data, **kwargs)
        self.model_accepts_loss_kwargs = False  # its means are weighed here

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.loader("train", ordered=False)

    def rows_at_step(self, step: int) -> Sequence[int]:
        batches: Any = self.loader("train", ordered=False).batch_sampler
        batches.epoch, place = divmod(step, len(batches))
        return [int(self.numbers[row]) for row in list(batches)[place]]

    def largest_batch(self, size: int) -> tuple[int, dict[str, Any]]:
        tokens, size = self.tokens["train"], min(size, -(-self.batch_size // self.args.world_size))
        widths = np.maximum(tokens.source.lengths, tokens.target.lengths)
        longest = np.argsort(widths, kind="stable")[::-1]
        made: Any = self.loader("train", ordered=False).dataset
        return size, made.__getitems__(longest[: max(1, size // int(widths.max()))])

    def loader(self, split: str, *, ordered: bool) -> Loader:
        model: Any = self.model
        tokens, config = self.tokens[split], model.config
        batches = TokenBatches(
            tokens.source.lengths,
            tokens.target.lengths,
            self.batch_size,
            seed=self.args.seed,
            process=self.args.process_index,
            processes=self.args.world_size,
            ordered=ordered,
        )
        start, padding = config.decoder_start_token_id, config.pad_token_id
        return Loader(Batched(tokens, self.args.device, start=start, padding=padding), batches)

    def forward_backward(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The Trainer's, less what takes the host longer than a layer and does nothing here."""
        if not model.training:
            model.train()
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # the Trainer's would count the parameters at every step

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return grad_norm  # the Trainer's would take the norm where nothing is clipped, for a log

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        labels = inputs["labels"]
        outputs = model(**{name: x for name, x in inputs.items() if name != "labels"})
        loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), label_smoothing=self.smoothing)
        if self.args.world_size > 1:
            own = (labels != -100).sum()
            loss = loss * (own * self.args.world_size / self.accelerator.reduce(own, "sum"))
        return (loss, outputs) if return_outputs else loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Dev's figures, as the Trainer asks for them."""
        model: Any = self.model
        was_training = model.training
        model.eval()
        found = {"loss": self.dev_loss()} | ({} if self.judge is None else self.judge())
        model.train(was_training)
        metrics = {f"{metric_key_prefix}_{name}": figure for name, figure in found.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @torch.no_grad()
    def dev_loss(self) -> float:
        """The mean over all of dev's tokens, of a model that is not training."""
        model: Any = self.model
        sums = torch.zeros(2, device=self.args.device)
        for batch in self.loader("dev", ordered=True):
            labels = batch.pop("labels")
            with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
                logits = model(**batch).logits
            lost = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
            sums = sums + torch.stack([lost, (labels != -100).sum()])
        lost, count = self.accelerator.reduce(sums, "sum").tolist()
        return float(lost / count)
