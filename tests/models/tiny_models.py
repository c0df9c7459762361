"""Small models of every kind."""

from typing import Any

import torch
from torch import Tensor

from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification

SCHEMES = [
    "none",
    "plain",
    "rpr",
    "transformer-xl",
    "tener",
    "distance-aware",
    "alibi",
    "rotary",
    "t5-bias",
    "disentangled",
]
WORDS = 50

#: Every kind of classifier there is.
KINDS: dict[str, dict[str, Any]] = {
    "additive": {},
    "cls": {"pooling": "cls"},
    "learned-positions": {"positions": "learned", "max_tokens": 16},
    "joint": {"pair": "joint"},
    "siamese": {"pair": "siamese"},
    "siamese-cls": {"pair": "siamese", "pooling": "cls"},
    "hierarchy": {"hierarchy": (6, 4)},
    "siamese-hierarchy": {"hierarchy": (6, 4), "pair": "siamese"},
}

#: `none` refuses positions, and that is all that does not go together.
CASES = [(s, kind) for s in SCHEMES for kind in KINDS if (s, kind) != ("none", "learned-positions")]


def config(scheme: str = "distance-aware", **options: Any) -> HeadwiseConfig:
    sizes = {"vocab_size": WORDS, "word_dim": 6, "heads": 2, "head_dim": 4, "layers": 2, "num_labels": 3}
    return HeadwiseConfig(**(sizes | {"scheme": scheme} | options))


def classifier(scheme: str = "distance-aware", **options: Any) -> HeadwiseForSequenceClassification:
    return HeadwiseForSequenceClassification(config(scheme, **options))


def texts(*lengths: int) -> tuple[Tensor, Tensor]:
    """Ids, and their mask, of texts as long as told; what stands in the padding is noise."""
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(1, WORDS, real.shape), real.long()


def inputs(kind: str) -> dict[str, Tensor]:
    """A batch of two that a classifier of that kind takes."""
    ids, mask = texts(5, 3)
    batch = {"input_ids": ids, "attention_mask": mask}
    if kind == "joint":
        batch["token_type_ids"] = (torch.arange(5) > 1).long().expand(2, -1)
    if "hierarchy" in kind:
        ids, mask = texts(5, 3, 0, 4, 0, 0)
        batch = {"input_ids": ids.view(2, 3, 5), "attention_mask": mask.view(2, 3, 5)}
    if "siamese" in kind:
        batch |= {f"pair_{name}": x.flip(0) for name, x in batch.items()}
    return batch
