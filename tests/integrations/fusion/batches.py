"""Batches of random inputs for the tiny models of `cases.py`, with padding or without.

Each function returns the mask of the outputs' real positions, and the inputs.
"""

import math
from typing import Any

import torch
from torch import Tensor

VOCAB_SIZE = 40
FEATURES = 10


def text_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return two texts and their mask."""
    ids = torch.randint(2, VOCAB_SIZE, (2, length))
    mask = torch.ones_like(ids)
    if padding:
        mask[0, length - length // 3 :] = 0
        ids[mask == 0] = getattr(config, "pad_token_id", None) or 0
        return mask.bool(), {"input_ids": ids, "attention_mask": mask}
    return mask.bool(), {"input_ids": ids}


def left_padded_text_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return two texts and their mask, with padding on the left."""
    mask, batch = text_batch(config, length, padding)
    return mask.flip(1), {name: x.flip(1) for name, x in batch.items()}


def text_pair_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return inputs of an encoder-decoder model. The decoder's texts have another length."""
    _, source = text_batch(config, length, padding)
    mask, target = text_batch(config, length // 2 + 1, padding)
    return mask, source | {f"decoder_{name}": x for name, x in target.items()}


def segments_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return texts with segments, as XLNet's tokenizer numbers them: two texts and the separator."""
    mask, batch = left_padded_text_batch(config, length, padding)
    return mask, batch | {
        "token_type_ids": torch.arange(length).mul(3).div(length, rounding_mode="floor").expand(2, -1)
    }


def memory_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return texts with the states of a previous segment, and an order in which their tokens see each other."""
    mask, batch = text_batch(config, length, padding)
    memories = [torch.randn(5, 2, config.d_model, dtype=torch.float64) for _ in range(config.n_layer)]
    order = torch.randperm(length)
    hidden = (order[None, :] > order[:, None]).to(torch.float64).expand(2, -1, -1)
    return mask, batch | {"mems": memories, "perm_mask": hidden}


def page_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return texts with the boxes of their tokens on a page, without images."""
    mask, batch = text_batch(config, length, padding)
    left_top = torch.randint(0, 500, (2, length, 2))
    boxes = torch.cat([left_top, left_top + torch.randint(1, 400, (2, length, 2))], dim=-1)
    return mask, batch | {"bbox": boxes}


def feature_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return two spectrograms, and the mask of the positions, each of which has `subsampling_factor` frames."""
    factor = getattr(config, "subsampling_factor", 1)
    real = torch.ones(2, length, dtype=torch.bool)
    features = torch.randn(2, length * factor, FEATURES, dtype=torch.float64)
    if padding:
        real[0, length - length // 3 :] = False
        return real, {"input_features": features, "attention_mask": real.repeat_interleave(factor, 1).long()}
    return real, {"input_features": features}


def causal_feature_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return the inputs of `feature_batch` without their first frame, which causal subsampling adds."""
    real, batch = feature_batch(config, length, padding)
    return real, {name: x[:, 1:] for name, x in batch.items()}


def waveform_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return two waveforms, and the mask of the frames, of which SEW-D has several per position."""
    real, features = feature_batch(config, length * getattr(config, "squeeze_factor", 1), padding)
    stride = math.prod(config.conv_stride)
    batch = {"input_values": torch.randn(2, real.shape[1] * stride, dtype=torch.float64)}
    if padding:
        batch["attention_mask"] = features["attention_mask"].repeat_interleave(stride, 1)
    return real, batch


def speech_translation_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return two spectrograms, and target texts without padding."""
    _, batch = feature_batch(config, length, padding)
    ids = torch.randint(4, VOCAB_SIZE, (2, 3))
    return torch.ones_like(ids).bool(), batch | {"decoder_input_ids": ids}


def text_to_speech_batch(config: Any, length: int, padding: bool) -> tuple[Any, dict[str, Any]]:
    """Return two texts with their audio, and the index of all outputs: the loss in training, otherwise the audio."""
    mask, batch = text_batch(config, length, padding)
    durations = torch.randint(1, 4, mask.shape) * mask
    real_frames = torch.arange(int(durations.sum(1).max())) < durations.sum(1, keepdim=True)
    audio = torch.randn(*real_frames.shape, config.num_mel_bins, dtype=torch.float64)
    labels = {
        "spectrogram_labels": audio.masked_fill(~real_frames[..., None], -100.0),
        "duration_labels": durations,
        "pitch_labels": torch.randn(*mask.shape, 1, dtype=torch.float64),
        "energy_labels": torch.randn(*mask.shape, 1, dtype=torch.float64),
    }
    return ..., batch | labels
