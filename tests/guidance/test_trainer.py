"""`GuidedTrainer`: a Trainer with guides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainingArguments

import headwise as hw
from tests.integrations.tiny_models import build_model


class RandomTexts(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(i)
        ids = torch.randint(3, 40, (8,), generator=generator)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones(8, dtype=torch.long),
            "labels": i % 3,
            "highlights": (ids > 20).float(),
        }


def build_trainer(
    model: Any, out_dir: Path, guides: Sequence[hw.Guide], model_init: Any = None, **options: Any
) -> hw.GuidedTrainer:
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 3,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(output_dir=str(out_dir), **(defaults | options))
    texts = RandomTexts()
    return hw.GuidedTrainer(
        model=model, args=arguments, train_dataset=texts, eval_dataset=texts, guides=guides, model_init=model_init
    )


def loss_logs(trainer: hw.GuidedTrainer) -> list[dict[str, float]]:
    return [logs for logs in trainer.state.log_history if "loss" in logs]


def test_every_term_is_added_to_the_loss_and_logged_by_name(tmp_path: Path) -> None:
    guides = [
        hw.guides.MapDiscrimination(0.5),
        hw.guides.Rationale(2.0, key="highlights"),
        hw.guides.Next(1.0, heads=[0], schedule="linear"),
    ]
    trainer = build_trainer(build_model("bert"), tmp_path, guides)
    unguided = build_trainer(build_model("bert"), tmp_path, [])
    trainer.train()
    unguided.train()
    logs, unguided_logs = loss_logs(trainer), loss_logs(unguided)
    assert len(logs) == 3
    terms = 0.5 * logs[0]["guide/MapDiscrimination"] + 2.0 * logs[0]["guide/Rationale"] + logs[0]["guide/Next"]
    assert logs[0]["loss"] == pytest.approx(unguided_logs[0]["loss"] + terms, rel=1e-3)
    assert not any(name.startswith("guide/") for name in unguided_logs[0])
    model: Any = trainer.model
    assert model.config._attn_implementation == "sdpa"
    assert trainer.evaluate()["eval_loss"] > 0


def mean_over_all_steps(outputs: Any, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
    """A loss that is averaged over accumulation steps. BERT's own ignores the number of items, and is summed."""
    return torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


@pytest.mark.parametrize("loss", [None, mean_over_all_steps], ids=["summed", "averaged"])
def test_gradient_accumulation_does_not_change_the_weight_of_guides(loss: Any, tmp_path: Path) -> None:
    """One step with a batch of 4 changes the parameters like one with two batches of 2."""

    def train(batch_size: int, steps: int, learning_rate: float) -> list[Tensor]:
        model = build_model("bert")
        before = [parameter.detach().clone() for parameter in model.parameters()]
        options: dict[str, Any] = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": steps}
        options |= {"max_steps": 1, "optim": "sgd", "learning_rate": learning_rate, "max_grad_norm": 0.0}
        trainer = build_trainer(model, tmp_path, [hw.guides.MapDiscrimination(1.0)], **options)
        trainer.compute_loss_func = loss
        trainer.train()
        return [after.detach() - x for after, x in zip(model.parameters(), before, strict=True)]

    expected = train(4, 1, 0.1)
    changes = train(2, 2, 0.05 if loss is None else 0.1)
    assert max(float(change.abs().max()) for change in expected) > 1e-3
    torch.testing.assert_close(changes, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("loss", [None, mean_over_all_steps], ids=["summed", "averaged"])
def test_gradient_accumulation_does_not_change_automatic_weights(loss: Any, tmp_path: Path) -> None:
    def train(batch_size: int, steps: int) -> float:
        guide = hw.guides.MapDiscrimination("auto")
        options = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": steps, "max_steps": 1}
        trainer = build_trainer(build_model("bert"), tmp_path, [guide], **options)
        trainer.train_dataset = [RandomTexts()[0]] * 4  # identical texts have identical gradients
        trainer.compute_loss_func = loss
        trainer.train()
        return guide.weight

    assert train(1, 4) == pytest.approx(train(4, 1), rel=1e-4)


def test_a_resumed_run_continues_with_the_automatic_weights(tmp_path: Path) -> None:
    def train(resume_from_checkpoint: str | None) -> tuple[Any, list[dict[str, float]]]:
        guides = [hw.guides.MapDiscrimination("auto", share=0.5)]
        model = build_model("bert")
        trainer = build_trainer(model, tmp_path, guides, max_steps=6, save_strategy="steps", save_steps=4)
        trainer.train(resume_from_checkpoint=resume_from_checkpoint)
        return model, loss_logs(trainer)

    model, logs = train(None)
    resumed, resumed_logs = train(str(tmp_path / "checkpoint-4"))
    weight = "guide/MapDiscrimination/weight"
    assert logs[-1][weight] > 0
    assert [entry[weight] for entry in resumed_logs] == [entry[weight] for entry in logs]
    torch.testing.assert_close(resumed.state_dict(), model.state_dict(), atol=0.0, rtol=0.0)


@pytest.mark.parametrize("guides", [hw.guides.First(), ["mdg"]])
def test_guides_are_checked_before_training(guides: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="guides must be a list of guides"):
        build_trainer(build_model("bert"), tmp_path, guides)


def test_a_model_built_by_model_init_is_guided(tmp_path: Path) -> None:
    guides = [hw.guides.MapDiscrimination(1.0)]
    trainer = build_trainer(None, tmp_path, guides, model_init=lambda: build_model("bert"))
    trainer.train()
    assert "guide/MapDiscrimination" in trainer.state.log_history[0]


def test_added_parameters_have_their_own_learning_rate(tmp_path: Path) -> None:
    model: Any = hw.retrofit(build_model("bert"), hw.DistanceAware)
    trainer = build_trainer(model, tmp_path, [hw.guides.MapDiscrimination(0.1)])
    trainer.train()
    optimizer: Any = trainer.optimizer
    groups = [group for group in optimizer.param_groups if group.get("headwise")]
    assert len(groups) == 1
    assert groups[0]["initial_lr"] == pytest.approx(0.01)
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in hw.scheme_parameters(model)}
    assert all(float(p.abs().max()) > 0 for p in hw.scheme_parameters(model)[:1])
