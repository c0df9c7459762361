"""The first token's classifier, on the encoders that people have."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForSequenceClassification, BartConfig, GPT2Config

import headwise as hw
from headwise.errors import UserError
from headwise.models import FirstToken

SIZE: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
    "pad_token_id": 1,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {},
    "Albert": {"embedding_size": 8},
    "Electra": {"embedding_size": 8},
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16},
    "ModernBert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
}
IDS = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 9, 3, 1]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])


def config_of(name: str) -> Any:
    known = {key: x for key, x in SIZE.items() if name != "DistilBert" or not key.startswith(("hidden", "inter"))}
    return getattr(transformers, f"{name}Config")(**known, **ENCODERS[name])


@pytest.mark.parametrize("name", ENCODERS)
def test_scores_are_a_linear_map_of_the_rectified_first_state(name: str, tmp_path: Path) -> None:
    model: Any = FirstToken.from_config(config_of(name)).eval()
    labels = torch.tensor([0, 2])
    found = model(input_ids=IDS, attention_mask=MASK, labels=labels)
    states: Tensor = model.base_model(input_ids=IDS, attention_mask=MASK).last_hidden_state
    W, b = model.first_token_classifier.weight, model.first_token_classifier.bias
    scores = torch.stack([W @ state.clamp(min=0) + b for state in states[:, 0]])
    torch.testing.assert_close(found.logits, scores)
    torch.testing.assert_close(found.loss, torch.nn.functional.cross_entropy(scores, labels))
    assert not any("pooler" in key for key in model.state_dict()), "nothing reads it"

    model.save_pretrained(tmp_path)
    again: Any = FirstToken.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(input_ids=IDS, attention_mask=MASK).logits, found.logits)


def test_behaves_as_models_of_transformers_do(tmp_path: Path) -> None:
    model: Any = FirstToken.from_config(config_of("Bert")).eval()
    logits = model(input_ids=IDS).logits
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(copied) is type(model)
        torch.testing.assert_close(copied(input_ids=IDS).logits, logits)
    torch.testing.assert_close(model(input_ids=IDS, return_dict=False)[0], logits)
    words = model.get_input_embeddings()(IDS)
    torch.testing.assert_close(model(inputs_embeds=words).logits, logits)

    model.save_pretrained(tmp_path)
    again = FirstToken.from_pretrained(tmp_path, hidden_dropout_prob=0.3, return_dict=False, dtype=torch.float64)
    assert again.config.hidden_dropout_prob == 0.3
    torch.testing.assert_close(again.eval()(input_ids=IDS)[0].float(), logits)


def test_a_trained_encoder_gets_it(tmp_path: Path) -> None:
    encoder = transformers.BertModel(config_of("Bert"))
    encoder.save_pretrained(tmp_path)
    model, info = FirstToken.from_pretrained(tmp_path, num_labels=3, output_loading_info=True)
    assert set(info["missing_keys"]) == {"first_token_classifier.weight", "first_token_classifier.bias"}
    assert torch.equal(model.base_model.embeddings.word_embeddings.weight, encoder.embeddings.word_embeddings.weight)


def test_another_classifier_never_takes_its_weights(tmp_path: Path) -> None:
    FirstToken.from_config(config_of("Bert")).save_pretrained(tmp_path)
    _, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert "classifier.weight" in info["missing_keys"]


def test_it_is_guided_and_given_distance_as_any_other(tmp_path: Path) -> None:
    model: Any = FirstToken.from_config(config_of("Bert"))
    hw.retrofit(model, hw.DistanceAware)
    with hw.guiding(model.train(), [hw.guides.MapDiscrimination()]) as guided:
        loss = model(input_ids=IDS, attention_mask=MASK, labels=torch.tensor([0, 1])).loss + guided.loss()
        loss.backward()
    assert all(p.grad is not None for p in hw.scheme_parameters(model))
    model.save_pretrained(tmp_path)
    again: Any = hw.from_pretrained(tmp_path, FirstToken).eval()
    both = [one.eval()(input_ids=IDS, attention_mask=MASK).logits for one in (model, again)]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("config", [GPT2Config, BartConfig])
def test_a_first_token_that_has_not_seen_the_others_is_refused(config: Any) -> None:
    with pytest.raises(UserError, match="needs an encoder"):
        FirstToken.from_config(config())
