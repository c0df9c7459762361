"""Tiny random models of many families, a batch for them, and a guide that keeps their records."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import headwise as hw
from headwise.guides import ForwardRecord
from headwise.integrations import LayerRecord, RecordField

hf: Any = transformers

WIDTH, HEADS, LAYERS, VOCAB_SIZE = 16, 2, 3, 40

_SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB_SIZE,
}
_ENCODER = _SIZES | {"intermediate_size": 32, "num_labels": 3, "max_position_embeddings": 64}
_DECODER = _SIZES | {"intermediate_size": 32, "num_labels": 3, "pad_token_id": 0, "max_position_embeddings": 64}

FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertForSequenceClassification(hf.BertConfig(**_ENCODER)),
    "roberta": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**_ENCODER)),
    "xlm-roberta": lambda: hf.XLMRobertaForSequenceClassification(hf.XLMRobertaConfig(**_ENCODER)),
    "albert": lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(embedding_size=8, **_ENCODER)),
    "electra": lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(embedding_size=8, **_ENCODER)),
    "distilbert": lambda: hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(
            dim=WIDTH, n_heads=HEADS, n_layers=LAYERS, hidden_dim=32, vocab_size=VOCAB_SIZE, num_labels=3
        )
    ),
    "modernbert": lambda: hf.ModernBertForSequenceClassification(
        hf.ModernBertConfig(**_ENCODER, local_attention=4, global_attn_every_n_layers=2, pad_token_id=0)
    ),
    "gpt2": lambda: hf.GPT2ForSequenceClassification(
        hf.GPT2Config(n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, vocab_size=VOCAB_SIZE, num_labels=3, pad_token_id=0)
    ),
    "llama": lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**_DECODER, num_key_value_heads=1)),
    "qwen2": lambda: hf.Qwen2ForSequenceClassification(hf.Qwen2Config(**_DECODER, num_key_value_heads=1)),
    "t5-encoder": lambda: hf.T5EncoderModel(
        hf.T5Config(d_model=WIDTH, d_kv=8, num_heads=HEADS, num_layers=LAYERS, d_ff=32, vocab_size=VOCAB_SIZE)
    ),
}

#: Families that do not use transformers' AttentionInterface.
UNSUPPORTED_FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "mpnet": lambda: hf.MPNetForSequenceClassification(hf.MPNetConfig(**_ENCODER)),
    "deberta": lambda: hf.DebertaV2ForSequenceClassification(hf.DebertaV2Config(**_ENCODER)),
}


def build_model(family: str) -> Any:
    """Build a model without dropout, so that gradients can be compared in training mode."""
    torch.manual_seed(0)
    model = (FAMILIES | UNSUPPORTED_FAMILIES)[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # attention would be almost uniform otherwise
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for attribute in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    return model


def build_batch() -> dict[str, Tensor]:
    """Three texts of nine tokens, two of them padded."""
    ids = torch.randint(3, 40, (3, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    mask[2, 8:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def first_output(outputs: Any, mask: Tensor) -> Tensor:
    """Return logits, or the hidden states of real tokens."""
    output: Tensor = next(x for x in outputs.values() if isinstance(x, Tensor))
    return output[mask.bool()] if output.dim() == 3 else output


def run_model(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return logits, or the hidden states of real tokens, in evaluation mode."""
    with torch.no_grad():
        return first_output(model.eval()(**inputs), inputs["attention_mask"])


def randomize_schemes(model: nn.Module) -> None:
    """Draw large parameters of the schemes that `retrofit` added, so that their effect is visible."""
    with torch.no_grad():
        for parameter in hw.scheme_parameters(model):
            parameter.normal_()


class KeepRecords(hw.Guide):
    """A guide without effect that keeps the layers of the last forward pass."""

    def __init__(self, *required_fields: RecordField) -> None:
        super().__init__(0.0)
        self.required_fields = frozenset(required_fields)
        self.records: list[LayerRecord] = []

    def term(self, record: ForwardRecord) -> Tensor:
        self.records = record.layers
        return torch.zeros((), device=record.real.device)
