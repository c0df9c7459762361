"""Tests of encoder-decoder models: encoder, decoder and cross-attention, of a generated or a given text."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from matplotlib.figure import Figure
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    FSMTConfig,
    FSMTForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from headwise.errors import UserError
from headwise.inspection import InspectedModel, build_viewer
from headwise.inspection import encoder_decoder as module
from headwise.inspection.encoder_decoder import capture_text
from headwise.inspection.output_dir import write_inspection
from headwise.inspection.passages import PassageAttention
from headwise.models import HeadwiseForTranslation, HeadwiseTranslatorConfig, build_tokenizer
from tests.blank_figures import BlankFigure
from tests.inspection.tiny_models import TEXT, WORDS, build_bert
from tests.integrations.fusion.cases import use_eager_attention
from tests.short_form import choose_size

hf: Any = transformers
TARGET = "the plot is thin ."
TOKENIZER = build_tokenizer([WORDS], framed=True)
BART: dict[str, Any] = {
    "vocab_size": len(TOKENIZER), "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 40,
    "pad_token_id": TOKENIZER.pad_token_id, "bos_token_id": TOKENIZER.cls_token_id,
    "eos_token_id": TOKENIZER.sep_token_id, "decoder_start_token_id": TOKENIZER.sep_token_id,
    "forced_eos_token_id": TOKENIZER.sep_token_id, "init_std": 0.5,
}  # fmt: skip


def build_t5() -> Any:
    sizes: dict[str, Any] = {"vocab_size": len(TOKENIZER), "d_model": 16, "d_kv": 4, "d_ff": 8, "num_layers": 2}
    ids: dict[str, Any] = {
        "num_heads": 4,
        "decoder_start_token_id": TOKENIZER.pad_token_id,
        "eos_token_id": TOKENIZER.sep_token_id,
    }
    return T5ForConditionalGeneration(T5Config(**sizes, **ids, pad_token_id=TOKENIZER.pad_token_id))


def build_fsmt() -> Any:
    """Its attention does not go through transformers' AttentionInterface."""
    names = ("vocab_size", "bos_token_id", "forced_eos_token_id", "decoder_start_token_id")
    sizes = {name: value for name, value in BART.items() if name not in names}
    languages: dict[str, Any] = {
        "langs": ["en", "de"],
        "src_vocab_size": len(TOKENIZER),
        "tgt_vocab_size": len(TOKENIZER),
    }
    return FSMTForConditionalGeneration(FSMTConfig(**sizes, **languages, bos_token_id=1, decoder_start_token_id=2))


def build_translator() -> Any:
    config = HeadwiseTranslatorConfig(
        vocab_size=len(TOKENIZER), scheme="distance-aware", layers=2, heads=4, head_dim=8, max_tokens=80,
        pad_token_id=TOKENIZER.pad_token_id, bos_token_id=TOKENIZER.cls_token_id, eos_token_id=TOKENIZER.sep_token_id,
    )  # fmt: skip
    return HeadwiseForTranslation(config)


MODELS: dict[str, Callable[[], Any]] = {
    "t5": build_t5,
    "bart": lambda: BartForConditionalGeneration(BartConfig(**BART)),
    "marian": lambda: MarianMTModel(MarianConfig(**BART)),
    "fsmt": build_fsmt,
    "headwise": build_translator,
}


def build(name: str, seed: int = 0) -> InspectedModel:
    torch.manual_seed(seed)
    return InspectedModel(name=f"{name} {seed}", model=MODELS[name]().eval(), tokenizer=TOKENIZER)


def expected_maps(model: InspectedModel, decoder_input_ids: Any) -> dict[str, Any]:
    """Return the maps of each part, (layers, heads, queries, keys), as the model itself computes them."""
    inner: Any = model.model
    ids, decoder_ids = torch.tensor([TOKENIZER(TEXT)["input_ids"]]), torch.tensor([decoder_input_ids])
    if isinstance(inner, HeadwiseForTranslation):
        return {"decoder": None, "encoder": None, "cross": headwise_cross_attention(inner, ids, decoder_ids)}
    use_eager_attention(inner)
    with torch.no_grad():
        output = inner(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False, output_attentions=True)
    parts = ("encoder", "decoder", "cross")
    return {part: torch.stack(getattr(output, f"{part}_attentions"))[:, 0].numpy() for part in parts}


def headwise_cross_attention(model: Any, ids: Any, decoder_ids: Any) -> Any:
    """Return softmax(q·k / √d) of all layers, from the inputs of cross-attention."""
    maps = []

    def compute(layer: Any, args: Any, kwargs: Any, output: Any) -> None:
        query, k = args[:2]
        q = layer.q_proj(query).unflatten(-1, (layer.num_heads, layer.head_dim)).transpose(1, 2)
        maps.append((q @ k.transpose(2, 3) / layer.head_dim**0.5).softmax(dim=-1)[0].detach().numpy())

    hooks = [x.cross_attention.register_forward_hook(compute, with_kwargs=True) for x in model.decoder.layers]
    with torch.no_grad():
        model(input_ids=ids, decoder_input_ids=decoder_ids)
    for hook in hooks:
        hook.remove()
    return np.stack(maps)


def check_maps(passages: list[PassageAttention], expected: dict[str, Any]) -> None:
    for passage, part in zip(passages, ("encoder", "decoder", "cross"), strict=True):
        if expected[part] is None:
            continue
        assert len(passage.layers) == len(expected[part])
        for layer, maps in zip(passage.layers, expected[part], strict=True):
            assert layer.cells.shape == maps.shape
            for head, weights in enumerate(maps):
                bound = np.sqrt(weights * weights.max()) / 255 + 1e-4
                assert (np.abs(layer.dequantize(head) - weights) <= bound).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_given_text_is_decoded(name: str) -> None:
    model = build(name)
    encoder, decoder, cross = passages = capture_text(model, (TEXT,), TARGET)
    source, target = (tuple(TOKENIZER.convert_ids_to_tokens(TOKENIZER(text)["input_ids"])) for text in (TEXT, TARGET))
    assert [passage.title for passage in passages] == [
        "encoder self-attention",
        "decoder self-attention",
        "cross-attention",
    ]
    assert (encoder.tokens, encoder.key_tokens) == (source, None)
    assert decoder.key_tokens is None
    if name != "fsmt":  # it shifts tokens in another way
        assert decoder.tokens[1:] == target[:-1], "the decoder reads the token before the one that it predicts"
    assert (cross.tokens, cross.key_tokens) == (target, source)
    assert cross.prediction is not None
    assert (cross.prediction.text, cross.prediction.is_given) == (TARGET, True)
    check_maps(passages, expected_maps(model, TOKENIZER.convert_tokens_to_ids(list(decoder.tokens))))


@pytest.mark.parametrize("name", ["t5", "bart", "headwise"])
def test_without_a_given_text_the_model_generates_one(name: str) -> None:
    model = build(name)
    _, decoder, cross = passages = capture_text(model, (TEXT,))
    inner: Any = model.model
    inputs = {"input_ids": torch.tensor([TOKENIZER(TEXT)["input_ids"]])}
    limit = getattr(inner.config, "max_position_embeddings", 1000) - 1
    with torch.no_grad():
        (ids,) = inner.generate(**inputs, do_sample=False, max_new_tokens=min(14 + module.MAX_EXTRA_TOKENS, limit))
    tokens = TOKENIZER.convert_ids_to_tokens(ids)
    assert decoder.tokens == tuple(tokens[:-1])
    assert cross.tokens == tuple(tokens[1:])
    assert cross.prediction is not None
    assert cross.prediction.text == str(TOKENIZER.decode(ids, skip_special_tokens=True)).strip()
    assert not cross.prediction.is_given
    check_maps(passages, expected_maps(model, ids[:-1].tolist()))


def test_a_generated_text_without_an_end_is_marked_as_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NEW_TOKENS", 3)
    model = build("t5")
    assert [passage.truncated for passage in capture_text(model, (TEXT,))] == [True] * 3
    assert [passage.truncated for passage in capture_text(model, (TEXT,), TARGET)] == [False] * 3


def test_alignments_are_means_over_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.inspection.style.Figure", choose_size(short=BlankFigure, long=Figure))
    model = build("bart")
    viewer = build_viewer([model], [TEXT], targets=[TARGET])
    alignment = viewer.examples[2].passages[0].alignment
    maps = expected_maps(model, TOKENIZER.convert_tokens_to_ids(list(viewer.examples[1].passages[0].tokens)))["cross"]
    assert alignment is not None
    np.testing.assert_allclose(alignment.mean, maps.mean(axis=(0, 1)), atol=1e-5)
    np.testing.assert_array_equal(alignment.sources, maps.mean(axis=1).argmax(axis=-1))
    np.testing.assert_allclose(alignment.weights, maps.mean(axis=1).max(axis=-1), atol=1e-5)
    write_inspection(viewer, [model], tmp_path)
    with (tmp_path / "alignments.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    target, source = viewer.examples[2].passages[0].tokens, viewer.examples[0].passages[0].tokens
    assert len(rows) == (1 + 3) * len(target)
    for row, position in zip(rows, range(len(target)), strict=False):
        best = int(maps.mean(axis=(0, 1))[position].argmax())
        found = (row["layer"], row["target"], row["target_token"], row["source"], row["source_token"])
        assert found == ("all", str(position), target[position], str(best), source[best])
        assert float(row["weight"]) == pytest.approx(maps.mean(axis=(0, 1))[position, best], abs=1e-5)
    with (tmp_path / "distances.csv").open(newline="", encoding="utf-8") as file:
        parts = {row["part"] for row in csv.DictReader(file)}
    assert parts == {"encoder self-attention", "decoder self-attention"}, "source and target have no common positions"
    assert {f"maps-{number}.png" for number in (1, 2, 3)} <= {path.name for path in (tmp_path / "figures").iterdir()}


def test_long_sources_are_grouped_and_short_targets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.inspection.quantize.MAX_GROUPS", 8)
    model = build("bart")
    cross = capture_text(model, (TEXT,), "thin .")[2]
    maps = expected_maps(model, TOKENIZER.convert_tokens_to_ids(["[SEP]", "[CLS]", "thin", "."]))["cross"]
    for layer, expected in zip(cross.layers, maps, strict=True):
        assert layer.cells.shape == (4, 4, 7), "14 source tokens in groups of 2"
        assert layer.top_keys is not None
        groups = expected.reshape(4, 4, 7, 2).sum(axis=-1)
        for head in range(4):
            np.testing.assert_allclose(layer.dequantize(head), groups[head], atol=groups.max() / 255 + 1e-5)
            np.testing.assert_array_equal(layer.top_keys[head, :, 0], expected[head].argmax(axis=-1))


def test_models_that_generate_different_texts_need_a_target() -> None:
    models = [build("bart", seed) for seed in (0, 1)]
    with pytest.raises(UserError, match=r"bart 0 and bart 1 generate different texts: .* \(--target\)"):
        build_viewer(models, [TEXT])
    viewer = build_viewer(models, [TEXT], targets=[TARGET])
    assert [len(example.passages) for example in viewer.examples] == [2, 2, 2]


def test_models_without_a_language_model_head() -> None:
    """They cannot generate, but decode a given text; without one the encoder is shown."""
    torch.manual_seed(0)
    bare = InspectedModel(name="bare", model=BartModel(BartConfig(**BART)).eval(), tokenizer=TOKENIZER)
    assert [passage.title for passage in capture_text(bare, (TEXT,))] == [""]
    assert [passage.title for passage in capture_text(bare, (TEXT,), TARGET)] == list(module.PARTS.values())
    with pytest.raises(UserError, match="tiny has no decoder; --target is for translators"):
        capture_text(build_bert(), (TEXT,), TARGET)
    with pytest.raises(UserError, match="a target text is empty"):
        capture_text(bare, (TEXT,), " ")


@pytest.mark.parametrize("name", ["LongT5", "PegasusX"])
def test_models_that_attend_in_blocks_are_errors(name: str) -> None:
    """Their encoders return the weights of blocks, not those of all pairs of tokens."""
    if name == "LongT5":
        sizes: dict[str, Any] = {"vocab_size": len(TOKENIZER), "d_model": 16, "d_kv": 4, "d_ff": 8, "num_layers": 1}
        ids: dict[str, Any] = {"num_heads": 4, "decoder_start_token_id": 0, "eos_token_id": TOKENIZER.sep_token_id}
        inner = hf.LongT5ForConditionalGeneration(hf.LongT5Config(**sizes, **ids))
    else:
        inner = hf.PegasusXForConditionalGeneration(hf.PegasusXConfig(**BART, num_global_tokens=4, block_size=4))
    model = InspectedModel(name=name, model=inner.eval(), tokenizer=TOKENIZER)
    with pytest.raises(UserError, match=f"{name}.*: its encoder .* is not accessible"):
        build_viewer([model], [TEXT], targets=[TARGET])


def test_outputs_do_not_change() -> None:
    model = build("bart")
    inner: Any = model.model
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[2, 8, 9, 10]])}
    with torch.no_grad():
        expected = inner(**inputs).logits
    output = module.capture_encoder_decoder(inner, inputs, {part: lambda *_: None for part in module.PARTS})
    assert torch.equal(output.logits, expected)
    with torch.no_grad():
        assert torch.equal(inner(**inputs).logits, expected)
