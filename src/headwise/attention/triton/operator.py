"""The Triton backend as PyTorch operators."""

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise.attention.operators import once_a_model, run_once
from headwise.attention.problem import Attended, Problem

TENSORS, DIFFERENTIABLE = 10, 5  # of the arguments, the first so many
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? w, Tensor? sharpness, Tensor? bias, Tensor? mask, Tensor? key_padding, "
    "Tensor? query_padding, Tensor? seed, float scale, SymInt offset, bool causal, bool rectify, float dropout, "
    "bool want_received"
)
WIDEST = 256


@cache
def _kernels() -> Any:
    """The kernels' module, or None where Triton is not installed."""
    try:
        from headwise.attention.triton import kernels
    except ImportError:
        return None
    return kernels


def _interpreted() -> bool:
    """Whether Triton's interpreter runs kernels on the CPU (TRITON_INTERPRET=1, set before the first call)."""
    return type(_kernels().forward).__name__ == "InterpretedFunction"


def obstacle(problem: Problem) -> str | None:
    """Why the kernels cannot solve this problem, or None if they can."""
    terms, device = problem.terms, problem.v.device
    if _kernels() is None:
        return "the package triton is not installed"
    if not _interpreted():
        if device.type != "cuda":
            return f"Triton's kernels run on a GPU, and the tensors are on {device}"
        if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
            return "Triton's kernels need a GPU of compute capability 8.0 or newer"
    if problem.out_dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"Triton's kernels compute in float32, float16 and bfloat16, not in {problem.out_dtype}"
    if terms.key_table is not None or terms.value_table is not None:
        return "there is no kernel for tables of relative positions yet"
    if terms.distance is not None and (terms.sigmoid is None or terms.adjust != "early-multiply"):
        return "of distance-aware attention there is a kernel for the learnable sigmoid that multiplies early"
    if problem.want_weights:
        return "whole maps are what the kernels avoid"
    if problem.bias is not None and problem.bias.requires_grad:
        return "there is no kernel for the gradient of position_bias"
    if max(terms.q.shape[3], problem.v.shape[3]) > WIDEST:
        return f"the kernels' heads are at most {WIDEST} wide"
    if problem.dropout > 0 and problem.shape[2] * problem.shape[3] >= 2**31:
        return "the kernels' dropout counts fewer than 2^31 pairs a head"
    return None


def attend(problem: Problem) -> Attended:
    reason = obstacle(problem)
    if reason is not None:
        raise ValueError(f"backend='triton' cannot do this: {reason}; backend='auto' picks one that can")
    terms, dtype = problem.terms, problem.out_dtype
    w, sharpness = (None, None) if terms.sigmoid is None else terms.sigmoid
    output, _, received = _Forward.apply(
        # Views, since the compiler refuses a function that is given one tensor twice, as in attend(x, x, x).
        *(x.to(dtype).view_as(x) for x in (terms.q, terms.k, problem.v)),
        None if w is None else w.float(),
        None if sharpness is None else sharpness.float(),
        problem.bias,
        problem.mask,
        problem.key_padding,
        problem.query_padding,
        torch.randint(2**31 - 1, (), device=problem.v.device) if problem.dropout > 0 else None,
        problem.scale,
        problem.offset,
        problem.causal,
        terms.rectify,
        problem.dropout,
        problem.want_received,
    )
    return Attended(output, received if problem.want_received else None)


@dataclass
class _Call:
    """The operators' arguments, in their order, and how kernels see them; see `problem.py` for what each is."""

    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor | None
    sharpness: Tensor | None
    bias: Tensor | None
    mask: Tensor | None
    key_padding: Tensor | None
    query_padding: Tensor | None
    seed: Tensor | None
    scale: float
    offset: int
    causal: bool
    rectify: bool
    dropout: float
    want_received: bool

    def __post_init__(self) -> None:
        self.batch, self.heads, self.n, self.width = self.q.shape
        self.groups, self.m, self.value_width = self.v.shape[1:]
        self.widest = max(_power_of_two(self.width), _power_of_two(self.value_width))

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Output, log-sums and received; the last is empty unless asked for."""
        rows = (self.batch, self.heads, self.n)
        received = (self.batch, self.heads, self.m) if self.want_received else (0,)
        return (
            self.q.new_empty(*rows, self.value_width),
            self.q.new_empty(rows, dtype=torch.float32),
            self.q.new_empty(received, dtype=torch.float32),
        )

    def gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of q, k, v, w and the learnable sigmoid's v, in memory of their own."""
        heads = 0 if self.w is None else self.heads
        return (
            self.q.new_empty(self.q.shape),
            self.k.new_empty(self.k.shape),
            self.v.new_empty(self.v.shape),
            self.q.new_empty(heads, dtype=torch.float32),
            self.q.new_empty(heads, dtype=torch.float32),
        )

    def run(self, kernel: Any, tile: dict[str, int], *, per_key: bool = False, **more: Any) -> None:
        """Launch a kernel, one program a block of queries or of keys; it is given what its signature names."""
        unused = self.q
        whole = (self.batch, self.heads, self.n, self.m)
        tf32 = self.q.dtype != torch.float32 or torch.get_float32_matmul_precision() != "highest"
        known: dict[str, Any] = {
            "q_ptr": self.q,
            "k_ptr": self.k,
            "v_ptr": self.v,
            "w_ptr": unused if self.w is None else self.w,
            "sharpness_ptr": unused if self.sharpness is None else self.sharpness,
            "key_padding": unused if self.key_padding is None else _bytes(self.key_padding),
            "query_padding": unused if self.query_padding is None else _bytes(self.query_padding),
            "mask": unused if self.mask is None else self.mask.view(torch.uint8),
            "bias": unused if self.bias is None else self.bias,
            "seed_ptr": unused if self.seed is None else self.seed,
            **_strides("q", "bhne", self.q),
            **_strides("k", "bhme", self.k),
            **_strides("v", "bhmd", self.v),
            **_strides("mask", "bhnm", None if self.mask is None else self.mask.expand(whole)),
            **_strides("bias", "bhnm", None if self.bias is None else self.bias.expand(whole)),
            "H": self.heads,
            "GROUP": self.heads // self.groups,
            "n": self.n,
            "m": self.m,
            "offset": self.offset,
            "scale": self.scale,
            "dropout": self.dropout,
            "E": self.width,
            "D": self.value_width,
            "BLOCK_E": _power_of_two(self.width),
            "BLOCK_D": _power_of_two(self.value_width),
            "BLOCK_N": tile["rows"],
            "BLOCK_M": tile["columns"],
            "CAUSAL": self.causal,
            "DISTANCE": self.w is not None,
            "RECTIFY": self.rectify,
            "KEY_PADDING": self.key_padding is not None,
            "QUERY_PADDING": self.query_padding is not None,
            "MASK": self.mask is not None,
            "BIAS": self.bias is not None,
            "DROPOUT": self.seed is not None,
            "RECEIVED": self.want_received,
            "EVEN_M": self.m % tile["columns"] == 0,
            "FAST": self.q.device.type == "cuda" and torch.version.hip is None,
            "PRECISION": "tf32" if tf32 else "ieee",
            **more,
        }
        named = {name: known[name] for name in _names(kernel)}
        blocks = -(-self.m // tile["columns"]) if per_key else -(-self.n // tile["rows"])
        grid = (blocks, more.get("programs", self.batch * self.heads))
        kernel[grid](**named, num_warps=tile["num_warps"], num_stages=tile["num_stages"])


@cache
def _names(kernel: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kernel.fn).parameters)


def _power_of_two(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())


def _bytes(padding: Tensor) -> Tensor:
    return padding.contiguous().view(torch.uint8)


def _strides(name: str, axes: str, x: Tensor | None) -> dict[str, int]:
    return {f"{name}_{axis}": 0 if x is None else x.stride(place) for place, axis in enumerate(axes)}


def _tile(call: _Call, kind: str) -> dict[str, int]:
    """Rows and columns of a tile, warps and pipeline stages: what was fastest on an H200 (docs/design.md)."""
    if call.q.dtype == torch.float32 or call.widest > 128:
        return {"rows": 32, "columns": 32, "num_warps": 4, "num_stages": 1}
    if call.n <= 64:
        return {"rows": 64, "columns": 64, "num_warps": 4, "num_stages": 2}
    wide = call.widest > 64
    rows, warps, stages = {
        "forward": (128, 8 if wide else 4, 3),
        "keys": (64, 4, 1 if wide else 3),
        "queries": (128, 8, 3),
        "sums": (64, 4, 3),
    }[kind]
    return {"rows": rows, "columns": 64, "num_warps": warps, "num_stages": stages}


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call, kernels = _Call(*arguments), _kernels()
    output, log_sums, received = call.outputs()
    if not output.numel():
        return output, log_sums, received.zero_()
    results: dict[str, Any] = {"o_ptr": output, "lse_ptr": log_sums, **_strides("o", "bhnd", output)}
    call.run(kernels.forward, _tile(call, "forward"), **results)
    if call.want_received:
        call.run(kernels.column_sums, _tile(call, "sums"), per_key=True, lse_ptr=log_sums, received_ptr=received)
    return output, log_sums, received


def _backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *forward_arguments, output, log_sums, d_output, d_received = arguments
    call, kernels = _Call(*forward_arguments), _kernels()
    dq, dk, dv, dw, d_sharpness = grads = call.gradients()
    if not output.numel() or not call.m:
        return tuple(grad.zero_() for grad in grads)  # type: ignore[return-value]
    delta = torch.empty_like(log_sums)
    tile = _tile(call, "keys")
    shares = log_sums.new_empty(call.batch, call.heads, -(-call.m // tile["columns"]), 2)
    known: dict[str, Any] = {
        "o_ptr": output,
        "do_ptr": d_output,
        "lse_ptr": log_sums,
        "delta_ptr": delta,
        "g_ptr": d_received.contiguous(),
        "dq_ptr": dq,
        "dk_ptr": dk,
        "dv_ptr": dv,
        "shares_ptr": shares,
        **_strides("o", "bhnd", output),
        **_strides("do", "bhnd", d_output),
    }
    call.run(kernels.row_terms, _tile(call, "sums"), **known)
    call.run(kernels.key_gradients, tile, per_key=True, programs=call.batch * call.groups, **known)
    call.run(kernels.query_gradients, _tile(call, "queries"), **known)
    if call.w is not None:
        total = shares.sum(dim=(0, 2))
        dw.copy_(total[:, 0])
        d_sharpness.copy_(total[:, 1])
    return grads


class _Forward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return tuple(forward_operator(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        result, log_sums, _ = output
        ctx.mark_non_differentiable(log_sums)
        ctx.save_for_backward(*inputs[:TENSORS], result, log_sums)
        ctx.settings = inputs[TENSORS:]

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, output, log_sums = ctx.saved_tensors
        d_output, _, d_received = d_outputs
        arguments = (*tensors, *ctx.settings, output, log_sums, d_output, d_received)
        grads = run_once(backward_operator, *arguments)
        present = (grad if grad.numel() else None for grad in grads)
        return (*present, *[None] * (len(ctx.needs_input_grad) - DIFFERENTIABLE))


forward_operator = torch.library.custom_op(
    "headwise::triton", _forward, mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
)
backward_operator = torch.library.custom_op(
    "headwise::triton_backward",
    _backward,
    mutates_args=(),
    schema=f"({ARGUMENTS}, Tensor output, Tensor log_sums, Tensor d_output, Tensor d_received) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@forward_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _Call(*arguments).outputs()


@backward_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _Call(*arguments[:-4]).gradients()


forward_operator.register_vmap(once_a_model(forward_operator))
backward_operator.register_vmap(once_a_model(backward_operator))
