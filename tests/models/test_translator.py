"""Translators: decoding with a cache is decoding, for every scheme; so are batches, beams, saving and loading."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, EncoderDecoderCache
from transformers.cache_utils import DynamicCache

from headwise.errors import UserError
from headwise.models import HeadwiseForTranslation, HeadwiseTranslatorConfig, initialize_by_name
from tests.short_form import keep_short

WORDS = 60

#: Every scheme, and every way in which tables of relative positions and input positions differ.
CASES: dict[str, dict[str, Any]] = {
    "none": {"scheme": "none"},
    "plain": {"scheme": "plain"},
    "learned": {"scheme": "plain", "positions": "learned", "max_tokens": 32},
    "rpr": {"scheme": "rpr", "scheme_options": {"k": 2}},
    "rpr-k0": {"scheme": "rpr", "scheme_options": {"k": 0}},
    "rpr-shared": {"scheme": "rpr", "scheme_options": {"k": 3, "per_head": False}},
    "rpr-keys": {"scheme": "rpr", "scheme_options": {"k": 3, "values": False}},
    "rpr-values": {"scheme": "rpr", "scheme_options": {"k": 3, "keys": False}},
    "rpr-both": {"scheme": "rpr", "positions": "sinusoidal"},
    "transformer-xl": {"scheme": "transformer-xl"},
    "tener": {"scheme": "tener"},
    "distance-aware": {"scheme": "distance-aware"},
    "alibi": {"scheme": "alibi"},
    "rotary": {"scheme": "rotary"},
    "t5-bias": {"scheme": "t5-bias", "scheme_options": {"num_buckets": 4, "max_distance": 6}},
    "disentangled": {"scheme": "disentangled", "scheme_options": {"max_distance": 4}},
    "mixed": {"scheme": "distance-aware", "decoder_scheme": "rpr"},
    "post-norm": {"scheme": "rpr", "norm_first": False},
}


def translator(case: str) -> Any:
    sizes = {"vocab_size": WORDS, "heads": 2, "head_dim": 8, "layers": 2, "feedforward": 32}
    model: Any = HeadwiseForTranslation(HeadwiseTranslatorConfig(**(sizes | CASES[case]))).eval()
    initialize_by_name(model, seed=1)
    with torch.no_grad():
        model.encoder.words.weight[model.config.eos_token_id].mul_(0.2)  # so that decoding goes on for a while
    return model


def sources(*lengths: int) -> tuple[Tensor, Tensor]:
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(3, WORDS, real.shape) * real, real.long()


@pytest.mark.parametrize("case", CASES)
def test_a_cache_changes_no_logit(case: str) -> None:
    model = translator(case)
    ids, mask = sources(7, 4)
    target = torch.randint(3, WORDS, (2, 9))
    with torch.no_grad():
        whole = model(ids, mask, target).logits
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        parts = [model(ids, mask, part, past_key_values=cache).logits for part in target.split([1, 3, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-5)


@pytest.mark.short_form("values")
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("case", keep_short(CASES, "plain", "rpr", "distance-aware", "transformer-xl"))
def test_decoding_is_the_same_with_and_without_a_cache_and_one_by_one(case: str, beams: int) -> None:
    model = translator(case)
    ids, mask = sources(7, 2, 5)
    how: dict[str, Any] = {
        "num_beams": beams,
        "max_new_tokens": 12,
        "no_repeat_ngram_size": 1,  # untrained, it would say one word again and again
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    if beams > 1:
        how["length_penalty"] = 0.6
    cached = model.generate(ids, attention_mask=mask, **how)
    uncached = model.generate(ids, attention_mask=mask, use_cache=False, **how)
    assert torch.equal(cached.sequences, uncached.sequences)
    torch.testing.assert_close(torch.stack(cached.logits), torch.stack(uncached.logits), rtol=0, atol=1e-5)
    assert cached.sequences.unique().numel() > 10
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        alone = model.generate(ids[row : row + 1, :length], **how).sequences[0]
        together = cached.sequences[row]
        assert torch.equal(together[: len(alone)], alone)
        assert (together[len(alone) :] == model.config.pad_token_id).all()


@pytest.mark.parametrize("case", ["rpr", "distance-aware", "plain"])
def test_no_token_looks_ahead_and_padding_counts_nothing(case: str) -> None:
    model = translator(case)
    ids, mask = sources(6, 3)
    target = torch.randint(3, WORDS, (2, 8))
    changed = torch.cat([target[:, :5], torch.randint(3, WORDS, (2, 3))], dim=1)
    noise = torch.where(mask.bool(), ids, torch.randint(3, WORDS, ids.shape))
    with torch.no_grad():
        whole = model(ids, mask, target).logits
        torch.testing.assert_close(model(ids, mask, changed).logits[:, :5], whole[:, :5])
        torch.testing.assert_close(model(noise, mask, target).logits, whole)


def test_only_schemes_that_know_positions_tell_orders_apart() -> None:
    ids = torch.randint(3, WORDS, (1, 6))
    for case, blind in {"none": True, "rpr-k0": True, "rpr": False, "plain": False, "distance-aware": False}.items():
        model = translator(case)
        with torch.no_grad():
            there, back = (
                model(x, decoder_input_ids=torch.tensor([[1]])).logits for x in (ids, ids[:, [3, 1, 0, 2, 5, 4]])
            )
        assert torch.allclose(there, back, atol=1e-5) == blind, case


@pytest.mark.parametrize("case", ["rpr", "mixed", "learned"])
def test_saved_and_loaded_by_the_auto_class(case: str, tmp_path: Path) -> None:
    model = translator(case)
    model.save_pretrained(tmp_path)
    loaded: Any = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert [type(loaded)] == [HeadwiseForTranslation]
    assert loaded.config.scheme_options == model.config.scheme_options
    ids, mask = sources(5, 3)
    assert torch.equal(loaded(ids, mask, labels=ids).logits, model(ids, mask, labels=ids).logits)
    assert torch.equal(loaded.generate(ids, max_new_tokens=6), model.generate(ids, max_new_tokens=6))


def test_one_table_of_words() -> None:
    names = [name for name, p in translator("rpr").named_parameters() if p.shape[0] == WORDS]
    assert names == ["encoder.words.weight"]


def test_the_loss_is_of_real_labels_moved_one_to_the_right() -> None:
    model = translator("rpr")
    ids, mask = sources(5, 3)
    labels = torch.tensor([[9, 8, 7, 2], [6, 2, -100, -100]])
    read = torch.tensor([[1, 9, 8, 7], [1, 6, 2, 0]])
    output = model(ids, mask, labels=labels)
    chances = model(ids, mask, read).logits.log_softmax(dim=-1)
    said = [
        chances[row, place, labels[row, place]] for row in range(2) for place in range(4) if labels[row, place] >= 0
    ]
    torch.testing.assert_close(output.loss, -torch.stack(said).mean())


def test_presets_are_the_papers() -> None:
    base, big = (HeadwiseTranslatorConfig.preset(name) for name in ("base", "big"))
    assert (base.dim, base.heads, base.layers, base.feedforward, base.dropout) == (512, 8, 6, 1024, 0.1)
    assert (big.dim, big.heads, big.layers, big.feedforward, big.dropout) == (1024, 16, 6, 4096, 0.3)
    assert (base.scheme_options, big.scheme_options) == ({"k": 16, "per_head": True}, {"k": 8, "per_head": False})
    assert base.decoder_scheme_options == base.scheme_options
    assert base.positions == "none"
    assert HeadwiseTranslatorConfig.preset("small", scheme="plain").positions == "sinusoidal"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"scheme": "rope"}, "scheme"),
        ({"scheme_options": {"size": 3}}, "rpr has k"),
        ({"decoder_scheme": "plain", "decoder_scheme_options": {"k": 3}}, "no options"),
        ({"layers": 0}, "layers"),
        ({"heads": 1, "head_dim": 3, "scheme": "plain"}, "even"),
    ],
)
def test_user_errors_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        HeadwiseTranslatorConfig(**options)


def test_learned_positions_end() -> None:
    model = translator("learned")
    with pytest.raises(UserError, match="has 32 learned positions"):
        model(torch.randint(3, WORDS, (1, 33)), labels=torch.randint(3, WORDS, (1, 4)))
