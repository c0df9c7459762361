"""Attention with its projections, where `torch.nn.MultiheadAttention(batch_first=True)` stands."""

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor, nn

from headwise.attention.attend import Backend, attend
from headwise.attention.checks import check_is_scheme, check_share
from headwise.attention.schemes import Plain, Scheme
from headwise.attention.schemes.scheme import one_of, positive

#: Takes the new keys and values (B, G, N, d) and returns all so far, as `transformers.Cache.update` does for a layer.
Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class MultiheadAttention(nn.Module):
    """Queries, keys and values projected per head, attention by a scheme, one output projection.

    A drop-in for `nn.MultiheadAttention(dim, heads, batch_first=True)`: the same call, the same result for the plain
    scheme, and it loads its state dict. Masks are inverse to `attend`'s here, as they are there: True = ignore.

    Args:
        dim: width of the queries and of the output.
        heads: number of query heads.
        scheme: how positions enter; plain attention if not given. It becomes this layer's own.
        head_dim: width of a head, by default dim / heads.
        key_heads: number of key and value heads, of which heads is a multiple; by default heads.
        kdim, vdim: width of the keys' and the values' input, by default dim.
        dropout: share of attention weights dropped in training.
        bias: whether projections have biases.
        backend: see `attend`.

    Raises:
        TypeError: scheme is none.
        ValueError: sizes that do not fit together, or values that are not possible; the message names them.
    """

    #: What `nn.TransformerEncoderLayer` asks of its attention before it takes a path of its own around it.
    batch_first, in_proj_bias, _qkv_same_embed_dim = True, None, False

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        scheme: Scheme | None = None,
        head_dim: int | None = None,
        key_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.dim, self.heads = positive("dim", dim), positive("heads", heads)
        if head_dim is None and dim % heads:
            raise ValueError(f"dim must be a multiple of heads, or head_dim given; got dim={dim}, heads={heads}")
        self.head_dim = positive("head_dim", dim // heads if head_dim is None else head_dim)
        self.key_heads = positive("key_heads", heads if key_heads is None else key_heads)
        if heads % self.key_heads:
            raise ValueError(f"heads must be a multiple of key_heads, got {heads} and {key_heads}")
        self.scheme = Plain() if scheme is None else check_is_scheme(scheme)
        for name in ("heads", "head_dim"):
            theirs, ours = getattr(self.scheme, name), getattr(self, name)
            if theirs not in (None, ours):
                raise ValueError(f"scheme has {name}={theirs} but the layer has {name}={ours}")
        self.dropout, self.backend = check_share("dropout", dropout), backend
        one_of("backend", backend, get_args(Backend))
        kdim, vdim = dim if kdim is None else kdim, dim if vdim is None else vdim

        key_width = self.key_heads * self.head_dim
        if not self.scheme.projects_keys and kdim != key_width:
            raise ValueError(
                f"{type(self.scheme).__name__} compares queries with the input itself: keys must be "
                f"key_heads · head_dim = {key_width} wide, got {kdim}"
            )
        self.q_proj = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(kdim, key_width, bias=bias) if self.scheme.projects_keys else None
        self.v_proj = nn.Linear(vdim, key_width, bias=bias)
        self.out_proj = nn.Linear(heads * self.head_dim, dim, bias=bias)
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(_split_fused_projection)

    def reset_parameters(self) -> None:
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            if projection is not None:
                nn.init.xavier_uniform_(projection.weight)
                if projection.bias is not None:
                    nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        query_padding_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        offset: int = 0,
        cache: Cache | None = None,
        need_received: bool = False,
    ) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
        """Attend from query (B, N, dim) to key (B, M, kdim) and value (B, M, vdim); or all without the batch.

        Args:
            key, value: also (B, key_heads, M, head_dim) as `keys_and_values` returned them, to be used again.
            key_padding_mask: (B, M), True where a key is padding.
            need_weights: also return the weights, before dropout; they cost N × M memory, so say False in training.
            attn_mask: (N, M) or (B·heads, N, M); boolean, True where attention is not allowed, or added to the scores.
            average_attn_weights: return the heads' mean (B, N, M) instead of each head's (B, heads, N, M).
            is_causal: queries see the keys up to their own position; attn_mask is not needed for it.
            query_padding_mask: (B, N), True where a query is padding: it gets and gives nothing.
            position_bias: see `attend`.
            offset: position of the first query; with a cache it follows from the cache.
            cache: given the new keys and values, returns all so far.
            need_received: also return what each key receives (B, heads, M).

        Returns:
            (output, weights or None), and received as a third if needed.
        """
        if query.dim() == 2:
            single = self(
                query[None],
                key[None],
                value[None],
                None if key_padding_mask is None else key_padding_mask[None],
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
                query_padding_mask=None if query_padding_mask is None else query_padding_mask[None],
                position_bias=position_bias,
                offset=offset,
                cache=cache,
                need_received=need_received,
            )
            return tuple(None if x is None else x[0] for x in single)  # type: ignore[return-value]
        if query.dim() != 3:
            raise ValueError(f"query must be (batch, length, width), got shape {tuple(query.shape)}")

        q = self._split(self.q_proj(query), self.heads)
        k, v = (key, value) if key.dim() == value.dim() == 4 else self.keys_and_values(key, value)
        if cache is not None:
            new = k.shape[2]
            k, v = cache(k, v)
            offset = k.shape[2] - new
        mask, mask_bias = self._masks(attn_mask, query.shape[0])
        key_padding, padding_bias = _inverted(key_padding_mask)
        query_padding, _ = _inverted(query_padding_mask)
        biases = [bias for bias in (mask_bias, padding_bias, position_bias) if bias is not None]
        attended = attend(
            q,
            k,
            v,
            scheme=self.scheme,
            key_padding=key_padding,
            query_padding=query_padding,
            causal=is_causal,
            mask=mask,
            position_bias=sum(biases[1:], start=biases[0]) if biases else None,
            offset=offset,
            dropout=self.dropout if self.training else 0.0,
            return_received=need_received,
            return_weights=need_weights,
            backend=self.backend,
        )
        output, *extras = attended if need_received or need_weights else (attended,)
        output = self.out_proj(output.transpose(1, 2).flatten(2))
        weights = extras[-1] if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        return (output, weights, extras[0]) if need_received else (output, weights)

    def keys_and_values(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, M, width) as this layer's keys and values, (B, key_heads, M, head_dim) each."""
        for name, x in (("key", key), ("value", value)):
            if x.dim() != 3:
                raise ValueError(f"{name} must be (batch, length, width), got shape {tuple(x.shape)}")
        k = self._split(key if self.k_proj is None else self.k_proj(key), self.key_heads)
        return k, self._split(self.v_proj(value), self.key_heads)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """(B, N, heads · d) → (B, heads, N, d)."""
        return x.view(*x.shape[:2], heads, self.head_dim).transpose(1, 2)

    def _masks(self, attn_mask: Tensor | None, batch: int) -> tuple[Tensor | None, Tensor | None]:
        """attn_mask as the operator's mask (True: may be attended) or bias."""
        if attn_mask is None:
            return None, None
        if attn_mask.dim() == 3:
            if attn_mask.shape[0] != batch * self.heads:
                raise ValueError(
                    f"attn_mask must be (N, M) or ({batch * self.heads}, N, M), got shape {tuple(attn_mask.shape)}"
                )
            attn_mask = attn_mask.view(batch, self.heads, *attn_mask.shape[1:])
        elif attn_mask.dim() == 2:
            attn_mask = attn_mask[None, None]
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise TypeError(f"attn_mask must be boolean (True: ignore) or added to scores, got {attn_mask.dtype}")
        return (~attn_mask, None) if attn_mask.dtype == torch.bool else (None, attn_mask)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, dropout={self.dropout}"


def _inverted(padding_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """nn.MultiheadAttention's padding mask as ours (True: real), or, where it is additive, as a bias."""
    if padding_mask is None:
        return None, None
    if padding_mask.dtype == torch.bool:
        return ~padding_mask, None
    if not padding_mask.is_floating_point():
        raise TypeError(f"padding masks must be boolean (True: padding) or added to scores, got {padding_mask.dtype}")
    return None, padding_mask[:, None, None, :]


def _split_fused_projection(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let `load_state_dict` read what nn.MultiheadAttention saved: one fused projection, or three weights."""
    names = ("q_proj", "k_proj", "v_proj")
    for kind in ("weight", "bias"):
        fused = state_dict.pop(f"{prefix}in_proj_{kind}", None)
        if fused is not None:
            for name, part in zip(names, fused.chunk(3), strict=True):
                state_dict[f"{prefix}{name}.{kind}"] = part
    for name in names:
        separate = state_dict.pop(f"{prefix}{name}_weight", None)
        if separate is not None:
            state_dict[f"{prefix}{name}.weight"] = separate
