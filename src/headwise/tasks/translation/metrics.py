"""BLEU and chrF, as sacrebleu counts them: on text as it is read, with a signature that says how."""

from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

PRIMARY = "bleu"


def compute(translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF, both from 0 to 100.

    Example:
        >>> figures(["the cat sat on the mat"], ["the cat sat on the mat"])
        {'bleu': 100.0, 'chrf': 100.0}
    """
    made = {"bleu": BLEU(), "chrf": CHRF()}
    return {name: round(one.corpus_score(translations, [references]).score, 4) for name, one in made.items()}


def signatures() -> dict[str, str]:
    """How each metric was counted."""
    found = {}
    for name, metric in {"bleu": BLEU(), "chrf": CHRF()}.items():
        metric.corpus_score(["a"], [["a"]])  # which tells it the number of references
        found[name] = str(metric.get_signature())
    return found


def standard_error(translations: Sequence[str], references: Sequence[str]) -> float:
    """Of BLEU, by bootstrap over sentences (sacrebleu's, 1000 samples)."""
    _, found = PairedTest([("this", translations)], {"bleu": BLEU()}, [references], test_type="bs")()
    result: Any = found["BLEU"][0]
    return round(float(result.ci) / 1.96, 4)


def compared(systems: Mapping[str, Sequence[str]], references: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """BLEU of several systems, and the p of each against the first, by sacrebleu's paired bootstrap.

    Args:
        systems: translations of the same sentences by each system; the first is what others are compared with.
        references: what the translations should be.

    Returns:
        For each system `bleu`, its `mean` and `ci` (half the 95 % interval) over samples, and `p`, None for the first.

    Example:
        >>> references = ["the cat sat on the mat", "a dog ran by"] * 20
        >>> found = compared({"good": references, "bad": ["the cat sat on a mat", "dogs ran by"] * 20}, references)
        >>> found["good"]["bleu"] > found["bad"]["bleu"], found["bad"]["p"] < 0.01
        (True, True)
    """
    _, found = PairedTest(list(systems.items()), {"bleu": BLEU()}, [references], test_type="bs")()
    results: list[Any] = found["BLEU"]
    first = next(iter(systems.values()))
    same = {
        name for name, said in systems.items() if list(said) == list(first)
    }  # whose p sacrebleu takes for the least
    return {
        str(name): {
            "bleu": one.score,
            "mean": float(one.mean),
            "ci": float(one.ci),
            "p": 1.0 if name in same and one.p_value is not None else one.p_value,
        }
        for name, one in zip(found["System"], results, strict=True)
    }
