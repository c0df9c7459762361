"""Fuse the attention of a Hugging Face model with relative positions, and measure the gain.

The model is not changed on disk. Use headwise.fuse_attention(model) in your own code.

examples:
  headwise fuse microsoft/deberta-v3-base
  headwise fuse microsoft/deberta-v3-base --bench --lengths 512 2048 8192 --dtype bfloat16
  headwise fuse runs/my-t5 --bench --lengths 1024 --batch-size 8 --forward-only
  headwise fuse facebook/w2v-bert-2.0 --bench --seconds 10 60 300 --dtype bfloat16
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from headwise.cli.arguments import add_trust_option
from headwise.errors import UserError, first_line

DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="directory or name of a Hugging Face model")
    parser.add_argument(
        "--bench",
        action="store_true",
        help="measure time and peak memory of the model, the fused model and torch.compile of the model",
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        metavar="N",
        help="tokens per input, for text models (default: 512 2048, at most what the model supports)",
    )
    parser.add_argument(
        "--seconds",
        nargs="+",
        type=int,
        metavar="N",
        help="seconds of audio per input, for speech models (default: 10 60)",
    )
    parser.add_argument("--batch-size", type=int, default=1, metavar="N", help="inputs per batch (default: 1)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="precision (default: float32)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: auto)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="number of timed rounds (default: 5)")
    parser.add_argument("--forward-only", action="store_true", help="do not measure the backward pass")
    parser.add_argument(
        "--always",
        action="store_true",
        help="fuse short inputs, too, for which attention with whole maps may be faster but takes more memory",
    )
    parser.add_argument("--no-compile", action="store_true", help="do not measure torch.compile, which takes minutes")
    add_trust_option(parser)


def run(arguments: Namespace) -> int:
    check_numbers(arguments)
    from headwise.bench.fusion import reads_audio
    from headwise.bench.measure import resolve_device
    from headwise.integrations import UnsupportedAttentionError
    from headwise.integrations.fusion import fuse_attention

    device = resolve_device(arguments.device)
    if device.type == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError("--device cuda: torch finds no CUDA device")
    model = load_model(arguments.model, arguments.dtype, str(device))
    is_audio = reads_audio(model)
    lengths = choose_lengths(arguments, model, is_audio=is_audio) if arguments.bench else []
    try:
        fuse_attention(model, always=arguments.always)
    except (UnsupportedAttentionError, ValueError, RuntimeError) as error:
        raise UserError(f"{arguments.model}: {first_line(error)}") from None
    if arguments.bench:
        print_table(arguments, str(device), lengths, is_audio=is_audio)
    return 0


def check_numbers(arguments: Namespace) -> None:
    """Raise UserError for a length, batch size or number of rounds below 1."""
    for option, values in (
        ("--lengths", arguments.lengths or []),
        ("--seconds", arguments.seconds or []),
        ("--batch-size", [arguments.batch_size]),
        ("--repeats", [arguments.repeats]),
    ):
        for value in values:
            if value < 1:
                raise UserError(f"{option} must be at least 1, got {value}")


def choose_lengths(arguments: Namespace, model: Any, *, is_audio: bool) -> list[int]:
    """Return the lengths to measure, in tokens or in seconds of audio.

    Raises:
        UserError: the model does not read such inputs.
    """
    from headwise.training.core.pretrained import max_absolute_positions

    if is_audio:
        if arguments.lengths:
            raise UserError(f"--lengths: {arguments.model} reads audio; give its length by --seconds")
        return arguments.seconds or [10, 60]
    if arguments.seconds:
        raise UserError(f"--seconds: {arguments.model} reads texts; give their length by --lengths")
    limit = max_absolute_positions(model)
    if arguments.lengths is None:
        return [512, 2048] if limit is None else sorted({min(limit, x) for x in (512, 2048)})
    for length in arguments.lengths:
        if limit is not None and length > limit:
            raise UserError(f"--lengths {length}: {arguments.model} reads at most {limit} tokens")
    return list(arguments.lengths)


def load_model(path: str, dtype: str, device: str) -> Any:
    """Return a model of transformers, without a task's head. T5's encoder is loaded without a decoder."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

    from headwise.training.core.pretrained import load_pretrained, load_weights, loading_errors

    with loading_errors(path):
        names = getattr(load_pretrained(AutoConfig, path), "architectures", None) or [""]
        loader = AutoModelForTextEncoding if names[0].endswith("T5EncoderModel") else AutoModel
        model, _ = load_weights(loader, path, dtype=getattr(torch, dtype))
    return model.to(device).eval()


def print_table(arguments: Namespace, device: str, lengths: list[int], *, is_audio: bool) -> None:
    """Measure all shapes with a progress bar, and print a table."""
    from rich.console import Console
    from rich.table import Table

    from headwise.bench.fusion import (
        COMPILED,
        COMPILED_FUSED,
        IMPLEMENTATIONS,
        ORIGINAL,
        PASSES,
        measure_shape,
        random_audio,
        random_texts,
    )
    from headwise.bench.report import format_digits
    from headwise.bench.runner import progress_bar

    build_model = partial(load_model, arguments.model, arguments.dtype, device)
    skipped = {COMPILED, COMPILED_FUSED} if arguments.no_compile else set()
    unit = "seconds" if is_audio else "tokens"
    table = Table("pass", unit, "implementation", "time (ms)", "speedup", "peak memory (MiB)", "note")
    directions = PASSES[:1] if arguments.forward_only else PASSES
    with progress_bar(len(directions) * len(lengths)) as progress:
        for direction in directions:
            for length in lengths:
                progress(f"{direction}, {length:,} {unit}")
                for x in measure_shape(
                    build_model,
                    random_audio if is_audio else random_texts,
                    batch_size=arguments.batch_size,
                    length=length,
                    direction=direction,
                    repeats=arguments.repeats,
                    implementations=tuple(name for name in IMPLEMENTATIONS if name not in skipped),
                    always=arguments.always,
                ):
                    ms, peak = ("" if value is None else format_digits(value) for value in (x.ms, x.peak_mib))
                    speedup = "" if x.speedup is None else f"{format_digits(x.speedup)}×"
                    has_range = arguments.repeats > 1 and x.implementation != ORIGINAL
                    if has_range and x.speedup_low is not None and x.speedup_high is not None:
                        speedup += f" ({format_digits(x.speedup_low)} to {format_digits(x.speedup_high)})"
                    table.add_row(x.direction, f"{x.length:,}", x.implementation, ms, speedup, peak, x.note)
    Console(width=None if Console().is_terminal else 140).print(table)
    rounds = f"{arguments.repeats} rounds" if arguments.repeats > 1 else "1 round"
    print(
        f"{arguments.model}, batch size {arguments.batch_size}, {arguments.dtype}, {device}; medians of {rounds}, in "
        "which all implementations take turns, and quartiles of the speedup. Memory is without the model."
    )
