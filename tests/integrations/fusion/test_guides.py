"""Guides and inspection of all fused families."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.errors import UserError
from headwise.guides import ForwardRecord
from headwise.inspection.capture import attention_maps, capture_attention
from headwise.integrations import LayerRecord
from headwise.integrations.model_utils import ExampleOutput, check_same_outputs
from tests.integrations.fusion.cases import CASES, SEAMLESS_CONFIG, Case, build_model
from tests.integrations.fusion.test_families import TOLERANCE

#: All cases except that with memories, which guides refuse (test_xlnet.py).
GUIDED = {name: case for name, case in CASES.items() if name != "xlnet-memory"}
each_guided_case = pytest.mark.parametrize("case", GUIDED.values(), ids=GUIDED)

#: The number of layers of the encoders in `cases.py`, without those of adapters and decoders.
NUM_LAYERS = 2


def train_deterministically(model: Any) -> Any:
    """Set a model to training mode, and its batch normalization and dropout to evaluation, as when it is observed."""
    for module in model.train().modules():
        if isinstance(module, nn.BatchNorm1d | nn.Dropout):
            module.eval()
    return model


def mdg(maps: Tensor, real: Tensor) -> Tensor:
    """Return the loss of MDG for maps (layers, B, H, N, N) and the tokens that are not padding, (B, N)."""
    pairs = real[:, None, :, None] & real[:, None, None, :]
    received = (maps * pairs).sum(dim=3).transpose(0, 1).flatten(1, 2)  # (B, layers · H, N)
    rows = received / received.norm(dim=-1, keepdim=True)
    return -torch.log_softmax(rows @ rows.mT, dim=-1).diagonal(dim1=1, dim2=2).mean()


def observe(model: Any, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the maps of the first layers that are observed, and the tokens that are not padding."""
    observed: list[Any] = []
    capture_attention(
        model,
        {name: x for name, x in batch.items() if not name.startswith("decoder_")},
        lambda _, rows: observed.append((rows.weights(0, rows.real.shape[1]), rows.real)),
    )
    return torch.stack([maps for maps, _ in observed[:NUM_LAYERS]]), observed[0][1]


@each_guided_case
def test_guides_of_every_family(case: Case) -> None:
    """The check on entry needs no example. Outputs do not change, and the loss is that of the observed maps."""
    model = train_deterministically(build_model(case))
    hw.fuse_attention(model, verbose=False)
    torch.manual_seed(1)
    real, batch = case.batch(model.config, 11, True)
    expected_output = model(**batch)[0][real]
    expected_loss = mdg(*observe(model, batch))
    with hw.guiding(model, [hw.guides.MapDiscrimination(1.0), hw.guides.PatternDecorrelation(1.0)]) as guided:
        output = model(**batch)[0][real]
        torch.testing.assert_close(output, expected_output, **TOLERANCE)
        guided.loss().backward()
    torch.testing.assert_close(guided.terms["MapDiscrimination"], expected_loss, **TOLERANCE)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert any(bool(gradient.abs().max() > 1e-6) for gradient in gradients)


@each_guided_case
def test_maps_of_every_family(case: Case) -> None:
    model = hw.fuse_attention(build_model(case), verbose=False).eval()
    torch.manual_seed(1)
    _, batch = case.batch(model.config, 11, False)
    maps, real = observe(model, batch)
    assert real.all()
    torch.testing.assert_close(attention_maps(model, batch), maps, **TOLERANCE)
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones_like(maps[..., 0]), **TOLERANCE)


@pytest.mark.parametrize("version", ["", "v2"])
def test_seamless_model_with_two_encoders(version: str) -> None:
    """The encoder of speech is guided, although the model's `get_encoder` returns that of texts."""
    name = f"SeamlessM4T{version}Model"
    config = SEAMLESS_CONFIG | {"encoder_layers": 1, "encoder_ffn_dim": 16, "encoder_attention_heads": 3}
    sizes = {"t2u_vocab_size": 12, "unit_hifi_gan_vocab_size": 12, "upsample_initial_channel": 32}
    text_to_unit = {f"t2u_{part}_{size}": 2 for part in ("encoder", "decoder") for size in ("layers", "ffn_dim")}
    heads = {f"t2u_{part}_attention_heads": 3 for part in ("encoder", "decoder")}
    case = dataclasses.replace(
        CASES["seamless-m4t"], model=name, config=config | sizes | text_to_unit | heads | {"char_vocab_size": 12}
    )
    model = train_deterministically(build_model(case))
    hw.fuse_attention(model, verbose=False)
    _, batch = case.batch(model.config, 11, True)
    maps, real = observe(model, batch)
    model.set_modality("text")
    with hw.guiding(model, [hw.guides.MapDiscrimination(1.0)]) as guided:
        model(**batch)
        guided.loss().backward()
    torch.testing.assert_close(guided.terms["MapDiscrimination"], mdg(maps, real), **TOLERANCE)


def test_transducer_is_checked_by_its_encoder() -> None:
    """The example of a family is an input of the encoder. The whole model reads the tokens of a decoder, too."""
    case = CASES["parakeet"]
    transducer = {"vocab_size": 20, "blank_token_id": 19, "decoder_hidden_size": 8, "num_decoder_layers": 1}
    model = build_model(
        dataclasses.replace(case, model="ParakeetForTDT", config=transducer | {"encoder_config": case.config})
    )
    _, batch = case.batch(model.config.encoder_config, 11, True)
    hw.fuse_attention(model, verbose=False).train()
    with hw.guiding(model, [hw.guides.PatternDecorrelation(1.0)]) as guided:
        model(**batch, decoder_input_ids=torch.randint(0, 19, (2, 5)))
        guided.loss().backward()
    assert guided.terms["PatternDecorrelation"].isfinite()


def test_guides_of_tokens_refuse_audio() -> None:
    case = CASES["seamless-m4t"]
    model = hw.fuse_attention(build_model(case), verbose=False).train()
    _, batch = case.batch(model.config, 11, True)
    with hw.guiding(model, [hw.guides.Delimiter(1.0, tokens=[3])]) as guided:
        model(**batch)
        with pytest.raises(ValueError, match="Delimiter reads token ids: call the model with input_ids"):
            guided.loss()


def test_models_that_are_not_fused_are_named() -> None:
    case = CASES["sew-d"]
    model = build_model(case)
    _, batch = case.batch(model.config, 11, False)
    with pytest.raises(UserError, match=r"SEWDModel .* call headwise.fuse_attention\(model\) first"):
        capture_attention(model, batch, lambda *_: None)


def test_layers_with_different_numbers_of_positions_are_refused() -> None:
    def record(n: int) -> LayerRecord:
        x = torch.rand(1, 2, n, 4)
        return LayerRecord(q=x, k=x, v=x, output=x, received=x.sum(dim=3), scale=1.0)

    layers = ForwardRecord([record(6), record(6), record(3)], {})
    with pytest.raises(ValueError, match=r"different numbers of positions \(3, 6\): choose layers .* by layers="):
        hw.guides.MapDiscrimination(1.0)(layers)
    assert hw.guides.MapDiscrimination(1.0, layers=[0, 1])(layers).isfinite()


def test_outputs_of_another_shape_are_named() -> None:
    outputs = [ExampleOutput(torch.ones(2, n, 4), None) for n in (5, 6)]
    with pytest.raises(RuntimeError, match=r"outputs of another shape .* \(\(2, 6, 4\) instead of \(2, 5, 4\)\)"):
        check_same_outputs(nn.Identity(), *outputs)
