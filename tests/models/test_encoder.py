"""The encoder is embeddings and layers, whatever a batch looks like and however it is run."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models import HeadwiseConfig, HeadwiseModel
from tests.models.tiny_models import SCHEMES, config, texts


def encoder(scheme: str, **options: object) -> HeadwiseModel:
    model = HeadwiseModel(config(scheme, **options))
    model.eval()
    return model


@torch.no_grad()
def by_hand(model: Any, ids: list[int]) -> Tensor:
    """One text through the plain model, a token at a time."""
    rows = []
    for position, word in enumerate(ids):
        angles = [position / 10000 ** (2 * m / model.config.dim) for m in range(model.config.dim // 2)]
        waves = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
        rows.append(model.embeddings.projection(model.embeddings.words(torch.tensor(word))) + waves)
    for layer in model.layers:
        own, attended = layer.attention, []
        for row in rows:
            heads = []
            for part in torch.arange(model.config.dim).split(model.config.head_dim):
                q = own.q_proj(row)[part]
                scores = [float(q @ own.k_proj(other)[part]) / math.sqrt(len(part)) for other in rows]
                total = sum(map(math.exp, scores))
                values = [own.v_proj(other)[part] for other in rows]
                heads.append(sum(math.exp(s) / total * v for s, v in zip(scores, values, strict=True)))
            attended.append(layer.around_attention.norm(row + own.out_proj(torch.cat(heads))))
        first, _, _, second = layer.feedforward
        rows = [layer.around_feedforward.norm(x + second(first(x).relu())) for x in attended]
    return torch.stack(rows)


def test_plain_equals_the_equations() -> None:
    model = encoder("plain").double()
    ids = [3, 14, 15, 9]
    torch.testing.assert_close(model(torch.tensor([ids])).last_hidden_state[0], by_hand(model, ids))


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=8)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_batch_equals_its_texts_one_by_one(scheme: str, lengths: list[int]) -> None:
    model = encoder(scheme).double()
    ids, mask = texts(*lengths)
    states = model(ids, mask).last_hidden_state
    for row, length in enumerate(lengths):
        alone = model(ids[row : row + 1, :length]).last_hidden_state[0]
        torch.testing.assert_close(states[row, :length], alone)


def test_without_a_mask_the_padding_id_is_padding() -> None:
    model = encoder("distance-aware")
    ids, mask = texts(5, 3)
    ids = ids * mask
    torch.testing.assert_close(model(ids).last_hidden_state, model(ids, mask).last_hidden_state)


def test_words_at_the_models_width_are_not_projected() -> None:
    assert isinstance(encoder("rpr", word_dim=8).embeddings.projection, nn.Identity)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_and_states_of_each_layer(scheme: str) -> None:
    model = encoder(scheme)
    ids, mask = texts(5, 3)
    output = model(ids, mask, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(output.last_hidden_state, model(ids, mask).last_hidden_state)
    assert [tuple(x.shape) for x in output.attentions] == [(2, 2, 5, 5)] * 2
    assert [tuple(x.shape) for x in output.hidden_states] == [(2, 5, 8)] * 3
    for weights in output.attentions:
        torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 5))
        assert not weights[1, :, :, 3:].any()
    assert len(model(ids, mask, return_dict=False)) == 1


def test_learned_positions_end() -> None:
    model = encoder("plain", positions="learned", max_tokens=4)
    assert model(torch.ones(1, 4, dtype=torch.long)).last_hidden_state.shape == (1, 4, 8)
    with pytest.raises(UserError, match="has 4 learned positions, got a text of length 5"):
        model(torch.ones(1, 5, dtype=torch.long))


@pytest.mark.parametrize("shape", [(3,), (2, 0), (2, 3, 4)])
def test_ids_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="input_ids must have the shape"):
        encoder("plain")(torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_checkpointing_gives_the_same_gradients(scheme: str) -> None:
    model = HeadwiseModel(config(scheme, dropout=0.0)).train()
    ids, mask = texts(5, 3)
    again = copy.deepcopy(model)
    again.gradient_checkpointing_enable()
    for each in (model, again):
        each(ids, mask).last_hidden_state.square().sum().backward()
    for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)


@pytest.mark.long  # tests/attention compiles layers in the short form
@pytest.mark.parametrize("scheme", ["plain", "distance-aware"])
def test_compiled_in_one_graph(scheme: str) -> None:
    model = encoder(scheme)
    ids, mask = texts(5, 3)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids, mask).last_hidden_state, model(ids, mask).last_hidden_state)
    torch._dynamo.reset()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_autocast(scheme: str) -> None:
    model = encoder(scheme)
    ids, mask = texts(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(ids, mask).last_hidden_state
    torch.testing.assert_close(low.float(), model(ids, mask).last_hidden_state, atol=0.1, rtol=0.1)


def segmented_model(scheme: str, layers: int, segment_length: int | None) -> HeadwiseModel:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 30, "word_dim": 8, "heads": 2, "head_dim": 4, "dropout": 0.0}
    config = HeadwiseConfig(scheme=scheme, layers=layers, segment_length=segment_length, **sizes)  # type: ignore[arg-type]
    model = HeadwiseModel(config)
    model.eval()
    return model


@pytest.mark.parametrize("scheme", ["transformer-xl", "rpr", "distance-aware"])
def test_one_segment_is_the_whole_text(scheme: str) -> None:
    ids = torch.randint(1, 30, (2, 7))
    ids[1, 5:] = 0
    whole, segmented = (segmented_model(scheme, 2, length)(ids).last_hidden_state for length in (None, 7))
    torch.testing.assert_close(whole, segmented)


@pytest.mark.parametrize(("layers", "reached"), [(1, [0, 1]), (2, [0, 1, 2])])
def test_recurrence_of_segments(layers: int, reached: list[int]) -> None:
    """Each layer passes information on to the next segment, but not back."""
    model = segmented_model("transformer-xl", layers, 4)
    ids = torch.randint(1, 29, (1, 16))
    changed = ids.clone()
    changed[0, 1] = 29
    difference = (model(ids).last_hidden_state - model(changed).last_hidden_state).abs().amax(dim=(0, 2)).view(4, 4)
    assert [segment for segment in range(4) if difference[segment].max() > 1e-6] == reached
    first, second = ids[:, :4], ids[:, 4:8]
    embed = model.embeddings
    expected = model.layers[0](embed(second, None), memory=embed(first, None))
    if layers == 1:
        torch.testing.assert_close(model(ids).last_hidden_state[:, 4:8], expected)


def test_gradients_do_not_pass_to_the_previous_segment() -> None:
    model = segmented_model("transformer-xl", 2, 4)
    ids = torch.arange(1, 9)[None]
    model(ids).last_hidden_state[:, 4:, 0].sum().backward()
    gradient: Any = model.get_input_embeddings().weight.grad
    assert gradient[1:5].abs().max() == 0
    assert gradient[5:9].abs().max() > 0


def test_padding_of_whole_segments() -> None:
    model = segmented_model("transformer-xl", 1, 4)
    ids = torch.randint(1, 30, (2, 12))
    ids[1, 3:] = 0
    states = model(ids).last_hidden_state
    torch.testing.assert_close(states[1, :3], model(ids[1:, :3]).last_hidden_state[0])
    assert states.isfinite().all()


def test_segments_return_no_weights() -> None:
    with pytest.raises(UserError, match="returns no weights"):
        segmented_model("transformer-xl", 1, 4)(torch.ones(1, 8, dtype=torch.long), output_attentions=True)
