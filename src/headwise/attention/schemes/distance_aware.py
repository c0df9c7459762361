"""Distance-aware attention. Wu, Wu and Huang 2021, DA-Transformer, NAACL, https://arxiv.org/abs/2010.06925

    f(R; v) = (1 + eᵛ) / (1 + eᵛ⁻ᴿ),  R = w·|i−j|                                                     (eq. 5)
    s_ij    = ReLU(q_i·k_j) · f(w·|i−j|; v) / √d                                                      (eq. 6)

w and v are one learned number a head: a head with w > 0 prefers far keys, with w < 0 near ones; v sets how strongly.
Sections 4.3 and 4.4 compare other mappings f and other places to put it; all of them are here.
f depends on the distance alone, so it is computed once a distance, not once a pair.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from headwise.attention.schemes.scheme import Scheme, one_of, positive
from headwise.attention.types import Adjust, SchemeTerms

Mapping = Literal["learnable-sigmoid", "clip", "linear", "exponent", "sigmoid"]


class DistanceAware(Scheme):
    """Attention re-scaled by a learned function of the real distance |i−j|.

    Args:
        heads: number of query heads; each has its own w and v.
        mapping: f of section 4.3. `learnable-sigmoid` (eq. 5), `clip` min(R, threshold), `linear` slope·R + intercept
            (both learned per head), `exponent` eᴿ, `sigmoid` 1/(1+e⁻ᴿ).
        adjust: where f enters (section 4.4). `early-multiply` (eq. 6) times the score, `early-add` onto the score,
            `late-multiply` and `late-add` onto the softmax; the late ones are not renormalised, as in the paper.
        rectify: the ReLU of eq. 6. Without it w = 0 is exactly plain attention, which is how distance is put into a
            model that is already trained. Only `early-multiply` has a ReLU; the other adjustments ignore this.
        w_init, w_spread: mean and standard deviation of the initial w. The paper gives none; by default heads start
            spread around "no preference", so that some can turn to near keys and some to far ones.
        v_init, v_spread: the same for v.
        threshold: T of the `clip` mapping.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.DistanceAware(heads=4)).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: heads < 1, an unknown mapping or adjust, a negative spread.
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
        w_spread: float = 0.1,
        v_init: float = 0.0,
        v_spread: float = 0.0,
        threshold: float = 10.0,
    ) -> None:
        super().__init__()
        self.heads = positive("heads", heads)
        self.mapping = one_of("mapping", mapping, get_args(Mapping))
        self.adjust: Adjust = adjust
        one_of("adjust", adjust, get_args(Adjust))
        for name, spread in (("w_spread", w_spread), ("v_spread", v_spread)):
            if spread < 0:
                raise ValueError(f"{name} must be 0 or more, got {spread}")
        self.rectify = rectify
        self.threshold = threshold
        self.initial = {"w": (w_init, w_spread), "v": (v_init, v_spread)}
        self.w = nn.Parameter(torch.empty(heads))
        self.v = nn.Parameter(torch.empty(heads)) if mapping == "learnable-sigmoid" else None
        self.slope = nn.Parameter(torch.empty(heads)) if mapping == "linear" else None
        self.intercept = nn.Parameter(torch.empty(heads)) if mapping == "linear" else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.w.normal_(*self.initial["w"])
        if self.v is not None:
            self.v.normal_(*self.initial["v"])
        if self.slope is not None and self.intercept is not None:
            self.slope.fill_(1.0)
            self.intercept.fill_(1.0)

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(
            q=q,
            k=k,
            distance=self.coefficients,
            sigmoid=None if self.v is None else (self.w, self.v),
            adjust=self.adjust,
            rectify=self.rectify,
        )

    def coefficients(self, length: int) -> Tensor:
        """f for the distances 0 … length−1, (heads, length); in float64 where the device has it."""
        precise = torch.float32 if self.w.device.type == "mps" else torch.float64
        distances = torch.arange(length, device=self.w.device, dtype=precise)
        weighted = self.w.to(precise)[:, None] * distances
        if self.mapping == "clip":
            return weighted.clamp(max=self.threshold)
        if self.mapping == "exponent":
            return weighted.exp()
        if self.mapping == "sigmoid":
            return weighted.sigmoid()
        if self.slope is not None and self.intercept is not None:
            return self.slope.to(precise)[:, None] * weighted + self.intercept.to(precise)[:, None]
        assert self.v is not None
        v = self.v.to(precise)[:, None]
        return (1.0 + v.exp()) * (weighted - v).sigmoid()

    def extra_repr(self) -> str:
        return f"heads={self.heads}, mapping={self.mapping!r}, adjust={self.adjust!r}, rectify={self.rectify}"
