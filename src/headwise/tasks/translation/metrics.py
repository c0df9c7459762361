"""BLEU and chrF of detokenized text, computed by sacrebleu."""

from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

PRIMARY = "bleu"


def compute(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Compute BLEU and chrF, from 0 to 100.

    Example:
        >>> compute(["the cat sat on the mat"], ["the cat sat on the mat"])
        {'bleu': 100.0, 'chrf': 100.0}
    """
    metrics = {"bleu": BLEU(), "chrf": CHRF()}
    return {name: round(metric.corpus_score(translations, [references]).score, 4) for name, metric in metrics.items()}


def signatures() -> dict[str, str]:
    """Return sacrebleu's signature of each metric, which states its settings."""
    result = {}
    for name, metric in {"bleu": BLEU(), "chrf": CHRF()}.items():
        metric.corpus_score(["a"], [["a"]])  # the signature includes the number of references
        result[name] = str(metric.get_signature())
    return result


def standard_error(translations: Sequence[str], references: Sequence[str]) -> float:
    """Estimate the standard error of BLEU by sacrebleu's bootstrap over sentences, with 1000 samples."""
    _, scores = PairedTest([("system", translations)], {"bleu": BLEU()}, [references], test_type="bs")()
    result: Any = scores["BLEU"][0]
    return round(float(result.ci) / 1.96, 4)


def compare_systems(
    systems: Mapping[str, Sequence[str]], references: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """Compare systems by BLEU, with sacrebleu's paired bootstrap.

    Args:
        systems: The translations of each system; the first system is the baseline.
        references: The references.

    Returns:
        For each system `bleu`, its `mean` and `ci` (half the 95% interval) over samples, and the p-value `p` of the
        difference to the baseline, None for the baseline.

    Example:
        >>> references = ["the cat sat on the mat", "a dog ran by"] * 20
        >>> systems = {"good": references, "bad": ["the cat sat on a mat", "dogs ran by"] * 20}
        >>> results = compare_systems(systems, references)
        >>> results["good"]["bleu"] > results["bad"]["bleu"], results["bad"]["p"] < 0.01
        (True, True)
    """
    _, scores = PairedTest(list(systems.items()), {"bleu": BLEU()}, [references], test_type="bs")()
    results: list[Any] = scores["BLEU"]
    baseline = next(iter(systems.values()))
    # sacrebleu returns the smallest possible p-value for equal translations.
    equal = {name for name, translations in systems.items() if list(translations) == list(baseline)}
    return {
        str(name): {
            "bleu": result.score,
            "mean": float(result.mean),
            "ci": float(result.ci),
            "p": 1.0 if name in equal and result.p_value is not None else result.p_value,
        }
        for name, result in zip(scores["System"], results, strict=True)
    }
