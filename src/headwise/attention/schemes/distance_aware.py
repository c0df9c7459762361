"""Distance-aware attention. Wu, Wu and Huang 2021, DA-Transformer, NAACL, https://arxiv.org/abs/2010.06925

    f(R; v) = (1 + eᵛ) / (1 + eᵛ⁻ᴿ),  R = w·|i−j|                                                     (eq. 5)
    s_ij    = ReLU(q_i·k_j) · f(w·|i−j|; v) / √d                                                      (eq. 6)

Each head learns two scalars, w and v. Heads with w > 0 prefer distant keys, heads with w < 0 prefer near keys; v sets
the strength. The other mappings f of section 4.3 and the other adjustments of section 4.4 are implemented too.
f depends only on the distance, so it is computed once per distance instead of once per pair.
"""

from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from headwise.attention.schemes.scheme import Scheme, check_choice, check_positive
from headwise.attention.types import Adjust, SchemeTerms

#: Limit of R for the mapping `exponent`: e⁴⁰ is 2·10¹⁷, whose square float32 can represent.
MAX_EXPONENT = 40.0

Mapping = Literal["learnable-sigmoid", "clip", "linear", "exponent", "sigmoid"]


class DistanceAware(Scheme):
    """Attention rescaled by a learned function f of the distance |i−j|.

    Args:
        heads: number of query heads; each has its own w and v.
        mapping: f of section 4.3: `learnable-sigmoid` (eq. 5), `clip` min(R, threshold), `linear` slope·R + intercept
            (both learned per head), `exponent` eᴿ with R limited to 40 so that scores stay finite, or `sigmoid`
            1/(1+e⁻ᴿ).
        adjust: where f is applied (section 4.4). `early-multiply` (eq. 6) multiplies the scores, `early-add` adds to
            the scores, `late-multiply` and `late-add` adjust the softmax, without renormalization as in the paper.
        rectify: apply the ReLU of eq. 6. Without it, w = 0 is exactly plain attention, which is used to retrofit
            trained models. Only `early-multiply` has a ReLU. The other adjustments ignore this argument.
        w_init: mean of the initial w.
        w_std: standard deviation of the initial w. The paper gives no initialization; with the default some heads
            start with a weak preference for near keys and some for distant keys.
        v_init: mean of the initial v.
        v_std: standard deviation of the initial v.
        threshold: T of the `clip` mapping.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.DistanceAware(heads=4)).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: heads < 1, an unknown mapping or adjust, or a negative standard deviation.
    """

    heads: int

    def __init__(
        self,
        heads: int,
        *,
        mapping: Mapping = "learnable-sigmoid",
        adjust: Adjust = "early-multiply",
        rectify: bool = True,
        w_init: float = 0.0,
        w_std: float = 0.1,
        v_init: float = 0.0,
        v_std: float = 0.0,
        threshold: float = 10.0,
    ) -> None:
        super().__init__()
        self.heads = check_positive("heads", heads)
        self.mapping = check_choice("mapping", mapping, get_args(Mapping))
        self.adjust: Adjust = adjust
        check_choice("adjust", adjust, get_args(Adjust))
        for name, std in (("w_std", w_std), ("v_std", v_std)):
            if std < 0:
                raise ValueError(f"{name} must be 0 or more, got {std}")
        self.rectify = rectify
        self.threshold = threshold
        self.init_mean_std = {"w": (w_init, w_std), "v": (v_init, v_std)}
        self.w = nn.Parameter(torch.empty(heads))
        self.v = nn.Parameter(torch.empty(heads)) if mapping == "learnable-sigmoid" else None
        self.slope = nn.Parameter(torch.empty(heads)) if mapping == "linear" else None
        self.intercept = nn.Parameter(torch.empty(heads)) if mapping == "linear" else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.w.normal_(*self.init_mean_std["w"])
        if self.v is not None:
            self.v.normal_(*self.init_mean_std["v"])
        if self.slope is not None and self.intercept is not None:
            self.slope.fill_(1.0)
            self.intercept.fill_(1.0)

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(
            q=q,
            k=k,
            coefficients=partial(self._coefficients, self.w, self.v, self.slope, self.intercept),
            sigmoid=None if self.v is None else (self.w, self.v),
            adjust=self.adjust,
            rectify=self.rectify,
        )

    def coefficients(self, length: int) -> Tensor:
        """Compute f for the distances 0 … length−1, (heads, length), in float64 if the device supports it."""
        return self._coefficients(self.w, self.v, self.slope, self.intercept, length)

    def _coefficients(
        self, w: Tensor, v: Tensor | None, slope: Tensor | None, intercept: Tensor | None, length: int
    ) -> Tensor:
        """Compute `coefficients` with these parameters: accelerate may offload those of the module after `forward`."""
        dtype = torch.float32 if w.device.type == "mps" else torch.float64
        distances = torch.arange(length, device=w.device, dtype=dtype)
        weighted_HL = w.to(dtype)[:, None] * distances  # R of the paper
        if self.mapping == "clip":
            return weighted_HL.clamp(max=self.threshold)
        if self.mapping == "exponent":
            return weighted_HL.clamp(max=MAX_EXPONENT).exp()
        if self.mapping == "sigmoid":
            return weighted_HL.sigmoid()
        if slope is not None and intercept is not None:
            return slope.to(dtype)[:, None] * weighted_HL + intercept.to(dtype)[:, None]
        assert v is not None
        v = v.to(dtype)[:, None]
        return (1.0 + v.exp()) * (weighted_HL - v).sigmoid()

    def extra_repr(self) -> str:
        return f"heads={self.heads}, mapping={self.mapping!r}, adjust={self.adjust!r}, rectify={self.rectify}"
