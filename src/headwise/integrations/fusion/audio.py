"""Random audio on which fused speech models are compared with the original."""

from typing import Any

import torch
from torch import Tensor


def feature_example(model: Any, width: int, num_frames: int = 37) -> dict[str, Tensor]:
    """Return two random spectrograms, (2, frames, width), and their mask. The first one has padding."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, num_frames, width, generator=generator).to(model.dtype)
    return {"input_features": features, "attention_mask": _mask(num_frames)}


def subsampled_example(model: Any) -> dict[str, Tensor]:
    """Return inputs of a model that subsamples spectrograms, or of its encoder."""
    config = getattr(model.config, "encoder_config", model.config)
    return feature_example(model, config.num_mel_bins, 37 * config.subsampling_factor)


def waveform_example(model: Any, num_frames: int = 37) -> dict[str, Tensor]:
    """Return two random waveforms of about `num_frames` positions, (2, samples), and their mask."""
    num_samples = num_frames
    for stride in model.config.conv_stride:
        num_samples *= stride
    generator = torch.Generator().manual_seed(0)
    mask = _mask(num_samples)
    waveforms = torch.randn(2, num_samples, generator=generator) * mask
    return {"input_values": waveforms.to(model.dtype), "attention_mask": mask}


def _mask(length: int) -> Tensor:
    """Return a mask for two inputs. The last quarter of the first one is padding."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, -(length // 4) :] = 0
    return mask


def seamless_example(model: Any) -> dict[str, Tensor]:
    """Return inputs of SeamlessM4T or of its speech encoder."""
    batch = feature_example(model, model.config.feature_projection_input_dim)
    if hasattr(model, "text_decoder"):
        batch["decoder_input_ids"] = torch.arange(12).reshape(2, 6) % model.config.vocab_size
    return batch
