"""Figures and data statistics that `headwise reproduce` writes, from trained models and without training."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from headwise.cli import main
from headwise.inspection import style
from headwise.studies.plan import Result
from headwise.studies.reproduction import head_figures
from headwise.studies.reproduction.formula_figures import draw_coefficient_matrices, draw_learnable_sigmoids
from headwise.training import TextConfig, train
from tests.training.conftest import rows, write
from tests.training.recommendation.conftest import log

__all__ = ["log"]

TINY: dict[str, Any] = {"heads": 4, "head_dim": 4, "word_dim": 8, "epochs": 1, "batch_size": 32, "report_to": "none"}


def titles_overlap(figure: Figure) -> list[tuple[str, str]]:
    """Return the pairs of titles and legends that overlap when the figure is drawn."""
    figure.draw_without_rendering()
    texts = [title for axes in figure.axes for title in (axes.title, axes.xaxis.label) if title.get_text()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]


@pytest.fixture(scope="module")
def reviews_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(80)))


@pytest.fixture(scope="module")
def cheap_figures() -> Iterator[None]:
    """Draw figures with their contents, which these tests look at, but small and without a layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.inspection.style.Figure", lambda figsize, layout: Figure(figsize=figsize))
        patch.setitem(style.RC_PARAMS, "savefig.dpi", 20)
        yield


@pytest.fixture(scope="module")
def results(cheap_figures: None, reviews_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Runs of two schemes with two seeds."""
    directory = tmp_path_factory.mktemp("runs")
    runs = []
    for model, seed in itertools.product(("plain", "distance-aware"), (0, 1)):
        config = TextConfig(data=(str(reviews_csv),), model=model, seed=seed, **TINY)
        run = train(config, directory / model / str(seed))
        runs.append(Result("reviews.csv", model, seed, run.run_dir, run.metrics))
    return runs


def test_learned_weights(results: list[Result]) -> None:
    runs = [result for result in results if result.method == "distance-aware"]
    ((figure, caption),) = head_figures.draw_learned_weights(runs)
    assert "over 2 runs" in caption
    assert [len(axes.patches) for axes in figure.axes] == [4, 4], "a bar for w and v of each head"
    assert titles_overlap(figure) == []


@pytest.mark.parametrize("name", ["draw_attention", "draw_mean_attention", "draw_principal_components"])
def test_attention_of_trained_models(name: str, results: list[Result]) -> None:
    ((figure, caption),) = getattr(head_figures, name)(results)
    assert caption.startswith("reviews.csv: ")
    assert titles_overlap(figure) == []


def test_signs_of_w_and_lengths(results: list[Result]) -> None:
    runs = [result for result in results if result.method == "distance-aware"]
    table = head_figures.build_sign_table(runs)
    ((task, length, share, _, num_runs),) = table.rows
    assert (task, num_runs) == ("reviews.csv", "2")
    assert table.title.endswith("over tasks: undefined"), "two runs of one task are not two independent observations"
    assert 4 <= float(length) <= 10
    assert 0 <= float(share.partition(" ")[0]) <= 100


def test_models_that_were_not_kept(results: list[Result], tmp_path: Path) -> None:
    with pytest.raises(Exception, match="was not kept; run the study again with --keep-models"):
        head_figures.open_run(Result("reviews.csv", "plain", 0, tmp_path, {}))


@pytest.mark.parametrize("draw", [draw_learnable_sigmoids, draw_coefficient_matrices])
def test_titles_of_formula_figures_do_not_overlap(draw: Any) -> None:
    assert [titles_overlap(figure) for figure, _ in draw()] == [[]]


@pytest.mark.parametrize("name", ["da-figure1", "da-figure2"])
def test_figures_without_training_are_image_files(name: str, tmp_path: Path) -> None:
    assert main(["reproduce", name, "--out", str(tmp_path / "out")]) == 0
    image = matplotlib.image.imread(tmp_path / "out" / "figures" / f"{name}.png")
    assert image.std() > 0, "not blank"
    assert (tmp_path / "out" / "figures" / f"{name}.svg").read_text().startswith("<?xml")
    assert "Wu, Wu and Huang 2021" in (tmp_path / "out" / "report.html").read_text()
    assert main(["reproduce", name, "--out", str(tmp_path / "out")]) == 2, "the directory is not empty"


def test_statistics_of_data_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "sst2"
    data.mkdir()
    for split, count in {"train": 6, "dev": 4, "test": 2}.items():
        lines = [("a fine film !" if i % 2 else "a dull one", str(i % 2)) for i in range(count)]
        write(data / f"{split}.csv", ("text", "label"), lines)
    assert main(["reproduce", "da-table1", "--task", f"sst2={data}", "--out", str(tmp_path / "out")]) == 0
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert "| sst2 | ours | 6 | 4 | 2 | 2 | 3.5 |" in table
    assert "| sst2 | paper | 8k | 1k | 2k | 2 | 19 |" in table
    assert "3.5" in capsys.readouterr().out


def test_statistics_of_a_click_log(log: Path, tmp_path: Path) -> None:
    assert main(["reproduce", "da-table2", "--data", str(log), "--out", str(tmp_path / "out")]) == 0
    values = {
        cells[1].strip(): cells[2].strip().replace(",", "")
        for line in (tmp_path / "out" / "table.md").read_text().splitlines()
        if len(cells := line.split("|")) > 3
    }
    assert (values["impressions"], values["news"]) == ("203", "60")
    assert values["users"] == "21", "20 users, and one that the fixture adds"
    assert 2 <= float(values["mean title length"]) <= 6
    assert int(values["non-clicks"]) > int(values["clicks"]) > 0
