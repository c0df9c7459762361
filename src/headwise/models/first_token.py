"""Hugging Face encoders with the classifier of the attention-guiding paper (Wang et al. 2022, eq. 7).

The classifier is W · ReLU(h) of the first token's state h.

The classifiers of transformers add layers, such as a pooler with tanh, that differ between models.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING, AutoConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from headwise.errors import UserError

#: End of the class names, which a saved model's configuration contains.
NAME = "FirstTokenForSequenceClassification"
#: Options of `from_pretrained` for both configuration and weights, and for weights only.
SHARED_OPTIONS = ("trust_remote_code", "cache_dir", "local_files_only", "revision", "subfolder", "token")
WEIGHT_OPTIONS = ("dtype", "quantization_config")


class FirstToken:
    """An auto class for encoders with the first-token classifier, used like `AutoModelForSequenceClassification`.

    Its models can be guided, retrofitted and saved like others; saved models are loaded with this class.

    Example:
        >>> import torch
        >>> from transformers import BertConfig
        >>> from headwise.models import FirstToken
        >>> size = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = FirstToken.from_config(BertConfig(vocab_size=10, num_labels=3, **size))
        >>> type(model).__name__, model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape
        ('BertFirstTokenForSequenceClassification', torch.Size([1, 3]))
    """

    @classmethod
    def from_config(cls, config: Any) -> PreTrainedModel:
        """Build a model with random weights."""
        model: PreTrainedModel = get_class(config.__class__)(config)
        return model

    @classmethod
    def from_pretrained(cls, name: Any, *, config: Any = None, **options: Any) -> Any:
        """Load a pre-trained encoder with a new classifier, or a saved model with its classifier.

        Raises:
            UserError: The model is not an encoder.
        """
        if config is None:
            model_options = {key: options[key] for key in (*SHARED_OPTIONS, *WEIGHT_OPTIONS) if key in options}
            config_options = {key: value for key, value in options.items() if key not in WEIGHT_OPTIONS}
            config, options = AutoConfig.from_pretrained(name, return_unused_kwargs=True, **config_options)
            options |= model_options
        return get_class(config.__class__).from_pretrained(name, config=config, **options)


@cache
def get_class(config: Any) -> Any:
    """Return the model class for a class of configurations."""
    if config not in MODEL_FOR_MASKED_LM_MAPPING or config().is_encoder_decoder:
        raise UserError(
            f"--classifier first-token: needs an encoder (BERT, RoBERTa, …), not "
            f"{config.__name__.removesuffix('Config')}, whose first token does not attend to the others"
        )
    encoder: Any = MODEL_MAPPING[config]
    parent = next(base for base in encoder.__mro__[1:] if issubclass(base, PreTrainedModel))
    return type(
        f"{encoder.__name__.removesuffix('Model')}{NAME}", (_FirstTokenClassifier, parent), {"encoder": encoder}
    )


def _unpickle(config: Any) -> Any:
    """Create an empty instance, for unpickling."""
    model_class = get_class(config)
    return model_class.__new__(model_class)


class _FirstTokenClassifier:
    """Base class of the models, combined with the PreTrainedModel of the architecture."""

    encoder: Any
    base_model_prefix: str
    config: Any
    loss_function: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.num_labels = config.num_labels
        setattr(self, self.base_model_prefix, build_without_pooler(self.encoder, config))
        self.first_token_classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the class of the configuration, because the model class is created dynamically."""
        return _unpickle, (type(self.config),), self.__dict__

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> SequenceClassifierOutput:
        """Compute logits (B, num_labels), and the loss if labels are given."""
        if token_type_ids is not None:
            options["token_type_ids"] = token_type_ids
        encoder = getattr(self, self.base_model_prefix)
        output = encoder(input_ids, attention_mask=attention_mask, return_dict=True, **options)
        logits = self.first_token_classifier(torch.relu(output.last_hidden_state[:, 0]))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


def build_without_pooler(encoder: Any, config: Any) -> Any:
    """Build the encoder without its pooler, which is not used."""
    try:
        return encoder(config, add_pooling_layer=False)
    except TypeError:
        return encoder(config)
