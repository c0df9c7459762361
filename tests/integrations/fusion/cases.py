"""A tiny configuration of each family, with random weights, in float64.

To add a family, add a case: its name, its model class, a tiny configuration, the parameters of its positions and, for
models that take no `input_ids`, a function that builds a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from headwise._compat import set_attn_implementation
from headwise.integrations.model_utils import pretrained_modules
from tests.integrations.fusion.batches import (
    FEATURES,
    VOCAB_SIZE,
    causal_feature_batch,
    feature_batch,
    left_padded_text_batch,
    memory_batch,
    page_batch,
    segments_batch,
    speech_translation_batch,
    text_batch,
    text_pair_batch,
    text_to_speech_batch,
    waveform_batch,
)

HEADS, HEAD_DIM = 3, 12
DIM = HEADS * HEAD_DIM


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model of a family.

    Attributes:
        family: its name in the registry.
        model: the name of its class in transformers.
        config: the arguments of its configuration.
        positions: a part of the names of the parameters that positions depend on. Their gradients must not be 0.
        batch: returns inputs of a length, with padding or without, after the mask of the outputs' real positions.
        prepare: changes the model so that it runs in float64; None if it does anyway.
        why_no_weights: why the weights of the model's own eager attention are not exact; empty if they are.
        compiles_whole: whether torch.compile compiles the model as one graph, not only its attention layers.
        why_not_compiled: why it cannot be compiled; empty if it can.
        why_no_autocast: why the model itself does not run with autocast; empty if it does.
        autocast_batches: the number of batches over which rounding errors are averaged.
    """

    family: str
    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    positions: tuple[str, ...]
    batch: Callable[[Any, int, bool], tuple[Any, dict[str, Any]]]
    prepare: Callable[[Any], None] | None = None
    why_no_weights: str = ""
    compiles_whole: bool = True
    why_not_compiled: str = ""
    why_no_autocast: str = ""
    autocast_batches: int = 1


def decode_in_float64(model: Any) -> None:
    """Convert the states back that FastSpeech2-Conformer converts to float32 between encoder and decoder.

    Its durations are float32, too. torch 2.11 has no gradient of a loss of two precisions.
    """
    model.decoder.register_forward_pre_hook(to_dtype_of_decoder)
    for module in model.modules():
        if isinstance(module, nn.MSELoss):
            module.register_forward_pre_hook(to_dtype_of_input)


def to_dtype_of_decoder(decoder: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[0].to(next(decoder.parameters()).dtype), *args[1:]


def to_dtype_of_input(loss: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[0], args[1].to(args[0].dtype)


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
WAV2VEC2_BERT_CONFIG = {
    "hidden_size": DIM,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "feature_projection_input_dim": FEATURES,
    "output_hidden_size": DIM,
    "max_source_positions": 20,
    "conv_depthwise_kernel_size": 3,
    "left_max_position_embeddings": 5,
    "right_max_position_embeddings": 2,
    "hidden_dropout": 0.0,
    "activation_dropout": 0.0,
    "attention_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "conformer_conv_dropout": 0.0,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
}
WAVEFORM_CONFIG = BERT_CONFIG | {
    "hidden_dropout": 0.0,
    "activation_dropout": 0.0,
    "attention_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "conv_dim": (8, 8),
    "conv_kernel": (2, 2),
    "conv_stride": (2, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
}
FAST_CONFORMER_CONFIG = {
    "hidden_size": DIM,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_mel_bins": FEATURES,
    "subsampling_factor": 2,
    "subsampling_conv_channels": 4,
    "conv_kernel_size": 3,
    "dropout": 0.0,
    "layerdrop": 0.0,
    "activation_dropout": 0.0,
    "attention_dropout": 0.0,
}
SEAMLESS_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": DIM,
    "feature_projection_input_dim": FEATURES,
    "speech_encoder_layers": 2,
    "speech_encoder_attention_heads": HEADS,
    "speech_encoder_intermediate_size": 16,
    "speech_encoder_layerdrop": 0.0,
    "conv_depthwise_kernel_size": 3,
    "adaptor_kernel_size": 3,
    "adaptor_stride": 2,
    "adaptor_dropout": 0.0,
    "decoder_layers": 1,
    "decoder_ffn_dim": 16,
    "decoder_attention_heads": HEADS,
    "decoder_layerdrop": 0.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
FASTSPEECH2_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": DIM,
    "num_mel_bins": FEATURES,
    "encoder_num_attention_heads": HEADS,
    "decoder_num_attention_heads": HEADS,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_linear_units": 16,
    "decoder_linear_units": 16,
    "decoder_kernel_size": 3,
    "speech_decoder_postnet_layers": 2,
    "speech_decoder_postnet_units": 8,
    "duration_predictor_channels": 8,
    "energy_predictor_channels": 8,
    "pitch_predictor_channels": 8,
    "encoder_dropout_rate": 0.0,
    "encoder_positional_dropout_rate": 0.0,
    "encoder_attention_dropout_rate": 0.0,
    "decoder_dropout_rate": 0.0,
    "decoder_positional_dropout_rate": 0.0,
    "decoder_attention_dropout_rate": 0.0,
    "duration_predictor_dropout_rate": 0.0,
    "energy_predictor_dropout": 0.0,
    "pitch_predictor_dropout": 0.0,
    "speech_decoder_postnet_dropout": 0.0,
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
        config=T5_CONFIG | {"attn_implementation": "eager"},  # sdpa of transformers 5.17 is not causal
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
        why_no_autocast="its masked scores overflow in bfloat16",
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
        why_not_compiled="a scheme and a cache cannot be compiled together",
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
    "wav2vec2-bert": Case(
        compiles_whole=False,
        family="Wav2Vec2-BERT",
        model="Wav2Vec2BertModel",
        config=WAV2VEC2_BERT_CONFIG,
        positions=("distance_embedding",),
        batch=feature_batch,
    ),
    "wav2vec2-bert-relative": Case(
        compiles_whole=False,
        family="Wav2Vec2-BERT",
        model="Wav2Vec2BertModel",
        config=WAV2VEC2_BERT_CONFIG | {"position_embeddings_type": "relative"},
        positions=("linear_pos", "pos_bias_u", "pos_bias_v"),
        batch=feature_batch,
    ),
    "wav2vec2-conformer": Case(
        compiles_whole=False,
        family="Wav2Vec2-Conformer",
        model="Wav2Vec2ConformerModel",
        config=WAVEFORM_CONFIG | {"layerdrop": 0.0, "conv_depthwise_kernel_size": 3, "max_source_positions": 20},
        positions=("linear_pos", "pos_bias_u", "pos_bias_v"),
        batch=waveform_batch,
    ),
    "wav2vec2-bert-rotary": Case(  # the positions have no parameters
        compiles_whole=False,
        family="Wav2Vec2-BERT",
        model="Wav2Vec2BertModel",
        config=WAV2VEC2_BERT_CONFIG | {"position_embeddings_type": "rotary"},
        positions=(),
        batch=feature_batch,
    ),
    "wav2vec2-conformer-rotary": Case(
        compiles_whole=False,
        family="Wav2Vec2-Conformer",
        model="Wav2Vec2ConformerModel",
        config=WAVEFORM_CONFIG
        | {"layerdrop": 0.0, "conv_depthwise_kernel_size": 3, "position_embeddings_type": "rotary"},
        positions=(),
        batch=waveform_batch,
    ),
    "parakeet": Case(
        compiles_whole=False,
        family="Parakeet",
        model="ParakeetEncoder",
        config=FAST_CONFORMER_CONFIG,
        positions=("relative_k_proj", "bias_u", "bias_v"),
        batch=feature_batch,
        why_no_weights="its eager attention computes the softmax in float32",
    ),
    "seamless-m4t": Case(
        compiles_whole=False,
        family="SeamlessM4T",
        model="SeamlessM4TForSpeechToText",
        config=SEAMLESS_CONFIG | {"max_source_positions": 20},
        positions=("linear_pos", "pos_bias_u", "pos_bias_v"),
        batch=speech_translation_batch,
        autocast_batches=8,
    ),
    "seamless-m4t-v2": Case(
        compiles_whole=False,
        family="SeamlessM4T v2",
        model="SeamlessM4Tv2ForSpeechToText",
        config=SEAMLESS_CONFIG | {"left_max_position_embeddings": 5, "right_max_position_embeddings": 2},
        positions=("distance_embedding",),
        batch=speech_translation_batch,
        why_no_weights="its eager attention adds the boolean mask of chunks to the scores",
    ),
    "seamless-m4t-v2-chunks": Case(
        compiles_whole=False,
        family="SeamlessM4T v2",
        model="SeamlessM4Tv2ForSpeechToText",
        config=SEAMLESS_CONFIG | {"speech_encoder_chunk_size": 4, "speech_encoder_left_chunk_num": 1},
        positions=("distance_embedding",),
        batch=speech_translation_batch,
        why_no_weights="its eager attention adds the boolean mask of chunks to the scores",
    ),
    "sew-d": Case(
        compiles_whole=False,
        family="SEW-D",
        model="SEWDModel",
        config=WAVEFORM_CONFIG | {"position_buckets": 6, "max_position_embeddings": 16},
        positions=("rel_embeddings",),
        batch=waveform_batch,
    ),
    "nemotron-asr-streaming": Case(
        compiles_whole=False,
        family="Nemotron-ASR-streaming",
        model="NemotronAsrStreamingEncoder",
        config=FAST_CONFORMER_CONFIG | {"sliding_window": 7, "default_num_lookahead_tokens": 2},
        positions=("relative_k_proj", "bias_u", "bias_v"),
        batch=causal_feature_batch,
        why_no_weights="its eager attention inverts the mask",
    ),
    "fastspeech2-conformer": Case(
        compiles_whole=False,
        family="FastSpeech2-Conformer",
        model="FastSpeech2ConformerModel",
        config=FASTSPEECH2_CONFIG,
        positions=("linear_pos", "pos_bias_u", "pos_bias_v"),
        batch=text_to_speech_batch,
        prepare=decode_in_float64,
        why_no_autocast="it rounds durations, so that outputs of another precision have other lengths",
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
    if case.prepare is not None:
        case.prepare(model)
    return model


def use_eager_attention(model: Any) -> None:
    """Let all parts of a model compute eager attention. Some versions of transformers set that of the whole only."""
    for module in pretrained_modules(model):
        set_attn_implementation(module.config, "eager")
