"""User errors: one line, exit code 2, and nothing is lost. Also resuming and atomic writes."""

import gzip
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer, RobertaConfig, RobertaModel, T5Config, T5EncoderModel
from transformers.models.led.configuration_led import LEDConfig

from headwise.errors import UserError
from headwise.training import TextConfig, TextModel, evaluate, predict, train
from headwise.training.core.run_dir import atomic_write, last_checkpoint, staging_dir
from headwise.training.registry import load_config
from tests.training.conftest import Headwise, rows, write


def error_line(headwise: Headwise, *args: object) -> str:
    """Return the error message of `headwise train`."""
    code, _, err = headwise("train", *args)
    lines = [line for line in err.strip().splitlines() if line]
    assert code == 2, err
    assert lines[-1].startswith("headwise: ")
    assert "Traceback" not in err
    return lines[-1]


def test_paths_in_python_may_be_strings(tmp_path: Path) -> None:
    data, new = write(tmp_path / "a.csv", ("text", "label"), rows(40)), str(tmp_path / "out.csv")
    sizes: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16, "epochs": 1}
    config: Any = TextConfig
    for value in (str(data), data, [data]):
        assert config(data=value, **sizes) == TextConfig(data=(str(data),), **sizes)
    assert config(train=data, test=data, vectors="glove.txt", model=tmp_path).vectors == Path("glove.txt")
    run = train(config(data=str(data), **sizes), str(tmp_path / "run"))
    assert run.run_dir == tmp_path / "run"
    assert evaluate(str(run.run_dir), str(data))["rows"] == 40
    assert predict(str(run.run_dir), str(data), new) == 0
    assert len(TextModel.load(str(run.run_dir)).scores({"text": ["a good film"]})) == 1


def test_unknown_values_in_python_are_refused() -> None:
    config: Any = TextConfig
    with pytest.raises(UserError, match=r"--label-type must be one of classification, .*; got 'multilabel'"):
        config(data=("a.csv",), label_type="multilabel")


def test_missing_model_directories(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    model = tmp_path / "none"
    expected = f"headwise: error: {model}: no such directory; expected a Hugging Face model\n"
    for args in (("adapt", model, "--data", reviews, "--out", tmp_path / "adapted"), ("fuse", model)):
        assert headwise(*args) == (2, "", expected)


def test_pretrained_models_without_some_of_their_layers(
    reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    config = AutoConfig.from_pretrained(bert)
    config.num_hidden_layers += 1
    config.save_pretrained(tmp_path / "layers")
    shutil.copy(bert / "model.safetensors", tmp_path / "layers")
    tokenizer = AutoTokenizer.from_pretrained(bert)
    for name in ("layers", "t5"):
        tokenizer.save_pretrained(tmp_path / name)
    small = T5Config(vocab_size=len(tokenizer), pad_token_id=0, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    T5EncoderModel(small).save_pretrained(tmp_path / "t5")
    for name, layer in ("layers", "encoder.layer."), ("t5", "decoder.block."):
        line = error_line(headwise, "--data", reviews, "--model", tmp_path / name, "--out", tmp_path / "run")
        assert f"{tmp_path / name}: " in line
        assert f"are missing, such as {'bert' if name == 'layers' else 'transformer'}.{layer}" in line
        assert not (tmp_path / "run").exists()


def test_models_without_a_class_for_the_task(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    LEDConfig().save_pretrained(tmp_path / "led")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "led")
    shutil.copy(bert / "model.safetensors", tmp_path / "led")
    line = error_line(headwise, "--data", reviews, "--model", tmp_path / "led", "--out", tmp_path / "run")
    assert "transformers has no AutoModelForSequenceClassification for a model with LEDConfig; choose another" in line
    assert not (tmp_path / "run").exists()


def test_options(reviews: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = ("--out", tmp_path / "run")
    for args, message in (
        (("--data", reviews), "--out"),
        (out, "--data or --task is required"),
        (("--task", "sst3", *out), "sst3"),
        (("--data", tmp_path / "none.csv", *out), "none.csv: no such file"),
        (("--data", reviews, "--text", "body", *out), "no column 'body'"),
        (("--data", reviews, "--epochs", -1, *out), "--epochs must be above 0"),
        (("--data", reviews, "--model", "no/such-model", *out), "the Hugging Face hub cannot be reached"),
        (("--data", reviews, "--model", "plian", *out), "did you mean plain?"),
        (("--data", reviews, "--model", tmp_path / "none", *out), "none: no such directory; expected a Hugging Face"),
        (("--data", reviews, "--retrofit", "rpr", *out), "--retrofit is for pretrained models"),
        (
            ("--data", reviews, "--model", bert, "--guides", "mgd", *out),
            "unknown guide 'mgd'; expected one of mdg,",
        ),
        (("--data", reviews, "--model", bert, "--guides", "mdg=x", *out), "the weight must be a number"),
        (("--data", reviews, "--model", bert, "--max-length", 500, *out), "this model accepts at most 64 tokens"),
        (
            ("--data", reviews, "--model", bert, "--vectors", reviews, *out),
            "--vectors is for models trained",
        ),
        (("--data", reviews, "--vectors", tmp_path / "none.txt", *out), "none.txt"),
        (("--config", tmp_path / "none.yaml", *out), "none.yaml: No such file or directory"),
        (("--data", reviews, "--model", bert, "--heads", 4, *out), "--heads is for models trained from scratch"),
        (("--data", reviews, "--model", bert, "--guides", "mdg", "mdg", *out), "two guides have the name"),
        (("--data", reviews, "--guides", "mdg", *out), "--guides requires a Hugging Face model"),
        (("--data", reviews, "--model", bert, "--guides", "mdg@9", *out), "the model has 2 layers, 0 to 1"),
        (("--data", reviews, "--model", bert, "--guides", "mdg@x", *out), "unknown guide 'mdg@x'"),
        (("--data", reviews, "--scheme-options", "mapping", *out), "expected NAME=VALUE"),
        (("--data", reviews, "--scheme-options", "mapping=cosine", *out), "mapping must be one of"),
        (("--data", reviews, "--scheme-options", "k=3", *out), "got 'k'"),
        (("--data", reviews, "--rows", 1.5, *out), "--rows must be a whole number"),
        (("--data", reviews, "--rows", 0.001, *out), "--rows: this fraction of 128 training rows is 0; at least 2"),
        (("--data", reviews, "--epochs", "inf", *out), "--epochs must be above 0"),
        (("--data", reviews, "--hierarchy", 5, 0, *out), "--hierarchy must be at least 1"),
        (
            ("--data", reviews, "--model", "plain", "--scheme-learning-rate", 1, *out),
            "requires a scheme with trainable",
        ),
        (("--task", "sst2", "--text", "body", "--data", reviews, *out), "--text is for your own data"),
        (("--resume", *out), "run.yaml is missing"),
    ):
        assert message in error_line(headwise, *args), args
        assert not (tmp_path / "run").exists(), f"{args} left files"


def test_data(tmp_path: Path, headwise: Headwise) -> None:
    good = list(rows(40))
    compressed = gzip.compress(b"text,label\n" + b"good film,positive\n" * 2000)
    for content, message in (
        ([*good[:5], ("", "positive"), *good], "line 7: column 'text': empty text"),
        ([(text, "positive") for text, _ in good], "every label is 'positive'; at least two classes"),
        (compressed[: len(compressed) // 2], "ends after line"),
        (b"text,label\ngood,positive\nb\xe9d,negative\n", "line 3: not UTF-8"),
        (b"text,label\ngood,positive\nbad,film,negative\n", "line 3: expected 2 fields as in the header, got 3"),
        (b"", "empty"),
    ):
        data = tmp_path / ("data.csv.gz" if content == compressed[: len(compressed) // 2] else "data.csv")
        if isinstance(content, bytes):
            data.write_bytes(content)
        else:
            write(data, ("text", "label"), list(content))
        assert message in error_line(headwise, "--data", data, "--out", tmp_path / "run")
    write(tmp_path / "train.csv", ("text", "label"), good)
    write(tmp_path / "test.csv", ("text", "label"), [("so so", "mixed")])
    files = ("--train", tmp_path / "train.csv", "--test", tmp_path / "test.csv")
    assert "label 'mixed' is in test, but nowhere in train" in error_line(headwise, *files, "--out", tmp_path / "run")
    write(tmp_path / "rated.csv", ("text", "stars"), [*((text, "4") for text, _ in good), ("so so", "nan")])
    message = error_line(
        headwise, "--data", tmp_path / "rated.csv", "--label-type", "regression", "--out", tmp_path / "run"
    )
    assert "line 42: column 'stars': expected a finite number, got 'nan'" in message


def test_a_run_is_replaced_only_with_force(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    config = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1)
    train(config, out)
    before = (out / "metrics.json").read_bytes()
    assert "contains a finished run; --force replaces it" in error_line(headwise, "--data", reviews, "--out", out)
    assert "is already finished" in error_line(headwise, "--resume", "--out", out)
    assert (out / "metrics.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    message = error_line(headwise, "--data", reviews, "--out", tmp_path / "mine", "--force")
    assert "contains files that are not a headwise run" in message
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_invalid_config_files(tmp_path: Path, headwise: Headwise) -> None:
    for text, message in (
        ("model: [", "not valid YAML"),
        ("- plain", "expected one option per line"),
        ("modle: plain", "unknown option 'modle'"),
        ("epochs: many", "epochs cannot be 'many'"),
        ("seed: true", "seed cannot be True"),
        ("data: reviews.csv", "data cannot be 'reviews.csv'"),
        ("data: [1]", "data cannot be 1"),
        ("hierarchy: [3]", "hierarchy cannot be [3]"),
        ("label_type: poems", "label_type must be one of classification, multi-label"),
    ):
        (tmp_path / "run.yaml").write_text(text)
        assert message in error_line(headwise, "--config", tmp_path / "run.yaml", "--out", tmp_path / "run")


def test_options_override_the_config_file(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.01, "batch_size": 16, "epochs": 1, "warmup_steps": 0.1}
    sizes: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16, "early_stopping_patience": 3}
    config = TextConfig(data=(str(reviews),), seed=3, dropout=0.0, **settings, **sizes)
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    options = ("--config", tmp_path / "run.yaml", "--out", tmp_path / "run")
    assert headwise("train", *options, "--seed", 0, "--dropout", 0.2)[0] == 0  # the default values
    assert load_config(tmp_path / "run" / "run.yaml") == replace(config, seed=0, dropout=0.2)


def test_run_yaml_has_absolute_paths(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reviews.parent)
    config = TextConfig(data=("reviews.csv",), heads=2, head_dim=8, word_dim=16, epochs=1)
    result = train(config, Path("run"))
    run_dir = result.run_dir.absolute()
    monkeypatch.chdir(tmp_path)
    assert evaluate(run_dir)["metrics"] == pytest.approx(result.metrics["metrics"]["test"])


def test_force_keeps_the_old_run_if_the_new_one_is_invalid(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    train(TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "no such file" in error_line(headwise, "--data", tmp_path / "none.csv", "--out", out, "--force")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert headwise("train", "--config", out / "run.yaml", "--seed", 1, "--out", out, "--force")[0] == 0
    assert "seed: 1" in (out / "run.yaml").read_text()


def test_resume_refuses_another_configuration(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    config = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1)
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    options = ("--resume", "--out", tmp_path)
    assert "seed" in error_line(headwise, *options, "--seed", 1)
    assert headwise("train", *options, "--data", reviews, "--heads", 2, "--epochs", 1)[0] == 0


def test_a_full_disk(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out, small = tmp_path / "run", ("--heads", 8, "--head-dim", 16, "--epochs", 2)
    assert headwise("train", "--data", reviews, "--out", tmp_path / "first", *small)[0] == 0  # also fills the cache
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, limits[1]))  # the tokens fit, a checkpoint does not
    try:
        message = error_line(headwise, "--data", reviews, "--out", out, *small)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "no space left on the disk" in message
    assert message.endswith(f"then resume: headwise train --resume --out {out}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "run"], "temporary files are left"
    assert headwise("train", "--resume", "--out", out)[0] == 0


def test_without_network_only_local_files_are_tried(
    reviews: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_only: list[Any] = []
    original = AutoConfig.from_pretrained

    def from_pretrained(name: str, **options: Any) -> Any:
        local_only.append(options.get("local_files_only"))
        return original(name, **options)

    monkeypatch.setattr("headwise.training.text.model.AutoConfig.from_pretrained", from_pretrained)
    error_line(headwise, "--data", reviews, "--model", "no/such-model", "--out", tmp_path / "run")
    assert local_only == [True]


def test_unusual_tokenizers(bert: Path, reviews: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.pad_token, tokenizer.eos_token, tokenizer.model_max_length = None, "[SEP]", int(1e30)
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": 1, "max_position_embeddings": 12}
    model_config = RobertaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, **sizes, type_vocab_size=1
    )
    RobertaModel(model_config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = TextConfig(data=(str(reviews),), model=str(tmp_path / "model"), epochs=1)
    metrics = train(config, tmp_path / "run").metrics
    assert metrics["inputs"]["max_length"] == 10, "RoBERTa reserves two positions for padding"
    assert any("truncated to 10 tokens" in note for note in metrics["notes"])
    with pytest.raises(UserError, match="this model accepts at most 10 tokens"):
        train(replace(config, max_length=12), tmp_path / "other")


def test_resume_from_the_last_complete_checkpoint(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TextConfig(
        data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=4, batch_size=16, early_stopping_patience=9
    )
    uninterrupted = train(config, tmp_path / "uninterrupted").metrics

    class Killed(BaseException):
        pass

    def die(*args: object, **kwargs: object) -> None:
        raise Killed

    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("headwise.training.text.pipeline.get_scores", fail_after(2, die))
        with pytest.raises(Killed):
            train(config, out)
    assert not (out / "metrics.json").exists()
    incomplete = out / "checkpoints" / "checkpoint-999"
    incomplete.mkdir()
    (incomplete / "trainer_state.json").write_text('{"global_st')
    checkpoint = last_checkpoint(out)
    assert checkpoint is not None
    assert "999" not in checkpoint
    resumed = train(config, out, resume=True).metrics
    assert resumed["metrics"] == uninterrupted["metrics"]
    losses = [[log["loss"] for log in run["history"] if "loss" in log] for run in (uninterrupted, resumed)]
    assert losses[0] == losses[1]


def fail_after(num_calls: int, fail: object) -> object:
    """Return `get_scores`, which fails after some calls."""
    from headwise.training.text.predictions import get_scores

    calls = 0

    def call(*args: object) -> object:
        nonlocal calls
        calls += 1
        return get_scores(*args) if calls <= num_calls else fail()  # type: ignore[arg-type, operator]

    return call


def test_failed_writes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic_write(tmp_path / "a.txt", "old")

    def raise_disk_full(path: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headwise.training.core.run_dir.flush", raise_disk_full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(tmp_path / "a.txt", "new")
    with pytest.raises(OSError, match="No space left"), staging_dir(tmp_path) as stage:
        (stage / "metrics.json").write_text("{}")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert not (tmp_path / "metrics.json").exists()
