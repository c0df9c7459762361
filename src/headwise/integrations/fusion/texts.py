"""Random texts on which fused models are compared with the original."""

from typing import Any

import torch
from transformers import PreTrainedModel

#: Length of the texts on which a fused model is compared with the original.
EXAMPLE_LENGTH = 37


def text_example(model: PreTrainedModel) -> dict[str, Any]:
    """Return two random texts for a model, the first one with padding."""
    config: Any = model.config.get_text_config()
    padding_id = getattr(config, "pad_token_id", None) or 0
    max_length = getattr(config, "max_position_embeddings", None) or 0  # XLNet has -1
    length = min(EXAMPLE_LENGTH, max_length - 2) if max_length > 2 else EXAMPLE_LENGTH
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size - 1, (2, length), generator=generator)
    ids += ids >= padding_id  # every id except that of padding
    mask = torch.ones_like(ids)
    mask[0, -(length // 4) :] = 0
    batch = {"input_ids": ids.masked_fill(mask == 0, padding_id), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        batch |= {f"decoder_{name}": x[:, length // 2 :] for name, x in batch.items()}  # with padding, too
    return batch
