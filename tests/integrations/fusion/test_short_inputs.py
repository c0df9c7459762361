"""Short inputs of fused models: attention with whole maps computes those for which it is faster, here also on a CPU."""

import copy
import dataclasses
import sys
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.integrations.fusion import attention, short_batches
from headwise.integrations.fusion.attention import MaxPairs
from tests.integrations.fusion.cases import CASES, HEADS, build_model
from tests.integrations.fusion.test_families import check_same, run, to_float32

#: The families with a limit, and their cases.
LIMITED_FAMILIES = ("DeBERTa", "DeBERTa-v2", "Nemotron-ASR-streaming", "Parakeet", "SeamlessM4T", "Wav2Vec2-Conformer")
LIMITED = [name for name, case in CASES.items() if case.family in LIMITED_FAMILIES]
LENGTH = 11


@pytest.fixture(autouse=True)
def limits_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "HAS_LIMITS_ON_CPU", True)


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of headwise's attention by fused layers."""
    module = sys.modules["headwise.integrations.hf_attention"]
    calls, attend = [], module.attend

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return attend(*args, **kwargs)

    monkeypatch.setattr(module, "attend", count)
    return calls


@pytest.mark.parametrize("padding", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", LIMITED)
def test_short_inputs_give_the_same(name: str, training: bool, padding: bool, fused_calls: list[Any]) -> None:
    case = CASES[name]
    model = build_model(case).train(training)
    lengths = (1, 2, LENGTH, 16, 32)
    expected = [run(model, case, length, padding) for length in lengths]
    hw.fuse_attention(model, verbose=False)
    assert fused_calls, "the check compares the fused attention"
    fused_calls.clear()
    for length, expected_run in zip(lengths, expected, strict=True):
        check_same(run(model, case, length, padding), expected_run)
    limits = hw.fusion_report(model).layers[0].max_pairs
    assert bool(fused_calls) is not bool(limits.training if training else limits.inference)
    fused_calls.clear()
    hw.fuse_attention(model, verbose=False, always=True)
    check_same(run(model, case, lengths[-1], padding), expected[-1])
    assert fused_calls
    assert hw.fusion_report(model).layers[0].max_pairs == MaxPairs()


@pytest.mark.parametrize("name", [name for name in LIMITED if name != "parakeet"])
def test_outputs_and_gradients_of_padding(name: str) -> None:
    """Parakeet's padding frames have other outputs with transformers 5.17, whose layers hide all keys by −inf there."""
    case = CASES[name]
    case = dataclasses.replace(case, batch=lambda *arguments: (..., CASES[name].batch(*arguments)[1]))
    model = build_model(case).train()
    expected = run(model, case)
    hw.fuse_attention(model, verbose=False)
    check_same(run(model, case), expected)


@pytest.mark.parametrize("name", ["parakeet", "nemotron-asr-streaming"])
def test_fewer_key_heads(name: str) -> None:
    case = CASES[name]
    case = dataclasses.replace(case, config={**case.config, "num_key_value_heads": 1})
    model = build_model(case).train()
    expected = run(model, case)
    hw.fuse_attention(model, verbose=False)
    check_same(run(model, case), expected)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", LIMITED)
def test_dropout_of_short_inputs(name: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, attend = set(), torch.nn.functional.scaled_dot_product_attention

    def record(*args: Any, **options: Any) -> Any:
        probabilities.add(options["dropout_p"])
        return attend(*args, **options)

    case = CASES[name]
    names = {"speech_encoder_dropout", "attention_dropout", "attention_probs_dropout_prob"}
    model: Any = build_model(dataclasses.replace(case, config={**case.config, **dict.fromkeys(names, 0.25)}))
    hw.fuse_attention(model.train(training), verbose=False)
    monkeypatch.setattr(short_batches, "scaled_dot_product_attention", record)
    run(model, case, LENGTH, False)
    limits = hw.fusion_report(model).layers[0].max_pairs
    expected = {0.25 * training} if (limits.training if training else limits.inference) else set()
    assert probabilities == expected


@pytest.mark.parametrize("name", [name for name in LIMITED if not CASES[name].why_no_autocast])
def test_autocast_of_short_inputs(name: str) -> None:
    case = CASES[name]
    model = build_model(case).float().train()
    fused: Any = hw.fuse_attention(copy.deepcopy(model), verbose=False)
    errors = {"own": 0.0, "fused": 0.0}
    for seed in range(8):
        torch.manual_seed(seed)
        real, batch = case.batch(model.config, LENGTH, True)
        batch = to_float32(batch)
        exact = model(**batch)[0][real]
        with torch.autocast("cpu", torch.bfloat16):
            for kind, x in (("own", model), ("fused", fused)):
                errors[kind] += float((x(**batch)[0][real] - exact).abs().mean().detach())
    assert errors["fused"] <= 2 * errors["own"]


def test_masks_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    masks, convert = [], short_batches._hidden_keys

    def record(mask: torch.Tensor, width: int) -> torch.Tensor:
        masks.append(mask)
        return convert(mask, width)

    monkeypatch.setattr(short_batches, "_hidden_keys", record)
    case = CASES["wav2vec2-conformer"]
    model: Any = hw.fuse_attention(build_model(case), verbose=False)
    for _ in range(2):
        _, batch = case.batch(model.config, LENGTH, True)
        with torch.inference_mode():
            model.eval()(**batch)
        model.train()(**batch)[0].sum().backward()
    assert len(masks) == 4


def test_the_limit_is_the_number_of_pairs(fused_calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["parakeet"]
    model: Any = hw.fuse_attention(build_model(case).eval(), verbose=False)
    layer: Any = type(model.layers[0].self_attn)
    monkeypatch.setattr(layer, "max_pairs", MaxPairs(inference=2 * LENGTH**2))
    for length, is_fused in ((LENGTH, False), (LENGTH + 1, True)):
        fused_calls.clear()
        real, batch = case.batch(model.config, length, False)
        assert real.shape == (2, length)
        with torch.no_grad():
            model(**batch)
        assert bool(fused_calls) is is_fused


@pytest.mark.parametrize("name", ["deberta-v3", "parakeet"])
def test_guides_read_short_inputs(name: str) -> None:
    case = CASES[name]
    model: Any = hw.fuse_attention(build_model(case).train(), verbose=False)
    _, batch = case.batch(model.config, LENGTH, True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.1)]) as guided:
        model(**batch)
        assert guided.loss().isfinite()


def test_weights_of_short_inputs() -> None:
    model = build_model(CASES["deberta"]).train()
    _, batch = CASES["deberta"].batch(model.config, LENGTH, False)
    expected = model(**batch, output_attentions=True).attentions
    hw.fuse_attention(model, verbose=False)
    torch.testing.assert_close(model(**batch, output_attentions=True).attentions, expected)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("name", ["deberta", "deberta-v3"])
def test_tokens_that_see_no_key(name: str, heads: int, training: bool) -> None:
    """Masks of pairs, which the encoder takes, hide all keys from one token, or from one head of it."""
    model: Any = build_model(CASES[name]).train(training)
    mask = torch.ones(2, heads, LENGTH, LENGTH, dtype=torch.bool)
    mask[0, 0, 3] = False
    states = torch.randn(2, LENGTH, model.config.hidden_size, dtype=torch.float64, requires_grad=True)
    results = []
    fused: Any = hw.fuse_attention(copy.deepcopy(model), verbose=False)
    for encoder in (model.encoder, fused.encoder):
        layer = encoder.layer[0].attention.self
        positions = encoder.get_rel_pos(states)  # None in the fused encoder
        output, _ = layer(states, mask, relative_pos=positions, rel_embeddings=encoder.get_rel_embedding())
        results.append((output, *torch.autograd.grad(output.square().sum(), (states, *layer.parameters()))))
    torch.testing.assert_close(results[1], results[0])


def test_terms_without_table() -> None:
    case = CASES["deberta"]
    case = dataclasses.replace(case, config={**case.config, "pos_att_type": ["p2p"]}, positions=())
    model = build_model(case).train()
    expected = run(model, case)
    hw.fuse_attention(model, verbose=False)
    check_same(run(model, case), expected)


def test_checkpoints_repeat_the_same_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reentrant checkpoint runs the first pass without gradients; dropout is repeated only in the same attention."""
    case = CASES["parakeet"]
    model: Any = hw.fuse_attention(build_model(case).train(), verbose=False)
    monkeypatch.setattr(type(model.layers[0].self_attn), "max_pairs", MaxPairs(training=2**20))
    for layer in model.layers:
        layer.self_attn.attention_dropout = 0.3
    expected = run(model, case, LENGTH, False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    check_same(run(model, case, LENGTH, False), expected)


def test_the_report_states_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hw.fuse_attention(build_model(CASES["deberta"]), verbose=False)
    report = hw.fusion_report(model)
    assert "pairs" not in str(report), "there is no limit on a CPU"
    on_gpu = type(report)(report.model, report.layers, report.dtype, torch.device("cuda"))
    assert "short batches, in training up to 2,097,152 pairs (batch size × length²), are computed with" in str(on_gpu)
    hw.fuse_attention(model, verbose=False, always=True)
    report = hw.fusion_report(model)
    assert "pairs" not in str(type(report)(report.model, report.layers, report.dtype, torch.device("cuda")))
