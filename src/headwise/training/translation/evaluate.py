"""A trained translator judged on pairs."""

from pathlib import Path
from typing import Any

from headwise.tasks.translation import metrics, read_pairs
from headwise.training.translation.inference import TranslationModel
from headwise.training.translation.train import load


def evaluate(
    run: Path, data: Path | None = None, *, source: str | None = None, target: str | None = None, clip: bool = False
) -> dict[str, Any]:
    """How good a run's translator is: on its own first test set, or on other pairs.

    Args:
        run: a finished run's folder.
        data: other pairs: a folder or file as for training; of a folder with several test sets the first.
        source, target: the languages, which must be the run's.
        clip: cut sentences that are too long.

    Returns:
        What was judged, how many pairs, BLEU and chrF with their signatures, and BLEU's standard error.

    Raises:
        UserError: no such run, other languages, or data that is not sound.
    """
    trained = TranslationModel.load(run, source=source, target=target)
    settings = trained.settings
    pairs = load(settings) if data is None else read_pairs(data, *settings.pair, test_only=True)
    split = pairs.tests[0] if pairs.tests else next(iter(pairs.splits))
    rows = pairs.splits[split]
    places = [pairs.location(split, index) for index in range(len(rows))]
    said = trained.translate(list(rows["source"]), places, clip=clip or settings.clip, shown=True)
    references = list(rows["target"])
    return {
        "dataset": f"{settings.source} → {settings.target}, {split}: {pairs.recipe}",
        "rows": len(rows),
        "primary_metric": metrics.PRIMARY,
        "metrics": metrics.compute(said, references),
        "standard_error": metrics.standard_error(said, references),
        "signatures": metrics.signatures(),
    }
