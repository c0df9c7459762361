"""`fuse_attention` with guides, inspection, PEFT and generation, and its errors."""

import dataclasses
import sys
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import headwise as hw
from headwise.inspection.capture import attention_maps, capture_attention
from headwise.integrations import AttentionRows, UnsupportedAttentionError
from headwise.integrations.fusion import attention, families, is_fused
from headwise.integrations.fusion.report import shorten_names
from tests.integrations.fusion.batches import left_padded_text_batch, text_batch
from tests.integrations.fusion.cases import CASES, T5_CONFIG, build_model

hf: Any = transformers
TOLERANCE: dict[str, Any] = {"atol": 1e-8, "rtol": 1e-8}


def own_maps(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Return the maps that the unfused model returns itself."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return torch.stack(model(**batch, output_attentions=True).attentions)


@pytest.mark.parametrize("name", ["deberta-v3", "deberta", "mpnet", "xlnet"])
def test_fused_models_can_be_inspected(name: str) -> None:
    model = build_model(CASES[name]).eval()
    _, batch = CASES[name].batch(model.config, 9, False)
    expected = own_maps(model, batch)
    hw.fuse_attention(model, verbose=False)
    torch.testing.assert_close(attention_maps(model, batch), expected, **TOLERANCE)
    observed = []

    def observe(_: nn.Module, rows: AttentionRows) -> None:
        observed.append(torch.cat([rows.weights(0, 4), rows.weights(4, 9)], dim=2))

    capture_attention(model, batch, observe)
    torch.testing.assert_close(torch.stack(observed), expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["deberta-v3", "deberta", "mpnet", "xlnet", "t5-encoder"])
def test_fused_models_can_be_guided(name: str) -> None:
    case = CASES[name]
    model = build_model(case).train()
    _, batch = case.batch(model.config, 9, True)
    guide = hw.guides.MapDiscrimination(0.1)
    with hw.guiding(model, [guide], output_attentions=True) as guided:
        model(**batch)
        expected_loss = guided.loss()
        expected_loss.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    hw.fuse_attention(model, verbose=False)
    with hw.guiding(model, [guide]) as guided:
        model(**batch)
        loss = guided.loss()
        loss.backward()
    torch.testing.assert_close(loss, expected_loss, **TOLERANCE)
    assert expected
    for parameter_name, parameter in model.named_parameters():
        if parameter_name in expected:
            torch.testing.assert_close(parameter.grad, expected[parameter_name], **TOLERANCE)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize(("prefix", "name"), [("Deberta", "deberta"), ("DebertaV2", "deberta-v3")])
def test_heads_that_read_padding(prefix: str, name: str, padding: str) -> None:
    """Question answering chooses among all positions, and classifiers of DeBERTa read the first one."""
    case = dataclasses.replace(CASES[name], model=f"{prefix}ForQuestionAnswering")
    model = build_model(case).train()
    _, batch = (text_batch if padding == "right" else left_padded_text_batch)(model.config, 9, True)
    positions = {"start_positions": torch.tensor([4, 3]), "end_positions": torch.tensor([4, 5])}
    results = []
    for fuse in (False, True):
        if fuse:
            hw.fuse_attention(model, verbose=False)
        model.zero_grad()
        outputs = model(**batch, **positions, output_attentions=True)
        outputs.loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters()}
        results.append((outputs.start_logits, outputs.loss, outputs.attentions, gradients))
    torch.testing.assert_close(results[1], results[0], **TOLERANCE)


@pytest.mark.parametrize("argument", ["attention_mask", "input_mask"])
def test_padding_of_xlnet_is_not_inspected(argument: str) -> None:
    case = CASES["xlnet"]
    model = build_model(case).eval()
    real, batch = case.batch(model.config, 9, True)
    mask = batch.pop("attention_mask")
    batch[argument] = mask if argument == "attention_mask" else 1.0 - mask.double()
    hw.fuse_attention(model, verbose=False)
    observed = []
    capture_attention(model, batch, lambda _, rows: observed.append(rows.real))
    assert not real.all()
    assert all(torch.equal(tokens, real) for tokens in observed)
    assert len(observed) == case.config["n_layer"]


def test_guided_xlnet_classifies_texts_with_padding_at_the_end() -> None:
    """Its classifier reads the last position, which is padding if the tokenizer pads on the right."""
    config = {**CASES["xlnet"].config, "summary_last_dropout": 0.0}
    case = dataclasses.replace(CASES["xlnet"], model="XLNetForSequenceClassification", config=config)
    model = build_model(case).train()
    _, batch = text_batch(model.config, 9, True)
    expected = model(**batch).logits
    hw.fuse_attention(model, verbose=False)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.1)]):
        torch.testing.assert_close(model(**batch).logits, expected, **TOLERANCE)


@pytest.mark.parametrize("fuse_first", [True, False])
def test_peft(fuse_first: bool) -> None:
    peft = pytest.importorskip("peft")
    case = CASES["deberta-v2"]
    _, batch = case.batch(build_model(case).config, 9, True)

    def build(*, fused: bool) -> Any:
        model = build_model(case).eval()
        if fused and fuse_first:
            hw.fuse_attention(model, verbose=False)
        config = peft.LoraConfig(target_modules=["query_proj", "pos_key_proj"], init_lora_weights=False)
        torch.manual_seed(3)
        model = peft.get_peft_model(model, config).double()
        if fused and not fuse_first:
            hw.fuse_attention(model, verbose=False)
        assert is_fused(model) is fused
        return model

    results = []
    for fused in (False, True):
        model = build(fused=fused)
        model(**batch).last_hidden_state[batch["attention_mask"].bool()].square().sum().backward()
        results.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    assert results[0]
    torch.testing.assert_close(results[1], results[0], **TOLERANCE)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("model_name", ["T5", "MT5", "UMT5"])
def test_generation_with_a_cache(model_name: str, cache: str) -> None:
    torch.manual_seed(0)
    config = getattr(hf, f"{model_name}Config")(**T5_CONFIG, decoder_start_token_id=0, eos_token_id=None)
    model = getattr(hf, f"{model_name}ForConditionalGeneration")(config).double().eval()
    ids = torch.randint(2, 40, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    options = {
        "max_new_tokens": 12,
        "do_sample": False,
        "cache_implementation": cache if cache == "static" else None,
        "disable_compile": True,
        "output_scores": True,
        "return_dict_in_generate": True,
    }
    expected = model.generate(input_ids=ids, attention_mask=mask, **options)
    hw.fuse_attention(model, verbose=False)
    actual = model.generate(input_ids=ids, attention_mask=mask, **options)
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(actual.scores, expected.scores, **TOLERANCE)


def test_xlnet_second_stream() -> None:
    model = build_model(CASES["xlnet"]).float().eval()  # the model's second stream runs in float32 only
    ids = torch.randint(2, 40, (2, 9))
    hidden = torch.zeros(2, 9, 9)
    hidden[:, :, -1] = 1.0
    targets = torch.zeros(2, 1, 9)
    targets[:, 0, -1] = 1.0
    batch = {"input_ids": ids, "perm_mask": hidden, "target_mapping": targets}
    expected = model(**batch).last_hidden_state
    hw.fuse_attention(model, verbose=False)
    torch.testing.assert_close(model(**batch).last_hidden_state, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("is_short", [False, True], ids=["fused", "short"])
@pytest.mark.parametrize("chunk", [4, 12])
def test_streaming_with_a_cache(chunk: int, is_short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nemotron-ASR-streaming gives the same frames chunk by chunk, beyond its window of 7 frames."""
    monkeypatch.setattr(attention, "HAS_LIMITS_ON_CPU", is_short)
    case = CASES["nemotron-asr-streaming"]
    model = build_model(case).eval()
    _, batch = case.batch(model.config, 30, False)

    def stream() -> list[torch.Tensor]:
        states: dict[str, Any] = {}
        outputs = []
        for features in batch["input_features"].split(chunk, dim=1):
            with torch.no_grad():
                output = model(input_features=features, use_cache=True, **states)
            states = {name: output[name] for name in ("past_key_values", "padding_cache")}
            outputs.append(output.last_hidden_state)
        return outputs

    expected = stream()
    hw.fuse_attention(model, verbose=False)
    actual = stream()
    assert sum(x.shape[1] for x in expected) > 2 * 7
    for frames, expected_frames in zip(actual, expected, strict=True):
        torch.testing.assert_close(frames, expected_frames, **TOLERANCE)


def test_unknown_family_gets_the_list_of_known_ones() -> None:
    model = hf.BertModel(
        hf.BertConfig(vocab_size=40, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    with pytest.raises(
        UnsupportedAttentionError, match="BertModel has no attention layers that headwise can fuse"
    ) as e:
        hw.fuse_attention(model)
    assert all(name in str(e.value) for name in families())
    with pytest.raises(TypeError, match="PreTrainedModel"):
        hw.fuse_attention(nn.Linear(2, 2))


def test_model_that_differs_is_left_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.integrations.fusion import deberta_v2

    model = build_model(CASES["deberta-v2"])
    text = str(model)
    monkeypatch.setattr(deberta_v2, "float32_square_root", lambda value: 1.0)
    with pytest.raises(RuntimeError, match="left unchanged"):
        hw.fuse_attention(model)
    assert str(model) == text


@pytest.mark.parametrize("name", ["t5", "umt5"])
def test_rounding_errors_of_low_precision_are_no_differences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of T5 are not scaled, so that those of bfloat16 have large errors."""
    model = build_model(CASES[name]).bfloat16()
    hw.fuse_attention(model, verbose=False)
    assert is_fused(model)
    assert model.dtype == torch.bfloat16
    hw.unfuse_attention(model)
    monkeypatch.setattr(sys.modules["headwise.integrations.fusion.t5"], "dropout_probability", lambda *_: 0.5)
    with pytest.raises(RuntimeError, match="left unchanged"):
        hw.fuse_attention(model, verbose=False)
    assert not is_fused(model)


def test_schemes_and_fused_attention_exclude_each_other() -> None:
    model = build_model(CASES["t5-encoder"])
    hw.fuse_attention(model, verbose=False)
    with pytest.raises(ValueError, match="unfuse_attention"):
        hw.retrofit(model)
    hw.retrofit(hw.unfuse_attention(model))
    with pytest.raises(ValueError, match="remove_scheme"):
        hw.fuse_attention(model)


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    model = build_model(CASES["deberta-v3"])
    assert str(hw.fusion_report(model)) == "DebertaV2Model has no fused attention layers"
    hw.fuse_attention(model)
    text = capsys.readouterr().out
    assert text.strip() == str(hw.fusion_report(model))
    assert "fused 2 attention layers of DeBERTa-v2: encoder.layer.{0…1}.attention.self" in text
    assert hw.fusion_report(model).saved_bytes(2000) == 4 * hw.fusion_report(model).saved_bytes(1000)
    hw.fuse_attention(model, verbose=False)  # a second call changes nothing
    assert shorten_names(("a.0.b", "a.1.b", "c")) == ["a.{0…1}.b", "c"]


@pytest.mark.parametrize("name", CASES)
def test_expected_gain_does_not_exceed_what_the_model_keeps(name: str) -> None:
    case, length = CASES[name], 48
    if case.why_no_weights:
        pytest.skip(f"no reference: {case.why_no_weights}")
    model = build_model(case)
    model.eval()
    _, batch = case.batch(model.config, length, False)
    model.config._attn_implementation = "eager"
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = max(kept.get(x.untyped_storage().data_ptr(), 0), x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = model(**batch)[0]
    assert output.requires_grad
    hw.fuse_attention(model, verbose=False)
    layers = hw.fusion_report(model).layers[0]
    num_tensors = sum(kept.values()) / (2 * 3 * length**2) / len(layers.names)  # 2 texts and 3 heads
    assert 0 < layers.num_maps <= num_tensors


def test_tokens_of_a_permutation_that_see_no_key_get_the_outputs_of_xlnet() -> None:
    """The second stream's query of the first token of a permutation attends to all keys alike."""
    model = build_model(CASES["xlnet"]).float().eval()  # the model's second stream runs in float32 only
    order = torch.randperm(9)
    batch = {
        "input_ids": torch.randint(2, 40, (2, 9)),
        "perm_mask": (order[None, :] >= order[:, None]).float().expand(2, -1, -1),
        "target_mapping": torch.eye(9).expand(2, -1, -1),
    }

    expected = model(**batch, output_attentions=True)
    hw.fuse_attention(model, verbose=False)
    actual = model(**batch, output_attentions=True)
    torch.testing.assert_close(actual.last_hidden_state, expected.last_hidden_state, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(actual.attentions, expected.attentions, atol=1e-5, rtol=1e-4)
    actual.last_hidden_state.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_causal_xlnet_without_padding_is_fused() -> None:
    case = dataclasses.replace(CASES["xlnet"], config={**CASES["xlnet"].config, "attn_type": "uni"})
    model = build_model(case).eval()
    ids = torch.randint(2, 40, (2, 9))
    expected = model(input_ids=ids).last_hidden_state
    hw.fuse_attention(model, verbose=False)
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [("xlnet", "bi_data", "XLNetModel has bi_data=True"), ("deberta", "talking_head", "has talking heads")],
)
def test_settings_that_cannot_be_fused_are_refused_without_a_check_too(name: str, setting: str, reason: str) -> None:
    model = build_model(dataclasses.replace(CASES[name], config={**CASES[name].config, setting: True}))
    text = str(model)
    with pytest.raises(UnsupportedAttentionError, match=reason):
        hw.fuse_attention(model, check=False)
    assert str(model) == text


@pytest.mark.parametrize("name", ["t5-encoder", "seamless-m4t", "wav2vec2-bert"])
def test_unfuse_restores_the_attention_implementation(name: str) -> None:
    """The parts of some models share one configuration."""
    model = build_model(CASES[name])
    modules = [module for module in model.modules() if isinstance(module, hf.PreTrainedModel)]
    before = [module.config._attn_implementation for module in modules]
    hw.unfuse_attention(hw.fuse_attention(model, check=False, verbose=False))
    assert [module.config._attn_implementation for module in modules] == before
    hw.fuse_attention(model, check=False, verbose=False)
    model.set_attn_implementation("eager")
    hw.unfuse_attention(model)
    assert model.config._attn_implementation == "eager", "the user's choice after fusing"


def test_windows_and_fused_attention_exclude_each_other() -> None:
    """The example of the check fits in the window."""
    model = hw.set_window(build_model(CASES["t5-encoder"]), 64)
    with pytest.raises(ValueError, match=r"set_window\(model, None\) removes it"):
        hw.fuse_attention(model)
    hw.fuse_attention(hw.set_window(model, None), verbose=False)
    with pytest.raises(ValueError, match="unfuse_attention"):
        hw.set_window(model, 64)
    assert not hasattr(model.config, "headwise_window")


TRANSDUCER = {"vocab_size": 20, "blank_token_id": 19, "decoder_hidden_size": 8, "num_decoder_layers": 1}


@pytest.mark.parametrize(
    ("model_name", "name"),
    [
        ("ParakeetForTDT", "parakeet"),
        ("ParakeetForRNNT", "parakeet"),
        ("NemotronAsrStreamingForRNNT", "nemotron-asr-streaming"),
    ],
)
def test_transducers(model_name: str, name: str) -> None:
    if not hasattr(hf, model_name):
        pytest.skip(f"this version of transformers has no {model_name}")
    case = CASES[name]
    model = build_model(
        dataclasses.replace(case, model=model_name, config=TRANSDUCER | {"encoder_config": case.config})
    )
    real, batch = case.batch(model.config.encoder_config, 11, True)
    batch["decoder_input_ids"] = torch.randint(0, 19, (2, 5))
    expected = model.eval()(**batch).logits[real]
    hw.fuse_attention(model, verbose=False)
    torch.testing.assert_close(model(**batch).logits[real], expected, **TOLERANCE)


def test_part_of_a_model_with_other_inputs() -> None:
    """The example is an input of the part with fused layers: here a speech encoder, whose decoder is BERT."""
    speech, text = CASES["wav2vec2-bert"], CASES["mpnet"]
    config = hf.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.Wav2Vec2BertConfig(**speech.config), hf.BertConfig(**text.config, is_decoder=True, add_cross_attention=True)
    )
    model = hf.SpeechEncoderDecoderModel(config=config).double().eval()
    _, batch = speech.batch(model.config, 11, True)
    batch["decoder_input_ids"] = torch.randint(2, 40, (2, 5))
    expected = model(**batch).logits
    hw.fuse_attention(model, verbose=False)
    assert [layers.family for layers in hw.fusion_report(model).layers] == ["Wav2Vec2-BERT"]
    torch.testing.assert_close(model(**batch).logits, expected, **TOLERANCE)


def test_text_to_speech_model_with_a_vocoder_is_fused() -> None:
    config = hf.FastSpeech2ConformerWithHifiGanConfig(
        model_config=CASES["fastspeech2-conformer"].config,
        vocoder_config={
            "model_in_dim": 10,
            "upsample_initial_channel": 8,
            "upsample_rates": [2],
            "upsample_kernel_sizes": [4],
            "resblock_kernel_sizes": [3],
            "resblock_dilation_sizes": [[1]],
        },
    )
    torch.manual_seed(0)
    model = hf.FastSpeech2ConformerWithHifiGan(config).eval()
    ids = torch.randint(2, 40, (1, 9))
    expected = model(input_ids=ids).waveform
    hw.fuse_attention(model, verbose=False)
    torch.testing.assert_close(model(input_ids=ids).waveform, expected, atol=1e-4, rtol=1e-3)


def test_model_whose_eager_attention_gives_nan_for_padding_is_fused() -> None:
    case = dataclasses.replace(CASES["parakeet"], config={**CASES["parakeet"].config, "attn_implementation": "eager"})
    model = hw.fuse_attention(build_model(case).eval(), verbose=False)
    real, batch = case.batch(model.config, 11, True)
    actual = model(**batch).last_hidden_state[real]
    torch.testing.assert_close(actual, build_model(CASES["parakeet"]).eval()(**batch).last_hidden_state[real])


@pytest.mark.parametrize("batch_size", [1, 2], ids=["one-mask", "mask-per-text"])
@pytest.mark.parametrize("hidden", [-1e9, -2.0])
@pytest.mark.parametrize("name", ["t5-encoder", "mpnet", "layoutlmv3"])
def test_additive_masks_of_the_caller(name: str, hidden: float, batch_size: int) -> None:
    model = build_model(CASES[name]).eval()
    _, batch = CASES[name].batch(model.config, 9, False)
    mask = torch.where(torch.rand(batch_size, 1, 9, 9) > 0.3, 0.0, hidden).double()
    with torch.no_grad():
        expected = model(**batch, attention_mask=mask)[0]
        hw.fuse_attention(model, verbose=False)
        torch.testing.assert_close(model(**batch, attention_mask=mask)[0], expected, **TOLERANCE)


def test_causal_xlnet_reads_texts_of_one_token() -> None:
    """Its causal mask, which is the same for all texts, then has the shape of a padding mask."""
    case = dataclasses.replace(CASES["xlnet"], config={**CASES["xlnet"].config, "attn_type": "uni"})
    model = build_model(case).eval()
    ids = torch.tensor([[5], [7]])
    with torch.no_grad():
        expected = model(ids)[0]
        hw.fuse_attention(model, verbose=False)
        torch.testing.assert_close(model(ids)[0], expected, **TOLERANCE)
