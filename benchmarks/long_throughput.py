"""Measure throughput and memory of encoders on long documents, with random weights.

    python benchmarks/long_throughput.py --out throughput.jsonl --seconds 500
    python benchmarks/long_throughput.py --out throughput.jsonl --lengths 8192 --passes forward+backward
    python benchmarks/long_throughput.py --out tiny.jsonl --tiny             # a dry run on a CPU
    python benchmarks/long_throughput.py --out throughput.jsonl --table      # print what was measured

BERT-base with packing and with a sliding window of headwise, against BERT-base padded with torch's SDPA,
Longformer-base and ModernBERT-base, each with its own implementation in transformers. A batch has --batch-tokens tokens
with padding. Its documents are `mixed` (from an eighth of the length to the whole length) or `full` (all of the same
length). Throughput counts real tokens only. All models of a row read the same batch in bfloat16, and are timed in
turns. Each result is a line of JSON. A row whose lines exist is not measured again, so that an interrupted benchmark
can be resumed.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertModel
from transformers.models.longformer.configuration_longformer import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerModel
from transformers.models.modernbert.configuration_modernbert import ModernBertConfig
from transformers.models.modernbert.modeling_modernbert import ModernBertModel

import headwise as hw
from headwise.bench import measure
from headwise.integrations.packing import enable_packing

#: Tokens before and after its own that a token attends to, in BERT with a window and in Longformer.
WINDOW = 256
PASSES = ("forward+backward", "forward")
DOCUMENTS = ("mixed", "full")
LENGTHS = (8192, 2048, 4096, 512, 1024)

SDPA = "BERT, padded, SDPA"
PACKED, WINDOWED = "BERT, packed", f"BERT, window {WINDOW}"
CHECKPOINTED = "BERT, packed, gradient checkpointing"
LONGFORMER, MODERN_BERT = "Longformer", "ModernBERT"
IMPLEMENTATIONS = (SDPA, PACKED, WINDOWED, LONGFORMER, MODERN_BERT, CHECKPOINTED)

_TINY = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def main() -> None:
    arguments = parse_arguments()
    if not arguments.table:
        measure_rows(arguments, torch.device("cpu" if arguments.tiny else "cuda"))
    print(build_table(read(arguments.out)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the results, JSON lines")
    parser.add_argument("--documents", nargs="+", choices=DOCUMENTS, default=list(DOCUMENTS))
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=list(PASSES), metavar="PASS")
    parser.add_argument("--lengths", type=int, nargs="+", help=f"default: {' '.join(map(str, LENGTHS))}")
    parser.add_argument("--batch-tokens", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no row after this time")
    parser.add_argument("--tiny", action="store_true", help="a dry run with tiny models on a CPU")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    arguments = parser.parse_args()
    arguments.lengths = arguments.lengths or ((600, 64) if arguments.tiny else LENGTHS)
    if arguments.tiny:
        arguments.batch_tokens, arguments.repeats = 2 * max(arguments.lengths), 1
    return arguments


def list_rows(arguments: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield documents, passes and lengths, training first."""
    for direction in arguments.passes:
        for documents in arguments.documents:
            for length in arguments.lengths:
                yield documents, direction, length


def measure_rows(arguments: argparse.Namespace, device: torch.device) -> None:
    """Measure the rows that have no lines yet."""
    done = {(x["documents"], x["direction"], x["length"]) for x in read(arguments.out)}
    end = time.monotonic() + arguments.seconds
    for documents, direction, length in list_rows(arguments):
        if (documents, direction, length) in done:
            continue
        if time.monotonic() > end:
            print(f"stopped after {arguments.seconds:g} s; run the same command again to continue", flush=True)
            return
        start = time.monotonic()
        lines = measure_row(documents, direction, length, arguments, device)
        with arguments.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        print(f"{documents}, {direction}, {length} tokens ({time.monotonic() - start:.0f} s)", flush=True)
        for line in lines:
            print(f"    {line['implementation']}: {format_cell(line)}", flush=True)
        release_memory(device)


def measure_row(
    documents: str, direction: str, length: int, arguments: argparse.Namespace, device: torch.device
) -> list[dict[str, Any]]:
    """Return the lines of a row, one for each implementation."""
    batch = build_batch(documents, length, max(1, arguments.batch_tokens // length), device)
    tokens = int(batch["attention_mask"].sum())
    is_training = direction == "forward+backward"
    calls: dict[str, Callable[[], object]] = {}
    peaks: dict[str, float] = {}
    notes: dict[str, str] = {}
    names = [name for name in IMPLEMENTATIONS if name != CHECKPOINTED or is_training]
    for name in names:
        try:
            model = build_model(name, max(arguments.lengths), arguments.tiny, device)
            call = build_call(model.train(is_training), batch, is_training=is_training)
            call()
            if device.type == "cuda":
                peaks[name] = measure.cuda_peak_mib(call, device)
            calls[name] = call
        except Exception as error:
            notes[name] = measure.shorten_error(error)
        if name in notes:  # outside of the handler, which keeps the tensors of the failed call
            release_memory(device)
    samples = measure.time_interleaved(calls, arguments.repeats, device)
    return [
        {
            "documents": documents,
            "direction": direction,
            "length": length,
            "implementation": name,
            "batch_size": len(batch["input_ids"]),
            "tokens": tokens,
            "tokens_per_second": tokens / statistics.median(samples[name]) if name in samples else None,
            "speedup": median_speedup(samples, name),
            "peak_mib": peaks.get(name),
            "note": notes.get(name, ""),
        }
        for name in names
    ]


def median_speedup(samples: dict[str, list[float]], name: str) -> float | None:
    """Return the median over the rounds of the time of padded SDPA divided by this one's."""
    if not {name, SDPA} <= samples.keys():
        return None
    return statistics.median(x / y for x, y in zip(samples[SDPA], samples[name], strict=True))


def build_batch(documents: str, length: int, batch_size: int, device: torch.device) -> dict[str, Tensor]:
    """Return random tokens with padding at the end. One document has the full length."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.full((batch_size,), length)
    if documents == "mixed":
        lengths = torch.linspace(length / 8, length, batch_size).long() if batch_size > 1 else lengths
    ids = torch.randint(5, 100, (batch_size, length), generator=generator)
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {"input_ids": (ids * mask).to(device), "attention_mask": mask.to(device)}


@cache
def build_model(name: str, length: int, tiny: bool, device: torch.device) -> Any:
    """Return a model with random weights that reads inputs up to a length."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = _TINY if tiny else {}
    if name == LONGFORMER:
        # transformers' defaults are those of longformer-base-4096, except for the number of positions
        sizes = sizes | {"attention_window": 2 * (16 if tiny else WINDOW), "max_position_embeddings": length + 1024}
        model: Any = LongformerModel(LongformerConfig(**sizes, pad_token_id=0), add_pooling_layer=False)
    elif name == MODERN_BERT:
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
        model = ModernBertModel(ModernBertConfig(**sizes, **(special if tiny else {}), max_position_embeddings=8192))
    else:
        model = BertModel(BertConfig(**sizes), add_pooling_layer=False)
        if length > model.config.max_position_embeddings:
            hw.extend_positions(model, length)
        if name == WINDOWED:
            hw.set_window(model, 16 if tiny else WINDOW)
        elif name != SDPA:
            enable_packing(model)
        if name == CHECKPOINTED:
            model.gradient_checkpointing_enable()
    return model.to(device, torch.bfloat16)


def build_call(model: Any, batch: dict[str, Tensor], *, is_training: bool) -> Callable[[], object]:
    """Return a function that runs the forward pass or, in training, forward and backward."""
    inputs = dict(batch)
    if isinstance(model, LongformerModel):
        inputs["global_attention_mask"] = torch.zeros_like(batch["input_ids"])
        inputs["global_attention_mask"][:, 0] = 1

    def call() -> object:
        if not is_training:
            with torch.no_grad():
                return model(**inputs).last_hidden_state
        model(**inputs).last_hidden_state[:, 0].float().square().mean().backward()
        model.zero_grad(set_to_none=True)
        return None

    return call


def release_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def build_table(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table: thousands of tokens per second, speed-up over padded SDPA, and peak memory."""
    table = [f"| documents, pass, batch | {' | '.join(IMPLEMENTATIONS)} |", f"|---|{'---|' * len(IMPLEMENTATIONS)}"]
    rows = dict.fromkeys((x["documents"], x["direction"], x["batch_size"], x["length"]) for x in lines)
    for row in rows:
        found = {
            x["implementation"]: x
            for x in lines
            if (x["documents"], x["direction"], x["batch_size"], x["length"]) == row
        }
        documents, direction, batch_size, length = row
        cells = [format_cell(found[name]) if name in found else "–" for name in IMPLEMENTATIONS]
        table.append(f"| {documents}, {direction}, {batch_size} × {length:,} | {' | '.join(cells)} |")
    return "\n".join(table)


def format_cell(line: dict[str, Any]) -> str:
    if line["tokens_per_second"] is None:
        return str(line["note"])
    parts = [f"{line['tokens_per_second'] / 1000:.3g}k tokens/s"]
    parts += [] if line["speedup"] is None else [f"{line['speedup']:.2f}×"]
    parts += [] if line["peak_mib"] is None else [f"{line['peak_mib'] / 1024:.1f} GiB"]
    return ", ".join(parts)


if __name__ == "__main__":
    main()
