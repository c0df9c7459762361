"""Our models among Hugging Face's: saved, loaded by the Auto classes, in pipelines and trained by the Trainer."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    pipeline,
)

import headwise
from headwise.models import (
    HeadwiseConfig,
    HeadwiseForSequenceClassification,
    HeadwiseForTokenClassification,
    HeadwiseModel,
    build_tokenizer,
)
from tests.models.tiny_models import CASES, KINDS, classifier, config, inputs, texts

TEXTS = ["a fine film", "a bad film", "fine, I liked it", "I didn't like it"]


@pytest.mark.short_form("arguments")
@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_saved_and_loaded_gives_equal_logits(scheme: str, kind: str, tmp_path: Path) -> None:
    model = classifier(scheme, **KINDS[kind]).eval()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    loaded, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(loaded, HeadwiseForSequenceClassification)
    assert not any(report.values())
    batch = inputs(kind)
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_auto_classes(tmp_path: Path) -> None:
    model = HeadwiseForTokenClassification(config("tener")).eval()
    model.save_pretrained(tmp_path)
    ids, mask = texts(5, 3)
    tokens = AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert torch.equal(tokens(ids, mask).logits, model(ids, mask).logits)
    encoder = AutoModel.from_pretrained(tmp_path)
    assert isinstance(encoder, HeadwiseModel)
    assert torch.equal(encoder(ids, mask).last_hidden_state, model.model(ids, mask).last_hidden_state)
    # A new head on an encoder that is there.
    fresh = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True)
    assert fresh(ids, mask).logits.shape == (2, 7)
    assert torch.equal(fresh.model.layers[0].attention.q_proj.weight, model.model.layers[0].attention.q_proj.weight)


@pytest.mark.parametrize("framed", [False, True])
def test_text_classification_pipeline(framed: bool, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(TEXTS, framed=framed, max_tokens=8)
    names = {0: "bad", 1: "good"}
    model = HeadwiseForSequenceClassification(
        HeadwiseConfig(vocab_size=len(tokenizer), word_dim=6, pooling="cls" if framed else "additive", id2label=names)
    ).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    classify: Any = pipeline(
        "text-classification",
        model=AutoModelForSequenceClassification.from_pretrained(tmp_path),
        tokenizer=AutoTokenizer.from_pretrained(tmp_path),
    )
    answers = classify([*TEXTS, "a film " * 20], top_k=None, batch_size=2, truncation=True)
    for text, answer in zip(TEXTS, answers[:4], strict=True):
        expected = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
        scores = {each["label"]: each["score"] for each in answer}
        assert scores == pytest.approx({names[i]: expected[i].item() for i in names}, abs=1e-5)


def test_pair_and_token_pipelines() -> None:
    tokenizer = build_tokenizer(TEXTS)
    sizes = {"vocab_size": len(tokenizer), "word_dim": 6}
    joint = HeadwiseForSequenceClassification(HeadwiseConfig(**sizes, pair="joint")).eval()  # type: ignore[arg-type]
    judge: Any = pipeline("text-classification", model=joint, tokenizer=tokenizer)
    answer = judge({"text": "a", "text_pair": "b"})
    assert answer["label"] in ("LABEL_0", "LABEL_1")
    tagger = HeadwiseForTokenClassification(HeadwiseConfig(**sizes)).eval()  # type: ignore[arg-type]
    tag_words: Any = pipeline("token-classification", model=tagger, tokenizer=tokenizer)
    tags = tag_words("A fine film")
    assert [(tag["word"], tag["start"], tag["end"]) for tag in tags] == [("a", 0, 1), ("fine", 2, 6), ("film", 7, 11)]


def test_the_trainer_learns(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(TEXTS)
    rows: Any = [dict(tokenizer(text)) | {"labels": label} for text, label in zip(TEXTS, [1, 0, 1, 0], strict=True)]
    model = HeadwiseForSequenceClassification(HeadwiseConfig(vocab_size=len(tokenizer), word_dim=16, dropout=0.0))
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        learning_rate=1e-3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    trainer.train()
    logits: Any = trainer.predict(rows).predictions
    assert logits.argmax(-1).tolist() == [1, 0, 1, 0]


def test_importing_headwise_stays_fast_and_offers_the_models() -> None:
    code = "import sys, headwise; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert headwise.models.HeadwiseModel is HeadwiseModel
