"""Guides towards a given attention pattern: first, next and previous token, delimiters, periods.

All of them minimize, as a mean over guided heads, texts and pairs of real tokens,

    L = (P − T)²

where P are the attention weights and T is the target. T consists of zeros and ones; in the guides `Dependency`,
`MutualInformation` and `WordSimilarity`, its rows sum to 1. T is 0 where a mask hides the key from the query, as in
causal models. Rows of T without a target (all zeros) are excluded, and so are texts without any target. Most targets
need no attention map, because

    Σ (P − T)² = Σ P² − 2 Σ P∘T + Σ T²

and attention returns the squared norms of the rows of P. If T is the same for all queries (`TokenGuide`), Σ P∘T is the
attention that the target tokens receive. If T has one token per query (`NeighborGuide`), it is one weight per query.

References: Deshpande and Narasimhan 2020, Guiding Attention for Self-Supervised Learning with Transformers; Wang et al.
2022, Paying More Attention to Self-attention, section 3.5.
"""

from abc import abstractmethod
from typing import Any, Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, GuideOptions, Weight, upcast


class PatternGuide(Guide):
    """Base class of guides towards an arbitrary target, which reads attention maps: N × N memory per head."""

    required_fields = frozenset({"weights"})

    #: Whether the rows of the target are divided by their sums, over the keys that a query may attend to.
    normalizes_rows = False

    @abstractmethod
    def target(self, record: ForwardRecord) -> Tensor:
        """Return T, 0 or more, broadcastable to (B, N, N). Padding and hidden keys are excluded by the caller."""

    def term(self, record: ForwardRecord) -> Tensor:
        batch_size, n = record.real.shape
        length = record.real.sum(dim=1)[:, None]
        scores = self.target(record).to(record.real.device).float().expand(batch_size, n, n).clamp(min=0.0)
        terms = []
        for layer in record.layers:
            assert layer.weights is not None
            target = scores[:, None] * layer.visible_pairs()
            if self.normalizes_rows:
                target = target / target.sum(dim=-1, keepdim=True).clamp(min=1e-9)
            target = self.select_heads(target.expand_as(layer.weights))
            has_target = (target != 0).any(dim=-1)
            pairs = record.real[:, None, None, :] & has_target[..., None]
            error = (upcast(self.select_heads(layer.weights)) - target).square() * pairs
            terms.append((error.sum(dim=(2, 3)), has_target.sum(dim=2) * length))
        return mean_over_targets(terms)


class TokenGuide(Guide):
    """Base class of guides towards certain tokens, the same for all queries that may attend to them."""

    required_fields = frozenset({"weight_norms"})

    @abstractmethod
    def target(self, record: ForwardRecord) -> Tensor:
        """Return the target tokens, (B, N) boolean. Padding and hidden keys are excluded by the caller."""

    def term(self, record: ForwardRecord) -> Tensor:
        length = record.real.sum(dim=1)[:, None]
        target = self.target(record).to(record.real.device) & record.real
        terms = []
        for layer in record.layers:
            assert layer.weight_norms is not None
            num_targets = self.select_heads(layer.count_visible(target).expand_as(layer.weight_norms))
            norms, received = (upcast(self.select_heads(x)) for x in (layer.weight_norms, layer.received))
            has_target = num_targets > 0
            error = (norms * has_target + num_targets).sum(dim=2) - 2 * (received * target[:, None]).sum(dim=2)
            terms.append((error, has_target.sum(dim=2) * length))
        return mean_over_targets(terms)


class NeighborGuide(Guide):
    """Base class of guides towards the token `offset` positions after each query."""

    required_fields = frozenset({"weight_norms", "neighbor_weights"})

    offset: int

    def term(self, record: ForwardRecord) -> Tensor:
        length = record.real.sum(dim=1)[:, None]
        terms = []
        for layer in record.layers:
            assert layer.weight_norms is not None
            norms, weights = (
                upcast(self.select_heads(x)) for x in (layer.weight_norms, layer.neighbor_weights(self.offset))
            )
            has_target = self.select_heads(layer.has_neighbor(self.offset).expand_as(layer.weight_norms))
            error = ((norms - 2 * weights + 1) * has_target).sum(dim=2)
            terms.append((error, has_target.sum(dim=2) * length))
        return mean_over_targets(terms)


def mean_over_targets(terms: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the mean error over layers, heads and texts with a target.

    Args:
        terms: for each layer, the sums of squared errors and the numbers of pairs that they sum over, (B, H) each.
            Texts without a target have no pairs.
    """
    errors, num_pairs = (torch.cat(x) for x in zip(*terms, strict=True))
    return (errors / num_pairs.clamp(min=1)).sum() / (num_pairs > 0).sum().clamp(min=1)


class First(TokenGuide):
    """Guide heads to the first token, such as [CLS].

    The target T is 1 for the first real token of each text.

    Reference:
        Wang et al. 2022, section 3.5, pattern [First].

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Advice:
        Guide only some heads, with `heads`, so that the other heads are not constrained.

    Example:
        >>> import headwise as hw
        >>> hw.guides.First(1.0, heads=[0], schedule="linear")
        First(weight=1, schedule='linear')
    """

    def target(self, record: ForwardRecord) -> Tensor:
        n = record.real.shape[1]
        first = record.real.int().argmax(dim=1)  # padding may be on the left
        return torch.nn.functional.one_hot(first, n).bool()


class Next(NeighborGuide):
    """Guide heads to the next token.

    The target T is 1 for the token after each query. Queries without a visible next token are excluded.

    Reference:
        Wang et al. 2022, section 3.5, pattern [Next].

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Advice:
        In a causal model no next token is visible, so the term is 0. Layers with a position scheme or a bias need
        the attention maps: N × N memory per head.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Next(1.0, heads=[1])
        Next(weight=1, schedule='constant')
    """

    offset = 1


class Previous(NeighborGuide):
    """Guide heads to the previous token.

    The target T is 1 for the token before each query. The first token is excluded.

    Reference:
        Wang et al. 2022, section 3.5, pattern [Prev].

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.

    Advice:
        Layers with a position scheme or a bias need the attention maps: N × N memory per head.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Previous(1.0, heads=[2])
        Previous(weight=1, schedule='constant')
    """

    offset = -1


class Delimiter(TokenGuide):
    """Guide heads to separator tokens, such as [SEP].

    The target T is 1 for all separators of the text. A text without one is excluded. In a causal model, the target of a
    query are the separators up to it, and queries before the first separator are excluded.

    Reference:
        Wang et al. 2022, section 3.5, pattern [Delim].

    Args:
        weight: see `Guide`.
        tokens: the ids of the separators, such as `[tokenizer.sep_token_id]`.
        share, layers, heads, schedule, name: see `Guide`.

    Advice:
        The model must be called with `input_ids`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Delimiter(1.0, tokens=[102], heads=[3])
        Delimiter(weight=1, schedule='constant')
    """

    def __init__(self, weight: Weight = 1.0, *, tokens: list[int], **options: Unpack[GuideOptions]) -> None:
        super().__init__(weight, **options)
        self.tokens = tuple(tokens)

    def target(self, record: ForwardRecord) -> Tensor:
        ids = get_input_ids(record.inputs, self.name)
        return torch.isin(ids, torch.tensor(self.tokens, device=ids.device))


class Period(Delimiter):
    """Guide heads to periods.

    The target T is 1 for all periods of the text. A text without one is excluded. In a causal model, the target of a
    query are the periods up to it, and queries before the first period are excluded.

    Reference:
        Wang et al. 2022, section 3.5, pattern [Period].

    Args:
        weight: see `Guide`.
        tokens: the ids of period tokens, such as `[tokenizer.convert_tokens_to_ids(".")]`.
        share, layers, heads, schedule, name: see `Guide`.

    Advice:
        The model must be called with `input_ids`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Period(1.0, tokens=[1012], heads=[4])
        Period(weight=1, schedule='constant')
    """


def get_input_ids(inputs: dict[str, Any], guide_name: str) -> Tensor:
    """Return the token ids of a batch, (B, N), or raise ValueError if the model was called without them."""
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor):
        raise ValueError(f"{guide_name} reads token ids: call the model with input_ids")
    return ids
