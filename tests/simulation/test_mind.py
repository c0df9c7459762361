"""Simulated click logs: their files, their oracle, and errors."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headwise.cli import main
from headwise.errors import UserError
from headwise.simulation import writer
from headwise.simulation.config import SimulationConfig
from headwise.simulation.mind import simulate
from headwise.tasks import mind
from headwise.tasks.metrics import clicks

SPLITS = ("train", "dev", "test")


@pytest.fixture
def titles(tmp_path: Path) -> Path:
    path = tmp_path / "news.csv"
    rows = [f'{"wsbt"[number % 4]},"Title {number}, with\ta tab"' for number in range(120)]
    path.write_text("\n".join(["label,title", *rows, "w,"]) + "\n", encoding="utf-8")
    return path


def small_config(titles: Path, **changes: object) -> SimulationConfig:
    options = {"titles": titles, "impressions": 300, "users": 50, "candidates": 10, "past": 2} | changes
    return SimulationConfig(**options)  # type: ignore[arg-type]


def test_the_log_can_be_read_and_its_metrics_are_correct(titles: Path, tmp_path: Path) -> None:
    truth = simulate(small_config(titles), tmp_path / "log")
    assert json.loads((tmp_path / "log" / "truth.json").read_text()) == truth
    log = mind.read(tmp_path / "log", cache=tmp_path / "cache")
    assert {name: len(split) for name, split in log.splits.items()} == {"train": 240, "dev": 30, "test": 30}
    assert log.news.data["title"][1] == "Title 1, with a tab"
    assert log.news.data["category"][:4] == ["w", "s", "b", "t"]
    assert truth["news"] == {"titles": 120, "topics": ["b", "s", "t", "w"], "left_out": 1}
    stored = pq.read_table(tmp_path / "log" / "probabilities.parquet").to_pydict()
    click_counts = np.zeros(120)
    for name in SPLITS:
        (part,) = log.splits[name].parts()
        assert part.clicked is not None
        probabilities = [p for split, p in zip(stored["split"], stored["probability"], strict=True) if split == name]
        np.testing.assert_array_equal([len(p) for p in probabilities], np.diff(part.offsets))
        metrics = clicks.compute(np.concatenate(probabilities), part.clicked, part.offsets)
        assert metrics == pytest.approx(truth["oracle"][name])
        assert metrics["only_non_clicks"] == 0
        if name == "train":
            np.add.at(click_counts, part.candidates, part.clicked)
        else:
            metrics = clicks.compute(click_counts[part.candidates], part.clicked, part.offsets)
            assert metrics == pytest.approx(truth["popularity"][name])
    rows = [row for name in SPLITS for row in log.splits[name].rows.data["impression"][:]]
    assert rows == [str(number) for number in range(1, 301)] == list(map(str, stored["impression"]))
    times = log.splits["train"].rows.data["time"]
    assert (times[0], times[120]) == ("11/9/2019 12:00:00 AM", "11/11/2019 7:12:00 PM")


def test_the_auc_of_the_oracle_is_between_070_and_080(titles: Path, tmp_path: Path) -> None:
    truth = simulate(SimulationConfig(titles=titles, impressions=4000, users=400), tmp_path / "log")
    assert 0.70 < truth["oracle"]["train"]["auc"] < 0.80
    assert 0.50 < truth["popularity"]["test"]["auc"] < truth["oracle"]["test"]["auc"]


def test_the_log_depends_on_the_seed(titles: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(small_config(titles, seed=seed), tmp_path / name)
    files = [path.relative_to(tmp_path / "a") for path in sorted((tmp_path / "a").rglob("*")) if path.is_file()]
    assert len(files) == 8
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    assert (tmp_path / "a/train/behaviors.tsv").read_bytes() != (tmp_path / "c/train/behaviors.tsv").read_bytes()


def test_memory_does_not_grow_with_the_log(titles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MIN_ROW_GROUP", 500)  # so that both logs have full row groups

    def peak(impressions: int) -> int:
        tracemalloc.start()
        config = small_config(titles, impressions=impressions, users=500, history=2)  # histories are soon full
        simulate(config, tmp_path / str(impressions))
        _, size = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size

    peak(500)
    assert peak(6000) < 1.1 * peak(1500)


def test_few_users_do_not_cause_small_row_groups(titles: Path, tmp_path: Path) -> None:
    simulate(small_config(titles, users=5, impressions=400), tmp_path / "log")
    with pq.ParquetFile(tmp_path / "log" / "probabilities.parquet") as file:
        assert (file.metadata.num_rows, file.metadata.num_row_groups) == (400, 1)


def test_a_failed_simulation_leaves_no_files(titles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer.LogWriter, "write", fail)
    with pytest.raises(KeyboardInterrupt):
        simulate(small_config(titles), tmp_path / "log")
    assert list(tmp_path.iterdir()) == [titles]


def test_existing_files_are_not_overwritten(titles: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not empty"):
        simulate(small_config(titles), tmp_path)
    (tmp_path / "empty").mkdir()
    simulate(small_config(titles), tmp_path / "empty")
    assert (tmp_path / "empty" / "truth.json").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,title\nw,One\nw,Two\n", "expected titles of at least two topics, got 1"),
        ("label,title\nw,One\ns,Two\n", "2 titles are too few for 10 candidates"),
        ("label,title\nw,One\n,Two\n", "line 3: column 'label': no topic"),
        ("a,b\nw,One\ns,Two\n", "the text column is not clear"),
    ],
    ids=["topics", "titles", "topic", "columns"],
)
def test_invalid_titles_raise_errors(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "news.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        simulate(small_config(path), tmp_path / "log")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"impressions": 9}, "--impressions must be at least 10, got 9"),
        ({"burst_length": 0.5}, "--burst-length must be at least 1, got 0.5"),
        ({"drift": float("nan")}, "--drift must be at least 0, got nan"),
        ({"bursts": 1.5}, "--bursts must be between 0 and 1, got 1.5"),
    ],
    ids=["impressions", "burst-length", "drift", "bursts"],
)
def test_invalid_options_raise_errors(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small_config(Path("news.csv"), **changes)


def test_the_command_prints_the_oracle_and_popularity(
    titles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--impressions", "200", "--users", "20", "--candidates", "8", "--seed", "3"]
    assert main(["simulate", "mind", "--titles", str(titles), "--out", str(tmp_path / "log"), *sizes]) == 0
    truth = json.loads((tmp_path / "log" / "truth.json").read_text())
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"oracle:     auc {truth['oracle']['test']['auc']:.4f}, mind_mrr ")
    assert out[1].startswith(f"popularity: auc {truth['popularity']['test']['auc']:.4f}, ")
    assert out[2] == "1 rows without a title were left out"
    assert main(["simulate", "mind", "--titles", str(titles), "--out", str(tmp_path / "log"), "--users", "0"]) == 2
    assert "--users must be at least 1, got 0" in capsys.readouterr().err
