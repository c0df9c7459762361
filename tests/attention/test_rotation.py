"""TENER's kernel for queries against its operators in PyTorch."""

import pytest
import torch
from torch import Tensor

from headwise.attention.sinusoids import rotate, sinusoids_of_range

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("shape", "is_transposed"), [((2, 3, 70, 16), False), ((2, 2, 64, 64), True), ((1, 3, 5, 24), True)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_queries_and_gradients(shape: tuple[int, ...], is_transposed: bool, dtype: torch.dtype) -> None:
    from headwise.attention.triton_backend.rotation import can_rotate, rotate_queries

    torch.manual_seed(0)
    batch, heads, n, width = shape
    if is_transposed:  # as a projection returns them
        q = torch.randn(batch, n, heads, width, device=DEVICE).transpose(1, 2).to(dtype)
    else:
        q = torch.randn(shape, device=DEVICE).to(dtype)
    u, v = (torch.randn(heads, width, device=DEVICE, requires_grad=True) for _ in range(2))
    q.requires_grad_()
    d_content, d_position = (torch.randn_like(q) for _ in range(2))
    embeddings = sinusoids_of_range(3, 3 + n, 1, width, torch.float32, device=DEVICE)

    def run(rotated: tuple[Tensor, Tensor], inputs: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        return [*rotated, *torch.autograd.grad(rotated, inputs, gradients)]

    exact = [x.detach().double().requires_grad_() for x in (q, u, v)]
    rotated = rotate(exact[0] + exact[2][:, None], embeddings.double())
    expected = run((exact[0] + exact[1][:, None], rotated), exact, [d_content.double(), d_position.double()])
    assert can_rotate(q)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for _ in range(2):  # the second call launches the kernels directly
        result = run(rotate_queries(q, u, v, embeddings), [q, u, v], [d_content, d_position])
        for actual, wanted in zip(result, expected, strict=True):
            torch.testing.assert_close(actual.double(), wanted, atol=tolerance, rtol=tolerance)
    assert result[0].stride() == result[1].stride() == q.stride()


def test_other_tensors_are_rotated_by_torch() -> None:
    from headwise.attention.triton_backend.rotation import can_rotate

    assert not can_rotate(torch.randn(1, 2, 5, 16, dtype=torch.float64, device=DEVICE))
    assert not can_rotate(torch.randn(1, 2, 0, 16, device=DEVICE))
