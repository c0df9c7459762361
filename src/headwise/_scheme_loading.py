"""Loading of retrofitted models with transformers' own classes.

The configuration of a retrofitted model has an entry `headwise`, which describes its schemes. After `import headwise`,
every transformers model that is built from such a configuration gets its schemes before its weights are loaded, so that
`AutoModel….from_pretrained`, `pipeline` and all other ways to load a model work as usual. transformers has no extension
point for this, so `PreTrainedModel.post_init` is wrapped. Other models are not affected.

Without headwise, a retrofitted model must not be loaded without its schemes. Its configuration therefore requests the
attention implementation `headwise`, and a fusion of modules whose name is an error message. transformers refuses to
load a model with an implementation or a fusion that it does not know. It reads the fusions of the outermost model only,
so `PreTrainedModel.save_pretrained` is wrapped to add ours to the configuration of a model with a retrofitted part.

PEFT and transformers load an adapter with schemes into a model without schemes, and drop them. Their `load_adapter` is
wrapped to refuse this.
"""

import functools
import logging
from importlib import import_module
from types import ModuleType
from typing import Any

from headwise._import_hooks import Callback, call_after_import

logger = logging.getLogger(__name__)

#: The entry of a model's configuration that describes its schemes.
CONFIG_ENTRY = "headwise"

#: The name of our attention implementation in transformers.
ATTN_IMPLEMENTATION = "headwise"

#: The name of the submodule that holds a layer's position scheme.
SCHEME = "headwise_scheme"

#: The name of a fusion that only headwise knows. transformers prints "Unknown fusion type: …" without headwise.
FUSION = "headwise (the model has position schemes: install headwise, and import it before loading the model)"

#: The advice for an adapter whose schemes are not those of the model.
RETROFIT_FIRST = "call headwise.retrofit with the options of the adapter's training before loading the adapter"


def register_scheme_loading() -> None:
    """Make transformers and PEFT load schemes, now or when their modules are loaded.

    A failure is logged, because it must not break the import of transformers, which then refuses retrofitted models.
    """
    for name, register in CALLBACKS.items():
        call_after_import(name, functools.partial(_log_errors, register))


def _log_errors(register: Callback, module: ModuleType) -> None:
    try:
        register(module)
    except Exception:
        logger.warning("headwise cannot load retrofitted models with %s", module.__name__, exc_info=True)


def _register_attention(module: ModuleType) -> None:
    module.AttentionInterface.register(ATTN_IMPLEMENTATION, _attention_forward)
    model_class = module.PreTrainedModel
    post_init = model_class.post_init

    @functools.wraps(post_init)
    def attach_and_post_init(self: Any) -> None:
        if getattr(self.config, CONFIG_ENTRY, None) is not None:
            import_module("headwise.integrations.scheme_config").attach_from_config(self)
        post_init(self)

    save_pretrained = model_class.save_pretrained

    @functools.wraps(save_pretrained)
    def mark_and_save(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_schemes(self) or FUSION in (getattr(self.config, "fusion_config", None) or {}):
            import_module("headwise.integrations.scheme_config").mark_config(self)
        return save_pretrained(self, *args, **kwargs)

    model_class.post_init = attach_and_post_init
    model_class.save_pretrained = mark_and_save


def _register_masks(module: ModuleType) -> None:
    module.AttentionMaskInterface.register(ATTN_IMPLEMENTATION, _mask)


def _register_fusion(module: ModuleType) -> None:
    import_module("headwise._compat").register_fusion(module, FUSION)  # the configuration turns it off


def _check_peft_adapters(module: ModuleType) -> None:
    _refuse_lost_schemes(module.PeftModel)


def _check_transformers_adapters(module: ModuleType) -> None:
    _refuse_lost_schemes(module.PeftAdapterMixin)


def _refuse_lost_schemes(model_class: Any) -> None:
    """Make `load_adapter` of a class raise an error if the adapter has schemes that the model does not have."""
    load_adapter = model_class.load_adapter

    @functools.wraps(load_adapter)
    def load_and_check(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = load_adapter(self, *args, **kwargs)
        except KeyError as error:  # PEFT looks up each parameter of the model's schemes in the adapter
            if SCHEME not in str(error):
                raise
            raise ValueError(
                f"the adapter does not contain the parameter {error} of the model's position schemes: {RETROFIT_FIRST}"
            ) from error
        lost = [key for key in getattr(result, "unexpected_keys", None) or () if SCHEME in key.split(".")]
        if lost:
            raise ValueError(
                "the adapter contains position schemes that the model does not have, with the parameter "
                f"{min(lost)}: {RETROFIT_FIRST}"
            )
        return result

    model_class.load_adapter = load_and_check


def _has_schemes(model: Any) -> bool:
    return any(SCHEME in layer._modules for layer in model.modules())


def _attention_forward(*args: Any, **kwargs: Any) -> Any:
    return import_module("headwise.integrations.hf_attention").headwise_attention_forward(*args, **kwargs)


def _mask(*args: Any, **kwargs: Any) -> Any:
    return import_module("headwise.integrations.masks").headwise_mask(*args, **kwargs)


#: What to do when a module is imported.
CALLBACKS: dict[str, Callback] = {
    "transformers.modeling_utils": _register_attention,
    "transformers.masking_utils": _register_masks,
    "transformers.fusion_mapping": _register_fusion,
    "transformers.integrations.peft": _check_transformers_adapters,
    "peft.peft_model": _check_peft_adapters,
}
