from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.tasks.columns import Columns, choose_columns
from headwise.tasks.formats import Batch


def head(*names: str) -> Batch:
    """Return rows with these columns; those whose second letter is n contain numbers."""
    columns = {name: ["1", "2"] if name[1:2] == "n" else ["some words", "other words"] for name in names}
    return Batch(Path("a.csv"), [0, 1], [2, 3], columns)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("text", "label"), Columns("text", None, "label")),
        (("Label", "Review"), Columns("Review", None, "Label")),
        (("id", "title", "text", "label"), Columns("text", None, "label")),
        (("gold_label", "sentence1", "sentence2"), Columns("sentence1", "sentence2", "gold_label")),
        (("label", "premise", "hypothesis", "genre"), Columns("premise", "hypothesis", "label")),
        (("question", "passage", "label"), Columns("question", "passage", "label")),
        (("Label", "Question1", "Question2"), Columns("Question1", "Question2", "Label")),
        (("utterance", "purpose"), None),
        (("utterance", "label"), Columns("utterance", None, "label")),
        (("text", "purpose"), Columns("text", None, "purpose")),
        (("utterance", "kn"), Columns("utterance", None, "kn")),
        (("text", "review", "label"), None),
        (("text", "label", "category"), None),
    ],
)
def test_columns_are_chosen_by_name_or_if_only_one_is_possible(
    names: tuple[str, ...], expected: Columns | None
) -> None:
    if expected is None:
        with pytest.raises(
            UserError, match=r"a\.csv: the (text|label) column is not clear; name it with --(text|label)"
        ):
            choose_columns(head(*names))
    else:
        assert choose_columns(head(*names)) == expected


def test_pairs_that_are_recognized_by_their_names_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="headwise")
    choose_columns(head("question", "passage", "label"))
    assert caplog.messages == ["a.csv: question and passage are read as a text pair"]
    caplog.clear()
    choose_columns(head("question", "passage", "label"), text="question", pair="passage")
    assert not caplog.messages


def test_a_file_of_texts_alone_has_no_labels() -> None:
    with pytest.raises(UserError, match=r"a\.csv: no column for the labels; its only column is text; add a column"):
        choose_columns(head("text"))
    assert choose_columns(head("text"), labelled=False) == Columns("text", None, None)


def test_given_columns_take_precedence() -> None:
    batch = head("text", "review", "label", "stars")
    assert choose_columns(batch, text="review", label="stars") == Columns("review", None, "stars")
    assert choose_columns(batch, text="text", pair="review", label="label") == Columns("text", "review", "label")
    assert choose_columns(batch, text="text", labelled=False) == Columns("text", None, None)


def test_a_missing_column_raises_an_error_with_the_existing_columns() -> None:
    with pytest.raises(UserError, match=r"a\.csv: no column 'stars'; the columns are text, label"):
        choose_columns(head("text", "label"), label="stars")


def test_columns_without_values_or_a_name_are_not_guessed() -> None:
    columns = {"": ["0", "1"], "note": ["a good film", "a bad film"], "mood": ["x", "y"], "column 4": ["", ""]}
    batch = Batch(Path("a.csv"), [0, 1], [2, 3], columns)
    assert choose_columns(batch) == Columns("note", None, "mood")


def test_a_label_is_not_taken_for_a_text_where_none_is_needed() -> None:
    """A model predicts the file that it was trained on."""
    batch = Batch(Path("a.csv"), [0, 1], [2, 3], {"message": ["late", "wrong item"], "tags": ["delivery", "a|b"]})
    assert choose_columns(batch) == Columns("message", None, "tags")
    assert choose_columns(batch, labelled=False) == Columns("message", None, None)
    assert choose_columns(head("topic"), labelled=False) == Columns("topic", None, None)


def test_two_columns_of_texts_lead_to_a_hint() -> None:
    message = (
        r"a\.csv: headline and full article have texts; for text pairs, set --text headline --pair 'full article', "
        "for one text --text"
    )
    with pytest.raises(UserError, match=message):
        choose_columns(head("headline", "full article", "label"))
    with pytest.raises(UserError, match=r"not clear; name it with --text; for text pairs, set --text and --pair; the"):
        choose_columns(head("headline", "article", "source", "label"))


@pytest.mark.parametrize("other", [["2026-11-16", "2026-11-17 12:00"], ["libc6", "bash"], ["A12", "B7"]])
def test_names_dates_and_identifiers_are_not_texts(other: list[str]) -> None:
    columns = {"first": other, "customer review": ["A fine film.", "It is dull"], "stars": ["5", "1"]}
    batch = Batch(Path("a.csv"), [0, 1], [2, 3], columns)
    assert choose_columns(batch) == Columns("customer review", None, "stars")


def test_a_label_of_single_words_is_told_from_the_text() -> None:
    columns = {"utterance": ["Where is my card?", "I lost it"], "purpose": ["card_arrival", "lost"]}
    assert choose_columns(Batch(Path("a.csv"), [0, 1], [2, 3], columns)) == Columns("utterance", None, "purpose")


def test_a_second_column_of_texts_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    columns = {"text": ["a b c", "d"], "summary": ["e f g", "h i j"], "source": ["x", "y"], "label": ["1", "2"]}
    batch = Batch(Path("a.csv"), [0, 1], [2, 3], columns)
    with caplog.at_level("INFO"):
        assert choose_columns(batch) == Columns("text", None, "label")
        assert caplog.messages == [
            "a.csv: the texts of text are used, not those of summary; for text pairs, set --text and --pair"
        ]
        caplog.clear()
        choose_columns(batch, text="text")
        choose_columns(batch, labelled=False)
        assert not caplog.messages


def test_columns_that_are_chosen_by_their_contents_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    choose_columns(head("text", "label"))
    assert not caplog.messages
    choose_columns(head("utterance", "kn"))
    assert caplog.messages == ["a.csv: the text column is utterance, the label column is kn"]
    caplog.clear()
    choose_columns(head("utterance", "kn"), labelled=False)
    assert caplog.messages == ["a.csv: the text column is utterance"]


def test_a_missing_header_leads_to_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rows = {"a fine film": ["a dull film", "a good film"], "good": ["bad", "good"]}
    choose_columns(Batch(Path("a.csv"), [0, 1], [2, 3], rows))
    assert any(
        message.startswith("a.csv: 'good' is the name of the label column and also") for message in caplog.messages
    )


def test_of_several_known_columns_those_without_values_are_ignored() -> None:
    columns = {"text": ["", " "], "comment": ["some words", "other words"], "label": ["a", "b"]}
    assert choose_columns(Batch(Path("a.csv"), [0, 1], [2, 3], columns)) == Columns("comment", None, "label")
