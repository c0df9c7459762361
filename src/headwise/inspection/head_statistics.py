"""What heads do over a whole data set, in one pass: sums are kept, texts and maps are not.

L layers of H heads. All numbers are averages over the real tokens of all texts; how alike two heads are is an average
over texts.
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

from headwise.attention import DistanceAware
from headwise.errors import UserError
from headwise.inspection.attention_maps import Passages
from headwise.inspection.capture import watch
from headwise.inspection.inspected_model import Encoded, InspectedModel, Texts
from headwise.inspection.measures import distances, entropies, row_blocks, to_numpy
from headwise.integrations import AttentionRows

#: What is measured of each head, and what it means.
MEASURES = {
    "distance": "how far it looks (tokens)",
    "entropy": "how widely it looks (bits)",
    "first": "share that goes to [CLS]",
    "separators": "share that goes to [SEP]",
    "punctuation": "share that goes to punctuation",
    "next": "share that goes to the next token",
    "previous": "share that goes to the previous token",
}
PLACES = 20  # of a text, from its beginning to its end, in the profile of what tokens receive
SAMPLED = 2**14  # weights of a head and text, by which it is compared with others
ALIKE = 0.5  # heads are of one cluster as long as their maps correlate so much on average
CHUNK, MOST_ROWS, MOST_TOKENS = 256, 32, 8192  # rows read ahead; rows and tokens that a batch holds


@dataclass(frozen=True)
class HeadStatistics:
    """A model's heads over a data set.

    Args:
        name: the model's.
        texts, tokens: how many there were.
        empty: rows that were left out, as they have no text.
        measures: by their names in `MEASURES`, (L, H).
        received: what a token receives, on average 1, by its place in the text (L, H, PLACES).
        similarity: the correlation of two heads' maps (L · H, L · H); NaN for heads that never see the same tokens.
        clusters: of each head the number of its cluster (L · H,), the largest first.
        w, v: what distance-aware heads learned (L, H).
    """

    name: str
    texts: int
    tokens: int
    empty: int
    measures: dict[str, NDArray[np.float64]]
    received: NDArray[np.float64]
    similarity: NDArray[np.float64]
    clusters: NDArray[np.int64]
    w: NDArray[np.float64] | None
    v: NDArray[np.float64] | None

    @property
    def shape(self) -> tuple[int, int]:
        layers, heads = self.measures["distance"].shape
        return layers, heads


class _Sums:
    """One layer's sums."""

    def __init__(self, heads: int, scheme: Any) -> None:
        self.queries = 0
        self.measures = {name: torch.zeros(heads, dtype=torch.float64) for name in MEASURES}
        self.received = torch.zeros(heads, PLACES, dtype=torch.float64)
        self.places = torch.zeros(PLACES, dtype=torch.float64)
        self.scheme = scheme


class Collector:
    """Sums over batches of texts; its size depends on the model alone."""

    def __init__(self, subject: InspectedModel) -> None:
        self.subject = subject
        self.layers: dict[nn.Module, _Sums] = {}
        self.alike: Tensor | None = None
        self.compared: Tensor | None = None
        self.texts = self.tokens = 0
        self._kinds: dict[str, str] = {}

    def add(self, rows: Sequence[Texts]) -> None:
        """Take in a batch of texts."""
        encoded = self.subject.encode(rows)
        marks = [{kind: self.marked(passage.sequences, kind) for kind in KINDS} for passage in encoded.passages]
        passages, samples = Passages(encoded), [dict[nn.Module, Tensor]() for _ in encoded.passages]

        def see(layer: nn.Module, seen: AttentionRows) -> None:
            at = passages.of(layer, seen)
            sums = self.layers.setdefault(layer, _Sums(seen.heads, seen.scheme))
            samples[at][layer] = measured(sums, seen, marks[at])

        watch(self.subject.model, encoded.inputs, see)
        for sampled, passage in zip(samples, encoded.passages, strict=True):
            self.compare(sampled, [len(sequence) for sequence in passage.sequences])
        self.texts += len(rows)
        self.tokens += count(encoded)

    def marked(self, sequences: Sequence[Sequence[str]], kind: str) -> Tensor:
        """Which tokens are of a kind, (B, N)."""
        longest = max(map(len, sequences))
        rows = [[self.kind(token) == kind for token in sequence] for sequence in sequences]
        return torch.tensor([row + [False] * (longest - len(row)) for row in rows])

    def kind(self, token: str) -> str:
        if token not in self._kinds:
            self._kinds[token] = kind_of(token, self.subject)
        return self._kinds[token]

    def compare(self, sampled: dict[nn.Module, Tensor], lengths: Sequence[int]) -> None:
        """Add how alike all heads that saw one passage are."""
        heads = next(iter(self.layers.values())).received.shape[0]
        size = len(self.layers) * heads
        if self.alike is None or self.compared is None:
            self.alike, self.compared = (torch.zeros(size, size, dtype=torch.float64) for _ in range(2))
        if not sampled:
            return
        order = list(self.layers)
        x = torch.cat(list(sampled.values()), dim=1)  # (B, heads of all these layers, rows, N)
        real = torch.arange(x.shape[-1], device=x.device) < torch.tensor(lengths, device=x.device)[:, None]
        rows = sampled_rows(x.shape[-1]).to(x.device)
        cells = real[:, rows, None] & real[:, None, :]
        correlation, known = correlations(x, cells)
        places = torch.tensor([order.index(layer) * heads + head for layer in sampled for head in range(heads)])
        self.alike[places[:, None], places] += correlation.double().cpu()
        self.compared[places[:, None], places] += known

    def statistics(self, empty: int = 0) -> HeadStatistics:
        if not self.texts:
            raise UserError("there is no text to look at")
        layers = list(self.layers.values())
        assert self.alike is not None
        assert self.compared is not None
        similarity = torch.where(self.compared > 0, self.alike / self.compared.clamp(min=1), torch.nan).numpy()
        distance_aware = all(isinstance(sums.scheme, DistanceAware) for sums in layers)
        return HeadStatistics(
            name=self.subject.name,
            texts=self.texts,
            tokens=self.tokens,
            empty=empty,
            measures={
                name: torch.stack([sums.measures[name] / max(1, sums.queries) for sums in layers]).numpy()
                for name in MEASURES
            },
            received=torch.stack([sums.received / sums.places.clamp(min=1) for sums in layers]).numpy(),
            similarity=similarity,
            clusters=clustered(similarity),
            w=np.stack([to_numpy(sums.scheme.w) for sums in layers]) if distance_aware else None,
            v=np.stack([to_numpy(sums.scheme.v) for sums in layers])
            if distance_aware and all(sums.scheme.v is not None for sums in layers)
            else None,
        )


def compute_head_statistics(subject: InspectedModel, rows: Iterable[Texts]) -> HeadStatistics:
    """What a model's heads do over many texts, which are drawn as they are needed.

    Args:
        subject: the model.
        rows: texts, or pairs; empty ones are left out.

    Raises:
        UserError: no text at all, or the model's attention cannot be seen.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from headwise.models import build_tokenizer
        >>> tokenizer = build_tokenizer(["a fine film ."], framed=True)
        >>> bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> found = statistics(Subject(name="tiny", model=bert, tokenizer=tokenizer), [("a fine film.",), ("a film",)])
        >>> found.texts, found.measures["entropy"].shape
        (2, (2, 2))
    """
    collector, empty, rows = Collector(subject), 0, iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        real = [texts for texts in chunk if all(text.strip() for text in texts)]
        empty += len(chunk) - len(real)
        for batch in batches(real):
            collector.add(batch)
    return collector.statistics(empty)


def batches(rows: Sequence[Texts]) -> Iterator[list[Texts]]:
    """Rows of a length together, few enough of them for their maps to be small."""
    found: list[Texts] = []
    for texts in sorted(rows, key=lambda texts: sum(map(len, texts))):
        tokens = sum(map(len, texts)) // 2  # hardly more
        if found and (len(found) == MOST_ROWS or tokens * (len(found) + 1) > MOST_TOKENS):
            yield found
            found = []
        found.append(texts)
    if found:
        yield found


#: Kinds of tokens that shares are counted for.
KINDS = ("first", "separators", "punctuation")


def kind_of(token: str, subject: InspectedModel) -> str:
    if token == subject.first_token:
        return "first"
    if token == subject.last_token:
        return "separators"
    bare = token.removeprefix("##").strip()
    if bare and all(unicodedata.category(character).startswith(("P", "S")) for character in bare):
        return "punctuation"
    return "word"


def measured(sums: _Sums, seen: AttentionRows, marks: dict[str, Tensor]) -> Tensor:
    """Add a layer's numbers, and return the rows by which its heads are compared with others, (B, H, rows, N)."""
    real, length, heads = seen.real, seen.real.shape[1], seen.heads
    lengths = real.sum(dim=1)
    received = torch.zeros(real.shape[0], heads, length, device=real.device)
    chosen, sample = sampled_rows(length), []
    on_device = {kind: mark.to(real.device, torch.float32) for kind, mark in marks.items()}
    for start, stop in row_blocks(length, real.shape[0], heads):
        weights = seen.weights(start, stop).float()
        found = {"distance": distances(weights, start), "entropy": entropies(weights)}
        found |= {kind: torch.einsum("bhrn,bn->bhr", weights, mark) for kind, mark in on_device.items()}
        found |= {"next": weights.diagonal(start + 1, 2, 3), "previous": below(weights, start)}
        for name, x in found.items():
            sums.measures[name] += x.sum(dim=(0, 2)).double().cpu()
        received += weights.sum(dim=2)
        sample.append(weights[:, :, chosen[(chosen >= start) & (chosen < stop)] - start])
    sums.queries += int(lengths.sum())
    place = (torch.arange(length, device=real.device) * PLACES // lengths.clamp(min=1)[:, None]).clamp(max=PLACES - 1)
    one_hot = torch.nn.functional.one_hot(place, PLACES).float() * real[..., None]
    sums.received += torch.einsum("bhn,bnp->hp", received, one_hot).double().cpu()
    sums.places += one_hot.sum(dim=(0, 1)).double().cpu()
    return torch.cat(sample, dim=2)


def below(weights: Tensor, start: int) -> Tensor:
    """What each query gives to the token before it; the rows begin with query `start`."""
    return weights[:, :, 1:].diagonal(0, 2, 3) if start == 0 else weights.diagonal(start - 1, 2, 3)


def sampled_rows(length: int) -> Tensor:
    """The queries by which heads are compared: all of a short text, of a long one some, spread evenly."""
    count = max(1, min(length, SAMPLED // max(1, length)))
    return torch.linspace(0, length - 1, count).round().long()


def correlations(x: Tensor, cells: Tensor) -> tuple[Tensor, int]:
    """The sum over texts of the correlations of all heads' maps, and how many texts these are.

    Args:
        x: (B, heads, rows, N).
        cells: which of them are real, (B, rows, N).
    """
    flat, kept = x.flatten(2), cells.flatten(1).to(x.dtype)
    amount = kept.sum(dim=1)
    told = amount > 1
    mean = (flat * kept[:, None]).sum(dim=-1, keepdim=True) / amount.clamp(min=1)[:, None, None]
    centred = torch.nn.functional.normalize((flat - mean) * kept[:, None], dim=-1)
    return torch.einsum("bic,bjc->ij", centred[told], centred[told]), int(told.sum())


def clustered(similarity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Heads whose maps are alike, by average linkage; numbers from 0, the largest cluster first."""
    if len(similarity) < 2:
        return np.zeros(len(similarity), dtype=np.int64)
    apart = np.where(np.isnan(similarity), 2.0, 1.0 - similarity)
    np.fill_diagonal(apart, 0.0)
    grouping = AgglomerativeClustering(
        n_clusters=None, distance_threshold=1.0 - ALIKE, metric="precomputed", linkage="average"
    )
    labels = grouping.fit_predict(apart)
    by_size = sorted(set(labels), key=lambda label: (-(labels == label).sum(), np.flatnonzero(labels == label)[0]))
    return np.array([by_size.index(label) for label in labels], dtype=np.int64)


def count(encoded: Encoded) -> int:
    return int(encoded.inputs["attention_mask"].sum()) + int(
        encoded.inputs.get("pair_attention_mask", torch.tensor(0)).sum()
    )
