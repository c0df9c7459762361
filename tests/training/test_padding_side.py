"""Batches are padded on the side of the tokenizer."""

from typing import Any

import torch
from datasets import Dataset
from transformers import XLNetConfig, XLNetForSequenceClassification

from headwise.models import build_tokenizer
from headwise.training.text.encoding import TextEncoder

TEXTS = ["film", "a good film", "a good film with a dull plot"]


def test_the_classifier_of_xlnet_reads_the_last_token() -> None:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(TEXTS, framed=True, max_tokens=20)
    tokenizer.padding_side = "left"
    encoder = TextEncoder(tokenizer, "classification", None, max_length=20)
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 16}
    model = XLNetForSequenceClassification(XLNetConfig(**sizes, initializer_range=0.5)).eval()
    rows = encoder.encode({"text": TEXTS, "label": [0, 1, 0]})
    batch = encoder.to_dataset(Dataset.from_dict(rows)).__getitems__([0, 1, 2])
    assert batch["attention_mask"][:, -1].tolist() == [1, 1, 1]
    collated = encoder.collate([{name: values[row] for name, values in rows.items()} for row in range(3)])
    assert all(torch.equal(collated[name], values) for name, values in batch.items())
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.no_grad():
        together = model(**{name: batch[name] for name in names if name in batch}).logits
        for row in range(3):
            alone = encoder.collate([{name: values[row] for name, values in rows.items()}])
            expected = model(**{name: alone[name] for name in names if name in alone}).logits[0]
            torch.testing.assert_close(together[row], expected, atol=1e-5, rtol=1e-5)
