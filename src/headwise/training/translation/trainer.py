"""The Hugging Face Trainer of translators, and the average of its checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from headwise.small_files import read_json
from headwise.training.core.batches import EpochDataLoader, identity_collate
from headwise.training.core.failures import CheckedTrainer
from headwise.training.core.scheme_rate import SchemeRateTrainer
from headwise.training.translation.batches import (
    IGNORE_INDEX,
    TokenBatchSampler,
    TranslationDataset,
)
from headwise.training.translation.tokens import TokenizedPairs


class TranslationTrainer(CheckedTrainer, SchemeRateTrainer):
    """Trains on batches bounded by tokens; the dev loss is the mean over tokens, without label smoothing.

    Processes share each batch. Each share is weighted by its number of tokens, so that the gradient is that of the
    whole batch.

    Args:
        pairs: the tokenized pairs of train and dev.
        row_numbers: the row of each training pair in the user's file.
        batch_size: the number of tokens in a batch, over all processes.
        label_smoothing: label smoothing during training.
        compute_dev_metrics: returns further metrics of dev by name, such as BLEU.
        kwargs: as for `Trainer`.
    """

    batch_unit = "tokens"

    def __init__(
        self,
        *,
        pairs: Mapping[str, TokenizedPairs],
        row_numbers: Sequence[int],
        batch_size: int,
        label_smoothing: float,
        compute_dev_metrics: Callable[[], dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.pairs, self.row_numbers, self.batch_size = pairs, row_numbers, batch_size
        self.label_smoothing, self.compute_dev_metrics = label_smoothing, compute_dev_metrics
        datasets: dict[str, Any] = {"train_dataset": pairs["train"], "eval_dataset": pairs["dev"]}
        super().__init__(**datasets, **kwargs)
        self.model_accepts_loss_kwargs = False  # compute_loss weights the means itself

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.build_loader("train", ordered=False)

    def rows_at_step(self, step: int) -> Sequence[int]:
        sampler: Any = self.build_loader("train", ordered=False).batch_sampler
        sampler.epoch, index = divmod(step, len(sampler))
        return [int(self.row_numbers[row]) for row in list(sampler)[index]]

    def largest_batch(self, max_size: int) -> tuple[int, dict[str, Any]]:
        pairs, size = self.pairs["train"], min(max_size, -(-self.batch_size // self.args.world_size))
        lengths = np.maximum(pairs.source.lengths, pairs.target.lengths)
        longest_first = np.argsort(lengths, kind="stable")[::-1]
        dataset: Any = self.build_loader("train", ordered=False).dataset
        return size, dataset.__getitems__(longest_first[: max(1, size // int(lengths.max()))])

    def build_loader(self, split: str, *, ordered: bool) -> EpochDataLoader:
        model: Any = self.model
        pairs = self.pairs[split]
        sampler = TokenBatchSampler(
            pairs.source.lengths,
            pairs.target.lengths,
            self.batch_size,
            seed=self.args.seed,
            process_index=self.args.process_index,
            num_processes=self.args.world_size,
            ordered=ordered,
        )
        dataset = TranslationDataset(
            pairs,
            self.args.device,
            decoder_start_id=model.config.decoder_start_token_id,
            pad_id=model.config.pad_token_id,
        )
        return EpochDataLoader(dataset, batch_sampler=sampler, collate_fn=identity_collate)

    def forward_backward(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Like the Trainer's, without host work that takes longer than a layer and has no effect here."""
        if not model.training:
            model.train()
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # the Trainer counts the parameters in every step

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return grad_norm  # the Trainer computes the norm for the log even without clipping

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        labels = inputs["labels"]
        outputs = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"})
        loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), label_smoothing=self.label_smoothing)
        if self.args.world_size > 1:
            num_tokens = (labels != IGNORE_INDEX).sum()
            loss = loss * (num_tokens * self.args.world_size / self.accelerator.reduce(num_tokens, "sum"))
        return (loss, outputs) if return_outputs else loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Compute and log the metrics of dev."""
        model: Any = self.model
        was_training = model.training
        model.eval()
        values = {"loss": self.dev_loss()} | ({} if self.compute_dev_metrics is None else self.compute_dev_metrics())
        model.train(was_training)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in values.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @torch.no_grad()
    def dev_loss(self) -> float:
        """Compute the mean loss over all tokens of dev. The model must be in evaluation mode."""
        model: Any = self.model
        sums = torch.zeros(2, device=self.args.device)
        for batch in self.build_loader("dev", ordered=True):
            labels = batch.pop("labels")
            with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
                logits = model(**batch).logits
            loss_sum = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
            sums = sums + torch.stack([loss_sum, (labels != IGNORE_INDEX).sum()])
        loss_sum, num_tokens = self.accelerator.reduce(sums, "sum").tolist()
        return float(loss_sum / num_tokens)


def average_checkpoints(model: nn.Module, directory: Path, max_count: int) -> int:
    """Load the mean of the last checkpoints' weights into a model (Vaswani et al. 2017, section 6.1).

    Args:
        model: the model.
        directory: the directory with the `checkpoint-…` directories.
        max_count: the number of checkpoints to average, if there are that many.

    Returns:
        The number of checkpoints averaged.
    """
    states = sorted(directory.glob("checkpoint-*/trainer_state.json"), key=read_global_step)[-max_count:]
    mean: dict[str, Tensor] = {}
    for count, state in enumerate(states, 1):
        for name, tensor in load_file(state.parent / "model.safetensors").items():
            previous = mean.get(name, torch.zeros_like(tensor, dtype=torch.float64))
            mean[name] = previous + (tensor.double() - previous) / count
    model.load_state_dict(mean)
    return len(states)


def read_global_step(trainer_state: Path) -> int:
    return int(read_json(trainer_state)["global_step"])
