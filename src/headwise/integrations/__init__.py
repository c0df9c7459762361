"""headwise's attention in Hugging Face models: attention implementation, recording, observation, retrofitting."""

from headwise._extras import require

require("hf", __name__)

from headwise.integrations.extension import extend_positions
from headwise.integrations.fusion import FusionReport, fuse_attention, fusion_report, unfuse_attention
from headwise.integrations.hf_attention import use_headwise_attention
from headwise.integrations.model_utils import UnsupportedAttentionError, eval_mode, unwrap_model
from headwise.integrations.observing import AttentionObserver, AttentionRows, observing
from headwise.integrations.output_attentions import recording_output_attentions
from headwise.integrations.recording import LayerRecord, Recorder, RecordField, recording
from headwise.integrations.retrofit import is_neutral, remove_scheme, retrofit
from headwise.integrations.saving import from_pretrained, load_adapter, save_adapter
from headwise.integrations.scheme_layers import (
    add_scheme_group,
    all_scheme_parameters,
    scheme_modules,
    scheme_parameters,
)
from headwise.integrations.windows import set_window

__all__ = [
    "AttentionObserver",
    "AttentionRows",
    "FusionReport",
    "LayerRecord",
    "RecordField",
    "Recorder",
    "UnsupportedAttentionError",
    "add_scheme_group",
    "all_scheme_parameters",
    "eval_mode",
    "extend_positions",
    "from_pretrained",
    "fuse_attention",
    "fusion_report",
    "is_neutral",
    "load_adapter",
    "observing",
    "recording",
    "recording_output_attentions",
    "remove_scheme",
    "retrofit",
    "save_adapter",
    "scheme_modules",
    "scheme_parameters",
    "set_window",
    "unfuse_attention",
    "unwrap_model",
    "use_headwise_attention",
]
