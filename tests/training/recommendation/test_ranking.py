"""The fast way to score a log gives what scoring every pair gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwise.models import HeadwiseConfig, HeadwiseForRecommendation, RecommenderConfig, build_tokenizer
from headwise.tasks import mind
from headwise.tasks.metrics.clicks import compute
from headwise.training.recommendation import ranking
from headwise.training.recommendation.baselines import bags, mean
from headwise.training.recommendation.titles import tokenize_titles

HISTORY = 7


@pytest.mark.parametrize("scheme", ["rpr", "distance-aware"])
def test_it_equals_scoring_every_pair(read: mind.Log, scheme: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "NEWS", 7)
    monkeypatch.setattr(ranking, "USERS", 5)
    tokenizer = build_tokenizer(read.news.data["title"][:])
    titles = tokenize_titles(tokenizer, read.news.data, 5)
    words = HeadwiseConfig(vocab_size=len(tokenizer), word_dim=6, heads=2, head_dim=4)
    config = RecommenderConfig(titles=words, scheme=scheme, heads=2, head_dim=4, history=HISTORY)
    model = HeadwiseForRecommendation(config).eval()
    split = read.splits["train"]
    scored = ranking.score_by_model(model, split, titles, history=HISTORY)
    fast = [(scores, part.clicked, part.offsets) for part, scores in scored]
    slow = []
    rows = list(split.rows.data)[-25:]  # among them one without a history
    for row in rows:
        history, candidates = row["history"][-HISTORY:], row["candidates"]
        tokens = torch.from_numpy(titles.tokens.astype(np.int64))
        for candidate in candidates:
            before = torch.tensor([history]) if history else torch.tensor([[-1]])
            with torch.no_grad():
                slow.append(model(tokens, history=before, candidates=torch.tensor([[candidate]])).logits.item())
    scores = np.concatenate([scores for scores, *_ in fast])[-len(slow) :]
    np.testing.assert_allclose(scores, slow, rtol=1e-3, atol=1e-4)
    offsets = np.cumsum([0, *(len(row["candidates"]) for row in rows)])
    clicked = np.concatenate([row["clicked"] for row in rows])
    assert compute(np.array(slow), clicked, offsets)["auc"] == pytest.approx(
        compute(scores, clicked, offsets)["auc"], abs=1e-3
    )


def test_users_are_their_latest_clicks(tmp_path: Path) -> None:
    folder = tmp_path / "log" / "train"
    folder.mkdir(parents=True)
    (folder / "news.tsv").write_text("".join(f"N{i}\tc\tc\ttitle {i}\t\t\t[]\t[]\n" for i in range(5)))
    histories = ["N1 N2", "N2 N1", "N0 N1 N2", "", "N1 N2", "N2", "N4 N1 N2", ""]
    lines = [f"{i}\tU\tt\t{history}\tN3-1 N4-0\n" for i, history in enumerate(histories)]
    (folder / "behaviors.tsv").write_text("".join(lines))
    split = mind.read(tmp_path / "log", cache=tmp_path).splits["train"]
    first, user = ranking.distinct(split, 2)
    assert len(first) == 4
    assert [first[u] for u in user] == [0, 1, 0, 3, 0, 5, 0, 3]
    assert len(ranking.distinct(split, 50)[0]) == 6


def test_rivals_are_what_they_say(read: mind.Log) -> None:
    tokenizer = build_tokenizer(read.news.data["title"][:])
    titles = tokenize_titles(tokenizer, read.news.data, 5)
    words = torch.randn(len(tokenizer), 3)
    vectors = bags(words, titles)
    for number in (0, 7):
        expected = words[titles.tokens[number, : titles.lengths[number]]].mean(dim=0)
        torch.testing.assert_close(vectors[number], expected / expected.norm())
    clicked = torch.stack([vectors[[1, 2, 0]], vectors[[3, 0, 0]]])
    found = mean(clicked, torch.tensor([[True, True, False], [False, False, False]]))
    torch.testing.assert_close(found, torch.stack([(vectors[1] + vectors[2]) / 2, torch.zeros(3)]))
    clicks = np.arange(len(read.news))
    for part, scores in ranking.by_popularity(read.splits["dev"], clicks):
        np.testing.assert_array_equal(scores, part.candidates)


def test_titles_without_a_word_are_one_unknown_word(tmp_path: Path) -> None:
    folder = tmp_path / "log" / "train"
    folder.mkdir(parents=True)
    (folder / "news.tsv").write_text("N0\tc\tc\t\t\t\t[]\t[]\nN1\tc\tc\ta b c d\t\t\t[]\t[]\n")
    (folder / "behaviors.tsv").write_text("1\tU\tt\tN0\tN0-1 N1-0\n")
    tokenizer = build_tokenizer(["a b c d"])
    titles = tokenize_titles(tokenizer, mind.read(tmp_path / "log", cache=tmp_path).news.data, 3)
    assert titles.lengths.tolist() == [1, 3]
    assert titles.tokens[0, 0] == tokenizer.unk_token_id
    assert titles.cut == 1
