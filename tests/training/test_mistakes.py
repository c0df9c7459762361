"""What users get wrong: one line, exit code 2, and nothing is lost."""

import gzip
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer, RobertaConfig, RobertaModel

from headwise.errors import UserError
from headwise.training import TextConfig, evaluate, train
from headwise.training.core.run_dir import atomic_write, last_checkpoint, staging_dir
from headwise.training.registry import load_config
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
        (("--data", reviews, "--model", bert, "--heads", 4, *out), "--heads is for models of ours"),
        (("--data", reviews, "--model", bert, "--guides", "mdg", "mdg", *out), "two guides are called"),
        (("--data", reviews, "--guides", "mdg", *out), "--guides are for Hugging Face models"),
        (("--data", reviews, "--model", bert, "--guides", "mdg@9", *out), "the model has 2 layers, 0 to 1"),
        (("--data", reviews, "--model", bert, "--guides", "mdg@x", *out), "no guide 'mdg@x'"),
        (("--data", reviews, "--scheme-options", "mapping", *out), "expected NAME=VALUE"),
        (("--data", reviews, "--scheme-options", "mapping=cosine", *out), "mapping must be one of"),
        (("--data", reviews, "--scheme-options", "k=3", *out), "got 'k'"),
        (("--data", reviews, "--rows", 1.5, *out), "--rows must be a whole number"),
        (("--data", reviews, "--rows", 0.001, *out), "--rows: that share of 128 training rows is 0; two at least"),
        (("--data", reviews, "--epochs", "inf", *out), "--epochs must be above 0"),
        (("--data", reviews, "--hierarchy", 5, 0, *out), "--hierarchy must be at least 1"),
        (("--data", reviews, "--scheme-learning-rate", 1, *out), "there is no --retrofit"),
        (("--task", "sst2", "--text", "body", "--data", reviews, *out), "--text is for your own data"),
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
    told = refused(headwise, "--data", tmp_path / "rated.csv", "--label_type", "regression", "--out", tmp_path / "run")
    assert "line 42: column 'stars': expected a finite number, got 'nan'" in told


def test_a_run_is_never_overwritten_unasked(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    settings = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1)
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


def test_settings_from_a_file(tmp_path: Path, headwise: Headwise) -> None:
    for text, message in (
        ("model: [", "not YAML"),
        ("- plain", "expected settings"),
        ("modle: plain", "'modle' is no setting"),
        ("epochs: many", "epochs cannot be 'many'"),
        ("seed: true", "seed cannot be True"),
        ("data: reviews.csv", "data cannot be 'reviews.csv'"),
        ("data: [1]", "data cannot be 1"),
        ("hierarchy: [3]", "hierarchy cannot be [3]"),
        ("label_type: poems", "label_type must be one of classification, multi-label"),
    ):
        (tmp_path / "run.yaml").write_text(text)
        assert message in refused(headwise, "--config", tmp_path / "run.yaml", "--out", tmp_path / "run")


def test_options_beside_a_file_win(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    settings = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1, seed=3, dropout=0.0)
    (tmp_path / "run.yaml").write_text(settings.to_yaml())
    options = ("--config", tmp_path / "run.yaml", "--out", tmp_path / "run")
    assert headwise("train", *options, "--seed", 0, "--dropout", 0.2)[0] == 0  # both are the defaults
    assert load_config(tmp_path / "run" / "run.yaml") == replace(settings, seed=0, dropout=0.2)


def test_settings_hold_from_any_folder(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reviews.parent)
    settings = TextConfig(data=("reviews.csv",), heads=2, head_dim=8, word_dim=16, epochs=1)
    done = train(settings, Path("run"))
    folder = done.run_dir.absolute()
    monkeypatch.chdir(tmp_path)
    assert evaluate(folder)["metrics"] == pytest.approx(done.metrics["metrics"]["test"])


def test_force_loses_nothing_to_a_mistake(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    train(TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "no such file" in refused(headwise, "--data", tmp_path / "none.csv", "--out", out, "--force")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert headwise("train", "--config", out / "run.yaml", "--seed", 1, "--out", out, "--force")[0] == 0
    assert "seed: 1" in (out / "run.yaml").read_text()


def test_a_run_goes_on_as_it_began(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    settings = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1)
    (tmp_path / "run.yaml").write_text(settings.to_yaml())
    options = ("--resume", "--out", tmp_path)
    assert "goes on as the run began, with seed 0; it cannot be 1 now" in refused(headwise, *options, "--seed", 1)
    assert headwise("train", *options, "--data", reviews, "--heads", 2, "--epochs", 1)[0] == 0


def test_a_full_disk(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out, small = tmp_path / "run", ("--heads", 8, "--head-dim", 16, "--epochs", 2)
    assert headwise("train", "--data", reviews, "--out", tmp_path / "first", *small)[0] == 0  # and what it caches
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))  # tokens fit, a checkpoint does not
    try:
        told = refused(headwise, "--data", reviews, "--out", out, *small)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "no room to write" in told
    assert told.endswith(f"make room, then headwise train --resume --out {out} goes on")
    assert not (out / ".tokens").exists()
    assert headwise("train", "--resume", "--out", out)[0] == 0


def test_without_a_network_the_hub_is_not_asked_again_and_again(
    reviews: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    kept = AutoConfig.from_pretrained

    def ask(name: str, **options: Any) -> Any:
        asked.append(options.get("local_files_only"))
        return kept(name, **options)

    monkeypatch.setattr("headwise.training.text.model.AutoConfig.from_pretrained", ask)
    refused(headwise, "--data", reviews, "--model", "no/such-model", "--out", tmp_path / "run")
    assert asked == [True], "what was had before is looked for, no more"


def test_models_with_tokenizers_of_their_own(bert: Path, reviews: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.pad_token, tokenizer.eos_token, tokenizer.model_max_length = None, "[SEP]", int(1e30)
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": 1, "max_position_embeddings": 12}
    config = RobertaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, **sizes, type_vocab_size=1
    )
    RobertaModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    settings = TextConfig(data=(str(reviews),), model=str(tmp_path / "model"), epochs=1)
    found = train(settings, tmp_path / "run").metrics
    assert found["inputs"]["max_length"] == 10, "RoBERTa keeps two positions for padding"
    assert any("longer than 10 tokens" in note for note in found["notes"])
    with pytest.raises(UserError, match="this model reads at most 10 tokens"):
        train(replace(settings, max_length=12), tmp_path / "other")


def test_a_killed_run_goes_on_from_its_last_whole_checkpoint(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=4, batch_size=16, patience=9)
    whole = train(settings, tmp_path / "whole").metrics

    class Killed(BaseException):
        pass

    def die(*args: object, **kwargs: object) -> None:
        raise Killed

    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("headwise.training.text.train.scores_of", counted(die, after=2))
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
    from headwise.training.text.predictions import scores_of

    calls = 0

    def call(*args: object) -> object:
        nonlocal calls
        calls += 1
        return scores_of(*args) if calls <= after else last()  # type: ignore[arg-type, operator]

    return call


def test_files_are_whole_or_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic_write(tmp_path / "a.txt", "old")

    def full(path: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headwise.training.core.run_dir.flush", full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "a.txt", "new")
    with pytest.raises(OSError, match="No space left"), staging_dir(tmp_path) as stage:
        (stage / "metrics.json").write_text("{}")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert not (tmp_path / "metrics.json").exists()
