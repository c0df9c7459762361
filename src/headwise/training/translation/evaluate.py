"""Evaluation of a trained translator."""

from pathlib import Path
from typing import Any

from headwise.tasks.translation import metrics, read_pairs
from headwise.training.translation.inference import TranslationModel
from headwise.training.translation.train import load


def evaluate(
    run: Path, data: Path | None = None, *, source: str | None = None, target: str | None = None, clip: bool = False
) -> dict[str, Any]:
    """Evaluate a run's translator on its first test set or on other pairs.

    Args:
        run: the folder of a finished run.
        data: other pairs, a folder or file as for training; the first test set of a folder is used.
        source, target: the languages, which must be those of the run.
        clip: cut sentences that are too long.

    Returns:
        The data set, the number of pairs, BLEU and chrF with their signatures, and the standard error of BLEU.

    Raises:
        UserError: there is no such run, its languages differ, or the data is invalid.
    """
    translator = TranslationModel.load(run, source=source, target=target)
    config = translator.config
    pairs = load(config) if data is None else read_pairs(data, *config.pair, test_only=True)
    split = pairs.tests[0] if pairs.tests else next(iter(pairs.splits))
    rows = pairs.splits[split]
    locations = [pairs.place(split, index) for index in range(len(rows))]
    translations = translator.translate(list(rows["source"]), locations, clip=clip or config.clip, show_progress=True)
    references = list(rows["target"])
    return {
        "dataset": f"{config.source} → {config.target}, {split}: {pairs.recipe}",
        "rows": len(rows),
        "primary_metric": metrics.PRIMARY,
        "metrics": metrics.compute(translations, references),
        "standard_error": metrics.standard_error(translations, references),
        "signatures": metrics.signatures(),
    }
