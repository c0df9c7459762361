"""Our attention inside Hugging Face models: the attention interface, recording, observing, retrofit."""

from headwise.integrations.hf_attention import (
    Recorder,
    UnsupportedAttentionError,
    eval_mode,
    observing,
    recording,
    unwrap_model,
    use_headwise_attention,
)
from headwise.integrations.observing import AttentionObserver, AttentionRows
from headwise.integrations.output_attentions import recording_output_attentions
from headwise.integrations.recording import LayerRecord, RecordField
from headwise.integrations.retrofit import (
    from_pretrained,
    load_adapter,
    remove_scheme,
    retrofit,
    save_adapter,
    scheme_modules,
    scheme_parameters,
)

__all__ = [
    "AttentionObserver",
    "AttentionRows",
    "LayerRecord",
    "RecordField",
    "Recorder",
    "UnsupportedAttentionError",
    "eval_mode",
    "from_pretrained",
    "load_adapter",
    "observing",
    "recording",
    "recording_output_attentions",
    "remove_scheme",
    "retrofit",
    "save_adapter",
    "scheme_modules",
    "scheme_parameters",
    "unwrap_model",
    "use_headwise_attention",
]
