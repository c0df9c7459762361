"""Guides for models of sentence-transformers, and `GuidedLoss` in its trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headwise as hw
from tests.integrations.tiny_models import build_model


def save_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(directory)


def test_the_trainer_logs_each_guide(tmp_path: Path) -> None:
    sentence_transformers: Any = pytest.importorskip("sentence_transformers")
    from datasets import Dataset
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    save_tokenizer(tmp_path / "model")
    model = build_model("bert")
    model.config.num_labels = 1
    model.classifier = nn.Linear(16, 1)
    model.save_pretrained(tmp_path / "model")

    encoder = sentence_transformers.CrossEncoder(str(tmp_path / "model"), num_labels=1, device="cpu")
    pairs = Dataset.from_dict({"a": ["a good film"] * 8, "b": ["a bad film", "good"] * 4, "label": [0.0, 1.0] * 4})
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        logging_steps=1,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
    )
    guides = [hw.guides.MapDiscrimination("auto"), hw.guides.Next(0.5)]
    with hw.GuidedLoss(BinaryCrossEntropyLoss(encoder), guides) as loss:
        trainer = CrossEncoderTrainer(model=encoder, args=arguments, train_dataset=pairs, loss=loss)
        trainer.train()
    logged = trainer.state.log_history[0]
    assert any("MapDiscrimination" in name for name in logged)
    assert any("Next" in name for name in logged)
    assert torch.isfinite(torch.tensor(encoder.predict([("a film", "good")])))


def test_sentence_transformers_are_guided(tmp_path: Path) -> None:
    """sentence-transformers 6.2 calls the model's `forward` without its hooks."""
    sentence_transformers: Any = pytest.importorskip("sentence_transformers")
    save_tokenizer(tmp_path)
    model = build_model("bert").bert
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    model.save_pretrained(tmp_path)
    encoder = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").train()
    inputs = {"input_ids": torch.tensor([[4, 5, 7], [6, 7, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    guides = [hw.guides.MapDiscrimination(), hw.guides.Delimiter(tokens=[7])]
    with hw.guiding(model.train(), guides) as guided:
        model(**inputs)
        expected = guided.loss()
    with hw.guiding(encoder, guides) as guided:
        encoder(dict(inputs))
        torch.testing.assert_close(guided.loss(), expected)
        guided.model(**inputs)
        torch.testing.assert_close(guided.loss(), expected)


def test_a_loss_without_a_model_is_refused() -> None:
    with pytest.raises(TypeError, match="loss must be a loss of sentence-transformers"):
        hw.GuidedLoss(nn.MSELoss(), [hw.guides.First()])
