"""`--long-text extend`: fine-tuning on inputs that are longer than those of the pretrained model."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2Model,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    RobertaModel,
)

from headwise.errors import UserError
from headwise.studies.method_checks import check_config
from headwise.training.core.extension import check_length
from headwise.training.text.config import TextConfig
from headwise.training.text.inference import TextModel
from tests.integrations.tiny_models import build_model
from tests.training.conftest import BAD, GOOD, OTHERS, Headwise, write

LENGTH = 100
EXTEND = ("--max-length", LENGTH, "--long-text", "extend")
FAST = ("--epochs", 1, "--learning-rate", 0.001, "--batch-size", 16)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of 90 words, more than the 64 tokens of the model."""
    generator, lines = random.Random(1), []
    for i in range(60):
        words = generator.choices(OTHERS, k=90)
        words[-generator.randint(1, 10)] = generator.choice(GOOD if i % 2 else BAD)
        lines.append((" ".join(words), "positive" if i % 2 else "negative"))
    return write(tmp_path_factory.mktemp("documents") / "documents.csv", ("text", "label"), lines)


def train(headwise: Headwise, data: Path, model: object, out: Path, *options: object) -> tuple[int, str]:
    code, _, stderr = headwise("train", "--data", data, "--model", model, "--out", out, *FAST, *options)
    return code, stderr


def test_an_extended_run_reads_long_texts_everywhere(
    documents: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    run = tmp_path / "run"
    code, stderr = train(headwise, documents, bert, run, "--max-length", LENGTH, "--long-text", "extend")
    assert code == 0, stderr
    assert "  positions: 64 -> 100, tiled\n" in stderr
    assert "truncated" not in stderr
    metrics = json.loads((run / "metrics.json").read_text())
    assert "positions: 64 -> 100, tiled" in metrics["notes"]

    assert AutoModelForSequenceClassification.from_pretrained(run).config.max_position_embeddings == LENGTH
    assert AutoTokenizer.from_pretrained(run).model_max_length == LENGTH
    start = " ".join(OTHERS[i % len(OTHERS)] for i in range(89))
    good, bad = TextModel.load(run, "cpu").scores({"text": [f"{start} great", f"{start} awful"]})
    assert abs(good - bad).max() > 0, "the model does not read the last word"

    accuracy = metrics["metrics"]["test"]["accuracy"]
    code, stdout, _ = headwise("evaluate", run)
    assert code == 0
    assert f"accuracy {accuracy:.4f}" in stdout
    assert headwise("predict", run, documents, "--out", tmp_path / "labelled.csv")[0] == 0
    code, _, stderr = headwise("inspect", run, "--text", f"{start} great", "--out", tmp_path / "page.html")
    assert code == 0, stderr
    assert "great" in (tmp_path / "page.html").read_text(encoding="utf-8")

    namespace: dict[str, Any] = {}
    exec((run / "README.md").read_text().split("```python")[1].split("```")[0].replace("PATH", str(run)), namespace)
    texts = [f"{start} great", f"{start} great {start}"]
    expected = TextModel.load(run, "cpu").scores({"text": texts})
    for answer, scores in zip(namespace["pipe"](texts), expected, strict=True):  # longer texts are truncated
        assert answer["score"] == pytest.approx(np.exp(scores).max() / np.exp(scores).sum(), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        pytest.param(
            ("--extend-positions", "interpolate"), "positions: 64 -> 100, interpolated", marks=pytest.mark.long
        ),
        (("--extend-positions", "repeat-last", "--retrofit", "rpr"), "positions: 64 -> 100, last row repeated"),
        pytest.param(("--pack",), "positions: 64 -> 100, tiled", marks=pytest.mark.long),
        (
            ("--attention-window", "16", "--retrofit", "distance-aware"),
            "attention window: 16 tokens before and after, 1 global",
        ),
    ],
)
def test_other_ways_and_options(
    documents: Path, bert: Path, tmp_path: Path, headwise: Headwise, options: tuple[str, ...], note: str
) -> None:
    run = tmp_path / "run"
    code, stderr = train(headwise, documents, bert, run, "--max-length", LENGTH, "--long-text", "extend", *options)
    assert code == 0, stderr
    assert note in stderr
    accuracy = json.loads((run / "metrics.json").read_text())["metrics"]["test"]["accuracy"]
    code, stdout, stderr = headwise("evaluate", run)
    assert code == 0, stderr
    assert f"accuracy {accuracy:.4f}" in stdout
    window = getattr(AutoModelForSequenceClassification.from_pretrained(run).config, "headwise_window", None)
    assert (window is not None) == ("--attention-window" in options)


def test_the_length_must_be_asked_for(documents: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    code, stderr = train(headwise, documents, bert, tmp_path / "run", "--max-length", LENGTH)
    assert code == 2
    assert stderr.splitlines()[-1] == (
        "headwise: error: --max-length 100: this model accepts at most 64 tokens; add --long-text extend to give it "
        "more positions"
    )
    assert not (tmp_path / "run").exists()


def test_models_that_cannot_be_extended_are_not_told_to_be(
    documents: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert)
    sizes: dict[str, Any] = {"n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 64}
    config = GPT2Config(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **sizes)
    GPT2Model(config).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    code, stderr = train(headwise, documents, tmp_path / "gpt2", tmp_path / "run", "--max-length", LENGTH)
    assert code == 2
    assert stderr.splitlines()[-1] == (
        "headwise: error: --max-length 100: this model accepts at most 64 tokens, and its positions cannot be extended"
    )


@pytest.mark.parametrize(("family", "positions"), [("bert", "tile"), ("modernbert", "interpolate")])
def test_messages_name_a_way_that_suits_the_model(family: str, positions: str, bert: Path) -> None:
    model, tokenizer = build_model(family), AutoTokenizer.from_pretrained(bert)
    with pytest.raises(UserError, match=f"; add --extend-positions {positions} to give it more positions"):
        check_length(LENGTH, model, tokenizer, option="--extend-positions {positions}")


SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def write_deberta(path: Path, tokenizer: Any) -> None:
    config = DebertaV2Config(
        vocab_size=len(tokenizer), max_position_embeddings=64, relative_attention=True, position_biased_input=False,
        pos_att_type=["p2c", "c2p"], type_vocab_size=0, **SIZES | {"position_buckets": 16},
    )  # fmt: skip
    DebertaV2Model(config).save_pretrained(path)
    tokenizer.save_pretrained(path)


def write_roberta(path: Path, tokenizer: Any) -> None:
    """Write a RoBERTa model whose table has 64 rows for tokens and two for padding."""
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=66, pad_token_id=1, **SIZES)
    RobertaModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)


def test_relative_positions_have_no_limit(documents: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    """DeBERTa reads any length; only its tokenizer may have a limit, which `--long-text extend` raises."""
    write_deberta(tmp_path / "deberta", AutoTokenizer.from_pretrained(bert))
    run = tmp_path / "run"
    options = ("--max-length", LENGTH, "--long-text", "extend")
    code, stderr = train(headwise, documents, tmp_path / "deberta", run, *options)
    assert code == 0, stderr
    assert "  positions: relative, without a limit; the tokenizer accepted 64\n" in stderr
    assert AutoTokenizer.from_pretrained(run).model_max_length == LENGTH
    start = " ".join(OTHERS[i % len(OTHERS)] for i in range(89))
    good, bad = TextModel.load(run, "cpu").scores({"text": [f"{start} great", f"{start} awful"]})
    assert abs(good - bad).max() > 0, "the model does not read the last word"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--global-tokens", 3), "--global-tokens requires --attention-window"),
        (("--long-text", "extend"), "--long-text extend requires --max-length"),
        (("--attention-window", 16, "--pack"), "--pack cannot be combined with --attention-window"),
        (("--pack", "--model", "transformer-xl", "--segment-length", 8), "--pack cannot be combined with --segment-le"),
        (("--extend-positions", "tile", "--max-length", 100), "--extend-positions requires --long-text extend"),
        (
            ("--long-text", "extend", "--max-length", 100, "--extend-positions", "yarn"),
            "--long-text extend: BertForSequenceClassification has a table of position embeddings; positions must be",
        ),
    ],
)
def test_options_that_do_not_fit(
    documents: Path, bert: Path, tmp_path: Path, headwise: Headwise, options: tuple[object, ...], message: str
) -> None:
    code, stderr = train(headwise, documents, bert, tmp_path / "run", *options)
    assert code == 2
    assert message in stderr.splitlines()[-1]


def test_models_trained_from_scratch_have_no_limit(documents: Path, tmp_path: Path, headwise: Headwise) -> None:
    code, stderr = train(headwise, documents, "plain", tmp_path / "run", "--long-text", "extend", "--max-length", 100)
    assert code == 2
    assert "--long-text extend is for pretrained models" in stderr


@pytest.mark.long
def test_strategies_are_compared(documents: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    methods = (
        f"truncate=--model {bert} --max-length 64",
        f"head-tail=--model {bert} --max-length 64 --long-text head-tail",
        f"extend=--model {bert} --max-length {LENGTH} --long-text extend",
    )
    study = tmp_path / "study"
    options = ("--data", documents, "--seeds", 2, "--baseline", "truncate", "--out", study, *FAST)
    code, stdout, stderr = headwise("compare", *options, "--methods", *methods)
    assert code == 0, stderr
    assert "extend" in stdout
    notes = json.loads(next(study.glob("runs/*/extend/seed-0/metrics.json")).read_text())["notes"]
    assert "positions: 64 -> 100, tiled" in notes


def read_losses(run: Path) -> list[float]:
    history = json.loads((run / "metrics.json").read_text())["history"]
    return [log["loss"] for log in history if "loss" in log]


def test_batches_by_tokens(reviews: Path, documents: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    """Of the long and short rows, only the batches of the long ones get smaller."""
    rows = [tuple(line.rsplit(",", 1)) for path in (reviews, documents) for line in path.read_text().splitlines()[1:]]
    data = write(tmp_path / "mixed.csv", ("text", "label"), rows)
    extend = ("--max-length", LENGTH, "--long-text", "extend")
    code, stderr = train(headwise, data, bert, tmp_path / "run", *extend, "--batch-tokens", 400)
    assert code == 0, stderr
    steps = json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"]
    num_long, num_short = 48, 128
    assert steps > (num_long + num_short) / 16
    assert steps <= num_long / 4 + num_short / 16 + 3

    trained, shapes = TextModel.load(tmp_path / "run", "cpu"), []
    trained.model.register_forward_pre_hook(
        lambda model, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    texts = [text for text, _ in rows][::5]
    scores = trained.scores({"text": texts})
    assert max(rows * length for rows, length in shapes) <= 400
    alone = [trained.scores({"text": [text]})[0] for text in texts[-3:]]
    np.testing.assert_allclose(scores[-3:], alone, atol=1e-5)

    code, stderr = train(headwise, data, bert, tmp_path / "small", *extend, "--batch-tokens", 80)
    assert code == 2
    assert "--batch-tokens 80 is too small for 1 text(s) of" in stderr.splitlines()[-1]
    assert not (tmp_path / "small").exists()
    code, stderr = train(headwise, data, bert, tmp_path / "run", *extend, "--batch-tokens", 80, "--force")
    assert (code, "is too small" in stderr) == (2, True)
    assert (tmp_path / "run" / "metrics.json").exists(), "the finished run is not deleted"


@pytest.mark.long  # tests/integrations checks gradient checkpointing in the short form
def test_gradient_checkpointing_gives_the_same_losses(
    documents: Path, bert: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    enable = BertForSequenceClassification.gradient_checkpointing_enable

    def record(model: Any, *args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))
        enable(model, *args, **kwargs)

    monkeypatch.setattr(BertForSequenceClassification, "gradient_checkpointing_enable", record)
    options = ("--max-length", LENGTH, "--long-text", "extend", "--pack")
    for name, more in (("usual", ()), ("checkpointed", ("--gradient-checkpointing",))):
        code, stderr = train(headwise, documents, bert, tmp_path / name, *options, *more)
        assert code == 0, stderr
        assert bool(calls) == (name == "checkpointed")
    assert read_losses(tmp_path / "usual") == pytest.approx(read_losses(tmp_path / "checkpointed"), abs=1e-5)


@pytest.mark.parametrize("command", ["train", "adapt"])
def test_models_without_gradient_checkpointing_are_refused(
    command: str, documents: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    tokenizer, albert = AutoTokenizer.from_pretrained(bert), tmp_path / "albert"
    tokenizer.mask_token = tokenizer.unk_token
    config = AutoConfig.for_model("albert", vocab_size=len(tokenizer), embedding_size=8, **SIZES)
    AutoModel.from_config(config).save_pretrained(albert)
    tokenizer.save_pretrained(albert)
    model = ("--model", albert) if command == "train" else (albert,)
    options = ("--data", documents, "--gradient-checkpointing", "--out", tmp_path / "out")
    code, _, stderr = headwise(command, *model, *options)
    assert code == 2, stderr
    assert stderr.splitlines()[-1].startswith("headwise: error: --gradient-checkpointing: AlbertFor")
    assert stderr.endswith(" does not support it; leave it out\n")


@pytest.mark.long
def test_ways_of_extension_are_swept(documents: Path, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    options = ("--data", documents, "--model", bert, "--long-text", "extend", "--max-length", LENGTH, *FAST)
    over = ("--over", "extend_positions", "tile", "interpolate", "--over", "max_length", 80, 100)
    code, stdout, stderr = headwise("sweep", *options, *over, "--out", tmp_path / "sweep")
    assert code == 0, stderr
    assert "interpolate" in stdout
    lines = (tmp_path / "sweep" / "sweep.csv").read_text().splitlines()
    assert len(lines) >= 5


@pytest.mark.parametrize("mode", ["truncate", "extend"])
def test_a_sweep_over_long_text_says_at_once_that_a_candidate_reads_too_much(
    mode: str, bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    options = ("--data", reviews, "--model", bert, "--max-length", 100, "--long-text", mode, "--epochs", 1)
    over = ("--over", "long_text", "extend", "truncate")
    code, stdout, stderr = headwise("sweep", *options, *over, "--out", tmp_path / "sweep")
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    candidate = "long_text=truncate: " if mode == "extend" else ""
    assert f"{candidate}--max-length 100: {bert} accepts at most 64 tokens with --long-text truncate" in stderr
    assert 'headwise compare --methods truncate="--max-length 64 --long-text truncate" extend=' in stderr
    assert not (tmp_path / "sweep").exists()


def test_studies_accept_lengths_that_runs_accept(bert: Path, tmp_path: Path) -> None:
    """DeBERTa's configuration has 64 positions, but they do not limit its inputs."""
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.model_max_length = 10**30
    write_deberta(tmp_path / "deberta", tokenizer)
    config = TextConfig(data=("reviews.csv",), model=str(tmp_path / "deberta"), max_length=LENGTH)
    check_config(config)
    check_config(replace(config, long_text="extend"))


@pytest.mark.parametrize("length", [65, 66, 100])
def test_studies_refuse_lengths_that_runs_refuse(length: int, bert: Path, tmp_path: Path) -> None:
    """Two rows of RoBERTa's table are for padding. The suggested length is one that it reads."""
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.model_max_length = 10**30
    write_roberta(tmp_path / "roberta", tokenizer)
    config = TextConfig(data=("reviews.csv",), model=str(tmp_path / "roberta"), max_length=length)
    with pytest.raises(UserError, match=r'at most 64 tokens .* truncate="--max-length 64 --long-text truncate"'):
        check_config(config)
    check_config(replace(config, max_length=64))
    check_config(replace(config, long_text="extend"))


def test_a_study_says_at_once_that_positions_cannot_be_extended_in_this_way(
    bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    options = ("--data", reviews, "--model", bert, "--max-length", 100, "--long-text", "extend", "--epochs", 1)
    over = ("--over", "extend_positions", "tile", "yarn")
    code, stdout, stderr = headwise("sweep", *options, *over, "--out", tmp_path / "sweep")
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert "error: extend_positions=yarn: --long-text extend: BertModel has a table of position embeddings" in stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sampler", "random", "--trials", 2, "--over", "max_length", 60, 90), "max_length=90: --max-length 90: "),
        (
            (*EXTEND, "--extend-positions", "tile", "--over", "long_text", "extend", "truncate"),
            "long_text=truncate: --extend-positions requires --long-text extend",
        ),
    ],
)
def test_a_sweep_checks_all_candidates_at_once(
    bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise, options: tuple[object, ...], message: str
) -> None:
    out = ("--out", tmp_path / "sweep")
    code, stdout, stderr = headwise("sweep", "--data", reviews, "--model", bert, *options, *out)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert f"headwise: error: {message}" in stderr
    assert not (tmp_path / "sweep").exists()
