"""Each guide against its formula, written out in loops in float64, with gradients checked."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.guides import ForwardRecord
from headwise.integrations import LayerRecord, RecordField
from headwise.integrations.hf_attention import LISTENER, attention

HEADS, N, WIDTH, BATCH = 2, 5, 4, 2
IDS = torch.tensor([[1, 7, 9, 7, 2], [1, 9, 2, 0, 0]])
REAL = IDS != 0
LENGTHS = REAL.sum(dim=1).tolist()


class Ear:
    """Hears what one guide needs."""

    is_recording = True

    def __init__(self, guide: hw.Guide) -> None:
        self.required_fields: frozenset[RecordField] = guide.needs
        self.heard: list[LayerRecord] = []

    def record(self, layer: nn.Module, heard: LayerRecord) -> None:
        self.heard.append(heard)


def observe(guide: hw.Guide, tensors: Sequence[Tensor], inputs: dict[str, Any]) -> ForwardRecord:
    """What a guide hears of layers with these queries, keys and values, layer after layer."""
    ear, layer = Ear(guide), nn.Module()
    layer.__dict__[LISTENER] = ear
    for q, k, v in zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True):
        attention(layer, q, k, v, REAL[:, None, None, :], is_causal=False)
    return ForwardRecord(ear.heard, inputs)


def maps(observed: ForwardRecord) -> list[Tensor]:
    """Each layer's softmax over real tokens; padding gives and receives nothing."""
    may = REAL[:, None, None, :] & REAL[:, None, :, None]
    keys = [layer.k.repeat_interleave(HEADS // layer.k.shape[1], dim=1) for layer in observed.layers]
    scores = [layer.q @ k.mT / math.sqrt(WIDTH) for layer, k in zip(observed.layers, keys, strict=True)]
    return [torch.softmax(x.masked_fill(~may, -torch.inf), dim=-1).nan_to_num(0.0) for x in scores]


def received_rows(observed: ForwardRecord, b: int) -> list[list[float]]:
    rows = []
    for layer in observed.layers:
        for h in range(HEADS):
            row = [float(layer.received[b, h, j]) for j in range(LENGTHS[b])]
            length = math.sqrt(sum(x * x for x in row))
            rows.append([x / length for x in row])
    return rows


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def mdg(observed: ForwardRecord, temperature: float, total: bool) -> float:
    found = 0.0
    for b in range(BATCH):
        rows = received_rows(observed, b)
        terms = [math.log(sum(math.exp(dot(x, y) / temperature) for y in rows)) - dot(x, x) / temperature for x in rows]
        found += sum(terms) if total else sum(terms) / len(terms)
    return found / BATCH


def pdg(observed: ForwardRecord, divide: Callable[[int, int], float]) -> float:
    found = 0.0
    for b in range(BATCH):
        rows = received_rows(observed, b)
        for i in range(LENGTHS[b]):
            for j in range(LENGTHS[b]):
                entry = sum(row[i] * row[j] for row in rows) - (i == j)
                found += entry**2 / divide(len(rows), LENGTHS[b])
    return found / BATCH


def pattern(observed: ForwardRecord, target: Callable[[int, int, int], float]) -> float:
    found = []
    for weights in maps(observed):
        for b in range(BATCH):
            n = LENGTHS[b]
            rows = [i for i in range(n) if any(target(b, i, j) for j in range(n))]
            for h in range(HEADS):
                errors = [(float(weights[b, h, i, j]) - target(b, i, j)) ** 2 for i in rows for j in range(n)]
                found.append(sum(errors) / max(1, len(errors)))
    return sum(found) / len(found)


def rationale(observed: ForwardRecord) -> float:
    found = []
    for layer in observed.layers:
        total = 0.0
        for h in range(HEADS):
            received = [float(layer.received[0, h, j]) for j in range(LENGTHS[0])]
            target = [0.0, 0.5, 0.0, 0.5, 0.0]
            total += sum(t * math.log(t / (r / sum(received))) for t, r in zip(target, received, strict=True) if t)
        found.append(total / HEADS)
    return sum(found) / len(found)


def pmi(b: int, i: int, j: int) -> float:
    """Texts {7, 9} twice, {9}, {5}: log(2·4 / (2·3))."""
    together = {int(IDS[b, i]), int(IDS[b, j])} == {7, 9}
    partners = sum({int(IDS[b, i]), int(IDS[b, k])} == {7, 9} for k in range(LENGTHS[b]))
    return 1.0 / partners if together else 0.0


#: Of IDS: words 0 to 2, the last without a piece of its own in the second text; word 1 is the root.
WORDS = torch.tensor([[-1, 0, 0, 1, 2], [-1, 0, 1, -1, -1]])
WORD_HEADS = torch.tensor([[-1, 1, 1, -1, 1], [-1, 1, -1, -1, -1]])


def dependency(b: int, i: int, j: int) -> float:
    def joined(i: int, j: int) -> bool:
        depends = int(WORD_HEADS[b, i]) >= 0 and WORD_HEADS[b, i] == WORDS[b, j]
        return bool(depends or (int(WORD_HEADS[b, j]) >= 0 and WORD_HEADS[b, j] == WORDS[b, i]))

    return 1.0 / sum(joined(i, k) for k in range(LENGTHS[b])) if joined(i, j) else 0.0


class Vocabulary:
    """A tokenizer as far as `WordSimilarity` asks."""

    all_special_ids = (1, 2)

    def get_vocab(self) -> dict[str, int]:
        return {"[CLS]": 1, "[SEP]": 2, "##s": 5, "film": 7, "movie": 9}


def similarity(b: int, i: int, j: int) -> float:
    """Of film and movie, 0.8: rows sum to 1, so that only the number of partners counts."""
    return pmi(b, i, j)


TEXTS = [[7, 9], [9, 7, 7], [9], [5]]
CASES: dict[str, tuple[hw.Guide, Callable[[ForwardRecord], float]]] = {
    "mdg": (hw.guides.MapDiscrimination(), lambda o: mdg(o, 1.0, total=False)),
    "mdg-paper": (hw.guides.MapDiscrimination(reduction="paper"), lambda o: mdg(o, 1.0, total=True)),
    "mdg-released": (hw.guides.MapDiscrimination(reduction="released"), lambda o: mdg(o, 2.0, total=False)),
    "pdg": (hw.guides.PatternDecorrelation(), lambda o: pdg(o, lambda heads, _: heads**2)),
    "pdg-paper": (hw.guides.PatternDecorrelation(reduction="paper"), lambda o: pdg(o, lambda *_: 1.0)),
    "pdg-released": (hw.guides.PatternDecorrelation(reduction="released"), lambda o: pdg(o, lambda _, length: length)),
    "first": (hw.guides.First(), lambda o: pattern(o, lambda b, i, j: float(j == 0))),
    "next": (hw.guides.Next(), lambda o: pattern(o, lambda b, i, j: float(j == i + 1))),
    "previous": (hw.guides.Previous(), lambda o: pattern(o, lambda b, i, j: float(j == i - 1))),
    "delimiter": (hw.guides.Delimiter(tokens=[2]), lambda o: pattern(o, lambda b, i, j: float(IDS[b, j] == 2))),
    "period": (hw.guides.Period(tokens=[9, 8]), lambda o: pattern(o, lambda b, i, j: float(IDS[b, j] == 9))),
    "pmi": (hw.guides.MutualInformation(texts=TEXTS), lambda o: pattern(o, pmi)),
    "rationale": (hw.guides.Rationale(), rationale),
    "dependency": (hw.guides.Dependency(), lambda o: pattern(o, dependency)),
    "word-similarity": (
        hw.guides.WordSimilarity(tokenizer=Vocabulary(), similarity=lambda a, b: 0.8, least=0.5),
        lambda o: pattern(o, similarity),
    ),
}


def draw(key_heads: int = 1) -> tuple[list[Tensor], dict[str, Any]]:
    """Queries, keys and values of two layers, and a batch."""
    heads = (HEADS, key_heads, key_heads) * 2
    tensors = [torch.randn(BATCH, x, N, WIDTH, dtype=torch.float64, requires_grad=True) for x in heads]
    highlighted = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 9.0]])  # the second: padding only
    inputs = {"input_ids": IDS, "rationale": highlighted, "words": WORDS, "word_heads": WORD_HEADS}
    return tensors, inputs


@pytest.mark.parametrize("name", CASES)
def test_a_guide_is_its_formula(name: str) -> None:
    guide, formula = CASES[name]
    observed = observe(guide, *draw())
    assert float(guide(observed)) == pytest.approx(formula(observed), abs=1e-5)


@pytest.mark.parametrize("on", ["output", "position", "subspace"])
def test_disagreement_is_its_formula(on: Any) -> None:
    guide = hw.guides.Disagreement(on=on)
    tensors, inputs = draw(key_heads=HEADS)
    observed = observe(guide, tensors, inputs)
    found = []
    for layer, weights in zip(observed.layers, maps(observed), strict=True):
        for b in range(BATCH):
            total = 0.0
            for h in range(HEADS):
                for g in range(HEADS):
                    for i in range(LENGTHS[b]):
                        if on == "position":
                            total += float((weights[b, h, i] * weights[b, g, i]).sum())
                        else:
                            read = layer.v if on == "subspace" else weights @ layer.v
                            total += float(torch.cosine_similarity(read[b, h, i], read[b, g, i], dim=0))
            found.append(total / HEADS**2 / LENGTHS[b])
    assert float(guide(observed)) == pytest.approx(sum(found) / len(found), abs=1e-5)
    assert torch.autograd.gradcheck(lambda *x: guide(observe(guide, x, inputs)), tensors)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_right_and_not_zero(name: str) -> None:
    guide, _ = CASES[name]
    (q, k, v, *others), inputs = draw()

    def term(q: Tensor, k: Tensor) -> Tensor:
        return guide(observe(guide, [q, k, v, *others], inputs))

    assert torch.autograd.gradcheck(term, (q, k), atol=1e-6, rtol=1e-4)
    gradients = torch.autograd.grad(term(q, k), (q, k))
    assert all(float(gradient.abs().max()) > 1e-5 for gradient in gradients)
    assert all(float(gradient[1, :, 3:].abs().max()) == 0 for gradient in gradients)  # padding has no part in it


def test_chosen_layers_and_heads_are_all_that_counts() -> None:
    tensors, inputs = draw()
    guide = hw.guides.First(layers=[-1], heads=[1])
    term = guide(observe(guide, tensors, inputs))
    gradients: list[Tensor | None] = list(torch.autograd.grad(term, tensors[::3], allow_unused=True))
    first, second = gradients
    assert first is None
    assert second is not None
    assert float(second[:, 0].abs().max()) == 0
    assert float(second[:, 1].abs().max()) > 0


def test_schedules() -> None:
    linear, warm = hw.guides.Next(2.0, schedule="linear"), hw.guides.Next(2.0, schedule="warm-up")
    assert [linear.weight_at(x) for x in (0.0, 0.5, 1.0)] == [2.0, 1.0, 0.0]
    assert [warm.weight_at(x) for x in (0.0, 0.05, 0.1, 1.0)] == [0.0, 1.0, 2.0, 2.0]


def test_what_a_guide_needs_is_asked_for() -> None:
    cases: list[tuple[hw.Guide, dict[str, Tensor], str]] = [
        (hw.guides.Rationale(), {"input_ids": IDS}, "needs 'rationale' in every batch"),
        (hw.guides.Rationale(), {"rationale": torch.ones(2, 4)}, r"rationale must be \(2, 5\)"),
        (hw.guides.Delimiter(tokens=[2]), {}, "the model must be given input_ids"),
    ]
    for guide, inputs, message in cases:
        with pytest.raises(ValueError, match=message):
            guide(observe(guide, draw()[0], inputs))
    with pytest.raises(ValueError, match="too few texts"):
        hw.guides.MutualInformation(texts=[[1], [2]])


def test_arcs_are_spread_over_word_pieces() -> None:
    class Word:
        def __init__(self, i: int, idx: int, text: str) -> None:
            self.i, self.idx, self.text, self.head = i, idx, text, self

        def __len__(self) -> int:
            return len(self.text)

    def parse(text: str) -> list[Word]:
        films, bore = Word(0, 0, "films"), Word(1, 6, "bore")
        films.head = bore
        return [films, bore]

    def tokenizer(text: str, **options: Any) -> dict[str, Any]:
        return {"input_ids": [1, 7, 5, 9, 2], "offset_mapping": [(0, 0), (0, 4), (4, 5), (6, 10), (0, 0)]}

    encoded = hw.guides.dependency_arcs("films bore", tokenizer, parse)
    assert encoded == {
        "input_ids": [1, 7, 5, 9, 2],
        "words": [-1, 0, 0, 1, -1],
        "word_heads": [-1, 1, 1, -1, -1],
    }


@pytest.mark.parametrize("reduction", ["mean", "paper", "released"])
def test_pdg_where_a_head_gives_nothing(reduction: Any) -> None:
    """As with a model's own maps, after dropout: a row of zeros stays one."""
    received = torch.rand(BATCH, HEADS, N, dtype=torch.float64)
    received[0, 1] = 0.0
    x = torch.zeros(BATCH, HEADS, N, WIDTH)
    observed = ForwardRecord([LayerRecord(q=x, k=x, v=x, output=x, receiving=received, scale=1.0)], {})
    rows = torch.nn.functional.normalize(received, dim=-1)
    formula = (rows.mT @ rows - torch.eye(N, dtype=torch.float64)).square().sum(dim=(1, 2)).mean()
    divisor = {"mean": HEADS**2, "paper": 1, "released": N}[reduction]
    assert float(hw.guides.PatternDecorrelation(reduction=reduction)(observed)) == pytest.approx(
        float(formula) / divisor
    )
