"""Multi-head attention with a position scheme, compatible with `torch.nn.MultiheadAttention(batch_first=True)`."""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from headwise.attention.attend import Backend, attend
from headwise.attention.checks import check_is_scheme, check_offset, check_probability, check_softcap, check_window
from headwise.attention.masking import allowed_pairs
from headwise.attention.schemes import Plain, Scheme
from headwise.attention.schemes.scheme import check_choice, check_positive
from headwise.attention.types import AttentionOutput

#: Takes the new keys and values (B, G, N, d) and returns all so far, like `transformers.Cache.update` of a layer.
Cache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class MultiheadAttention(nn.Module):
    """Multi-head attention: projections of queries, keys and values, attention with a scheme, and an output projection.

    Drop-in replacement for `nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)`: arguments have the same
    names, the call is the same, `Plain()` gives the same result, and state dicts of the torch module can be loaded.
    `torch_state_dict` returns the weights for the torch module; `headwise.torch_state_dict` does so for a whole model.
    As in torch, and unlike in `attend`, masks are True where attention is not allowed.

    Args:
        embed_dim: width of the queries and the output.
        num_heads: number of query heads.
        scheme: position scheme, which becomes a submodule of this layer; by default `Plain()`.
        head_dim: width of a head, by default embed_dim / num_heads.
        key_heads: number of key and value heads, by default `num_heads`, which it must divide.
        kdim: width of the keys' input, by default embed_dim.
        vdim: width of the values' input, by default embed_dim.
        dropout: dropout probability of the attention weights in training.
        bias: use biases in the projections.
        add_bias_kv: add a learned key and value, to which all queries attend. Needs the scheme `Plain`.
        add_zero_attn: add a key and value of zeros, to which all queries attend. Needs the scheme `Plain`.
        batch_first: whether tensors are (batch, length, width), not (length, batch, width). Unlike in torch, this is
            the default.
        softcap: limit of the scores; see `attend`.
        sinks: learn a sink of each head; see `attend`.
        backend: see `attend`.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Raises:
        TypeError: scheme is not a `Scheme`, or a size is not an int.
        ValueError: sizes are invalid or do not match, or the backend is unknown.
    """

    #: Attributes that `nn.TransformerEncoderLayer` reads; with these values it does not use its fused fast path.
    in_proj_bias, _qkv_same_embed_dim = None, False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        scheme: Scheme | None = None,
        head_dim: int | None = None,
        key_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        batch_first: bool = True,
        softcap: float | None = None,
        sinks: bool = False,
        backend: Backend = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = check_positive("embed_dim", embed_dim), check_positive("num_heads", num_heads)
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(
                "embed_dim must be a multiple of num_heads unless head_dim is given; "
                f"got embed_dim={embed_dim}, num_heads={num_heads}"
            )
        self.head_dim = check_positive("head_dim", embed_dim // num_heads if head_dim is None else head_dim)
        self.key_heads = check_positive("key_heads", num_heads if key_heads is None else key_heads)
        if num_heads % self.key_heads:
            raise ValueError(f"num_heads must be a multiple of key_heads, got {num_heads} and {key_heads}")
        self.scheme = Plain() if scheme is None else check_is_scheme(scheme)
        for name, size in (("heads", self.num_heads), ("head_dim", self.head_dim)):
            if getattr(self.scheme, name) not in (None, size):
                raise ValueError(f"scheme has {name}={getattr(self.scheme, name)} but the layer has {name}={size}")
        self.dropout, self.backend, self.batch_first = check_probability("dropout", dropout), backend, batch_first
        check_choice("backend", backend, get_args(Backend))
        self.softcap = check_softcap(softcap)
        if (add_bias_kv or add_zero_attn) and type(self.scheme) is not Plain:
            raise ValueError(
                "add_bias_kv and add_zero_attn need the scheme Plain(), because added keys have no position; "
                f"got {type(self.scheme).__name__}"
            )
        self.add_zero_attn = add_zero_attn
        kdim, vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim

        key_width = self.key_heads * self.head_dim
        if not self.scheme.projects_keys and kdim != key_width:
            raise ValueError(
                f"{type(self.scheme).__name__} has no key projection: keys must be "
                f"key_heads · head_dim = {key_width} wide, got {kdim}"
            )
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=bias, **options)
        self.k_proj = nn.Linear(kdim, key_width, bias=bias, **options) if self.scheme.projects_keys else None
        self.v_proj = nn.Linear(vdim, key_width, bias=bias, **options)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias=bias, **options)
        self.bias_k = nn.Parameter(torch.empty(1, 1, key_width, **options)) if add_bias_kv else None
        self.bias_v = nn.Parameter(torch.empty(1, 1, key_width, **options)) if add_bias_kv else None
        self.sinks = nn.Parameter(torch.empty(num_heads, **options)) if sinks else None
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(_split_fused_projection)

    def reset_parameters(self) -> None:
        """Initialize the projections (Xavier uniform weights, zero biases), the added key and value, and the sinks."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            if projection is not None:
                nn.init.xavier_uniform_(projection.weight)
                if projection.bias is not None:
                    nn.init.zeros_(projection.bias)
        for added in (self.bias_k, self.bias_v):
            if added is not None:
                nn.init.xavier_normal_(added)
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

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
        window: tuple[int, int] | None = None,
        offset: int | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        cu_seqlens_k: Tensor | Sequence[int] | None = None,
        cache: Cache | None = None,
        need_received: bool = False,
    ) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
        """Attend from query (B, N, embed_dim) to key (B, M, kdim) and value (B, M, vdim), or without the batch axis.

        Masks are True where attention is NOT allowed, as in `nn.MultiheadAttention`; those of `attend` are the
        opposite.

        Args:
            query: input of the queries.
            key: input of the keys, or the keys (B, key_heads, M, head_dim) that `project_keys_values` returned.
            value: input of the values, or the values that `project_keys_values` returned.
            key_padding_mask: (B, M), True for padding keys, or a bias to add to the scores.
            need_weights: also return the weights, before dropout. They need N × M memory: pass False in training.
            attn_mask: (N, M) or (B·num_heads, N, M); boolean, True where attention is not allowed, or a bias to add to
                the scores.
            average_attn_weights: return the heads' mean (B, N, M) instead of the weights of each head
                (B, num_heads, N, M).
            is_causal: queries attend only to keys up to their own position; attn_mask is not needed for this.
            query_padding_mask: (B, N), True for padding queries, which get zeros and contribute nothing.
            position_bias: see `attend`.
            window: see `attend`.
            offset: position of the first query; see `attend`. Ignored with a cache, which determines it.
            cu_seqlens: see `attend`; needs a batch of one and need_weights=False.
            cu_seqlens_k: see `attend`.
            cache: takes the new keys and values, and returns all so far.
            need_received: also return the attention that each key receives, (B, num_heads, M).

        Returns:
            (output, weights or None), or (output, weights or None, received).
        """
        if need_weights and cu_seqlens is not None:
            raise ValueError("cu_seqlens needs need_weights=False: there are no weights of packed sequences")
        is_batched = query.dim() != 2
        if not is_batched:
            for name, x in (("key", key), ("value", value)):
                if x.dim() != 2:
                    raise ValueError(f"{name} must be (length, width) like query, got shape {tuple(x.shape)}")
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
            query_padding_mask = None if query_padding_mask is None else query_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) if x.dim() == 3 else x for x in (query, key, value))
        if query.dim() != 3:
            raise ValueError(f"query must be (batch, length, width), got shape {tuple(query.shape)}")

        q = self._split_heads(self.q_proj(query), self.num_heads)
        k, v = (key, value) if key.dim() == value.dim() == 4 else self.project_keys_values(key, value)
        if cache is not None:
            num_new = k.shape[2]
            k, v = cache(k, v)
            offset = k.shape[2] - num_new
        mask, mask_bias = self._convert_attn_mask(attn_mask, query.shape[0])
        key_padding, padding_bias = _convert_padding_mask(key_padding_mask)
        if query_padding_mask is not None and query_padding_mask.dtype != torch.bool:
            raise TypeError(f"query_padding_mask must be boolean (True: padding), got {query_padding_mask.dtype}")
        biases = [bias for bias in (mask_bias, padding_bias, position_bias) if bias is not None]
        options: dict[str, Any] = {
            "key_padding": key_padding,
            "mask": mask,
            "position_bias": sum(biases[1:], start=biases[0]) if biases else None,
            "causal": is_causal,
            "window": window,
            "offset": offset,
            "cu_seqlens": cu_seqlens,
            "cu_seqlens_k": cu_seqlens_k,
        }
        if self.bias_k is not None or self.add_zero_attn:
            k, v, options = self._add_keys(q, k, v, options)
        result: Any = attend(
            q,
            k,
            v,
            scheme=self.scheme,
            query_padding=None if query_padding_mask is None else ~query_padding_mask,
            softcap=self.softcap,
            sinks=self.sinks,
            dropout=self.dropout if self.training else 0.0,
            return_received=need_received,
            return_weights=need_weights,
            backend=self.backend,
            **options,
        )
        result = result if need_received or need_weights else AttentionOutput(result)
        output = self.out_proj(result.output.transpose(1, 2).flatten(2))
        if is_batched and not self.batch_first:
            output = output.transpose(0, 1)
        weights = result.weights
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        results = (output, weights, result.received) if need_received else (output, weights)
        return results if is_batched else tuple(None if x is None else x[0] for x in results)  # type: ignore[return-value]

    def _add_keys(
        self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Append the learned key and value, and those of zeros. Return options that allow all queries to see them."""
        if options["cu_seqlens"] is not None:
            raise ValueError("cu_seqlens cannot be combined with add_bias_kv or add_zero_attn")
        batch, n, m = q.shape[0], q.shape[2], k.shape[2]
        window = check_window(options["window"], causal=options["causal"])
        is_aligned = options["causal"] or window is not None
        allowed = allowed_pairs(
            n,
            m,
            query_position=check_offset(options["offset"], n, m, is_aligned=is_aligned),
            causal=options["causal"] and window is None,
            window=window,
            key_padding=options["key_padding"],
            query_padding=None,
            mask=options["mask"],
            device=q.device,
        )
        if self.bias_k is not None and self.bias_v is not None:
            added_k, added_v = (
                self._split_heads(x.expand(batch, 1, -1), self.key_heads) for x in (self.bias_k, self.bias_v)
            )
            k, v = torch.cat([k, added_k.to(k.dtype)], dim=2), torch.cat([v, added_v.to(v.dtype)], dim=2)
        if self.add_zero_attn:
            k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
        added = k.shape[2] - m
        bias = options["position_bias"]
        if allowed is not None:
            allowed = pad(allowed.expand(*allowed.shape[:-1], m), (0, added), value=True)
        if bias is not None:
            bias = pad(bias.expand(*bias.shape[:-1], m), (0, added))
        unmasked = dict.fromkeys(("key_padding", "window", "offset", "cu_seqlens", "cu_seqlens_k"))
        return k, v, {**unmasked, "causal": False, "mask": allowed, "position_bias": bias}

    def torch_state_dict(self) -> dict[str, Tensor]:
        """Return the weights as the state dict of a `torch.nn.MultiheadAttention` of the same sizes.

        Raises:
            ValueError: the torch module cannot have these weights: head_dim, key_heads, a scheme with parameters, a
                softcap or sinks.
        """
        reasons = {
            "head_dim": self.num_heads * self.head_dim != self.embed_dim,
            "key_heads": self.key_heads != self.num_heads,
            "position scheme": type(self.scheme) is not Plain,
            "softcap": self.softcap is not None,
            "sinks": self.sinks is not None,
        }
        unsupported = [name for name, is_used in reasons.items() if is_used]
        if unsupported or self.k_proj is None:
            raise ValueError(f"torch.nn.MultiheadAttention has no {' and no '.join(unsupported)}")
        projections = {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj}
        state = {f"out_proj.{name}": x for name, x in self.out_proj.state_dict().items()}
        weights = [projection.weight.detach() for projection in projections.values()]
        if all(weight.shape == weights[0].shape for weight in weights):
            state["in_proj_weight"] = torch.cat(weights)
        else:
            state |= {f"{name}_proj_weight": x for name, x in zip(projections, weights, strict=True)}
        if self.q_proj.bias is not None:
            state["in_proj_bias"] = torch.cat([projection.bias.detach() for projection in projections.values()])
        for name, x in (("bias_k", self.bias_k), ("bias_v", self.bias_v)):
            if x is not None:
                state[name] = x.detach()
        return state

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
            if attn_mask.shape[0] != batch * self.num_heads:
                raise ValueError(
                    f"attn_mask must be (N, M) or ({batch * self.num_heads}, N, M), got shape {tuple(attn_mask.shape)}"
                )
            attn_mask = attn_mask.view(batch, self.num_heads, *attn_mask.shape[1:])
        elif attn_mask.dim() == 2:
            attn_mask = attn_mask[None, None]
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise TypeError(
                "attn_mask must be boolean (True: ignore) or floating point (added to the scores), "
                f"got {attn_mask.dtype}"
            )
        return (~attn_mask, None) if attn_mask.dtype == torch.bool else (None, attn_mask)

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, dropout={self.dropout}"
        )


def _convert_padding_mask(padding_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return torch's padding mask as a padding of `attend` (True: real), or as a bias if it is additive."""
    if padding_mask is None:
        return None, None
    if padding_mask.dtype == torch.bool:
        return ~padding_mask, None
    if not padding_mask.is_floating_point():
        raise TypeError(
            "key_padding_mask must be boolean (True: padding) or floating point (added to the scores), "
            f"got {padding_mask.dtype}; pass Hugging Face's attention_mask (1: a real token) as attention_mask == 0"
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
