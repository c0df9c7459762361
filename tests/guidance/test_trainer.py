"""GuidedTrainer: a Trainer whose loss has named terms more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

import headwise as hw
from tests.guidance.test_attaching import build


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
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


def trainer(model: Any, folder: Path, guides: Sequence[hw.Guide], model_init: Any = None, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 3,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(output_dir=str(folder), **(settings | options))
    texts = Texts()
    return hw.GuidedTrainer(
        model=model, args=arguments, train_dataset=texts, eval_dataset=texts, guides=guides, model_init=model_init
    )


def test_every_term_is_logged_by_name_and_added_to_the_loss(tmp_path: Path) -> None:
    guides = [
        hw.guides.MapDiscrimination(0.5),
        hw.guides.Rationale(2.0, key="highlights"),
        hw.guides.Next(1.0, heads=[0], schedule="linear"),
    ]
    run = trainer(build("bert"), tmp_path, guides)
    unguided = trainer(build("bert"), tmp_path, [])
    for one in (run, unguided):
        one.train()
    logs, plain = ([entry for entry in one.state.log_history if "loss" in entry] for one in (run, unguided))
    assert len(logs) == 3
    added = 0.5 * logs[0]["guide/MapDiscrimination"] + 2.0 * logs[0]["guide/Rationale"] + logs[0]["guide/Next"]
    assert logs[0]["loss"] == pytest.approx(plain[0]["loss"] + added, rel=1e-3)
    assert not any(name.startswith("guide/") for name in plain[0])
    assert run.model.config._attn_implementation == "sdpa"
    assert run.evaluate()["eval_loss"] > 0


def test_gradient_accumulation_changes_nothing(tmp_path: Path) -> None:
    """What a guide adds to a step is the same in one batch of 4 and in two of 2."""

    def step(guides: Sequence[hw.Guide], size: int, accumulated: int) -> list[torch.Tensor]:
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated, "max_steps": 1}
        run = trainer(build("bert"), tmp_path, guides, optim="sgd", learning_rate=1.0, max_grad_norm=0.0, **options)
        run.train()
        return [parameter.detach().clone() for parameter in run.model.parameters()]

    found = []
    for size, accumulated in ((4, 1), (2, 2)):
        guided, unguided = (step(guides, size, accumulated) for guides in ([hw.guides.MapDiscrimination(1.0)], []))
        found.append([one - other for one, other in zip(guided, unguided, strict=True)])
    assert max(float(difference.abs().max()) for difference in found[0]) > 1e-3
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-3)


def test_a_model_made_at_the_start_of_training_is_guided(tmp_path: Path) -> None:
    run = trainer(None, tmp_path, [hw.guides.MapDiscrimination(1.0)], model_init=lambda: build("bert"))
    run.train()
    assert "guide/MapDiscrimination" in run.state.log_history[0]


def test_new_parameters_have_a_learning_rate_of_their_own(tmp_path: Path) -> None:
    model: Any = hw.retrofit(build("bert"), hw.DistanceAware)
    run = trainer(model, tmp_path, [hw.guides.MapDiscrimination(0.1)])
    run.train()
    own = [group for group in run.optimizer.param_groups if group.get("headwise")]
    assert len(own) == 1
    assert own[0]["initial_lr"] == pytest.approx(0.1)
    assert {id(p) for p in own[0]["params"]} == {id(p) for p in hw.scheme_parameters(model)}
    assert all(float(p.abs().max()) > 0 for p in hw.scheme_parameters(model)[:1])
