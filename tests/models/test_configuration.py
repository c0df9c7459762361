"""A configuration states its defaults, and refuses what cannot be in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from headwise import DistanceAware, RelativePositions
from headwise.errors import UserError
from headwise.models import HeadwiseConfig
from tests.models.tiny_models import SCHEMES


@pytest.mark.parametrize("scheme", SCHEMES)
def test_default_positions(scheme: str) -> None:
    assert HeadwiseConfig(scheme=scheme).positions == ("sinusoidal" if scheme == "plain" else "none")  # type: ignore[arg-type]


def test_defaults_are_the_papers() -> None:
    config = HeadwiseConfig()
    assert (config.heads, config.head_dim, config.layers, config.word_dim) == (16, 16, 1, 300)
    assert (config.hidden_size, config.intermediate_size) == (256, 1024)


def test_options_reach_the_scheme() -> None:
    distance = HeadwiseConfig(scheme_options={"rectify": False}).build_scheme()
    assert isinstance(distance, DistanceAware)
    assert not distance.rectify
    relative = HeadwiseConfig(scheme="rpr", scheme_options={"k": 4, "per_head": True}).build_scheme()
    assert isinstance(relative, RelativePositions)
    assert (relative.k, relative.per_head, relative.heads, relative.head_dim) == (4, True, 16, 16)


def test_saved_and_loaded(tmp_path: Path) -> None:
    options = {"scheme": "rpr", "hierarchy": (20, 8), "positions": "learned", "id2label": {0: "bad", 1: "good"}}
    config = HeadwiseConfig(**options, problem_type="single_label_classification")  # type: ignore[arg-type]
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.to_diff_dict() == config.to_diff_dict()
    assert loaded.hierarchy == (20, 8)


def test_siamese_models_that_were_saved_without_an_activation_have_relu(tmp_path: Path) -> None:
    HeadwiseConfig(pair="siamese").save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).pair_activation == "leaky-relu"
    values = json.loads((tmp_path / "config.json").read_text())
    del values["pair_activation"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert AutoConfig.from_pretrained(tmp_path).pair_activation == "relu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be an integer of at least 1, got 0"),
        ({"heads": 2.5}, "heads must be an integer"),
        ({"scheme": "alibii"}, "scheme must be one of none, plain, rpr.*got 'alibii'"),
        ({"scheme": "plain", "scheme_options": {"k": 3}}, "plain has no options; got 'k'"),
        ({"scheme_options": {"rectfy": True}}, "distance-aware has .*rectify.*; got 'rectfy'"),
        ({"scheme": "rpr", "scheme_options": {"k": -1}}, "scheme rpr: k, the clipping distance"),
        ({"scheme": "tener", "head_dim": 3}, "scheme tener: head_dim must be even"),
        ({"scheme": "none", "positions": "learned"}, "scheme none has no positions"),
        ({"positions": "rotary"}, "positions must be one of"),
        ({"positions": "sinusoidal", "heads": 1, "head_dim": 5}, "even width"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"pooling": "mean"}, "pooling must be one of additive, cls"),
        ({"pair": "both"}, "pair must be one of joint, siamese"),
        ({"pair": "siamese", "pair_activation": "gelu"}, "pair_activation must be one of leaky-relu, relu"),
        ({"hierarchy": (20,)}, "hierarchy must be"),
        ({"hierarchy": (20, 0)}, "hierarchy's sentences"),
        ({"hierarchy": (20, 8), "pair": "joint"}, "joint pairs"),
        ({"hierarchy": (20, 8), "pooling": "cls"}, "additive"),
        ({"pad_token_id": 30_000}, "pad_token_id must be between 0 and 29999"),
    ],
)
def test_user_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        HeadwiseConfig(**options)
