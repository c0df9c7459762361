"""`--pack`: batches whose layers compute no padding."""

from collections.abc import Sequence
from typing import Any

from headwise.errors import UserError
from headwise.integrations import packing, unwrap_model
from headwise.models.encoder import HeadwisePreTrainedModel
from headwise.training.text.encoding import TextEncoder


def enable_packing(model: Any, encoder: TextEncoder) -> None:
    """Make a model compute the texts of a batch without padding, with the same outputs.

    Raises:
        UserError: the model does not support it.
    """
    if isinstance(unwrap_model(model), HeadwisePreTrainedModel):
        for module in model.modules():
            if hasattr(module, "packs_sequences"):
                module.packs_sequences = True
        return
    try:
        packing.enable_packing(model, build_example(encoder))
    except (ValueError, RuntimeError) as error:
        raise UserError(f"--pack: {error}; leave out --pack") from None


def build_example(encoder: TextEncoder) -> dict[str, Any]:
    """Return a batch of two texts of different lengths."""
    texts = ["a", "a short text, longer than the other"]
    columns: dict[str, Sequence[Any]] = {"text": texts, "pair": texts, "words": [text.split() for text in texts]}
    encoded = encoder.encode(columns)
    encoded.pop("labels", None)
    return dict(encoder.collate([dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)]))
