"""Models of headwise with packed batches: the outputs and gradients of padded batches, and no padding in the layers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention import EncoderLayer
from headwise.models import HeadwiseForSequenceClassification, HeadwiseForTokenClassification
from tests.models.tiny_models import CASES, config, inputs, texts


def pack(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "packs_sequences"):
            module.packs_sequences = True


def loss_and_gradients(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    output = model(**batch)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return output.loss, output.logits, torch.autograd.grad(output.loss, parameters, allow_unused=True)


@pytest.mark.short_form("arguments")
@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_losses_and_gradients_of_classifiers(scheme: str, kind: str) -> None:
    from tests.models.tiny_models import KINDS

    torch.manual_seed(0)
    model = HeadwiseForSequenceClassification(config(scheme, dropout=0.0, **KINDS[kind])).double().train()
    batch = inputs(kind) | {"labels": torch.tensor([0, 2])}
    padded = loss_and_gradients(model, batch)
    pack(model)
    torch.testing.assert_close(loss_and_gradients(model, batch), padded, atol=1e-12, rtol=1e-9)


def test_losses_and_gradients_of_taggers_and_checkpointed_layers() -> None:
    torch.manual_seed(0)
    model = HeadwiseForTokenClassification(config("rpr", dropout=0.0, positions="sinusoidal")).double().train()
    ids, mask = texts(5, 3, 4)
    labels = torch.randint(0, 3, ids.shape).masked_fill(mask == 0, -100)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    padded = loss_and_gradients(model, batch)
    real = mask.bool()
    pack(model)
    for is_checkpointed in (False, True):
        if is_checkpointed:
            model.gradient_checkpointing_enable()
        loss, logits, gradients = loss_and_gradients(model, batch)
        torch.testing.assert_close(loss, padded[0], atol=1e-12, rtol=1e-9)
        torch.testing.assert_close(logits[real], padded[1][real], atol=1e-12, rtol=1e-9)
        torch.testing.assert_close(gradients, padded[2], atol=1e-12, rtol=1e-9)


def test_layers_compute_no_padding() -> None:
    model = HeadwiseForSequenceClassification(config("plain")).eval()
    pack(model)
    shapes: list[Any] = []
    for module in model.modules():
        if isinstance(module, EncoderLayer):
            module.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape[:2])))
    ids, mask = texts(5, 3, 4)
    states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert shapes == [(1, 12)] * 2
    assert [x.shape for x in states] == [(3, 5, 8)] * 3
    shapes.clear()
    model(input_ids=ids, attention_mask=torch.ones_like(mask))
    assert shapes == [(3, 5)] * 2, "a batch without padding is not packed"
    assert model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions[0].shape == (3, 2, 5, 5)
