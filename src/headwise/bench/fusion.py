"""Time and memory of a fused model, in comparison with the original, both with and without torch.compile.

`headwise fuse MODEL --bench` and `benchmarks/fusion.py` use it.
"""

import copy
import gc
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.bench import measure
from headwise.integrations.fusion import fuse_attention

Pass = Literal["forward", "forward+backward"]

#: The implementations, in the order of the table. The original is the baseline.
ORIGINAL, FUSED, COMPILED, COMPILED_FUSED = IMPLEMENTATIONS = (
    "original",
    "fused",
    "torch.compile of the original",
    "torch.compile of the fused",
)

PASSES: tuple[Pass, ...] = ("forward", "forward+backward")


@dataclass(frozen=True)
class FusionMeasurement:
    """Time and memory of one implementation for one shape. Values that were not measured are None; see the note.

    Attributes:
        implementation: one of `IMPLEMENTATIONS`.
        direction: forward, or forward and backward.
        length: tokens, or seconds of audio, of one input.
        batch_size: inputs of a batch.
        ms: median time of a call.
        speedup: median over the rounds of the original's time divided by this one's; above 1 is faster.
        speedup_low, speedup_high: first and third quartile.
        peak_mib: peak memory of one call, without the model and its inputs.
        note: why something was not measured.
    """

    implementation: str
    direction: str
    length: int
    batch_size: int
    ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    peak_mib: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Workload:
    """Builds the call that is measured; picklable, so that memory can be measured in a fresh process.

    Attributes:
        build_model: returns the model, on its device.
        build_batch: returns inputs for a model, a batch size and a length.
        implementation: one of `IMPLEMENTATIONS`.
        direction: forward, or forward and backward.
        batch_size: inputs of a batch.
        length: length of an input.
        always: whether the fused model fuses short inputs, too.
    """

    build_model: Callable[[], Any]
    build_batch: Callable[[Any, int, int], Mapping[str, Any]]
    implementation: str
    direction: str
    batch_size: int
    length: int
    always: bool = False

    def build(self, model: Any = None) -> Callable[[], object]:
        """Return the call, for this model or for a new one."""
        model = prepare_model(self.build_model() if model is None else model, self.implementation, always=self.always)
        batch = dict(self.build_batch(model, self.batch_size, self.length))
        is_training = self.direction == "forward+backward"
        model.train(is_training)

        def call() -> object:
            if not is_training:
                with torch.no_grad():
                    return first_output(model(**batch))
            first_output(model(**batch)).float().square().mean().backward()
            model.zero_grad(set_to_none=True)
            return None

        return call


def build_workload(workload: Workload) -> Callable[[], object]:
    """Return the call of a workload, in a fresh process."""
    return workload.build()


def prepare_model(model: Any, implementation: str, *, always: bool = False) -> Any:
    """Return a copy of a model with one of the implementations. The parameters are shared."""
    memo = {id(parameter): parameter for parameter in model.parameters()}
    copied = copy.deepcopy(model, memo)
    if implementation in (FUSED, COMPILED_FUSED):
        fuse_attention(copied, check=False, verbose=False, always=always)
    if implementation in (COMPILED, COMPILED_FUSED):
        copied.compile()
    return copied


def first_output(outputs: Any) -> Tensor:
    """Return the first floating-point tensor of a model's outputs."""
    return next(x for x in outputs.values() if isinstance(x, Tensor) and x.is_floating_point())


def measure_shape(
    build_model: Callable[[], Any],
    build_batch: Callable[[Any, int, int], Mapping[str, Any]],
    *,
    batch_size: int,
    length: int,
    direction: str,
    repeats: int,
    implementations: tuple[str, ...] = IMPLEMENTATIONS,
    always: bool = False,
) -> Iterator[FusionMeasurement]:
    """Yield the measurements of all implementations for one shape, timed in turns.

    Args:
        build_model: returns the model, on its device.
        build_batch: returns inputs for a model, a batch size and a length.
        batch_size: inputs of a batch.
        length: length of an input.
        direction: forward, or forward and backward.
        repeats: number of rounds; each round runs all implementations.
        implementations: what to measure.
        always: whether the fused model fuses short inputs, too.
    """
    model = build_model()
    device = next(model.parameters()).device
    calls: dict[str, Callable[[], object]] = {}
    peaks: dict[str, float | None] = {}
    notes: dict[str, str] = {}
    for name in implementations:
        workload = Workload(build_model, build_batch, name, direction, batch_size, length, always)
        try:
            call = workload.build(model)
            call()
            if device.type == "cuda":
                peaks[name] = measure.cuda_peak_mib(call, device)
            else:
                peaks[name] = measure.cpu_peak_mib(build_workload, workload)
            calls[name] = call
        except Exception as error:
            notes[name] = measure.shorten_error(error)
        if name in notes:  # outside of the handler, which keeps the frames of the failed call and their tensors
            release_memory(device)
    try:
        samples = measure.time_interleaved(calls, repeats, device)
    except Exception as error:
        samples, notes = {}, dict.fromkeys(calls, measure.shorten_error(error)) | notes
    for name in implementations:
        seconds = samples.get(name)
        low = speedup = high = None
        if seconds is not None and ORIGINAL in samples:
            low, speedup, high = measure.quartiles_of_ratios(samples[ORIGINAL], seconds)
        yield FusionMeasurement(
            implementation=name,
            direction=direction,
            length=length,
            batch_size=batch_size,
            ms=None if seconds is None else 1000 * statistics.median(seconds),
            speedup=speedup,
            speedup_low=low,
            speedup_high=high,
            peak_mib=peaks.get(name),
            note=notes.get(name, ""),
        )
    calls.clear()
    release_memory(device)


def release_memory(device: torch.device) -> None:
    """Free the memory of failed or finished calls."""
    gc.collect()
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reads_audio(model: Any) -> bool:
    """Whether a model reads audio, as a waveform or as a spectrogram."""
    return not {"input_values", "input_features"}.isdisjoint(signature(model.forward).parameters)


def random_texts(model: Any, batch_size: int, length: int) -> dict[str, Any]:
    """Return random tokens for a model. Decoders get as many. Text-to-speech models get five frames a token."""
    config, device = model.config.get_text_config(), next(model.parameters()).device
    config = getattr(config, "model_config", config)  # of a text-to-speech model with a vocoder
    ids = torch.randint(5, config.vocab_size, (batch_size, length), device=device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = ids
    if "duration_labels" in signature(model.forward).parameters:
        batch |= random_speech(config, ids, model.dtype)
    return batch


def random_speech(config: Any, ids: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return random labels of a text-to-speech model, which training needs, for texts of (batch, tokens)."""
    frames = 5  # of each token
    options: dict[str, Any] = {"device": ids.device, "dtype": dtype}
    return {
        "duration_labels": torch.full_like(ids, frames),
        "pitch_labels": torch.randn(*ids.shape, 1, **options),
        "energy_labels": torch.randn(*ids.shape, 1, **options),
        "spectrogram_labels": torch.randn(ids.shape[0], frames * ids.shape[1], config.num_mel_bins, **options),
    }


def random_audio(model: Any, batch_size: int, seconds: int) -> dict[str, Any]:
    """Return random audio for a model: 16,000 samples a second, or spectrograms. Decoders get four tokens a second.

    Spectrograms have 100 frames a second if the model subsamples them, otherwise 50.
    """
    parameter = next(model.parameters())
    config = getattr(model.config, "encoder_config", model.config)
    names = signature(model.forward).parameters
    shape: tuple[int, ...]
    if "input_features" not in names:
        name, shape = "input_values", (batch_size, 16_000 * seconds)
    elif hasattr(config, "subsampling_factor"):
        name, shape = "input_features", (batch_size, 100 * seconds, config.num_mel_bins)
    else:
        name, shape = "input_features", (batch_size, 50 * seconds, config.feature_projection_input_dim)
    batch = {name: torch.randn(shape, device=parameter.device, dtype=parameter.dtype)}
    if "decoder_input_ids" in names:
        ids = torch.randint(5, model.config.vocab_size, (batch_size, 4 * seconds), device=parameter.device)
        batch["decoder_input_ids"] = ids
    return batch
