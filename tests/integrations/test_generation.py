"""Generation with schemes: the same tokens and logits with every kind of cache."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headwise as hw
from headwise._scheme_loading import SCHEME

hf: Any = transformers

VOCAB_SIZE = 40


def enlarge(model: Any) -> Any:
    """Return the model in float64 with large parameters, so that a wrong position changes the tokens."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0)
        for parameter in hw.scheme_parameters(model):
            parameter.normal_(0.0, 0.5)
    return model.double().eval()


def build_llama(scheme: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    config = hf.LlamaConfig(**sizes, intermediate_size=32, vocab_size=VOCAB_SIZE)
    return enlarge(hw.retrofit(hf.LlamaForCausalLM(config), scheme))


CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {"use_cache": True},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "chunked-prefill": {"prefill_chunk_size": 2},
    "chunked-prefill-static": {"prefill_chunk_size": 2, "cache_implementation": "static", "disable_compile": True},
}
PADDINGS = {"one-prompt": [0, 2], "all-prompts": [1, 3], "whole-chunks": [4, 5]}


@pytest.mark.parametrize("implementation", ["headwise", "eager", "sdpa"])
@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
def test_left_padded_prompts_with_every_cache(padding: list[int], implementation: str) -> None:
    model, ids = build_llama("DistanceAware"), torch.randint(3, VOCAB_SIZE, (2, 6))
    model.set_attn_implementation(implementation)
    mask = (torch.arange(6) >= torch.tensor(padding)[:, None]).long()
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    expected = model.generate(ids, use_cache=False, **options)
    for name, cache in CACHES.items():
        assert torch.equal(model.generate(ids, **cache, **options), expected), name


@pytest.mark.parametrize("scheme", ["RelativePositions", "TransformerXL", "Tener"])
def test_other_schemes_with_every_cache(scheme: str) -> None:
    model, ids = build_llama(scheme), torch.randint(3, VOCAB_SIZE, (2, 5))
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    expected = model.generate(ids, use_cache=False, **options)
    for name, cache in CACHES.items():
        assert torch.equal(model.generate(ids, **cache, **options), expected), name


def build_encoder_decoder(family: str) -> Any:
    torch.manual_seed(0)
    tokens = {"vocab_size": VOCAB_SIZE, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    if family == "t5":
        config = hf.T5Config(d_model=16, d_kv=8, num_heads=2, num_layers=2, d_ff=16, dropout_rate=0.0, **tokens)
        return hf.T5ForConditionalGeneration(config)
    sizes = {f"{part}_{size}": 2 for part in ("encoder", "decoder") for size in ("layers", "attention_heads")}
    widths = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0, "forced_eos_token_id": None}
    return hf.BartForConditionalGeneration(hf.BartConfig(d_model=16, **sizes, **widths, **tokens))


def build_source() -> dict[str, Tensor]:
    ids = torch.randint(3, VOCAB_SIZE, (2, 7))
    return {"input_ids": ids, "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])}


@pytest.mark.parametrize("part", ["encoder", "decoder", "both"])
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_parts_of_encoder_decoder_models(family: str, part: Any) -> None:
    """Outputs are unchanged until training, only the named part gets schemes, and all caches give the same tokens."""
    model, source = build_encoder_decoder(family).double().eval(), build_source()
    inputs = source | {"decoder_input_ids": torch.randint(3, VOCAB_SIZE, (2, 5))}
    before = model(**inputs).logits
    hw.retrofit(model, hw.DistanceAware, part=part)
    torch.testing.assert_close(model(**inputs).logits, before, atol=1e-12, rtol=1e-12)
    names = [name for name, module in model.named_modules() if SCHEME in module._modules]
    parts = {next(x for x in name.split(".") if x in ("encoder", "decoder")) for name in names}
    assert parts == ({"encoder", "decoder"} if part == "both" else {part})
    assert len(names) == (4 if part == "both" else 2)
    assert not any("encoder_attn" in name or "EncDecAttention" in name for name in names)

    enlarge(model)
    assert not torch.allclose(model(**inputs).logits, before, atol=1e-3)
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(**source, use_cache=False, **options)
    assert torch.equal(model.generate(**source, use_cache=True, **options), expected)
    static = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(**source, **static, **options), expected)
    beams = model.generate(**source, num_beams=3, use_cache=False, **options)
    assert torch.equal(model.generate(**source, num_beams=3, **options), beams)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_layers_of_both_parts_are_numbered_in_the_order_in_which_they_run(family: str) -> None:
    model = build_encoder_decoder(family)
    hw.retrofit(model, hw.DistanceAware, part="both", layers=[1, 2])
    names = [name for name, module in model.named_modules() if SCHEME in module._modules]
    assert ["encoder" in names[0], "decoder" in names[1]] == [True, True]
    with pytest.raises(ValueError, match="part must be one of encoder, decoder, both; got 'middle'"):
        hw.retrofit(build_encoder_decoder(family), part="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_the_decoder_is_saved_and_loaded(family: str, tmp_path: Any) -> None:
    model, source = build_encoder_decoder(family), build_source()
    hw.retrofit(model, hw.DistanceAware, part="both", layers=[0, -1])
    enlarge(model).save_pretrained(tmp_path)
    inputs = source | {"decoder_input_ids": torch.randint(3, VOCAB_SIZE, (2, 5))}
    loaded = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    outputs = loaded(**inputs, output_attentions=True)
    for name, keys in (("encoder_attentions", 7), ("decoder_attentions", 5), ("cross_attentions", 7)):
        for weights in outputs[name]:
            assert weights.shape[-1] == keys
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1], dtype=weights.dtype))
        assert len(outputs[name]) == 2
