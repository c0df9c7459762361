"""`--safe-csv`: cells that a spreadsheet would run as formulas."""

import csv
from pathlib import Path

import pytest

from headwise.csv_cells import safe_csv
from headwise.inspection.output_dir import write_csv
from tests.training.conftest import Headwise, bert, headwise, own_cache, rows, write

__all__ = ["bert", "headwise", "own_cache"]

CELLS = ["=1+1", "+A1", "-cmd", "@SUM(A1)", "＝1", " =1", "-1.5", "good film", "a=b"]
QUOTED = ["'=1+1", "'+A1", "'-cmd", "'@SUM(A1)", "'＝1", "' =1", "-1.5", "good film", "a=b"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from headwise.training import TextConfig, train

    directory = tmp_path_factory.mktemp("safe-csv")
    data = write(directory / "reviews.csv", ("text", "label"), list(rows(60)))
    config = TextConfig(data=(str(data),), heads=2, head_dim=8, word_dim=16, epochs=1, batch_size=16)
    return train(config, directory / "run").run_dir


def read_column(path: Path, name: str) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")]


@pytest.mark.parametrize("extension", [".csv", ".tsv"])
def test_predictions(extension: str, run: Path, tmp_path: Path, headwise: Headwise) -> None:
    data = write(tmp_path / "new.csv", ("text",), [(cell,) for cell in CELLS])
    plain, safe = tmp_path / f"plain{extension}", tmp_path / f"safe{extension}"
    assert headwise("predict", run, data, "--out", plain)[0] == 0
    assert headwise("predict", run, data, "--out", safe, "--safe-csv")[0] == 0
    assert read_column(plain, "text") == CELLS, "by default cells are written as they are"
    assert read_column(safe, "text") == QUOTED
    assert read_column(safe, "predicted") == read_column(plain, "predicted")


def test_statistics_of_an_inspection(tmp_path: Path) -> None:
    with safe_csv():
        write_csv(tmp_path / "received.csv", [{"token": cell} for cell in CELLS])
    assert read_column(tmp_path / "received.csv", "token") == QUOTED
