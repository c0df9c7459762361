"""Statistics of attention heads over a dataset, in one pass. Only sums are stored, neither texts nor maps.

All measures are means over the tokens of all texts without padding; correlations of heads are means over texts.

L layers, H heads per layer, B sequences, R rows (queries), N keys, P position bins, D distance bins.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor, nn

from headwise.attention import DistanceAware, Scheme
from headwise.errors import UserError
from headwise.inspection.capture import capture_attention
from headwise.inspection.inspected_model import MAX_TOKENS, EncodedBatch, InspectedModel, Texts, pad
from headwise.inspection.measures import (
    compute_distances,
    compute_entropies,
    num_distance_bins,
    row_blocks,
    sum_by_distance,
    to_numpy,
)
from headwise.inspection.passages import PassageTracker
from headwise.integrations import AttentionRows

#: The measures of a head and their descriptions.
MEASURES = {
    "distance": "mean attention distance (tokens)",
    "entropy": "entropy of attention weights (bits)",
    "first": "share of attention to [CLS]",
    "separators": "share of attention to [SEP]",
    "punctuation": "share of attention to punctuation",
    "next": "share of attention to the next token",
    "previous": "share of attention to the previous token",
}
#: Token classes with a measure of the attention that they receive.
TOKEN_CLASSES = ("first", "separators", "punctuation")
#: Number of bins of relative positions in a text, for received attention.
NUM_POSITION_BINS = 20
#: Number of distance bins on each side of a token, for the longest texts that are supported.
MAX_DISTANCE_BINS = num_distance_bins(MAX_TOKENS)
#: Largest number of weights per head and text that heads are compared by.
MAX_COMPARED_WEIGHTS = 2**14
#: Heads whose maps correlate more than this on average form a cluster.
MIN_CLUSTER_CORRELATION = 0.5
#: Number of rows that are read ahead and sorted by length.
READ_AHEAD_ROWS = 256
MAX_BATCH_ROWS, MAX_BATCH_TOKENS = 32, 8192


@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of a model's heads over a dataset.

    Args:
        name: the name of the model.
        texts, tokens: the number of texts and tokens.
        empty: the number of rows without text, which are skipped.
        measures: arrays (L, H) by the names in `MEASURES`.
        distance_shares: the shares of attention by distance, (L, H, D), in the bins of `distance_bin_names`.
        received: the received attention of tokens by their relative position in the text, (L, H, P); 1 on average.
        similarity: the correlations of the maps of all heads, (L · H, L · H); NaN for heads of different passages.
        clusters: the cluster of each head, (L · H,); cluster 0 is the largest.
        w, v: the learned parameters of distance-aware heads, (L, H); None for other schemes.
    """

    name: str
    texts: int
    tokens: int
    empty: int
    measures: dict[str, NDArray[np.float64]]
    distance_shares: NDArray[np.float64]
    received: NDArray[np.float64]
    similarity: NDArray[np.float64]
    clusters: NDArray[np.int64]
    w: NDArray[np.float64] | None
    v: NDArray[np.float64] | None

    @property
    def shape(self) -> tuple[int, int]:
        """The number of layers and of heads per layer."""
        layers, heads = self.measures["distance"].shape
        return layers, heads


#: Sums over texts, by name.
Sums = dict[str, NDArray[Any]]


class _LayerSums:
    """The sums of one layer."""

    def __init__(self, heads: int, scheme: Scheme | None) -> None:
        self.num_queries = 0
        self.measures = {name: torch.zeros(heads, dtype=torch.float64) for name in MEASURES}
        self.received = torch.zeros(heads, NUM_POSITION_BINS, dtype=torch.float64)
        self.bin_sizes = torch.zeros(NUM_POSITION_BINS, dtype=torch.float64)
        self.distance_shares = torch.zeros(heads, 2 * MAX_DISTANCE_BINS + 1, dtype=torch.float64)
        self.scheme = scheme


class HeadStatisticsAccumulator:
    """Accumulates head statistics over batches of texts. Its memory depends only on the model."""

    def __init__(self, model: InspectedModel) -> None:
        self.model = model
        self.layers: dict[nn.Module, _LayerSums] = {}
        self.correlation_sums: Tensor | None = None
        self.correlation_counts: Tensor | None = None
        self.num_texts = self.num_tokens = 0
        self._token_classes: dict[str, str] = {}

    def add(self, rows: Sequence[Texts]) -> None:
        """Add a batch of texts."""
        batch = self.model.encode(rows)
        class_masks = [
            {name: self._class_mask(passage.sequences, name) for name in TOKEN_CLASSES} for passage in batch.passages
        ]
        tracker, samples = PassageTracker(batch), [dict[nn.Module, Tensor]() for _ in batch.passages]
        real = [torch.ones(0, 0, dtype=torch.bool) for _ in batch.passages]

        def add_layer(layer: nn.Module, attention: AttentionRows) -> None:
            index = tracker.find(layer, attention)
            sums = self.layers.setdefault(layer, _LayerSums(attention.heads, attention.scheme))
            samples[index][layer] = accumulate(sums, attention, class_masks[index])
            real[index] = attention.real

        capture_attention(self.model.model, batch.inputs, add_layer)
        for passage_samples, passage_real in zip(samples, real, strict=True):
            self._add_correlations(passage_samples, passage_real)
        self.num_texts += len(rows)
        self.num_tokens += count_tokens(batch)

    def _class_mask(self, sequences: Sequence[Sequence[str]], token_class: str) -> Tensor:
        """Return 1 for tokens of a class and 0 for others, (B, N)."""
        rows = [[self._classify(token) == token_class for token in sequence] for sequence in sequences]
        return pad(rows, left=self.model.pads_left)

    def _classify(self, token: str) -> str:
        if token not in self._token_classes:
            self._token_classes[token] = classify_token(token, self.model)
        return self._token_classes[token]

    def _add_correlations(self, samples: dict[nn.Module, Tensor], real: Tensor) -> None:
        """Add the correlations of all heads that processed a passage, whose real tokens are True, (B, N)."""
        heads = next(iter(self.layers.values())).received.shape[0]
        size = len(self.layers) * heads
        if self.correlation_sums is None or self.correlation_counts is None:
            self.correlation_sums, self.correlation_counts = (
                torch.zeros(size, size, dtype=torch.float64) for _ in range(2)
            )
        if not samples:
            return
        layers = list(self.layers)
        x = torch.cat(list(samples.values()), dim=1)  # (B, heads of these layers, R, N)
        queries = sample_queries(x.shape[-1]).to(x.device)
        mask = real[:, queries, None] & real[:, None, :]
        correlations, count = sum_correlations(x, mask)
        indices = torch.tensor([layers.index(layer) * heads + head for layer in samples for head in range(heads)])
        self.correlation_sums[indices[:, None], indices] += correlations.double().cpu()
        self.correlation_counts[indices[:, None], indices] += count

    def sums(self) -> Sums:
        """Return all sums. Those of several accumulators can be added with `add_sums`."""
        layers = list(self.layers.values())
        counts = {"num_texts": np.array(self.num_texts), "num_tokens": np.array(self.num_tokens)}
        if not layers:
            return counts
        assert self.correlation_sums is not None
        assert self.correlation_counts is not None
        schemes = [sums.scheme for sums in layers if isinstance(sums.scheme, DistanceAware)]
        is_distance_aware = len(schemes) == len(layers)
        v = [to_numpy(scheme.v) for scheme in schemes if scheme.v is not None]
        learned = {"w": np.stack([to_numpy(scheme.w) for scheme in schemes])} if is_distance_aware else {}
        return (
            counts
            | learned
            | ({"v": np.stack(v)} if len(v) == len(layers) else {})
            | {name: torch.stack([sums.measures[name] for sums in layers]).numpy() for name in MEASURES}
            | {
                "num_queries": np.array([sums.num_queries for sums in layers]),
                "received": torch.stack([sums.received for sums in layers]).numpy(),
                "distance_shares": torch.stack([sums.distance_shares for sums in layers]).numpy(),
                "bin_sizes": torch.stack([sums.bin_sizes for sums in layers]).numpy(),
                "correlation_sums": self.correlation_sums.numpy(),
                "correlation_counts": self.correlation_counts.numpy(),
            }
        )


def add_sums(total: Sums, sums: Sums) -> None:
    """Add the sums of other texts to `total`. Learned parameters do not depend on texts."""
    for name, x in sums.items():
        total[name] = x if name not in total or name in ("w", "v") else total[name] + x


def from_sums(name: str, sums: Sums) -> HeadStatistics:
    """Return the statistics of a model, given sums over all texts.

    Raises:
        UserError: there were no texts.
    """
    if "num_queries" not in sums:
        raise UserError("there are no texts")
    num_queries = np.maximum(sums["num_queries"], 1)[:, None]
    counts = sums["correlation_counts"]
    similarity = np.where(counts > 0, sums["correlation_sums"] / np.maximum(counts, 1), np.nan)
    return HeadStatistics(
        name=name,
        texts=int(sums["num_texts"]),
        tokens=int(sums["num_tokens"]),
        empty=int(sums.get("num_empty", 0)),
        measures={measure: sums[measure] / num_queries for measure in MEASURES},
        distance_shares=drop_empty_bins(sums["distance_shares"]) / num_queries[:, :, None],
        received=sums["received"] / np.maximum(sums["bin_sizes"], 1)[:, None],
        similarity=similarity,
        clusters=cluster_heads(similarity),
        w=sums.get("w"),
        v=sums.get("v"),
    )


def drop_empty_bins(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares by distance (L, H, D) without the bins of distances that are longer than all texts."""
    by_distance = np.abs(shares).sum(axis=(0, 1))
    used = np.flatnonzero(by_distance + by_distance[::-1])
    return shares[:, :, used[0] : used[-1] + 1]


def compute_head_statistics(model: InspectedModel, rows: Iterable[Texts]) -> HeadStatistics:
    """Compute statistics of a model's heads over many texts. The rows may be a generator.

    Args:
        model: the model.
        rows: texts or pairs. Rows with an empty text are skipped.

    Raises:
        UserError: there are no texts, or the model's attention is not accessible.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from headwise.models import build_tokenizer
        >>> tokenizer = build_tokenizer(["a fine film ."], framed=True)
        >>> bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> model = InspectedModel(name="tiny", model=bert, tokenizer=tokenizer)
        >>> statistics = compute_head_statistics(model, [("a fine film.",), ("a film",)])
        >>> statistics.texts, statistics.measures["entropy"].shape
        (2, (2, 2))
    """
    return from_sums(model.name, sum_head_statistics(model, rows))


def sum_head_statistics(model: InspectedModel, rows: Iterable[Texts]) -> Sums:
    """Return the sums of a model's head statistics over texts, for `from_sums`."""
    accumulator, num_empty, rows = HeadStatisticsAccumulator(model), 0, iter(rows)
    while chunk := list(islice(rows, READ_AHEAD_ROWS)):
        non_empty = [texts for texts in chunk if all(text.strip() for text in texts)]
        num_empty += len(chunk) - len(non_empty)
        for batch in make_batches(non_empty):
            accumulator.add(batch)
    return accumulator.sums() | {"num_empty": np.array(num_empty)}


def make_batches(rows: Sequence[Texts]) -> Iterator[list[Texts]]:
    """Yield batches of rows of similar length, limited in rows and tokens."""
    batch: list[Texts] = []
    for texts in sorted(rows, key=lambda texts: sum(map(len, texts))):
        num_tokens = sum(map(len, texts)) // 2  # an upper estimate: two characters per token
        if batch and (len(batch) == MAX_BATCH_ROWS or num_tokens * (len(batch) + 1) > MAX_BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(texts)
    if batch:
        yield batch


def classify_token(token: str, model: InspectedModel) -> str:
    """Return the class of a token: one of `TOKEN_CLASSES` or "word"."""
    if token == model.start_token:
        return "first"
    if token == model.end_token:
        return "separators"
    text = token.removeprefix("##").strip()
    if text and all(unicodedata.category(character).startswith(("P", "S")) for character in text):
        return "punctuation"
    return "word"


def accumulate(sums: _LayerSums, attention: AttentionRows, class_masks: dict[str, Tensor]) -> Tensor:
    """Add the measures of a layer to its sums, and return the rows that its heads are compared by, (B, H, R, N)."""
    real, length, heads = attention.real, attention.real.shape[1], attention.heads
    lengths = real.sum(dim=1)
    received = torch.zeros(real.shape[0], heads, length, device=real.device)
    sampled_queries, sample = sample_queries(length), []
    masks = {name: mask.to(real.device, torch.float32) for name, mask in class_masks.items()}
    for start, stop in row_blocks(length, real.shape[0], heads):
        weights = attention.weights(start, stop).float()
        measures = {
            "distance": compute_distances(weights, start),
            "entropy": compute_entropies(weights),
            **{name: torch.einsum("bhrn,bn->bhr", weights, mask) for name, mask in masks.items()},
            "next": weights.diagonal(start + 1, 2, 3),
            "previous": previous_token_weights(weights, start),
        }
        for name, x in measures.items():
            sums.measures[name] += x.sum(dim=(0, 2)).double().cpu()
        sums.distance_shares += sum_by_distance(weights, start, MAX_DISTANCE_BINS).cpu()
        received += weights.sum(dim=2)
        in_block = (sampled_queries >= start) & (sampled_queries < stop)
        sample.append(weights[:, :, sampled_queries[in_block] - start])
    sums.num_queries += int(lengths.sum())
    positions = real.long().cumsum(dim=1) - 1  # padding may be on the left
    bins = (positions * NUM_POSITION_BINS // lengths.clamp(min=1)[:, None]).clamp(0, NUM_POSITION_BINS - 1)
    one_hot = torch.nn.functional.one_hot(bins, NUM_POSITION_BINS).float() * real[..., None]
    sums.received += torch.einsum("bhn,bnp->hp", received, one_hot).double().cpu()
    sums.bin_sizes += one_hot.sum(dim=(0, 1)).double().cpu()
    return torch.cat(sample, dim=2)


def previous_token_weights(weights: Tensor, start: int) -> Tensor:
    """Return the weight of each query to the token before it. The rows begin with query `start`."""
    return weights[:, :, 1:].diagonal(0, 2, 3) if start == 0 else weights.diagonal(start - 1, 2, 3)


def sample_queries(length: int) -> Tensor:
    """Return the queries that heads are compared by: all of a short text, evenly spaced ones of a long text."""
    count = max(1, min(length, MAX_COMPARED_WEIGHTS // max(1, length)))
    return torch.linspace(0, length - 1, count).round().long()


def sum_correlations(x: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    """Return the correlations of all heads' maps, summed over texts, and the number of these texts.

    Args:
        x: weights, (B, heads, R, N).
        mask: True for weights between tokens that are not padding, (B, R, N).
    """
    weights, unmasked = x.flatten(2), mask.flatten(1).to(x.dtype)
    count = unmasked.sum(dim=1)
    is_defined = count > 1
    mean = (weights * unmasked[:, None]).sum(dim=-1, keepdim=True) / count.clamp(min=1)[:, None, None]
    centered = torch.nn.functional.normalize((weights - mean) * unmasked[:, None], dim=-1)
    return torch.einsum("bic,bjc->ij", centered[is_defined], centered[is_defined]), int(is_defined.sum())


def cluster_heads(similarity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Cluster heads by the correlation of their maps, with average linkage. Cluster 0 is the largest."""
    if len(similarity) < 2:
        return np.zeros(len(similarity), dtype=np.int64)
    distances = np.where(np.isnan(similarity), 2.0, 1.0 - similarity)
    np.fill_diagonal(distances, 0.0)
    clustering = AgglomerativeClustering(
        n_clusters=None, distance_threshold=1.0 - MIN_CLUSTER_CORRELATION, metric="precomputed", linkage="average"
    )
    labels = clustering.fit_predict(distances)
    by_size = sorted(set(labels), key=lambda label: (-(labels == label).sum(), np.flatnonzero(labels == label)[0]))
    return np.array([by_size.index(label) for label in labels], dtype=np.int64)


def count_tokens(batch: EncodedBatch) -> int:
    """Return the number of tokens in a batch, without padding."""
    pair_mask = batch.inputs.get("pair_attention_mask", torch.tensor(0))
    return int(batch.inputs["attention_mask"].sum()) + int(pair_mask.sum())
