"""The precision of a run."""

import pytest
import torch

from headwise._compat import uses_tf32
from headwise.errors import UserError
from headwise.training.core.environment import float32_products, uses_bfloat16
from headwise.training.text.config import TextConfig

TF32 = TextConfig(data=("a.csv",), precision="tf32")


def test_tf32_is_used_until_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert not uses_bfloat16(TF32)
    with float32_products(TextConfig(data=("a.csv",))):
        assert not uses_tf32()
    with float32_products(TF32):
        assert uses_tf32()
    assert not uses_tf32()


@pytest.mark.parametrize("capability", [None, (7, 5)])
def test_devices_without_tf32_are_refused(capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    name = "CPU" if capability is None else "Tesla T4"
    message = rf"--precision tf32 needs an NVIDIA GPU .*; use float32 on this device \({name}\)"
    with pytest.raises(UserError, match=message), float32_products(TF32):
        pass
