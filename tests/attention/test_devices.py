"""The code that launches the kernels, on a device without values that stands for a GPU.

`FakeTensorMode` raises an error if tensors of two devices are combined, or if the CPU reads a value of the device.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headwise import attend
from tests.attention.cases import SCHEMES, make_scheme
from tests.short_form import keep_short

pytest.importorskip("triton")
from headwise.attention.triton_backend import operator, passes, plan, problem
from headwise.attention.triton_backend.launch import Launch

DEVICE = "meta"  # a CPU build of torch cannot index tensors of a fake "cuda"
BATCH, HEADS, N, WIDTH = 2, 3, 200, 32

#: Shapes of tensors, and values of the other options.
OPTIONS: dict[str, dict[str, Any]] = {
    "mask": {"mask": (BATCH, 1, N, N)},
    "window": {"mask": (1, HEADS, N, N), "window": [70, 3]},
    "bias": {"position_bias": (HEADS, N, N), "key_padding": (BATCH, N), "query_padding": (BATCH, N), "softcap": 5.0},
    "sinks": {"sinks": (HEADS,), "causal": True, "dropout": 0.1, "return_received": True, "return_weight_norms": True},
}
BOOLEAN = ("mask", "key_padding", "query_padding")


class KernelRecorder:
    """Runs both passes without their kernels, and checks the tensors that the kernels would get."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launched: list[str] = []
        monkeypatch.setattr(plan, "layout_key", lambda x: (x.dtype, x.shape, x.stride()))  # without the address
        monkeypatch.setattr(passes, "align", Tensor.contiguous)
        monkeypatch.setattr(plan, "_plan_cache", {})
        monkeypatch.setattr(operator, "operators", self.run_passes)
        monkeypatch.setattr(Launch, "__call__", lambda launch, tensors: self.check(launch, tensors))

    def check(self, launch: Launch, tensors: dict[str, Any]) -> None:
        kernel = launch.kernel.fn.__name__
        self.launched.append(kernel)
        for _, name in launch.tensor_params:
            x = tensors.get(name)
            assert x is None or x.device.type == DEVICE, f"{name} of {kernel} is on {x.device}"
            if x is not None and name.startswith("visited"):
                assert x.dtype == torch.int32, name
                assert x.is_contiguous(), name

    def run_passes(self, *arguments: Any) -> tuple[Tensor | None, ...]:
        outputs = passes.forward(*arguments)
        saved = [outputs[i] for i in (0, 1, 3, 4)]
        gradients = passes.backward(*arguments, [True] * len(problem.DIFFERENTIABLE), *saved, *outputs)
        assert {x.device.type for x in (*outputs, *gradients) if x is not None} == {DEVICE}
        return outputs


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", keep_short(SCHEMES, "transformer-xl", "disentangled"))
def test_kernels_get_tensors_of_the_device(name: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = KernelRecorder(monkeypatch)
    monkeypatch.setattr("headwise.attention.triton_backend.transformer_xl.MAX_CHUNK_PAIRS", 1)  # chunks of 64 queries
    scheme = make_scheme(name, HEADS, WIDTH, dtype=torch.bfloat16).to(DEVICE)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device(DEVICE):
            q = torch.empty(BATCH, HEADS, N, WIDTH, dtype=torch.bfloat16)
            arguments: dict[str, Any] = {
                option: torch.empty(value, dtype=torch.bool if option in BOOLEAN else torch.float32)
                if isinstance(value, tuple)
                else value
                for option, value in OPTIONS[options].items()
            }
        attend(q, q, q, scheme=scheme, backend="triton", return_lse=True, **arguments)
    assert {"fwd_kernel", "bwd_dq_kernel", "bwd_dkv_kernel"} <= set(recorder.launched)
    if name in ("transformer-xl", "disentangled"):
        assert recorder.launched.count("bwd_dense_table_kernel") >= 4
