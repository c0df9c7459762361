"""Evaluation of a trained translator."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from headwise.tasks.translation import metrics, read_pairs
from headwise.tasks.translation.pairs import Pairs
from headwise.training.core.data_check import check_unchanged
from headwise.training.core.distributed import main_process_first
from headwise.training.core.metrics import build_evaluation
from headwise.training.jobs import PART_ROWS, JobOptions, Progress, Result, RowRange, open_job, run_job
from headwise.training.jobs.job_dir import describe_inputs
from headwise.training.translation.data import fingerprint, load_data
from headwise.training.translation.inference import TranslationModel

DEFAULT_OPTIONS = JobOptions()
#: Number of sentences that are grouped by length.
BATCH_ROWS = 1000
SOURCE_COPY = "copy of the source"
BASELINE_NOTE = "copying the source is a lower bound; compare with the published BLEU of other systems on this test set"


def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    source: str | None = None,
    target: str | None = None,
    clip: bool = False,
    out: Path | None = None,
    options: JobOptions = DEFAULT_OPTIONS,
) -> dict[str, Any]:
    """Evaluate a run's translator on its first test set or on other pairs.

    Args:
        run: the directory of a finished run.
        data: other pairs, a directory or file as for training; the first test set of a directory is used.
        source, target: the languages, which must be those of the run.
        clip: cut sentences that are too long.
        out: the file of the metrics. The translations of finished parts are stored next to it.
        options: the processes or the cluster, and whether an unfinished evaluation is resumed.

    Returns:
        The data set, the number of pairs, BLEU and chrF with their signatures, the standard error of BLEU, and the
        metrics of the baseline.

    Raises:
        UserError: there is no such run, its languages differ, the data is invalid, or the run's own data has changed
            since training.
    """
    config = TranslationModel.read_config(run, source=source, target=target)
    task = TranslationTask(run, data, clip or config.clip)
    pairs, split = main_process_first(task.read_pairs)
    rows, part_rows = pairs.splits[split], options.part_rows or PART_ROWS
    hash_of_rows = fingerprint(rows)
    if data is None:
        check_unchanged(run, split, hash_of_rows, config.data)
    plan = {**describe_inputs(run, []), "rows": hash_of_rows, "clip": task.clip, "part_rows": part_rows}
    translations: list[str] = []
    with open_job(out, plan, options) as job_dir:
        parts = RowRange.divide(len(rows), part_rows)
        for result in run_job(task, parts, options, job_dir, verb="translating", unit="sentences"):
            translations += json.loads(result["translations"].tobytes())
    references = list(rows["target"])
    return build_evaluation(
        dataset=f"{config.source} → {config.target}, {split}: {pairs.recipe}",
        num_rows=len(rows),
        primary_metric=metrics.PRIMARY,
        metrics=metrics.compute(translations, references),
        standard_error=metrics.standard_error(translations, references),
        baselines=compute_baselines(rows),
        baseline_notes=[BASELINE_NOTE],
        can_tune=False,
        signatures=metrics.signatures(),
    )


@dataclass(frozen=True)
class TranslationTask:
    """Translates the sources of sentence pairs. The arguments are those of `evaluate`."""

    run_dir: Path
    data: Path | None
    clip: bool

    def read_pairs(self) -> tuple[Pairs, str]:
        """Return the pairs, and the name of the split that is evaluated."""
        config = TranslationModel.read_config(self.run_dir)
        pairs = load_data(config).pairs if self.data is None else read_pairs(self.data, *config.pair, test_only=True)
        return pairs, pairs.tests[0] if pairs.tests else next(iter(pairs.splits))

    def load(self) -> tuple[TranslationModel, Pairs, str]:
        return TranslationModel.load(self.run_dir), *self.read_pairs()

    def run(
        self, model: tuple[TranslationModel, Pairs, str], part: RowRange, out: Path | None, progress: Progress
    ) -> Result:
        translator, pairs, split = model
        texts: list[str] = []
        for start in range(part.start, part.stop, BATCH_ROWS):
            rows = range(start, min(start + BATCH_ROWS, part.stop))
            locations = [pairs.location(split, index) for index in rows]
            sources = list(pairs.splits[split].select(rows)["source"])
            texts += translator.translate(sources, locations, clip=self.clip)
            progress(len(rows))
        return {"translations": np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)}


def compute_baselines(rows: Dataset) -> dict[str, dict[str, float]]:
    """Compute the metrics of source sentences that are copied instead of translated."""
    return {SOURCE_COPY: metrics.compute(list(rows["source"]), list(rows["target"]))}
