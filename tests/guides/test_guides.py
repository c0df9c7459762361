"""Every guide against its formula, written out in loops in float64, with gradients checked."""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.guides import ForwardRecord
from headwise.integrations import LayerRecord
from tests.short_form import choose_size

HEADS, N, WIDTH, BATCH = 2, 5, 4, 2
IDS = torch.tensor([[1, 7, 9, 7, 2], [1, 9, 2, 0, 0]])
REAL = IDS != 0
LENGTHS = REAL.sum(dim=1).tolist()


def record_layers(
    guide: hw.Guide, tensors: Sequence[Tensor], inputs: dict[str, Any], real: Tensor = REAL
) -> ForwardRecord:
    """Return a record of layers with these queries, keys and values, with the fields that the guide requires."""
    fields = {"weight_norms": "weight_norms", "neighbor_weights": "lse", "weights": "weights"}
    names = ["received", *(name for field, name in fields.items() if field in guide.required_fields)]
    layers = []
    for q, k, v in zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True):
        options: dict[str, Any] = {f"return_{name}": True for name in names}
        result = hw.attend(q, k, v, scheme=hw.Plain(), key_padding=real, query_padding=real, **options)
        outputs = {name: getattr(result, name) for name in names}
        received = outputs.pop("received")
        layers.append(
            LayerRecord(
                q=q,
                k=k,
                v=v,
                output=result.output,
                received=received,
                scale=WIDTH**-0.5,
                padding=real,
                **outputs,
            )
        )
    return ForwardRecord(layers, inputs)


def attention_maps(record: ForwardRecord) -> list[Tensor]:
    """Each layer's softmax over real tokens; rows and columns of padding are 0."""
    visible = REAL[:, None, None, :] & REAL[:, None, :, None]
    keys = [layer.k.repeat_interleave(HEADS // layer.k.shape[1], dim=1) for layer in record.layers]
    scores = [layer.q @ k.mT / math.sqrt(WIDTH) for layer, k in zip(record.layers, keys, strict=True)]
    return [torch.softmax(x.masked_fill(~visible, -torch.inf), dim=-1).nan_to_num(0.0) for x in scores]


def received_rows(record: ForwardRecord, b: int) -> list[list[float]]:
    rows = []
    for layer in record.layers:
        for h in range(HEADS):
            row = [float(layer.received[b, h, j]) for j in range(LENGTHS[b])]
            norm = math.sqrt(sum(x * x for x in row))
            rows.append([x / norm for x in row])
    return rows


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def mdg(record: ForwardRecord, temperature: float, is_sum: bool) -> float:
    total = 0.0
    for b in range(BATCH):
        rows = received_rows(record, b)
        terms = [math.log(sum(math.exp(dot(x, y) / temperature) for y in rows)) - dot(x, x) / temperature for x in rows]
        total += sum(terms) if is_sum else sum(terms) / len(terms)
    return total / BATCH


def pdg(record: ForwardRecord, divisor: Callable[[int, int], float]) -> float:
    total = 0.0
    for b in range(BATCH):
        rows = received_rows(record, b)
        for i in range(LENGTHS[b]):
            for j in range(LENGTHS[b]):
                entry = sum(row[i] * row[j] for row in rows) - (i == j)
                total += entry**2 / divisor(len(rows), LENGTHS[b])
    return total / BATCH


def pattern(record: ForwardRecord, target: Callable[[int, int, int], float]) -> float:
    terms = []
    for weights in attention_maps(record):
        for b in range(BATCH):
            n = LENGTHS[b]
            rows = [i for i in range(n) if any(target(b, i, j) for j in range(n))]
            for h in range(HEADS):
                errors = [(float(weights[b, h, i, j]) - target(b, i, j)) ** 2 for i in rows for j in range(n)]
                terms += [sum(errors) / len(errors)] if errors else []  # texts without a target are excluded
    return sum(terms) / len(terms)


def rationale(record: ForwardRecord) -> float:
    terms = []
    for layer in record.layers:
        total = 0.0
        for h in range(HEADS):
            received = [float(layer.received[0, h, j]) for j in range(LENGTHS[0])]
            target = [0.0, 0.5, 0.0, 0.5, 0.0]
            total += sum(t * math.log(t / (r / sum(received))) for t, r in zip(target, received, strict=True) if t)
        terms.append(total / HEADS)
    return sum(terms) / len(terms)


#: Only 7 and 9 occur together in two texts, so that their PMI is above 0.
TEXTS = [[7, 9], [9, 7, 7], [9], [5]]


def pair_target(b: int, i: int, j: int) -> float:
    """1 for the tokens 7 and 9, divided by the sum of the row."""

    def is_pair(i: int, j: int) -> bool:
        return {int(IDS[b, i]), int(IDS[b, j])} == {7, 9}

    return 1.0 / sum(is_pair(i, k) for k in range(LENGTHS[b])) if is_pair(i, j) else 0.0


#: Words of IDS: 0 to 2, the last one missing in the second text. Word 1 is the root.
WORDS = torch.tensor([[-1, 0, 0, 1, 2], [-1, 0, 1, -1, -1]])
WORD_HEADS = torch.tensor([[-1, 1, 1, -1, 1], [-1, 1, -1, -1, -1]])


def dependency_target(b: int, i: int, j: int) -> float:
    def is_arc(i: int, j: int) -> bool:
        return int(WORD_HEADS[b, i]) >= 0 and bool(WORD_HEADS[b, i] == WORDS[b, j])

    def is_connected(i: int, j: int) -> bool:
        return is_arc(i, j) or is_arc(j, i)

    return 1.0 / sum(is_connected(i, k) for k in range(LENGTHS[b])) if is_connected(i, j) else 0.0


class FakeTokenizer:
    """The part of a tokenizer that `WordSimilarity` uses."""

    all_special_ids = (1, 2)

    def get_vocab(self) -> dict[str, int]:
        return {"[CLS]": 1, "[SEP]": 2, "##s": 5, "film": 7, "movie": 9}


CASES: dict[str, tuple[hw.Guide, Callable[[ForwardRecord], float]]] = {
    "mdg": (hw.guides.MapDiscrimination(), lambda r: mdg(r, 1.0, is_sum=False)),
    "mdg-paper": (hw.guides.MapDiscrimination(reduction="paper"), lambda r: mdg(r, 1.0, is_sum=True)),
    "mdg-released": (hw.guides.MapDiscrimination(reduction="released"), lambda r: mdg(r, 2.0, is_sum=False)),
    "pdg": (hw.guides.PatternDecorrelation(), lambda r: pdg(r, lambda heads, _: heads**2)),
    "pdg-paper": (hw.guides.PatternDecorrelation(reduction="paper"), lambda r: pdg(r, lambda *_: 1.0)),
    "pdg-released": (hw.guides.PatternDecorrelation(reduction="released"), lambda r: pdg(r, lambda _, length: length)),
    "first": (hw.guides.First(), lambda r: pattern(r, lambda b, i, j: float(j == 0))),
    "next": (hw.guides.Next(), lambda r: pattern(r, lambda b, i, j: float(j == i + 1))),
    "previous": (hw.guides.Previous(), lambda r: pattern(r, lambda b, i, j: float(j == i - 1))),
    "delimiter": (hw.guides.Delimiter(tokens=[2]), lambda r: pattern(r, lambda b, i, j: float(IDS[b, j] == 2))),
    "period": (hw.guides.Period(tokens=[9, 8]), lambda r: pattern(r, lambda b, i, j: float(IDS[b, j] == 9))),
    "pmi": (hw.guides.MutualInformation(texts=TEXTS), lambda r: pattern(r, pair_target)),
    "rationale": (hw.guides.Rationale(), rationale),
    "dependency": (hw.guides.Dependency(), lambda r: pattern(r, dependency_target)),
    "word-similarity": (
        hw.guides.WordSimilarity(tokenizer=FakeTokenizer(), similarity=lambda a, b: 0.8, min_similarity=0.5),
        lambda r: pattern(r, pair_target),
    ),
}


def draw_inputs(key_heads: int = 1) -> tuple[list[Tensor], dict[str, Any]]:
    """Return queries, keys and values of two layers, and a batch."""
    heads = (HEADS, key_heads, key_heads) * 2
    tensors = [torch.randn(BATCH, x, N, WIDTH, dtype=torch.float64, requires_grad=True) for x in heads]
    target = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 9.0]])  # the second is on padding only
    inputs = {"input_ids": IDS, "rationale": target, "words": WORDS, "word_heads": WORD_HEADS}
    return tensors, inputs


@pytest.mark.parametrize("name", CASES)
def test_term_equals_the_formula(name: str) -> None:
    guide, formula = CASES[name]
    record = record_layers(guide, *draw_inputs())
    assert float(guide(record)) == pytest.approx(formula(record), abs=1e-5)


@pytest.mark.parametrize("component", ["output", "position", "subspace"])
def test_disagreement_equals_the_formula(component: Any) -> None:
    guide = hw.guides.Disagreement(component=component)
    tensors, inputs = draw_inputs(key_heads=HEADS)
    record = record_layers(guide, tensors, inputs)
    terms = []
    for layer, weights in zip(record.layers, attention_maps(record), strict=True):
        for b in range(BATCH):
            total = 0.0
            for h in range(HEADS):
                for g in range(HEADS):
                    for i in range(LENGTHS[b]):
                        if component == "position":
                            total += float((weights[b, h, i] * weights[b, g, i]).sum())
                        else:
                            states = layer.v if component == "subspace" else weights @ layer.v
                            total += float(torch.cosine_similarity(states[b, h, i], states[b, g, i], dim=0))
            terms.append(total / HEADS**2 / LENGTHS[b])
    assert float(guide(record)) == pytest.approx(sum(terms) / len(terms), abs=1e-5)
    assert torch.autograd.gradcheck(
        lambda *x: guide(record_layers(guide, x, inputs)), tensors, fast_mode=choose_size(short=True, long=False)
    )


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_correct_and_not_zero(name: str) -> None:
    guide, _ = CASES[name]
    (q, k, v, *others), inputs = draw_inputs()

    def term(q: Tensor, k: Tensor) -> Tensor:
        return guide(record_layers(guide, [q, k, v, *others], inputs))

    assert torch.autograd.gradcheck(term, (q, k), atol=1e-6, rtol=1e-4, fast_mode=choose_size(short=True, long=False))
    gradients = torch.autograd.grad(term(q, k), (q, k))
    assert all(float(gradient.abs().max()) > 1e-5 for gradient in gradients)
    assert all(float(gradient[1, :, 3:].abs().max()) == 0 for gradient in gradients)  # padding has no gradient


def test_other_layers_and_heads_have_no_gradient() -> None:
    tensors, inputs = draw_inputs()
    guide = hw.guides.First(layers=[-1], heads=[1])
    term = guide(record_layers(guide, tensors, inputs))
    gradients: list[Tensor | None] = list(torch.autograd.grad(term, tensors[::3], allow_unused=True))
    unguided_layer, guided_layer = gradients
    assert unguided_layer is None
    assert guided_layer is not None
    assert float(guided_layer[:, 0].abs().max()) == 0
    assert float(guided_layer[:, 1].abs().max()) > 0


def test_schedules() -> None:
    linear, warm_up = hw.guides.Next(2.0, schedule="linear"), hw.guides.Next(2.0, schedule="warm-up")
    assert [linear.weight_at(x) for x in (0.0, 0.5, 1.0)] == [2.0, 1.0, 0.0]
    assert [warm_up.weight_at(x) for x in (0.0, 0.05, 0.1, 1.0)] == [0.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hw.guides.MapDiscrimination(-1.0), "weight must be 0 or more"),
        (lambda: hw.guides.MapDiscrimination(temperature=0.0), "temperature must be above 0"),
        (
            lambda: hw.guides.PatternDecorrelation(reduction=cast(Any, "sum")),
            "reduction must be one of mean, paper, released",
        ),
        (lambda: hw.guides.Next(schedule=cast(Any, "cosine")), "schedule must be one of"),
        (lambda: hw.guides.First(layers=[]), "layers must be at least one integer"),
        (lambda: hw.guides.Disagreement(component=cast(Any, "value")), "component must be one of"),
        (lambda: hw.guides.MutualInformation(texts=[[1], [2]]), "pass more texts"),
    ],
)
def test_invalid_arguments_are_named(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("guide", "inputs", "message"),
    [
        (hw.guides.Rationale(), {"input_ids": IDS}, "needs 'rationale' in every batch"),
        (hw.guides.Rationale(), {"rationale": torch.ones(2, 4)}, r"the shape of input_ids, \(2, 5\); got \(2, 4\)"),
        (hw.guides.Delimiter(tokens=[2]), {}, "call the model with input_ids"),
        (hw.guides.Dependency(), {"input_ids": IDS}, "needs 'words' and 'word_heads' in every batch"),
    ],
)
def test_missing_inputs_are_named(guide: hw.Guide, inputs: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        guide(record_layers(guide, draw_inputs()[0], inputs))


def test_dependency_arcs_of_word_pieces() -> None:
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

    encoding = hw.guides.dependency_arcs("films bore", tokenizer, parse)
    assert encoding == {
        "input_ids": [1, 7, 5, 9, 2],
        "words": [-1, 0, 0, 1, -1],
        "word_heads": [-1, 1, 1, -1, -1],
    }


@pytest.mark.parametrize("reduction", ["mean", "paper", "released"])
def test_pdg_with_a_head_whose_weights_are_all_dropped(reduction: Any) -> None:
    """Weights that a model returns are taken after dropout, so that a row of M may be zero."""
    received = torch.rand(BATCH, HEADS, N, dtype=torch.float64)
    received[0, 1] = 0.0
    x = torch.zeros(BATCH, HEADS, N, WIDTH)
    record = ForwardRecord([LayerRecord(q=x, k=x, v=x, output=x, received=received, scale=1.0)], {})
    rows = torch.nn.functional.normalize(received, dim=-1)
    formula = (rows.mT @ rows - torch.eye(N, dtype=torch.float64)).square().sum(dim=(1, 2)).mean()
    divisor = {"mean": HEADS**2, "paper": 1, "released": N}[reduction]
    term = hw.guides.PatternDecorrelation(reduction=reduction)(record)
    assert float(term) == pytest.approx(float(formula) / divisor)


@pytest.mark.parametrize(
    "guide",
    [
        hw.guides.Delimiter(tokens=[7]),
        hw.guides.Period(tokens=[7]),
        hw.guides.MutualInformation(texts=[[7, 9], [7, 9], [3], [4]]),
        hw.guides.Dependency(),
    ],
    ids=lambda guide: guide.name,
)
def test_texts_without_a_target_do_not_change_the_term(guide: hw.Guide) -> None:
    tensors, inputs = draw_inputs()
    inputs["input_ids"] = torch.tensor([[1, 7, 9, 7, 2], [1, 3, 2, 0, 0]])
    inputs["word_heads"] = WORD_HEADS.clone()
    inputs["word_heads"][1] = -1
    both = guide(record_layers(guide, tensors, inputs))
    first_inputs = {key: x[:1] for key, x in inputs.items()}
    first = guide(record_layers(guide, [x[:1] for x in tensors], first_inputs, REAL[:1]))
    assert float(both) == pytest.approx(float(first))


@pytest.mark.parametrize(
    "indices", [1, np.int64(1), [1], (1,), range(1, 2), np.array([1]), np.array(1), torch.tensor([1])]
)
def test_layers_and_heads_may_be_any_integers(indices: Any) -> None:
    tensors, inputs = draw_inputs()
    guide, expected = hw.guides.First(layers=indices, heads=indices), hw.guides.First(layers=[1], heads=[1])
    assert guide.layers == guide.heads == (1,)
    assert float(guide(record_layers(guide, tensors, inputs))) == float(
        expected(record_layers(expected, tensors, inputs))
    )


@pytest.mark.parametrize("indices", ["1", [1.5], np.array([0.5]), [True], np.array([True, False]), [None], 1.0])
def test_layers_and_heads_that_are_not_integers_are_named(indices: Any) -> None:
    with pytest.raises(TypeError, match="layers must be an integer, several integers or None for all; got"):
        hw.guides.First(layers=indices)
    with pytest.raises(TypeError, match="heads must be an integer"):
        hw.guides.First(heads=indices)
