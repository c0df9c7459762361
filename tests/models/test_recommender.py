"""Recommenders: titles and clicks become vectors, whose dot products rank news."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, BertConfig

from headwise.errors import UserError
from headwise.models import HeadwiseConfig, HeadwiseForRecommendation, RecommenderConfig, initialize_by_name
from headwise.models.recommender import RecentPooling
from tests.models.tiny_models import SCHEMES, WORDS, config

HISTORY = torch.tensor([[0, 1, 2, 3], [4, 5, -1, -1], [-1, -1, -1, -1]])
CANDIDATES = torch.tensor([[2, 5], [0, 1], [3, -1], [1, 2]])
USER = torch.tensor([0, 0, 1, 2])


def recommender(titles: Any = None, **options: Any) -> Any:
    sizes = {"heads": 2, "head_dim": 4, "history": 4, "dropout": 0.0}
    titles = titles or config("distance-aware", dropout=0.0)
    model = HeadwiseForRecommendation(RecommenderConfig(titles=titles, **(sizes | options)))
    initialize_by_name(model, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def titles() -> dict[str, Tensor]:
    return {
        "input_ids": torch.randint(1, WORDS, (6, 5)),
        "attention_mask": torch.arange(5) < torch.arange(6, 0, -1)[:, None],
    }


@pytest.mark.short_form("values")
@pytest.mark.parametrize("pooling", ["additive", "recent", "last"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_are_dot_products_of_news_and_users(scheme: str, pooling: str) -> None:
    model, batch = recommender(scheme=scheme, pooling=pooling), titles()
    logits = model(**batch, history=HISTORY, candidates=CANDIDATES, user=USER).logits
    news = model.news(**batch)
    for row, (owner, shown) in enumerate(zip(USER.tolist(), CANDIDATES.tolist(), strict=True)):
        clicked = [number for number in HISTORY[owner].tolist() if number >= 0]
        real = torch.ones(1, len(clicked), dtype=torch.bool)
        alone = news[clicked][None] if clicked else news[:1][None]
        user = model.users(alone, real if clicked else torch.zeros(1, 1, dtype=torch.bool))[0]
        expected = [(user @ news[number]).item() if number >= 0 else torch.finfo(torch.float32).min for number in shown]
        torch.testing.assert_close(logits[row], torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_the_loss_is_a_softmax_over_an_impression() -> None:
    model, batch = recommender(), titles()
    labels = torch.tensor([1, 0, 0, 0])
    found = model(**batch, history=HISTORY, candidates=CANDIDATES, user=USER, labels=labels)
    shares = found.logits.softmax(dim=-1)[torch.arange(4), labels]
    torch.testing.assert_close(found.loss, -shares.log().mean())


def test_someone_without_clicks_has_a_learned_vector() -> None:
    model, batch = recommender(), titles()
    model(
        **batch, history=HISTORY, candidates=CANDIDATES, user=USER, labels=torch.zeros(4, dtype=torch.long)
    ).loss.backward()
    assert model.clicks.newcomer.grad is not None
    assert model.clicks.newcomer.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_saved_models_come_back(kind: str, tmp_path: Path) -> None:
    bert = BertConfig(vocab_size=WORDS, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = recommender(bert if kind == "theirs" else None, scheme="rpr", pooling="recent", causal=True)
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    assert isinstance(again, HeadwiseForRecommendation)
    assert again.config.causal
    assert again.config.titles.model_type == ("bert" if kind == "theirs" else "headwise")
    batch = titles()
    for found, expected in zip(again.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(found, expected)
    torch.testing.assert_close(again.eval().news(**batch), model.news(**batch))


def test_levels_have_their_own_schemes_and_start_alike() -> None:
    one, other = recommender(scheme="rpr"), recommender(scheme="distance-aware")
    assert type(one.clicks.layers[0].attention.scheme) is not type(other.clicks.layers[0].attention.scheme)
    for model in (one, other):
        initialize_by_name(model, 7)
    assert torch.equal(one.titles.encoder.embeddings.words.weight, other.titles.encoder.embeddings.words.weight)
    assert torch.equal(one.clicks.layers[0].attention.q_proj.weight, other.clicks.layers[0].attention.q_proj.weight)


def moved(**options: Any) -> float:
    """How much a user changes when the history is turned round."""
    torch.manual_seed(0)
    model = recommender(**options)
    clicked, real = torch.randn(1, 4, 8), torch.ones(1, 4, dtype=torch.bool)
    return float((model.users(clicked, real) - model.users(clicked.flip(1), real)).abs().max().item())


def test_distance_without_order_cannot_see_which_end_is_recent() -> None:
    """|i−j| is the same from either end, and additive pooling knows no places."""
    assert moved(scheme="distance-aware") < 1e-6
    assert moved(scheme="none") < 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "rpr"},
        {"scheme": "tener"},
        {"scheme": "transformer-xl"},
        {"scheme": "plain"},
        {"scheme": "distance-aware", "causal": True},
        {"scheme": "distance-aware", "pooling": "recent"},
        {"scheme": "distance-aware", "pooling": "last"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_others_can(options: dict[str, Any]) -> None:
    assert moved(**options) > 1e-4


def test_recent_pooling_prefers_the_latest_real_click() -> None:
    pooling = RecentPooling(3)
    states, real = torch.zeros(1, 4, 3), torch.tensor([[True, True, True, False]])
    torch.testing.assert_close(pooling.weights(states, real), torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0]]))
    pooling.slope.data.fill_(1.0)
    expected = torch.tensor([-2.0, -1.0, 0.0]).softmax(dim=0)
    torch.testing.assert_close(pooling.weights(states, real)[0, :3], expected)


def test_what_is_not_possible_is_told() -> None:
    with pytest.raises(UserError, match="pooling must be one of additive, recent, last; got 'cls'"):
        RecommenderConfig(pooling="cls")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="scheme must be one of"):
        RecommenderConfig(titles=HeadwiseConfig(), scheme="none at all")  # type: ignore[arg-type]
