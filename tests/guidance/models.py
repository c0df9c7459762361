"""Tiny random models of every family, as users would load them."""

from collections.abc import Callable
from typing import Any

import transformers
from torch import nn

hf: Any = transformers

WIDTH, HEADS, LAYERS, VOCABULARY = 16, 2, 3, 40

_SHAPE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
}
_ENCODER = _SHAPE | {"intermediate_size": 32, "num_labels": 3, "max_position_embeddings": 64}
_DECODER = _SHAPE | {"intermediate_size": 32, "num_labels": 3, "pad_token_id": 0, "max_position_embeddings": 64}

FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertForSequenceClassification(hf.BertConfig(**_ENCODER)),
    "roberta": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**_ENCODER)),
    "xlm-roberta": lambda: hf.XLMRobertaForSequenceClassification(hf.XLMRobertaConfig(**_ENCODER)),
    "albert": lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(embedding_size=8, **_ENCODER)),
    "electra": lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(embedding_size=8, **_ENCODER)),
    "distilbert": lambda: hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(
            dim=WIDTH, n_heads=HEADS, n_layers=LAYERS, hidden_dim=32, vocab_size=VOCABULARY, num_labels=3
        )
    ),
    "modernbert": lambda: hf.ModernBertForSequenceClassification(
        hf.ModernBertConfig(**_ENCODER, local_attention=4, global_attn_every_n_layers=2, pad_token_id=0)
    ),
    "gpt2": lambda: hf.GPT2ForSequenceClassification(
        hf.GPT2Config(n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, vocab_size=VOCABULARY, num_labels=3, pad_token_id=0)
    ),
    "llama": lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**_DECODER, num_key_value_heads=1)),
    "qwen2": lambda: hf.Qwen2ForSequenceClassification(hf.Qwen2Config(**_DECODER, num_key_value_heads=1)),
    "t5-encoder": lambda: hf.T5EncoderModel(
        hf.T5Config(d_model=WIDTH, d_kv=8, num_heads=HEADS, num_layers=LAYERS, d_ff=32, vocab_size=VOCABULARY)
    ),
}

#: Families whose attention never asks the interface.
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "mpnet": lambda: hf.MPNetForSequenceClassification(hf.MPNetConfig(**_ENCODER)),
    "deberta": lambda: hf.DebertaV2ForSequenceClassification(hf.DebertaV2Config(**_ENCODER)),
}
