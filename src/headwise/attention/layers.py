"""Transformer layers whose self-attention uses a position scheme.

Vaswani et al. 2017, section 3.1; Wu, Wu and Huang 2021, eq. 4.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from headwise.attention.attend import Backend
from headwise.attention.checks import to_padding_mask
from headwise.attention.multihead import Cache, MultiheadAttention
from headwise.attention.schemes import Scheme
from headwise.attention.schemes.scheme import check_choice, check_positive

Activation = Literal["relu", "gelu"]


class FeedForward(nn.Sequential):
    """FFN(x) = activation(x W₁ + b₁) W₂ + b₂, with dropout after the activation.

    Args:
        dim: width of the input and the output.
        width: inner width, by default 4 · dim.
        activation: `relu` or `gelu`.
        dropout: dropout probability.
    """

    def __init__(
        self, dim: int, width: int | None = None, *, activation: Activation = "relu", dropout: float = 0.0
    ) -> None:
        check_choice("activation", activation, ("relu", "gelu"))
        inner = 4 * dim if width is None else check_positive("feedforward", width)
        super().__init__(
            nn.Linear(dim, inner),
            nn.ReLU() if activation == "relu" else nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(inner, dim),
        )


class Residual(nn.Module):
    """Residual connection around a sublayer, with dropout and layer normalization.

    Args:
        dim: width of the input and the output.
        dropout: dropout probability of the sublayer's output.
        norm_first: normalize the sublayer's input (pre-norm) instead of the sum (post-norm, as in the papers).
    """

    def __init__(self, dim: int, *, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def sublayer_input(self, x: Tensor) -> Tensor:
        """Return the sublayer's input: x, normalized if `norm_first`."""
        normed: Tensor = self.norm(x) if self.norm_first else x
        return normed

    def add(self, x: Tensor, sublayer_output: Tensor) -> Tensor:
        """Return x + dropout(sublayer_output), normalized unless `norm_first`."""
        total: Tensor = x + self.dropout(sublayer_output)
        return total if self.norm_first else self.norm(total)


class EncoderLayer(nn.Module):
    """Transformer encoder layer: self-attention with a position scheme and a feed-forward network.

    State dicts of `nn.TransformerEncoderLayer` can be loaded.

    Args:
        dim: width of the layer; see `MultiheadAttention` for this and the other arguments of attention.
        heads: number of query heads.
        scheme: position scheme.
        head_dim: width of a head.
        key_heads: number of key and value heads.
        feedforward: inner width of the feed-forward network, by default 4 · dim.
        dropout: dropout probability of the attention weights, the activations and the sublayers' outputs.
        activation: `relu` or `gelu`.
        norm_first: normalize before each sublayer instead of after it.
        softcap: limit of the scores; see `attend`.
        sinks: learn a sink of each head; see `attend`.
        backend: see `attend`.
    """

    #: Names of submodules of `nn.TransformerEncoderLayer`, and of those that have the same parameters here.
    torch_names: ClassVar = {
        "self_attn": "attention",
        "linear1": "feedforward.0",
        "linear2": "feedforward.3",
        "norm1": "around_attention.norm",
        "norm2": "around_feedforward.norm",
    }

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        scheme: Scheme | None = None,
        head_dim: int | None = None,
        key_heads: int | None = None,
        feedforward: int | None = None,
        dropout: float = 0.1,
        activation: Activation = "relu",
        norm_first: bool = False,
        softcap: float | None = None,
        sinks: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.attention = MultiheadAttention(
            dim,
            heads,
            scheme=scheme,
            head_dim=head_dim,
            key_heads=key_heads,
            dropout=dropout,
            softcap=softcap,
            sinks=sinks,
            backend=backend,
        )
        self.around_attention = Residual(dim, dropout=dropout, norm_first=norm_first)
        self.feedforward = FeedForward(dim, feedforward, activation=activation, dropout=dropout)
        self.around_feedforward = Residual(dim, dropout=dropout, norm_first=norm_first)
        self.register_load_state_dict_pre_hook(_rename_torch_parameters)

    def forward(
        self,
        x: Tensor,
        *,
        key_padding: Tensor | None = None,
        causal: bool = False,
        window: tuple[int, int] | None = None,
        mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        memory: Tensor | None = None,
        cache: Cache | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Apply the layer to x (B, N, dim).

        Masks are True for real tokens and where attention is allowed, as in `attend`.

        Args:
            x: states of the tokens.
            key_padding: boolean mask of the real tokens (B, N), or lengths (B,); with memory or a cache, a mask of all
                tokens.
            causal: tokens attend only to earlier tokens and themselves.
            window: see `attend`.
            mask: boolean mask, broadcastable to (B, heads, N, keys).
            position_bias: see `attend`.
            memory: states of the tokens before x, (B, any length, dim), such as the previous segment's in
                Transformer-XL's recurrence. They get no gradient.
            cache: takes the keys and values of x, and returns all so far. x then holds only the new tokens.
            cu_seqlens: cumulative lengths of sequences that are concatenated in a batch of one; see `attend`.
            need_weights: also return the weights of each head, (B, heads, N, keys), before dropout.

        Raises:
            ValueError: memory is combined with a cache or cu_seqlens, or lengths with a cache.
        """
        if memory is not None and (cache is not None or cu_seqlens is not None):
            raise ValueError("memory cannot be combined with a cache or cu_seqlens")
        queries = self.around_attention.sublayer_input(x)
        keys = queries
        if memory is not None:
            keys = torch.cat([self.around_attention.sublayer_input(memory.detach()), queries], dim=1)
        memory_length = keys.shape[1] - queries.shape[1]
        is_padding = _to_padding(key_padding, keys, has_cache=cache is not None)
        attention_output, weights = self.attention(
            queries,
            keys,
            keys,
            is_padding,
            need_weights=need_weights,
            attn_mask=_invert(mask),
            average_attn_weights=False,
            is_causal=causal,
            query_padding_mask=None if is_padding is None else is_padding[:, is_padding.shape[1] - queries.shape[1] :],
            position_bias=position_bias,
            window=window,
            offset=memory_length,
            cu_seqlens=cu_seqlens,
            cache=cache,
        )
        x = self.around_attention.add(x, attention_output)
        x = self.around_feedforward.add(x, self.feedforward(self.around_feedforward.sublayer_input(x)))
        return (x, weights) if need_weights else x


class DecoderLayer(nn.Module):
    """Transformer decoder layer: causal self-attention with a scheme, cross-attention and a feed-forward network.

    Cross-attention is plain, because relative positions between two sequences have no meaning. State dicts of
    `nn.TransformerDecoderLayer` can be loaded.

    Args:
        dim: width of the layer; see `MultiheadAttention` for this and the other arguments of attention.
        heads: number of heads.
        scheme: position scheme of self-attention.
        head_dim: width of a head.
        feedforward: inner width of the feed-forward network, by default 4 · dim.
        dropout: dropout probability of the attention weights, the activations and the sublayers' outputs.
        activation: `relu` or `gelu`.
        norm_first: normalize before each sublayer instead of after it.
        softcap: limit of the scores of self-attention; see `attend`.
        sinks: learn a sink of each head of self-attention; see `attend`.
        backend: see `attend`.
    """

    #: Names of submodules of `nn.TransformerDecoderLayer`, and of those that have the same parameters here.
    torch_names: ClassVar = {
        "self_attn": "attention",
        "multihead_attn": "cross_attention",
        "linear1": "feedforward.0",
        "linear2": "feedforward.3",
        "norm1": "around_attention.norm",
        "norm2": "around_cross_attention.norm",
        "norm3": "around_feedforward.norm",
    }

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        scheme: Scheme | None = None,
        head_dim: int | None = None,
        feedforward: int | None = None,
        dropout: float = 0.1,
        activation: Activation = "relu",
        norm_first: bool = False,
        softcap: float | None = None,
        sinks: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.attention = MultiheadAttention(
            dim,
            heads,
            scheme=scheme,
            head_dim=head_dim,
            dropout=dropout,
            softcap=softcap,
            sinks=sinks,
            backend=backend,
        )
        self.around_attention = Residual(dim, dropout=dropout, norm_first=norm_first)
        self.cross_attention = MultiheadAttention(dim, heads, head_dim=head_dim, dropout=dropout, backend=backend)
        self.around_cross_attention = Residual(dim, dropout=dropout, norm_first=norm_first)
        self.feedforward = FeedForward(dim, feedforward, activation=activation, dropout=dropout)
        self.around_feedforward = Residual(dim, dropout=dropout, norm_first=norm_first)
        self.register_load_state_dict_pre_hook(_rename_torch_parameters)

    def forward(
        self,
        x: Tensor,
        encoded: Tensor | tuple[Tensor, Tensor],
        *,
        key_padding: Tensor | None = None,
        encoded_padding: Tensor | None = None,
        window: tuple[int, int] | None = None,
        mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        cache: Cache | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        encoded_cu_seqlens: Tensor | Sequence[int] | None = None,
    ) -> Tensor:
        """Apply the layer to x (B, N, dim) and the encoder's states (B, M, dim).

        Masks are True for real tokens and where attention is allowed, as in `attend`.

        Args:
            x: states of the target tokens.
            encoded: the encoder's states, or their keys and values from `project_encoded`.
            key_padding: boolean mask of the real target tokens so far, (B, length); without a cache also lengths (B,).
            encoded_padding: boolean mask of the real source tokens (B, M), or lengths (B,).
            window: window of self-attention; see `attend`.
            mask: boolean mask of self-attention, broadcastable to (B, heads, N, target tokens so far).
            position_bias: bias of self-attention; see `attend`.
            cache: takes the keys and values of x, and returns all so far. x then holds only the new tokens.
            cu_seqlens: cumulative lengths of target sequences that are concatenated in a batch of one; see `attend`.
            encoded_cu_seqlens: cumulative lengths of the source sequences; needed with cu_seqlens.

        Raises:
            ValueError: only one of cu_seqlens and encoded_cu_seqlens is given, or lengths with a cache.
        """
        if (cu_seqlens is None) != (encoded_cu_seqlens is None):
            raise ValueError("cu_seqlens, of the target, and encoded_cu_seqlens, of the source, must be given together")
        y = self.around_attention.sublayer_input(x)
        attention_output = self.attention(
            y,
            y,
            y,
            _to_padding(key_padding, x, has_cache=cache is not None),
            need_weights=False,
            attn_mask=_invert(mask),
            is_causal=True,
            position_bias=position_bias,
            window=window,
            cache=cache,
            cu_seqlens=cu_seqlens,
        )[0]
        x = self.around_attention.add(x, attention_output)

        y = self.around_cross_attention.sublayer_input(x)
        k, v = self.project_encoded(encoded) if isinstance(encoded, Tensor) else encoded
        is_real = to_padding_mask("encoded_padding", encoded_padding, k.shape[0], k.shape[2], k.device)
        is_padding = None if is_real is None else ~is_real
        attention_output = self.cross_attention(
            y, k, v, is_padding, need_weights=False, cu_seqlens=cu_seqlens, cu_seqlens_k=encoded_cu_seqlens
        )[0]
        x = self.around_cross_attention.add(x, attention_output)
        return self.around_feedforward.add(x, self.feedforward(self.around_feedforward.sublayer_input(x)))

    def project_encoded(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Project the encoder's states (B, M, dim) to this layer's keys and values, to reuse them for all tokens."""
        return self.cross_attention.project_keys_values(encoded, encoded)


def _to_padding(key_padding: Tensor | None, x: Tensor, *, has_cache: bool) -> Tensor | None:
    """Convert a mask of the real tokens, or lengths, to torch's padding mask, True for padding."""
    if key_padding is None:
        return None
    if has_cache and key_padding.dim() == 1:
        raise ValueError("key_padding must be a mask of all tokens so far if there is a cache, got lengths")
    length = key_padding.shape[1] if has_cache and key_padding.dim() == 2 else x.shape[1]
    is_real = to_padding_mask("key_padding", key_padding, x.shape[0], length, x.device)
    return None if is_real is None else ~is_real


def _invert(mask: Tensor | None) -> Tensor | None:
    """Convert a mask of `attend`, True where attention is allowed, to one of `MultiheadAttention`."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean (True: attention is allowed), got {mask.dtype}; "
            "pass values to add to the scores as position_bias"
        )
    return ~mask[(None,) * (4 - mask.dim())]


def _rename_torch_parameters(
    module: EncoderLayer | DecoderLayer, state_dict: dict[str, Any], prefix: str, *_: Any
) -> None:
    """Convert the names of parameters of torch's layer."""
    for torch_name, name in module.torch_names.items():
        rename_prefix(state_dict, f"{prefix}{torch_name}.", f"{prefix}{name}.")


def rename_prefix(state_dict: dict[str, Any], old: str, new: str) -> None:
    """Replace the beginning of names."""
    for name in [name for name in state_dict if name.startswith(old)]:
        state_dict[new + name.removeprefix(old)] = state_dict.pop(name)


def torch_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return a model's state dict for the same model with torch's modules.

    The weights of each `MultiheadAttention`, `EncoderLayer` and `DecoderLayer` get the names of
    `nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer`. Other names stay the same.

    Args:
        model: a module that contains any of these, or is one of them.

    Raises:
        ValueError: torch's modules cannot have these weights: a scheme with position terms, head_dim, key_heads, a
            softcap or sinks.
    """
    state_dict = model.state_dict()
    for path, module in reversed(list(model.named_modules(remove_duplicate=False))):  # submodules first
        prefix = f"{path}." if path else ""
        if isinstance(module, MultiheadAttention):
            try:
                weights = module.torch_state_dict()
            except ValueError as error:
                raise ValueError(f"{path}: {error}" if path else str(error)) from None
            for name in ("q_proj", "k_proj", "v_proj"):
                for parameter in ("weight", "bias"):
                    state_dict.pop(f"{prefix}{name}.{parameter}", None)
            state_dict.update({prefix + name: x for name, x in weights.items()})
        elif isinstance(module, EncoderLayer | DecoderLayer):
            for torch_name, name in module.torch_names.items():
                rename_prefix(state_dict, f"{prefix}{name}.", f"{prefix}{torch_name}.")
    return state_dict
