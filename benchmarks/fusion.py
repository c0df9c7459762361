"""Measure fused attention for each family's published base size, with random weights.

    python benchmarks/fusion.py --out results.jsonl --seconds 1500
    python benchmarks/fusion.py --out results.jsonl --families T5 DeBERTa-v2 --passes forward
    python benchmarks/fusion.py --out results.jsonl --jobs shapes --lengths 512 10 --batch-size 1 8
    HEADWISE_NATIVE=0 python benchmarks/fusion.py --out results.jsonl --jobs shapes --label "without C++"
    python benchmarks/fusion.py --out tiny.jsonl --tiny          # a dry run of every job on a CPU, in minutes
    python benchmarks/fusion.py --out results.jsonl --table      # print what was measured

There are three kinds of jobs. `shapes`: time and memory of the model's own best attention and of the fused one;
`longest`: the longest input that fits into memory in training; `compile`: the same shapes with torch.compile. Jobs,
families, passes, batch sizes and lengths run in the order in which the options name them. Each result is a line of
JSON. A job whose line exists is not run again, so that an interrupted benchmark can be resumed. An implementation that
runs out of memory gets a line that says so.
"""

import argparse
import json
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headwise._compat import get_attn_implementation
from headwise.bench import measure
from headwise.bench.fusion import (
    FUSED,
    IMPLEMENTATIONS,
    ORIGINAL,
    PASSES,
    Workload,
    measure_shape,
    random_audio,
    random_texts,
    release_memory,
)

#: The kinds of jobs.
SHAPES, LONGEST, COMPILE = KINDS = ("shapes", "longest", "compile")

TEXT_LENGTHS = (512, 2048, 8192)
TINY_LENGTHS = (32,)

#: First and last number of tokens and seconds of the search for the longest input, and the factor between lengths.
FIRST_LENGTH, LAST_LENGTH = {"tokens": 2**12, "seconds": 40}, {"tokens": 2**20, "seconds": 2**20}
FACTOR = 2

#: The search for the longest input ends after a step that takes longer.
MAX_STEP_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class BenchmarkModel:
    """A published model of a family, with random weights.

    Attributes:
        model: its class, from the package transformers on.
        config: the arguments of its configuration that differ from transformers' defaults.
        tiny: the arguments for a dry run.
        length_argument: the argument of the configuration that limits the length, if there is one.
        build_batch: returns inputs for a model, a batch size and a length.
        lengths: the lengths to measure; what they count is up to `build_batch`.
        tiny_lengths: the lengths of a dry run.
        unit: what lengths count.
    """

    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    tiny: Mapping[str, Any]
    length_argument: str | None = None
    build_batch: Callable[[Any, int, int], Mapping[str, Any]] = random_texts
    lengths: tuple[int, ...] = TEXT_LENGTHS
    tiny_lengths: tuple[int, ...] = TINY_LENGTHS
    unit: str = "tokens"

    def build(self, *, tiny: bool, max_length: int, dtype: torch.dtype, device: str) -> Any:
        """Return the model, with the model's own best attention: sdpa where it has it, otherwise eager."""
        model_class = pkgutil.resolve_name(f"transformers:{self.model}")
        config = dict(self.config) | (dict(self.tiny) if tiny else {})
        if self.length_argument is not None:
            config[self.length_argument] = max_length + 2
        torch.manual_seed(0)
        with torch.device(device):  # random weights of large models take long on a CPU
            return model_class(model_class.config_class(**config)).to(device, dtype)


_TINY_BERT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_TINY_T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2}
_T5_BASE = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
_MT5_BASE = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "vocab_size": 250_112}
_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}

_TINY_FAST_CONFORMER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "subsampling_conv_channels": 8,
}

_TINY_SEAMLESS = {
    "hidden_size": 32,
    "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": 2,
    "speech_encoder_intermediate_size": 32,
}

#: Audio of 10 s, 1, 5 and 20 minutes.
AUDIO_SECONDS = (10, 60, 300, 1200)


_AUDIO: dict[str, Any] = {
    "build_batch": random_audio,
    "lengths": AUDIO_SECONDS,
    "tiny_lengths": (1,),
    "unit": "seconds",
}

#: The published base size of each family.
MODELS = {
    "T5": BenchmarkModel(model="T5EncoderModel", config=_T5_BASE, tiny=_TINY_T5),
    "mT5": BenchmarkModel(model="MT5EncoderModel", config=_MT5_BASE, tiny=_TINY_T5),
    "UMT5": BenchmarkModel(model="UMT5EncoderModel", config=_MT5_BASE, tiny=_TINY_T5),
    "MPNet": BenchmarkModel(
        model="MPNetModel", config={"vocab_size": 30_527}, tiny=_TINY_BERT, length_argument="max_position_embeddings"
    ),
    "LayoutLMv3": BenchmarkModel(
        model="LayoutLMv3Model",
        config={"visual_embed": False},
        tiny=_TINY_BERT | {"coordinate_size": 6, "shape_size": 4},
        length_argument="max_position_embeddings",
    ),
    "DeBERTa": BenchmarkModel(
        model="DebertaModel",
        config=_DEBERTA | {"max_relative_positions": 512},
        tiny=_TINY_BERT,
        length_argument="max_position_embeddings",
    ),
    "DeBERTa-v2": BenchmarkModel(  # deberta-v3-base
        model="DebertaV2Model",
        config=_DEBERTA
        | {
            "vocab_size": 128_100,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_relative_positions": 512,
            "position_buckets": 256,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
        tiny=_TINY_BERT,
        length_argument="max_position_embeddings",
    ),
    "XLNet": BenchmarkModel(
        model="XLNetModel",
        config={"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072},
        tiny={"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 32},
    ),
    "Wav2Vec2-BERT": BenchmarkModel(  # w2v-bert-2.0, 50 positions a second
        model="Wav2Vec2BertModel",
        config={"apply_spec_augment": False, "layerdrop": 0.0},
        tiny=_TINY_BERT | {"output_hidden_size": 32},
        **_AUDIO,
    ),
    "Wav2Vec2-Conformer": BenchmarkModel(  # wav2vec2-conformer-rel-pos-large, 50 positions a second
        model="Wav2Vec2ConformerModel",
        config={
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "feat_extract_norm": "layer",
            "conv_bias": True,
            "apply_spec_augment": False,
            "layerdrop": 0.0,
        },
        tiny=_TINY_BERT | {"num_conv_pos_embedding_groups": 4},
        **_AUDIO,
    ),
    "Parakeet": BenchmarkModel(  # parakeet-ctc-0.6b, 12.5 positions a second
        model="ParakeetEncoder",
        config={"layerdrop": 0.0},
        tiny=_TINY_FAST_CONFORMER,
        **_AUDIO,
    ),
    "SeamlessM4T": BenchmarkModel(  # the speech encoder of hf-seamless-m4t-medium, 50 positions a second
        model="models.seamless_m4t.modeling_seamless_m4t.SeamlessM4TSpeechEncoder",
        config={"speech_encoder_layers": 12, "speech_encoder_layerdrop": 0.0},
        tiny=_TINY_SEAMLESS,
        **_AUDIO,
    ),
    "SeamlessM4T v2": BenchmarkModel(  # the speech encoder of seamless-m4t-v2-large, 50 positions a second
        model="models.seamless_m4t_v2.modeling_seamless_m4t_v2.SeamlessM4Tv2SpeechEncoder",
        config={"speech_encoder_layerdrop": 0.0},
        tiny=_TINY_SEAMLESS,
        **_AUDIO,
    ),
    "SEW-D": BenchmarkModel(  # sew-d-base, 25 positions a second
        model="SEWDModel",
        config={"apply_spec_augment": False},
        tiny=_TINY_BERT | {"num_conv_pos_embedding_groups": 4},
        **_AUDIO,
    ),
    "Nemotron-ASR-streaming": BenchmarkModel(  # nemotron-speech-streaming-en-0.6b, 12.5 positions a second
        model="NemotronAsrStreamingEncoder",
        config={"layerdrop": 0.0, "max_position_embeddings": 2**24},  # only a check of the length
        tiny=_TINY_FAST_CONFORMER,
        **_AUDIO,
    ),
}


def main() -> None:
    arguments = parse_arguments()
    if arguments.table:
        print_table(arguments.out)
        return
    done = {json.loads(line)["key"] for line in read_lines(arguments.out)}
    deadline = time.monotonic() + arguments.seconds
    for name, job in jobs(arguments):
        key = f"{name} {arguments.label}".strip()
        if key in done:
            continue
        if time.monotonic() > deadline:
            print(f"stopped after {arguments.seconds:g} s; run the same command again to continue")
            return
        print(key, flush=True)
        try:
            results = job()
        except Exception as error:
            results = [{"note": measure.shorten_error(error)}]
        with arguments.out.open("a", encoding="utf-8") as file:
            for result in results:
                file.write(json.dumps({"key": key, "label": arguments.label, **result}) + "\n")
                print("   ", result, flush=True)
        if any("CUDA error" in result["note"] for result in results):
            raise SystemExit("the GPU failed, and this process cannot use it any more; run the same command again")
    print("all jobs are done")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the results, JSON lines")
    parser.add_argument("--jobs", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--families", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=list(PASSES), metavar="PASS")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1])
    lengths = "of the lengths of a family, tokens or seconds, only these (default: all)"
    parser.add_argument("--lengths", type=int, nargs="+", default=[], help=lengths)
    parser.add_argument("--label", default="", help="what is special about this run; it is part of the results' keys")
    parser.add_argument("--always", action="store_true", help="fuse short inputs, too; combine it with --label")
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no job after this time")
    parser.add_argument("--tiny", action="store_true", help="a dry run with tiny models on a CPU")
    parser.add_argument("--table", action="store_true", help="print the results as a Markdown table")
    return parser.parse_args()


def jobs(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    """Yield each job with its key."""
    for kind in arguments.jobs:
        for name in arguments.families:
            if kind == LONGEST:
                for implementation in (ORIGINAL, FUSED):
                    yield f"{name} longest {implementation}", partial(find_longest, name, implementation, arguments)
            else:
                yield from shape_jobs(name, arguments, IMPLEMENTATIONS if kind == COMPILE else (ORIGINAL, FUSED))


def shape_jobs(
    name: str, arguments: argparse.Namespace, implementations: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    """Yield the jobs that measure the lengths of a family."""
    suffix = " compile" if len(implementations) > 2 else ""
    for direction in arguments.passes:
        for batch_size in arguments.batch_size:
            for length in family_lengths(name, arguments):
                key = f"{name} {direction} {batch_size}x{length}{suffix}"
                yield key, partial(measure_job, name, direction, batch_size, length, arguments, implementations)


def family_lengths(name: str, arguments: argparse.Namespace) -> tuple[int, ...]:
    """Return the lengths of a family that are measured."""
    lengths = MODELS[name].tiny_lengths if arguments.tiny else MODELS[name].lengths
    return tuple(x for x in arguments.lengths if x in lengths) if arguments.lengths and not arguments.tiny else lengths


def model_builder(name: str, length: int, arguments: argparse.Namespace) -> Callable[[], Any]:
    """Return the function that builds a family's model for inputs of a length."""
    device = "cpu" if arguments.tiny else "cuda"
    return partial(MODELS[name].build, tiny=arguments.tiny, max_length=length, dtype=torch.bfloat16, device=device)


def measure_job(
    name: str,
    direction: str,
    batch_size: int,
    length: int,
    arguments: argparse.Namespace,
    implementations: tuple[str, ...],
) -> list[dict[str, Any]]:
    """Return the measurements of one shape."""
    build_model = model_builder(name, length, arguments)
    own = get_attn_implementation(build_model().config)
    measurements = measure_shape(
        build_model,
        MODELS[name].build_batch,
        batch_size=batch_size,
        length=length,
        direction=direction,
        repeats=arguments.repeats,
        implementations=implementations,
        always=arguments.always,
    )
    return [{"family": name, "unit": MODELS[name].unit, "own": own, **asdict(x)} for x in measurements]


def find_longest(name: str, implementation: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the longest input that fits into memory in training, by doubling the length.

    The search for the fused model starts with the longest input of the original, if that is known.
    """
    spec = MODELS[name]
    length, limit = FIRST_LENGTH[spec.unit], LAST_LENGTH[spec.unit]
    if arguments.tiny:
        length, limit = spec.tiny_lengths[0], spec.tiny_lengths[-1]
    if implementation == FUSED:
        results = map(json.loads, read_lines(arguments.out))
        known = (x.get("longest") for x in results if x["key"].startswith(f"{name} longest {ORIGINAL}"))
        length = next(known, None) or length
    device = torch.device("cpu" if arguments.tiny else "cuda")
    longest, seconds, note = None, 0.0, ""
    call: Callable[[], object] | None
    while length <= limit:
        build_model = model_builder(name, length, arguments)
        workload = Workload(build_model, spec.build_batch, implementation, "forward+backward", 1, length)
        try:
            call = workload.build()
            seconds = measure.seconds_per_call(call, 1, device)
            if seconds > MAX_STEP_SECONDS:  # the first call may have compiled kernels
                seconds = measure.seconds_per_call(call, 1, device)
            longest = length
        except Exception as error:
            note = measure.shorten_error(error)
        call = None
        release_memory(device)
        if not note and seconds > MAX_STEP_SECONDS:
            note = f"a step takes {seconds:.0f} s; longer inputs were not tried"
        if note:
            break
        length *= FACTOR
    return [{"family": name, "implementation": implementation, "longest": longest, "unit": spec.unit, "note": note}]


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def print_table(path: Path) -> None:
    """Print the results as a Markdown table."""
    columns = ("family", "pass", "length", "implementation", "ms", "speedup", "peak MiB", "note")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for line in read_lines(path):
        x = json.loads(line)
        if "longest" in x:
            cells = [x["family"], "longest input", x["longest"], x["implementation"], "", "", "", x["note"]]
        elif "length" in x:
            numbers = ["" if x[name] is None else f"{x[name]:.4g}" for name in ("ms", "speedup", "peak_mib")]
            cells = [x["family"], x["direction"], x["length"], x["implementation"], *numbers, x["note"]]
        else:
            cells = [x["key"], "", "", "", "", "", "", x["note"]]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
