"""What users get wrong: one line, exit code 2, and nothing is lost."""

import gzip
from pathlib import Path

import pytest

from headwise.training import Settings, train
from headwise.training.folder import last_checkpoint, staged, write_whole
from tests.training.conftest import Headwise, rows, write


def refused(headwise: Headwise, *args: object) -> str:
    code, _, err = headwise("train", *args)
    lines = [line for line in err.strip().splitlines() if line]
    assert code == 2, err
    assert lines[-1].startswith("headwise: ")
    assert "Traceback" not in err
    return lines[-1]


def test_options(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = ("--out", tmp_path / "run")
    for args, message in (
        (("--data", reviews), "--out FOLDER is missing"),
        (out, "what to learn?"),
        (("--task", "sst3", *out), "no task 'sst3'; there: ag-news"),
        (("--data", tmp_path / "none.csv", *out), "none.csv: no such file"),
        (("--data", reviews, "--text", "body", *out), "no column 'body'; there: text, label"),
        (("--data", reviews, "--epochs", -1, *out), "--epochs must be above 0"),
        (("--data", reviews, "--model", "no/such-model", *out), "the Hugging Face hub cannot be reached"),
        (("--data", reviews, "--retrofit", "rpr", *out), "--retrofit is for trained models"),
        (("--data", reviews, "--model", bert, "--guides", "mgd", *out), "no guide 'mgd'; there: mdg, pdg"),
        (("--data", reviews, "--model", bert, "--guides", "mdg=x", *out), "the weight must be a number"),
        (("--data", reviews, "--model", bert, "--max-length", 500, *out), "this model reads at most 64 tokens"),
        (("--data", reviews, "--model", bert, "--vectors", reviews, *out), "--vectors is for models of ours"),
        (("--data", reviews, "--vectors", tmp_path / "none.txt", *out), "none.txt"),
        (("--config", tmp_path / "none.yaml", *out), "none.yaml: No such file"),
        (("--resume", *out), "holds no run"),
    ):
        assert message in refused(headwise, *args), args
        assert not (tmp_path / "run").exists(), f"{args} left something behind"


def test_data(tmp_path: Path, headwise: Headwise) -> None:
    good = list(rows(40))
    whole = gzip.compress(b"text,label\n" + b"good film,positive\n" * 2000)
    for content, message in (
        ([*good[:5], ("", "positive"), *good], "line 7: column 'text': empty text"),
        ([(text, "positive") for text, _ in good], "every label is 'positive'; two classes at least"),
        (whole[: len(whole) // 2], "breaks off after line"),
        (b"text,label\ngood,positive\nb\xe9d,negative\n", "line 3: not UTF-8"),
        (b"text,label\ngood,positive\nbad,film,negative\n", "line 3: 3 fields where the first line has 2"),
        (b"", "empty"),
    ):
        data = tmp_path / ("data.csv.gz" if content == whole[: len(whole) // 2] else "data.csv")
        if isinstance(content, bytes):
            data.write_bytes(content)
        else:
            write(data, ("text", "label"), list(content))
        assert message in refused(headwise, "--data", data, "--out", tmp_path / "run")
    write(tmp_path / "train.csv", ("text", "label"), good)
    write(tmp_path / "test.csv", ("text", "label"), [("so so", "mixed")])
    files = ("--train", tmp_path / "train.csv", "--test", tmp_path / "test.csv")
    assert "label 'mixed' is in test, but nowhere in train" in refused(headwise, *files, "--out", tmp_path / "run")
    write(tmp_path / "rated.csv", ("text", "stars"), [*((text, "4") for text, _ in good), ("so so", "nan")])
    told = refused(headwise, "--data", tmp_path / "rated.csv", "--kind", "regression", "--out", tmp_path / "run")
    assert "line 42: column 'stars': expected a finite number, got 'nan'" in told


def test_a_run_is_never_overwritten_unasked(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    settings = Settings(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1)
    train(settings, out)
    before = (out / "metrics.json").read_bytes()
    assert "holds a finished run; --force replaces it" in refused(headwise, "--data", reviews, "--out", out)
    assert "the run in" in refused(headwise, "--resume", "--out", out)
    assert (out / "metrics.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    told = refused(headwise, "--data", reviews, "--out", tmp_path / "mine", "--force")
    assert "holds files that are no run of headwise" in told
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_settings_from_a_file(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    for text, message in (
        ("model: [", "not YAML"),
        ("- plain", "expected settings"),
        ("modle: plain", "'modle' is no setting"),
        ("epochs: many", "epochs cannot be 'many'"),
        ("kind: poems", "kind must be one of classification, multi-label"),
    ):
        (tmp_path / "run.yaml").write_text(text)
        assert message in refused(headwise, "--config", tmp_path / "run.yaml", "--out", tmp_path / "run")


def test_a_killed_run_goes_on_from_its_last_whole_checkpoint(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=4, batch_size=16, patience=9)
    whole = train(settings, tmp_path / "whole").metrics

    class Killed(BaseException):
        pass

    def die(*args: object, **kwargs: object) -> None:
        raise Killed

    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("headwise.training.run.scores_of", counted(die, after=2))
        with pytest.raises(Killed):
            train(settings, out)
    assert not (out / "metrics.json").exists()
    torn = out / "checkpoints" / "checkpoint-999"
    torn.mkdir()
    (torn / "trainer_state.json").write_text('{"global_st')
    chosen = last_checkpoint(out)
    assert chosen is not None
    assert "999" not in chosen
    again = train(settings, out, resume=True).metrics
    assert again["figures"] == whole["figures"]
    losses = [[log["loss"] for log in run["history"] if "loss" in log] for run in (whole, again)]
    assert losses[0] == losses[1]


def counted(last: object, after: int) -> object:
    from headwise.training.predictions import scores_of

    calls = 0

    def call(*args: object) -> object:
        nonlocal calls
        calls += 1
        return scores_of(*args) if calls <= after else last()  # type: ignore[arg-type, operator]

    return call


def test_files_are_whole_or_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a.txt", "old")

    def full(path: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headwise.training.folder.flush", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a.txt", "new")
    with pytest.raises(OSError, match="No space left"), staged(tmp_path) as stage:
        (stage / "metrics.json").write_text("{}")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert not (tmp_path / "metrics.json").exists()
