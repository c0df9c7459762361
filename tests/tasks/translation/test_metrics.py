"""BLEU and chrF of sacrebleu."""

import sacrebleu

from headwise.tasks.translation import metrics

REFERENCES = ["The dog bit the man.", "It wasn't unexpected.", "The man had just bitten him."] * 5
TRANSLATIONS = ["The dog bit the man.", "It was not unexpected!", "The man bit him first."] * 5


def test_metrics_equal_sacrebleu() -> None:
    values = metrics.compute(TRANSLATIONS, REFERENCES)
    assert values["bleu"] == round(sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES]).score, 4)
    assert values["chrf"] == round(sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES]).score, 4)
    assert 0 < metrics.standard_error(TRANSLATIONS, REFERENCES) < 20


def test_signatures_state_the_settings() -> None:
    signatures = metrics.signatures()
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "nc:6" in signatures["chrf"]


def test_equal_translations_have_a_p_value_of_one() -> None:
    results = metrics.compare_systems({"one": TRANSLATIONS, "two": list(TRANSLATIONS)}, REFERENCES)
    assert results["one"]["p"] is None
    assert results["two"]["p"] == 1.0
