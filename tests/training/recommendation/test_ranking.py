"""Scores of a log equal those of every pair by itself; baselines are computed as documented."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwise.models import HeadwiseConfig, HeadwiseForRecommendation, RecommenderConfig, build_tokenizer
from headwise.tasks import mind
from headwise.tasks.metrics.clicks import compute
from headwise.training.recommendation import ranking
from headwise.training.recommendation.titles import tokenize_titles
from tests.short_form import keep_short

HISTORY = 7


@pytest.mark.parametrize("scheme", keep_short(["rpr", "distance-aware"], "distance-aware"))
def test_scores_equal_those_of_every_pair(loaded_log: mind.Log, scheme: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "NEWS_BATCH_SIZE", 7)
    monkeypatch.setattr(ranking, "USER_BATCH_SIZE", 5)
    tokenizer = build_tokenizer(loaded_log.news.data["title"][:])
    titles = tokenize_titles(tokenizer, loaded_log.news.data, 5)
    words = HeadwiseConfig(vocab_size=len(tokenizer), word_dim=6, heads=2, head_dim=4)
    config = RecommenderConfig(titles=words, scheme=scheme, heads=2, head_dim=4, history=HISTORY)
    model = HeadwiseForRecommendation(config).eval()
    split = loaded_log.splits["train"]
    scored = ranking.score_by_model(model, split, titles, history=HISTORY)
    all_scores = np.concatenate([scores for _, scores in scored])
    expected = []
    rows = list(split.rows.data)[-25:]  # including one without a history
    for row in rows:
        history, candidates = row["history"][-HISTORY:], row["candidates"]
        tokens = torch.from_numpy(titles.tokens.astype(np.int64))
        for candidate in candidates:
            history_ids = torch.tensor([history]) if history else torch.tensor([[-1]])
            with torch.no_grad():
                expected.append(
                    model(tokens, history=history_ids, candidates=torch.tensor([[candidate]])).logits.item()
                )
    scores = all_scores[-len(expected) :]
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
    offsets = np.cumsum([0, *(len(row["candidates"]) for row in rows)])
    clicked = np.concatenate([row["clicked"] for row in rows])
    assert compute(np.array(expected), clicked, offsets)["auc"] == pytest.approx(
        compute(scores, clicked, offsets)["auc"], abs=1e-3
    )


def test_users_are_identified_by_their_latest_clicks(tmp_path: Path) -> None:
    directory = tmp_path / "log" / "train"
    directory.mkdir(parents=True)
    (directory / "news.tsv").write_text("".join(f"N{i}\tc\tc\ttitle {i}\t\t\t[]\t[]\n" for i in range(5)))
    histories = ["N1 N2", "N2 N1", "N0 N1 N2", "", "N1 N2", "N2", "N4 N1 N2", ""]
    lines = [f"{i}\tU\tt\t{history}\tN3-1 N4-0\n" for i, history in enumerate(histories)]
    (directory / "behaviors.tsv").write_text("".join(lines))
    split = mind.read(tmp_path / "log", cache=tmp_path).splits["train"]
    first_rows, users = ranking.find_distinct_histories(split, 2)
    assert len(first_rows) == 4
    assert [first_rows[user] for user in users] == [0, 1, 0, 3, 0, 5, 0, 3]
    assert len(ranking.find_distinct_histories(split, 50)[0]) == 6


def test_baselines_average_words_and_count_clicks(loaded_log: mind.Log) -> None:
    tokenizer = build_tokenizer(loaded_log.news.data["title"][:])
    titles = tokenize_titles(tokenizer, loaded_log.news.data, 5)
    words = torch.randn(len(tokenizer), 3)
    vectors = ranking.average_words(words, titles)
    for number in (0, 7):
        expected = words[titles.tokens[number, : titles.lengths[number]]].mean(dim=0)
        torch.testing.assert_close(vectors[number], expected / expected.norm())
    clicked = torch.stack([vectors[[1, 2, 0]], vectors[[3, 0, 0]]])
    users = ranking.average_clicked(clicked, torch.tensor([[True, True, False], [False, False, False]]))
    torch.testing.assert_close(users, torch.stack([(vectors[1] + vectors[2]) / 2, torch.zeros(3)]))
    clicks = np.arange(len(loaded_log.news))
    for part, scores in ranking.score_by_popularity(loaded_log.splits["dev"], clicks):
        np.testing.assert_array_equal(scores, part.candidates)


def test_empty_titles_become_one_unknown_token(tmp_path: Path) -> None:
    directory = tmp_path / "log" / "train"
    directory.mkdir(parents=True)
    (directory / "news.tsv").write_text("N0\tc\tc\t\t\t\t[]\t[]\nN1\tc\tc\ta b c d\t\t\t[]\t[]\n")
    (directory / "behaviors.tsv").write_text("1\tU\tt\tN0\tN0-1 N1-0\n")
    tokenizer = build_tokenizer(["a b c d"])
    titles = tokenize_titles(tokenizer, mind.read(tmp_path / "log", cache=tmp_path).news.data, 3)
    assert titles.lengths.tolist() == [1, 3]
    assert titles.tokens[0, 0] == tokenizer.unk_token_id
    assert titles.num_truncated == 1
