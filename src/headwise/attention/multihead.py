"""Multi-head attention with a position scheme, compatible with `torch.nn.MultiheadAttention(batch_first=True)`."""

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor, nn

from headwise.attention.attend import Backend, attend
from headwise.attention.checks import check_is_scheme, check_probability
from headwise.attention.schemes import Plain, Scheme
from headwise.attention.schemes.scheme import check_choice, check_positive

#: Takes the new keys and values (B, G, N, d) and returns all so far, like `transformers.Cache.update` of a layer.
Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class MultiheadAttention(nn.Module):
    """Multi-head attention: projections of queries, keys and values, attention with a scheme, and an output projection.

    Drop-in replacement for `nn.MultiheadAttention(dim, heads, batch_first=True)`: the call is the same, `Plain()` gives
    the same result, and state dicts of the torch module can be loaded. As in torch, and unlike in `attend`, masks are
    True where attention is not allowed.

    Args:
        dim: width of the queries and the output.
        heads: number of query heads.
        scheme: position scheme, which becomes a submodule of this layer; by default `Plain()`.
        head_dim: width of a head, by default dim / heads.
        key_heads: number of key and value heads, by default `heads`, which it must divide.
        kdim: width of the keys' input, by default dim.
        vdim: width of the values' input, by default dim.
        dropout: dropout probability of the attention weights in training.
        bias: use biases in the projections.
        backend: see `attend`.

    Raises:
        TypeError: scheme is not a `Scheme`, or a size is not an int.
        ValueError: sizes are invalid or do not match, or the backend is unknown.
    """

    #: Attributes that `nn.TransformerEncoderLayer` reads; with these values it does not use its fused fast path.
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
        self.dim, self.heads = check_positive("dim", dim), check_positive("heads", heads)
        if head_dim is None and dim % heads:
            raise ValueError(f"dim must be a multiple of heads unless head_dim is given; got dim={dim}, heads={heads}")
        self.head_dim = check_positive("head_dim", dim // heads if head_dim is None else head_dim)
        self.key_heads = check_positive("key_heads", heads if key_heads is None else key_heads)
        if heads % self.key_heads:
            raise ValueError(f"heads must be a multiple of key_heads, got {heads} and {key_heads}")
        self.scheme = Plain() if scheme is None else check_is_scheme(scheme)
        for name in ("heads", "head_dim"):
            scheme_size, layer_size = getattr(self.scheme, name), getattr(self, name)
            if scheme_size not in (None, layer_size):
                raise ValueError(f"scheme has {name}={scheme_size} but the layer has {name}={layer_size}")
        self.dropout, self.backend = check_probability("dropout", dropout), backend
        check_choice("backend", backend, get_args(Backend))
        kdim, vdim = dim if kdim is None else kdim, dim if vdim is None else vdim

        key_width = self.key_heads * self.head_dim
        if not self.scheme.projects_keys and kdim != key_width:
            raise ValueError(
                f"{type(self.scheme).__name__} has no key projection: keys must be "
                f"key_heads · head_dim = {key_width} wide, got {kdim}"
            )
        self.q_proj = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(kdim, key_width, bias=bias) if self.scheme.projects_keys else None
        self.v_proj = nn.Linear(vdim, key_width, bias=bias)
        self.out_proj = nn.Linear(heads * self.head_dim, dim, bias=bias)
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(_split_fused_projection)

    def reset_parameters(self) -> None:
        """Initialize the projections: Xavier uniform weights, zero biases."""
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
        """Attend from query (B, N, dim) to key (B, M, kdim) and value (B, M, vdim), or without the batch axis.

        Args:
            query: input of the queries.
            key: input of the keys, or the keys (B, key_heads, M, head_dim) that `project_keys_values` returned.
            value: input of the values, or the values that `project_keys_values` returned.
            key_padding_mask: (B, M), True for padding keys, or a bias to add to the scores.
            need_weights: also return the weights, before dropout. They need N × M memory: pass False in training.
            attn_mask: (N, M) or (B·heads, N, M); boolean, True where attention is not allowed, or a bias to add to the
                scores.
            average_attn_weights: return the heads' mean (B, N, M) instead of the weights of each head (B, heads, N, M).
            is_causal: queries attend only to keys up to their own position; attn_mask is not needed for this.
            query_padding_mask: (B, N), True for padding queries, which get zeros and contribute nothing.
            position_bias: see `attend`.
            offset: position of the first query; ignored with a cache, which determines it.
            cache: takes the new keys and values, and returns all so far.
            need_received: also return the attention that each key receives, (B, heads, M).

        Returns:
            (output, weights or None), or (output, weights or None, received).
        """
        is_batched = query.dim() != 2
        if not is_batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
            query_padding_mask = None if query_padding_mask is None else query_padding_mask[None]
        if query.dim() != 3:
            raise ValueError(f"query must be (batch, length, width), got shape {tuple(query.shape)}")

        q = self._split_heads(self.q_proj(query), self.heads)
        k, v = (key, value) if key.dim() == value.dim() == 4 else self.project_keys_values(key, value)
        if cache is not None:
            num_new = k.shape[2]
            k, v = cache(k, v)
            offset = k.shape[2] - num_new
        mask, mask_bias = self._convert_attn_mask(attn_mask, query.shape[0])
        key_padding, padding_bias = _convert_padding_mask(key_padding_mask)
        query_padding, _ = _convert_padding_mask(query_padding_mask)
        biases = [bias for bias in (mask_bias, padding_bias, position_bias) if bias is not None]
        results = attend(
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
        output, *extras = results if need_received or need_weights else (results,)
        output = self.out_proj(output.transpose(1, 2).flatten(2))
        weights = extras[-1] if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        results = (output, weights, extras[0]) if need_received else (output, weights)
        return results if is_batched else tuple(None if x is None else x[0] for x in results)  # type: ignore[return-value]

    def project_keys_values(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project inputs (B, M, width) to keys and values, (B, key_heads, M, head_dim) each."""
        for name, x in (("key", key), ("value", value)):
            if x.dim() != 3:
                raise ValueError(f"{name} must be (batch, length, width), got shape {tuple(x.shape)}")
        k = self._split_heads(key if self.k_proj is None else self.k_proj(key), self.key_heads)
        return k, self._split_heads(self.v_proj(value), self.key_heads)

    def _split_heads(self, x: Tensor, heads: int) -> Tensor:
        """(B, N, heads · d) → (B, heads, N, d)."""
        return x.view(*x.shape[:2], heads, self.head_dim).transpose(1, 2)

    def _convert_attn_mask(self, attn_mask: Tensor | None, batch: int) -> tuple[Tensor | None, Tensor | None]:
        """Return attn_mask as a mask of `attend` (True: attention is allowed), or as a bias if it is additive."""
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
            raise TypeError(
                "attn_mask must be boolean (True: ignore) or floating point (added to the scores), "
                f"got {attn_mask.dtype}"
            )
        return (~attn_mask, None) if attn_mask.dtype == torch.bool else (None, attn_mask)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, dropout={self.dropout}"


def _convert_padding_mask(padding_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return torch's padding mask as a padding of `attend` (True: real), or as a bias if it is additive."""
    if padding_mask is None:
        return None, None
    if padding_mask.dtype == torch.bool:
        return ~padding_mask, None
    if not padding_mask.is_floating_point():
        raise TypeError(
            "padding masks must be boolean (True: padding) or floating point (added to the scores), "
            f"got {padding_mask.dtype}"
        )
    return None, padding_mask[:, None, None, :]


def _split_fused_projection(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Convert the state dict of nn.MultiheadAttention: one fused projection, or three separate weights."""
    names = ("q_proj", "k_proj", "v_proj")
    for parameter in ("weight", "bias"):
        fused = state_dict.pop(f"{prefix}in_proj_{parameter}", None)
        if fused is not None:
            for name, part in zip(names, fused.chunk(3), strict=True):
                state_dict[f"{prefix}{name}.{parameter}"] = part
    for name in names:
        separate = state_dict.pop(f"{prefix}{name}_weight", None)
        if separate is not None:
            state_dict[f"{prefix}{name}.weight"] = separate
