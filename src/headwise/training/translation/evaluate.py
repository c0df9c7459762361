"""Evaluation of a trained translator."""

from pathlib import Path
from typing import Any

from datasets import Dataset

from headwise.tasks.translation import metrics, read_pairs
from headwise.training.core.data_check import check_unchanged
from headwise.training.core.metrics import build_evaluation
from headwise.training.translation.data import fingerprint, load_data
from headwise.training.translation.inference import TranslationModel

SOURCE_COPY = "copy of the source"
BASELINE_NOTE = "copying the source is a lower bound; compare with the published BLEU of other systems on this test set"


def evaluate(
    run: Path, data: Path | None = None, *, source: str | None = None, target: str | None = None, clip: bool = False
) -> dict[str, Any]:
    """Evaluate a run's translator on its first test set or on other pairs.

    Args:
        run: the directory of a finished run.
        data: other pairs, a directory or file as for training; the first test set of a directory is used.
        source, target: the languages, which must be those of the run.
        clip: cut sentences that are too long.

    Returns:
        The data set, the number of pairs, BLEU and chrF with their signatures, the standard error of BLEU, and the
        metrics of the baseline.

    Raises:
        UserError: there is no such run, its languages differ, the data is invalid, or the run's own data has changed
            since training.
    """
    translator = TranslationModel.load(run, source=source, target=target)
    config = translator.config
    pairs = load_data(config).pairs if data is None else read_pairs(data, *config.pair, test_only=True)
    split = pairs.tests[0] if pairs.tests else next(iter(pairs.splits))
    rows = pairs.splits[split]
    if data is None:
        check_unchanged(run, split, fingerprint(rows), config.data)
    locations = [pairs.location(split, index) for index in range(len(rows))]
    translations = translator.translate(list(rows["source"]), locations, clip=clip or config.clip, show_progress=True)
    references = list(rows["target"])
    return build_evaluation(
        dataset=f"{config.source} → {config.target}, {split}: {pairs.recipe}",
        num_rows=len(rows),
        primary_metric=metrics.PRIMARY,
        metrics=metrics.compute(translations, references),
        standard_error=metrics.standard_error(translations, references),
        baselines=compute_baselines(rows),
        baseline_notes=[BASELINE_NOTE],
        signatures=metrics.signatures(),
    )


def compute_baselines(rows: Dataset) -> dict[str, dict[str, float]]:
    """Compute the metrics of source sentences that are copied instead of translated."""
    return {SOURCE_COPY: metrics.compute(list(rows["source"]), list(rows["target"]))}
