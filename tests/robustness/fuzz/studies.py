"""Studies: study.yaml, the database, and the files of finished runs that reports read."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from tests.robustness.fuzz.kinds import Kind, mutate_file
from tests.robustness.fuzz.mutations import TEXTS, mutate_bytes, mutate_json, mutate_yaml, random_value


def prepare_study(directory: Path) -> None:
    """Write a comparison of two methods with two finished runs each. One is trained; the others copy it."""
    from optuna.storages import RDBStorage

    from headwise.studies.methods import Method
    from headwise.studies.plan import plan_runs
    from headwise.studies.scheduler import Scheduler
    from headwise.studies.study import Study
    from headwise.studies.worker import primary_value
    from headwise.training import TextConfig, train
    from tests.robustness.fuzz.model_seeds import write_reviews

    data = write_reviews(directory.parent / "study-reviews.csv")
    config = TextConfig(data=(str(data),), heads=2, head_dim=4, word_dim=8, epochs=1)
    methods = (Method("plain", {"model": "plain"}), Method("rpr", {"model": "rpr"}))
    runs = plan_runs([config], methods, range(2))
    study = Study.create(directory, "compare", runs, baseline="plain", controls={})
    trained = directory.parent / "study-run"
    metrics = train(config, trained).metrics
    shutil.rmtree(trained / "checkpoints")
    (trained / "model.safetensors").unlink()
    scheduler = Scheduler(study.trials)
    while (claimed := scheduler.claim()) is not None:
        run_dir = study.study_dir.run_dir(claimed.run)
        shutil.copytree(trained, run_dir, dirs_exist_ok=True)
        (run_dir / "run.yaml").write_text(claimed.run.config.to_yaml(), encoding="utf-8")
        study.trials.finish(claimed, primary_value(metrics, "test"))
    assert isinstance(study.trials.storage, RDBStorage)
    study.trials.storage.engine.dispose()


def list_studies(directory: Path, out: Path) -> None:
    """List the study, as `headwise studies` does."""
    from headwise.studies.listing import print_studies

    print_studies([directory])


def analyze_study(directory: Path, out: Path) -> None:
    """Compare the methods of the study and print the tables, as `headwise compare --resume` does."""
    from headwise.studies.compare import analyze_comparison
    from headwise.studies.report import print_analysis
    from headwise.studies.study import Study
    from headwise.studies.study_dir import StudyDir

    study_dir = StudyDir.read(directory)
    study = Study(study_dir, study_dir.open_trials(), study_dir.database_url())
    print_analysis(analyze_comparison(study))


def close_databases(read: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    """Return a function that reads a study and forgets its database, because the next input has the same path."""

    def read_and_close(directory: Path, out: Path) -> None:
        import gc

        try:
            read(directory, out)
        finally:
            gc.collect()

    return read_and_close


def mutate_database(random: Random, directory: Path) -> None:
    """Change values of the database by SQL, or bytes of its file."""
    path = directory / "study.db"
    if random.random() < 0.3:
        path.write_bytes(mutate_bytes(random, path.read_bytes()))
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        for _ in range(random.randint(1, 3)):
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            change_row(random, connection, random.choice(tables))


def change_row(random: Random, connection: sqlite3.Connection, table: str) -> None:
    """Delete rows of a table, or change one value."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")]
    rows = [row for (row,) in connection.execute(f"SELECT rowid FROM '{table}'")]
    draw = random.random()
    if draw < 0.05:
        connection.execute(f"DROP TABLE '{table}'")
    elif draw < 0.15 or not rows:
        connection.execute(f"DELETE FROM '{table}'")
    else:
        value: Any = random_value(random)
        if isinstance(value, int) and abs(value) >= 2**63:
            value = str(value)
        if not isinstance(value, str | int | float | None) or random.random() < 0.3:
            value = json.dumps(value)
        if random.random() < 0.1:
            value = random.choice([b"\xff\xfe", b"", random.choice(TEXTS)])
        column, row = random.choice(columns), random.choice(rows)
        try:
            connection.execute(f"UPDATE '{table}' SET \"{column}\" = ? WHERE rowid = ?", (value, row))
        except sqlite3.IntegrityError:
            connection.execute(f"DELETE FROM '{table}' WHERE rowid = ?", (row,))


def mutate_result(random: Random, directory: Path) -> None:
    """Change the metrics or the predictions of a finished run, or delete a file."""
    run = random.choice(sorted(directory.glob("runs/*/*/*")))
    name = random.choice(["metrics.json", "metrics.json", "predictions.parquet", "run.yaml"])
    if random.random() < 0.1:
        (run / name).unlink()
    else:
        mutation = {"metrics.json": mutate_json, "run.yaml": mutate_yaml}.get(name, mutate_bytes)
        mutate_file(name, mutation)(random, run)


REQUIRES = (
    "headwise.studies.study",
    "headwise.studies.report",
    "headwise.studies.analysis",
    "headwise.studies.listing",
)

KINDS = [
    Kind(
        name=name,
        share=share,
        requires=REQUIRES,
        prepare=prepare_study,
        mutate=mutate,
        read=close_databases(read),
    )
    for name, share, mutate, read in (
        ("study.yaml, studies", 1.25, mutate_file("study.yaml", mutate_yaml), list_studies),
        ("study.db, studies", 1.25, mutate_database, list_studies),
        ("study.db, compare", 1.25, mutate_database, analyze_study),
        ("study runs, compare", 1.25, mutate_result, analyze_study),
    )
]
