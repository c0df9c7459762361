"""Small models with tokenizers for the tests of inspection."""

from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import headwise as hw
from headwise.inspection import InspectedModel
from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification, build_tokenizer

WORDS = "a fine warm and funny film with dull actors , though the plot is thin . ! < > / script"
TEXT = "a warm and funny film , though the plot is thin ."


def build_bert(
    name: str = "tiny", *, seed: int = 0, is_distance_aware: bool = False, layers: int = 2
) -> InspectedModel:
    torch.manual_seed(seed)
    tokenizer = build_tokenizer([WORDS], framed=True)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=16,
        initializer_range=0.5,
        pad_token_id=tokenizer.pad_token_id,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    model = BertForSequenceClassification(config).eval()
    if is_distance_aware:
        hw.retrofit(model, hw.DistanceAware)
        for parameter in hw.scheme_parameters(model):
            nn.init.normal_(parameter, std=0.5)
    return InspectedModel(name=name, model=model, tokenizer=tokenizer)


def build_headwise(name: str = "headwise", **options: Any) -> InspectedModel:
    torch.manual_seed(0)
    tokenizer = build_tokenizer([WORDS])
    sizes: dict[str, Any] = {"word_dim": 8, "heads": 2, "head_dim": 4, "layers": 2, "num_labels": 2}
    config = HeadwiseConfig(vocab_size=len(tokenizer), **({"scheme": "distance-aware"} | sizes | options))
    return InspectedModel(name=name, model=HeadwiseForSequenceClassification(config).eval(), tokenizer=tokenizer)
