"""Every kind of classifier: what it takes, what it learns from, what it refuses."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from headwise.errors import UserError
from headwise.models import HeadwiseForTokenClassification
from tests.models.tiny_models import CASES, KINDS, SCHEMES, WORDS, classifier, config, inputs, texts


@pytest.mark.short_form("arguments")
@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_a_step_reaches_every_parameter(scheme: str, kind: str) -> None:
    """And the loss falls as the gradient foretells."""
    model = classifier(scheme, **KINDS[kind], dropout=0.0).double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    batch = inputs(kind) | {"labels": torch.tensor([0, 2])}
    first = model(**batch).loss
    first.backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # slopes of ALiBi
            continue
        assert parameter.grad is not None, name
        # A number added to all of a query's scores changes no softmax.
        no_say = name.endswith("k_proj.bias") and scheme in ("none", "plain", "rpr", "alibi", "t5-bias")
        assert parameter.grad.any() or no_say, name
    slope = sum(p.grad.square().sum().item() for p in model.parameters() if p.grad is not None)
    optimizer.step()
    assert (first - model(**batch).loss).item() == pytest.approx(1e-7 * slope, rel=0.01)


@pytest.mark.short_form("arguments")
@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_padding_changes_no_logit(scheme: str, kind: str) -> None:
    model = classifier(scheme, **KINDS[kind]).double().eval()
    batch = inputs(kind)
    longer = {name: F.pad(x, (0, 3), value=WORDS - 1 if name.endswith("ids") else 0) for name, x in batch.items()}
    if "token_type_ids" in batch:
        longer["token_type_ids"] = F.pad(batch["token_type_ids"], (0, 3))
    if "hierarchy" in kind:
        longer = {name: F.pad(x, (0, 0, 0, 1)) for name, x in longer.items()}  # an empty sentence more
    torch.testing.assert_close(model(**longer).logits, model(**batch).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_its_texts_one_by_one(kind: str) -> None:
    model = classifier(**KINDS[kind]).double().eval()
    batch = inputs(kind)
    alone = [model(**{name: x[row : row + 1] for name, x in batch.items()}).logits for row in range(2)]
    torch.testing.assert_close(model(**batch).logits, torch.cat(alone))


def test_a_hierarchy_equals_its_sentences_one_by_one() -> None:
    model = classifier("rpr", hierarchy=(6, 4)).double().eval()
    ids, mask = (inputs("hierarchy")[name] for name in ("input_ids", "attention_mask"))
    assert model.document is not None
    for row, sentences in enumerate([2, 1]):
        vectors = []
        for sentence in range(sentences):
            length = int(mask[row, sentence].sum())
            states = model.model(ids[row, sentence, None, :length]).last_hidden_state
            vectors.append(model.pooling(states, torch.ones(1, length, dtype=torch.bool)))
        document = model.document(torch.stack(vectors, dim=1), torch.ones(1, sentences, dtype=torch.bool))
        logits = model(ids, mask).logits[row]
        torch.testing.assert_close(logits, model.classifier(document)[0])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_empty_document_is_finite(scheme: str) -> None:
    model = classifier(scheme, hierarchy=(6, 4)).train()
    empty = torch.zeros(2, 3, 5, dtype=torch.long)
    output = model(empty, labels=torch.tensor([0, 1]))
    output.loss.backward()
    assert output.logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_distance_alone_reads_backwards_as_forwards() -> None:
    ids = texts(7)[0]
    for scheme, same in (("none", True), ("distance-aware", True), ("rpr", False), ("plain", False)):
        model = classifier(scheme).double().eval()
        assert torch.allclose(model(ids).logits, model(ids.flip(1)).logits) == same, scheme


@pytest.mark.parametrize(("activation", "slope"), [("leaky-relu", 0.1), ("relu", 0.0)])
def test_a_siamese_pair_is_compared(activation: str, slope: float) -> None:
    model = classifier(pair="siamese", pair_activation=activation).double().eval()
    batch = inputs("siamese")
    a = model.encode(batch["input_ids"], batch["attention_mask"]).vector
    b = model.encode(batch["pair_input_ids"], batch["pair_attention_mask"]).vector
    assert model.comparison is not None
    dense = model.comparison.dense
    features = torch.cat([a, b, (a - b).abs(), a * b], dim=1)
    hidden = features @ dense.weight.T + dense.bias
    expected = model.classifier(torch.maximum(hidden, slope * hidden))
    torch.testing.assert_close(model(**batch).logits, expected)


def test_units_that_compare_pairs_keep_a_gradient() -> None:
    """Vectors of texts have a large mean in common, by which training moves the units of all pairs alike."""
    model = classifier(pair="siamese").eval()
    comparison = model.comparison
    assert comparison is not None
    with torch.no_grad():
        comparison.dense.bias -= 2.0 + comparison.dense.weight.abs().sum(dim=1).max()
    model(**inputs("siamese")).logits.square().sum().backward()
    assert comparison.dense.weight.grad is not None
    assert comparison.dense.weight.grad.any()


def test_a_joint_pair_knows_its_parts() -> None:
    model = classifier(pair="joint").eval()
    batch = inputs("joint")
    other = batch | {"token_type_ids": 1 - batch["token_type_ids"]}
    assert not torch.allclose(model(**batch).logits, model(**other).logits)


@pytest.mark.parametrize(
    ("problem", "num_labels", "labels", "loss"),
    [
        ("single_label_classification", 3, torch.tensor([0, 2]), F.cross_entropy),
        ("multi_label_classification", 3, torch.tensor([[1.0, 0, 1], [0, 0, 1]]), F.binary_cross_entropy_with_logits),
        ("regression", 1, torch.tensor([1.5, 4.0]), lambda logits, labels: F.mse_loss(logits[:, 0], labels)),
        (None, 3, torch.tensor([0, 2]), F.cross_entropy),
        (None, 1, torch.tensor([1.5, 4.0]), lambda logits, labels: F.mse_loss(logits[:, 0], labels)),
    ],
)
def test_losses_are_torchs(problem: str | None, num_labels: int, labels: torch.Tensor, loss: Any) -> None:
    model = classifier(num_labels=num_labels, problem_type=problem).eval()
    output = model(**inputs("additive"), labels=labels)
    assert output.logits.shape == (2, num_labels)
    torch.testing.assert_close(output.loss, loss(output.logits, labels))


def test_tokens_are_labelled() -> None:
    model = HeadwiseForTokenClassification(config("tener")).eval()
    ids, mask = texts(5, 3)
    labels = torch.randint(0, 3, (2, 5)).masked_fill(mask == 0, -100)
    output = model(ids, mask, labels=labels)
    assert output.logits.shape == (2, 5, 3)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits.flatten(0, 1), labels.flatten()))
    output.loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_weights_of_both_texts() -> None:
    model = classifier(pair="siamese", layers=1).eval()
    output = model(**inputs("siamese"), output_attentions=True)
    assert len(output.attentions) == 2
    assert output.hidden_states is None


def test_mistakes() -> None:
    single, siamese, document = classifier(), classifier(pair="siamese"), classifier(hierarchy=(6, 4))
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(UserError, match="pair=None"):
        single(ids, pair_input_ids=ids)
    with pytest.raises(UserError, match="siamese"):
        siamese(ids)
    with pytest.raises(UserError, match=r"\(batch, sentences, words\), got \(2, 3\)"):
        document(ids)
    with pytest.raises(UserError, match="token_type_ids"):
        classifier(pair="joint")(ids)
    with pytest.raises(UserError, match="token classification"):
        HeadwiseForTokenClassification(config(pair="siamese"))
