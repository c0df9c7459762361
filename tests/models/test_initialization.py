"""A parameter's first values come from its name and the seed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from headwise.errors import UserError
from headwise.models import HeadwiseForSequenceClassification, initialize_by_name
from tests.models.tiny_models import CASES, KINDS, SCHEMES, classifier


def drawn(scheme: str, seed: int, **options: object) -> dict[str, torch.Tensor]:
    model = classifier(scheme, **options)
    initialize_by_name(model, seed)
    return dict(model.named_parameters())


@pytest.mark.short_form("arguments")
@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_the_seed_decides_everything(scheme: str, kind: str) -> None:
    first = drawn(scheme, 1, **KINDS[kind])
    torch.rand(7)
    again, other = drawn(scheme, 1, **KINDS[kind]), drawn(scheme, 2, **KINDS[kind])
    for name, values in first.items():
        assert torch.equal(values, again[name]), name
        # Biases, norms, v of distance-aware, and the slopes of ALiBi, which are not drawn.
        constant = values.unique().numel() == 1 or name.endswith(".slopes")
        assert constant or not torch.equal(values, other[name]), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_share_what_they_have_in_common(scheme: str) -> None:
    base, model = drawn("none", 1), drawn(scheme, 1)
    shared = base.keys() & model.keys()
    assert len(shared) >= len(base) - 4  # TENER has no keys' projection
    for name in shared:
        assert torch.equal(base[name], model[name]), name


def test_names_tell_layers_apart() -> None:
    values = drawn("plain", 1)
    first, second = (values[f"model.layers.{i}.attention.q_proj.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


def test_the_global_random_state_stays() -> None:
    model = classifier()
    before = torch.get_rng_state()
    initialize_by_name(model, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rule_is_the_models_own() -> None:
    values = drawn("distance-aware", 1)
    words = values["model.embeddings.words.weight"]
    assert not words[0].any()
    assert words[1:].std().item() == pytest.approx(0.1, rel=0.2)
    assert not values["classifier.bias"].any()
    assert (values["model.layers.0.around_attention.norm.weight"] == 1).all()


def test_a_new_head_on_a_pretrained_model(tmp_path: Path) -> None:
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertModel(BertConfig(**sizes, intermediate_size=16))  # type: ignore[arg-type]
    bert.save_pretrained(tmp_path)
    load: Any = BertForSequenceClassification.from_pretrained
    heads = []
    for _ in range(2):
        model, report = load(tmp_path, output_loading_info=True)
        assert sorted(report["missing_keys"]) == ["classifier.bias", "classifier.weight"]
        initialize_by_name(model, 5, report["missing_keys"])
        heads.append(model.classifier.weight)
        for name, values in bert.named_parameters():
            assert torch.equal(model.bert.get_parameter(name), values), name
    assert torch.equal(*heads)
    assert heads[0].std().item() == pytest.approx(0.02, rel=0.5)


def test_only_the_named_parameters_change() -> None:
    model = classifier()
    before = {name: values.clone() for name, values in model.named_parameters()}
    torch.nn.init.ones_(model.classifier.bias)
    initialize_by_name(model, 1, ["classifier.weight"])
    assert (model.classifier.bias == 1).all()
    changed = [name for name, values in model.named_parameters() if not torch.equal(values, before[name])]
    assert changed == ["classifier.weight", "classifier.bias"]


def test_user_errors() -> None:
    model = classifier()
    with pytest.raises(UserError, match="HeadwiseForSequenceClassification has no parameter 'head'"):
        initialize_by_name(model, 1, ["head"])
    with torch.device("meta"):
        elsewhere = HeadwiseForSequenceClassification(model.config)
    with pytest.raises(UserError, match="before moving it"):
        initialize_by_name(elsewhere, 1)
