"""A tiny configuration of each family, with random weights, in float64.

To add a family, add a case: its name, its model class, a tiny configuration, the parameters of its positions and, for
models that take no `input_ids`, a function that builds a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

HEADS, HEAD_DIM = 3, 12
DIM = HEADS * HEAD_DIM
VOCAB_SIZE = 40


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model of a family.

    Attributes:
        family: its name in the registry.
        model: the name of its class in transformers.
        config: the arguments of its configuration.
        positions: a part of the names of the parameters that positions depend on. Their gradients must not be 0.
        batch: returns inputs of a length, with padding or without; the first tensor of a batch is the mask of the
            outputs' real positions.
    """

    family: str
    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    positions: tuple[str, ...]
    batch: Callable[[Any, int, bool], tuple[Tensor, dict[str, Any]]]


def text_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return two texts and their mask."""
    ids = torch.randint(2, VOCAB_SIZE, (2, length))
    mask = torch.ones_like(ids)
    if padding:
        mask[0, length - length // 3 :] = 0
        ids[mask == 0] = getattr(config, "pad_token_id", None) or 0
        return mask.bool(), {"input_ids": ids, "attention_mask": mask}
    return mask.bool(), {"input_ids": ids}


def left_padded_text_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return two texts and their mask, with padding on the left."""
    mask, batch = text_batch(config, length, padding)
    return mask.flip(1), {name: x.flip(1) for name, x in batch.items()}


def text_pair_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return inputs of an encoder-decoder model. The decoder's texts have another length."""
    _, source = text_batch(config, length, padding)
    mask, target = text_batch(config, length // 2 + 1, padding)
    return mask, source | {f"decoder_{name}": x for name, x in target.items()}


def segments_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return texts with segments, as XLNet's tokenizer numbers them: two texts and the separator."""
    mask, batch = left_padded_text_batch(config, length, padding)
    return mask, batch | {
        "token_type_ids": torch.arange(length).mul(3).div(length, rounding_mode="floor").expand(2, -1)
    }


def memory_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return texts with the states of a previous segment, and an order in which their tokens see each other."""
    mask, batch = text_batch(config, length, padding)
    memories = [torch.randn(5, 2, config.d_model, dtype=torch.float64) for _ in range(config.n_layer)]
    order = torch.randperm(length)
    hidden = (order[None, :] > order[:, None]).to(torch.float64).expand(2, -1, -1)
    return mask, batch | {"mems": memories, "perm_mask": hidden}


def page_batch(config: Any, length: int, padding: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return texts with the boxes of their tokens on a page, without images."""
    mask, batch = text_batch(config, length, padding)
    left_top = torch.randint(0, 500, (2, length, 2))
    boxes = torch.cat([left_top, left_top + torch.randint(1, 400, (2, length, 2))], dim=-1)
    return mask, batch | {"bbox": boxes}


T5_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "d_model": DIM,
    "d_kv": HEAD_DIM,
    "d_ff": 16,
    "num_layers": 2,
    "num_heads": HEADS,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
    "dropout_rate": 0.0,
}
BERT_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": DIM,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DEBERTA_CONFIG = BERT_CONFIG | {
    "relative_attention": True,
    "max_relative_positions": 10,
    "pos_att_type": ["c2p", "p2c"],
    "pooler_dropout": 0.0,
}
XLNET_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "d_model": DIM,
    "n_layer": 2,
    "n_head": HEADS,
    "d_inner": 16,
    "dropout": 0.0,
}

CASES = {
    "t5": Case(
        family="T5",
        model="T5Model",
        config=T5_CONFIG,
        positions=("relative_attention_bias",),
        batch=text_pair_batch,
    ),
    "t5-encoder": Case(
        family="T5",
        model="T5EncoderModel",
        config=T5_CONFIG | {"feed_forward_proj": "gated-gelu"},
        positions=("relative_attention_bias",),
        batch=left_padded_text_batch,
    ),
    "mt5": Case(
        family="mT5",
        model="MT5Model",
        config=T5_CONFIG,
        positions=("relative_attention_bias",),
        batch=text_pair_batch,
    ),
    "umt5": Case(
        family="UMT5",
        model="UMT5Model",
        config=T5_CONFIG,
        positions=("relative_attention_bias",),
        batch=text_pair_batch,
    ),
    "mpnet": Case(
        family="MPNet",
        model="MPNetModel",
        config=BERT_CONFIG,
        positions=("relative_attention_bias",),
        batch=text_batch,
    ),
    "layoutlmv3": Case(  # the model computes biases without gradients
        family="LayoutLMv3",
        model="LayoutLMv3Model",
        config=BERT_CONFIG
        | {"coordinate_size": 6, "shape_size": 6, "visual_embed": False, "rel_pos_bins": 8, "rel_2d_pos_bins": 8},
        positions=(),
        batch=page_batch,
    ),
    "deberta": Case(
        family="DeBERTa",
        model="DebertaModel",
        config=DEBERTA_CONFIG,
        positions=("rel_embeddings", "pos_proj.weight", "pos_q_proj"),
        batch=text_batch,
    ),
    "xlnet": Case(
        family="XLNet",
        model="XLNetModel",
        config=XLNET_CONFIG,
        positions=("rel_attn.r", "r_r_bias", "seg_embed"),
        batch=segments_batch,
    ),
    "xlnet-memory": Case(
        family="XLNet",
        model="XLNetModel",
        config=XLNET_CONFIG,
        positions=("rel_attn.r", "r_r_bias"),
        batch=memory_batch,
    ),
    "deberta-v2": Case(
        family="DeBERTa-v2",
        model="DebertaV2Model",
        config=DEBERTA_CONFIG,
        positions=("rel_embeddings", "pos_key_proj.weight", "pos_query_proj"),
        batch=text_batch,
    ),
    "deberta-v3": Case(
        family="DeBERTa-v2",
        model="DebertaV2Model",
        config=DEBERTA_CONFIG
        | {
            "position_buckets": 6,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        positions=("rel_embeddings",),
        batch=text_batch,
    ),
    "deberta-v2-xlarge": Case(  # with a convolution, and one position term
        family="DeBERTa-v2",
        model="DebertaV2Model",
        config=DEBERTA_CONFIG | {"position_buckets": 6, "conv_kernel_size": 3, "pos_att_type": ["p2c"]},
        positions=("rel_embeddings", "pos_query_proj"),
        batch=text_batch,
    ),
}


def build_model(case: Case) -> Any:
    """Return a tiny model in float64. Its weights are large enough for positions to matter."""
    transformers = pytest.importorskip("transformers")
    model_class = getattr(transformers, case.model, None)
    if model_class is None:
        pytest.skip(f"this version of transformers has no {case.model}")
    torch.manual_seed(0)
    model: nn.Module = model_class(model_class.config_class(**case.config)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
    return model
