"""BLEU and chrF are sacrebleu's own."""

import sacrebleu

from headwise.tasks.translation import metrics

REFERENCES = ["The dog bit the man.", "It wasn't unexpected.", "The man had just bitten him."] * 5
SAID = ["The dog bit the man.", "It was not unexpected!", "The man bit him first."] * 5


def test_figures_are_sacrebleus() -> None:
    found = metrics.compute(SAID, REFERENCES)
    assert found["bleu"] == round(sacrebleu.corpus_bleu(SAID, [REFERENCES]).score, 4)
    assert found["chrf"] == round(sacrebleu.corpus_chrf(SAID, [REFERENCES]).score, 4)
    assert 0 < metrics.standard_error(SAID, REFERENCES) < 20


def test_signatures_say_how() -> None:
    found = metrics.signatures()
    assert found["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "nc:6" in found["chrf"]


def test_the_same_translations_do_not_differ() -> None:
    found = metrics.compared({"one": SAID, "two": list(SAID)}, REFERENCES)
    assert found["one"]["p"] is None
    assert found["two"]["p"] == 1.0
