"""`extend_positions`: longer inputs for pretrained encoders."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DistilBertConfig, MPNetConfig, T5Config

import headwise as hw
from headwise.models import build_tokenizer
from tests.integrations.tiny_models import VOCAB_SIZE, build_model, hf

#: Families with a table, and the row of the first token.
TABLES = {"bert": 0, "roberta": 2, "xlm-roberta": 2, "albert": 0, "electra": 0, "distilbert": 0, "mpnet": 2}
ROTARY = ("modernbert", "llama")
LONG = 600


def tokens(length: int) -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (2, length), generator=torch.Generator().manual_seed(1))


def scores(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return logits


def table(model: Any) -> Tensor:
    name = next(name for name, _ in model.named_parameters() if name.endswith("position_embeddings.weight"))
    weight: Tensor = model.get_parameter(name).detach()
    return weight


@pytest.mark.parametrize("family", TABLES)
def test_tables_are_tiled_after_the_rows_of_padding(family: str) -> None:
    model, offset = build_model(family), TABLES[family]
    before, short = table(model).clone(), scores(model, tokens(30))
    length = len(before) - offset
    hw.extend_positions(model, LONG)
    after = table(model)
    assert model.config.max_position_embeddings == len(after) == LONG + offset
    assert torch.equal(after[: len(before)], before)
    for position in (length, length + 7, LONG - 1):
        assert torch.equal(after[offset + position], before[offset + position % length])
    assert torch.equal(scores(model, tokens(30)), short)
    assert scores(model, tokens(LONG)).isfinite().all()


@pytest.mark.parametrize("family", [*TABLES, *ROTARY])
def test_saved_models_are_ordinary_models(family: str, tmp_path: Path) -> None:
    model: Any = hw.extend_positions(build_model(family), LONG)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.max_position_embeddings == LONG + TABLES.get(family, 0)
    assert torch.equal(scores(loaded, tokens(300)), scores(model, tokens(300)))


def test_a_token_at_a_tiled_position_is_read_as_at_the_old_one() -> None:
    model = hw.extend_positions(build_model("bert"), 256)
    ids = tokens(8)
    with torch.no_grad():
        first, tiled = (model.eval()(ids, position_ids=torch.arange(8)[None] + start).logits for start in (3, 64 + 3))
    assert torch.equal(first, tiled)


def test_interpolation_keeps_both_ends_and_is_linear() -> None:
    model = build_model("roberta").double()
    before = table(model)[2:].clone()
    after = table(hw.extend_positions(model, 2 * len(before) - 1, positions="interpolate"))[2:]
    torch.testing.assert_close(after[::2], before)
    torch.testing.assert_close(after[1::2], (before[1:] + before[:-1]) / 2)


def test_the_last_row_is_repeated() -> None:
    model = build_model("distilbert")
    before = table(model).clone()
    after = table(hw.extend_positions(model, LONG, positions="repeat-last"))
    assert torch.equal(after[len(before) :], before[-1].expand(LONG - len(before), -1))


@pytest.mark.parametrize("positions", ["tile", "interpolate", "repeat-last"])
def test_dtype_and_frozen_tables_are_kept(positions: Any) -> None:
    model = build_model("electra").to(torch.bfloat16)
    weight = model.electra.embeddings.position_embeddings.weight
    weight.requires_grad_(False)
    hw.extend_positions(model, 128, positions=positions)
    assert model.electra.embeddings.position_embeddings.weight is weight
    assert weight.dtype == torch.bfloat16
    assert not weight.requires_grad
    assert model.electra.embeddings.position_ids.tolist() == [list(range(128))]
    assert model.electra.embeddings.token_type_ids.tolist() == [[0] * 128]


def test_the_tokenizer_gets_the_length(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(["a fine film"], framed=True, max_tokens=64)
    hw.extend_positions(build_model("roberta"), 500, tokenizer=tokenizer)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.model_max_length == 500
    assert len(loaded("film " * 600, truncation=True)["input_ids"]) == 500


@pytest.mark.parametrize("extend_first", [True, False])
def test_retrofit_before_and_after(extend_first: bool, tmp_path: Path) -> None:
    model = build_model("bert")
    if extend_first:
        hw.extend_positions(model, 200)
    hw.retrofit(model, hw.RelativePositions)
    hw.extend_positions(model, 200)
    for parameter in hw.scheme_parameters(model):
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.max_position_embeddings == 200
    assert torch.equal(scores(loaded, tokens(180)), scores(model, tokens(180)))
    assert len(list(hw.scheme_parameters(loaded))) > 0


@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.parametrize(("positions", "rope_type"), [(None, "linear"), ("yarn", "yarn")])
def test_rotary_models_use_the_scaling_of_their_configuration(family: str, positions: Any, rope_type: str) -> None:
    model: Any = hw.extend_positions(build_model(family), 256, positions=positions)
    parameters = model.config.rope_parameters
    full = parameters.get("full_attention", parameters)
    assert (full["rope_type"], full["factor"]) == (rope_type, 4.0)
    if family == "modernbert":
        assert parameters["sliding_attention"]["rope_type"] == "default"
    rebuilt = type(model)(copy.deepcopy(model.config))
    rebuilt.load_state_dict(model.state_dict())
    assert torch.equal(scores(rebuilt, tokens(200)), scores(model, tokens(200)))


def test_interpolated_rotary_positions_are_divided_by_the_factor() -> None:
    model = build_model("llama")
    near = model.model.rotary_emb(torch.zeros(1), torch.tensor([[10]]))[0]
    hw.extend_positions(model, 128)
    far = model.model.rotary_emb(torch.zeros(1), torch.tensor([[20]]))[0]
    torch.testing.assert_close(near, far)


def test_a_second_extension_continues_the_first() -> None:
    once, twice = build_model("llama"), build_model("llama")
    hw.extend_positions(once, 256)
    hw.extend_positions(hw.extend_positions(twice, 128), 256)
    assert once.config.rope_parameters == twice.config.rope_parameters
    assert torch.equal(scores(once, tokens(200)), scores(twice, tokens(200)))


def test_the_same_length_changes_nothing_and_a_shorter_one_is_refused() -> None:
    model = hw.extend_positions(build_model("roberta"), 200, positions="interpolate")
    before = table(model).clone()
    hw.extend_positions(model, 200)
    assert torch.equal(table(model), before)
    with pytest.raises(ValueError, match=r"^RobertaForSequenceClassification reads 200 tokens already; .* got 100$"):
        hw.extend_positions(model, 100)
    assert torch.equal(table(model), before)


def test_wrong_arguments() -> None:
    bert, llama = build_model("bert"), build_model("llama")
    with pytest.raises(TypeError, match=r"length must be an integer, got 512\.0"):
        hw.extend_positions(bert, 512.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one of tile, interpolate, repeat-last, yarn; got 'stretch'"):
        hw.extend_positions(bert, 512, positions="stretch")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"has a table of position embeddings; positions must be tile or .* got yarn"):
        hw.extend_positions(bert, 512, positions="yarn")
    with pytest.raises(ValueError, match="has rotary positions; positions must be interpolate or yarn, got tile"):
        hw.extend_positions(llama, 512, positions="tile")
    with pytest.raises(TypeError, match=r"expected a Hugging Face PreTrainedModel, .* got <class 'str'>"):
        hw.extend_positions("bert-base-uncased", 512)  # type: ignore[arg-type]
    hw.extend_positions(llama, 512, positions="yarn")
    with pytest.raises(ValueError, match="rotary positions of the type yarn already"):
        hw.extend_positions(llama, 1024, positions="interpolate")


@pytest.mark.parametrize(
    ("family", "reason"),
    [("gpt2", "; supported are encoders"), ("t5-encoder", ": its relative positions have no limit")],
)
def test_other_models_are_refused_in_one_line(family: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"position embeddings that can be extended{reason}") as error:
        hw.extend_positions(build_model(family), 4096)
    assert "\n" not in str(error.value)


def test_relative_positions_of_deberta_are_refused() -> None:
    """Its attention has tables of `max_position_embeddings` rows, which must stay as they are."""
    config = build_model("deberta").config
    config.relative_attention = True
    with pytest.raises(ValueError, match="DebertaV2Model has no position embeddings that can be extended"):
        hw.extend_positions(hf.DebertaV2Model(config), 4096)


def test_encoder_decoder_models_are_refused() -> None:
    config = T5Config(d_model=8, d_kv=4, num_heads=2, num_layers=1, d_ff=8, vocab_size=VOCAB_SIZE)
    with pytest.raises(ValueError, match=r"T5Model has no position embeddings .* its relative positions have no limit"):
        hw.extend_positions(hf.T5Model(config), 4096)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    with pytest.raises(ValueError, match="is an encoder-decoder model"):
        hw.extend_positions(hf.BartModel(hf.BartConfig(vocab_size=VOCAB_SIZE, d_model=8, **sizes)), 4096)


def test_all_tables_of_luke_are_extended(tmp_path: Path) -> None:
    """It has a table for words, with rows for padding, and one for entities, whose positions are those of words."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vocabularies = {"vocab_size": VOCAB_SIZE, "entity_vocab_size": 5, "entity_emb_size": 8}
    model = hf.LukeModel(hf.LukeConfig(max_position_embeddings=66, **sizes, **vocabularies))
    before = model.entity_embeddings.position_embeddings.weight.detach().clone()
    hw.extend_positions(model, 150)
    model.save_pretrained(tmp_path)
    after = model.entity_embeddings.position_embeddings.weight
    assert torch.equal(after[:64], before[:64])
    assert torch.equal(after[64:128], before[:64])
    inputs = {"input_ids": tokens(150), "entity_ids": torch.ones(2, 1).long()}
    inputs["entity_position_ids"] = torch.tensor([149, -1]).expand(2, 1, 2)
    loaded = hf.LukeModel.from_pretrained(tmp_path)
    with torch.no_grad():
        expected, outputs = (x.eval()(**inputs).last_hidden_state for x in (model, loaded))
    assert torch.equal(outputs, expected)


def test_visual_positions_of_visual_bert_are_extended(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = hf.VisualBertConfig(vocab_size=VOCAB_SIZE, max_position_embeddings=64, visual_embedding_dim=4, **sizes)
    model = hf.VisualBertModel(config).eval()
    image = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))

    def read(model: Any, length: int) -> Tensor:
        with torch.no_grad():
            state: Tensor = model.eval()(input_ids=tokens(length), visual_embeds=image).last_hidden_state
        return state

    before = read(model, 30)
    hw.extend_positions(model, 150)
    assert torch.equal(read(model, 30), before)
    model.save_pretrained(tmp_path)
    assert torch.equal(read(hf.VisualBertModel.from_pretrained(tmp_path), 150), read(model, 150))


def test_block_sparse_attention_needs_whole_blocks() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = hf.BigBirdConfig(vocab_size=VOCAB_SIZE, max_position_embeddings=64, block_size=4, **sizes)
    model = hf.BigBirdForSequenceClassification(config)
    with pytest.raises(ValueError, match="reads blocks of 4 tokens; length must be a multiple, got 151"):
        hw.extend_positions(model, 151)
    assert scores(hw.extend_positions(model, 152), tokens(151)).isfinite().all()


def test_wrapped_tables_are_reported_as_such() -> None:
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(target_modules=["query"], modules_to_save=["position_embeddings"])
    model = peft.get_peft_model(build_model("bert"), lora)
    with pytest.raises(ValueError, match=r"position embeddings in a wrapper, such as that of PEFT; call .* before"):
        hw.extend_positions(model, 128)


def test_sinusoidal_tables_are_extended_too() -> None:
    config = DistilBertConfig(dim=8, n_heads=2, n_layers=1, hidden_dim=8, vocab_size=40, sinusoidal_pos_embds=True)
    model = hw.extend_positions(hf.DistilBertForSequenceClassification(config), 600)
    assert scores(model, tokens(600)).isfinite().all()


def test_relative_positions_of_mpnet_have_no_limit() -> None:
    config = MPNetConfig(
        vocab_size=VOCAB_SIZE, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=34,
    )  # fmt: skip
    model = hf.MPNetForSequenceClassification(config)
    with pytest.raises(IndexError):
        scores(model, tokens(64))
    assert scores(hw.extend_positions(model, 64), tokens(64)).isfinite().all()
