"""W · ReLU(h) of the first token: the classifier of the attention-guiding paper (Wang et al. 2022, equation 7), on an
encoder of Hugging Face's.

transformers' own classifiers put a layer between (a pooler, a tanh), which differs from model to model.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING, AutoConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from headwise.errors import UserError

#: How the names of such classes end; a saved model's configuration tells it.
NAME = "FirstTokenForSequenceClassification"
#: What `from_pretrained` is told that is about the configuration, too, and what is about the weights alone.
WHERE = ("cache_dir", "local_files_only", "revision", "subfolder", "token")
HOW = ("dtype", "quantization_config")


class FirstToken:
    """An auto class: `FirstToken.from_pretrained(…)` as `AutoModelForSequenceClassification.from_pretrained(…)`.

    Its models are the architecture's own, guided, retrofitted and saved as any other; saved ones are loaded by it.

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
        model: PreTrainedModel = class_of(config.__class__)(config)
        return model

    @classmethod
    def from_pretrained(cls, name: Any, *, config: Any = None, **options: Any) -> Any:
        """A trained encoder, whose classifier begins at random, or a model that was saved with its classifier.

        Raises:
            UserError: no encoder: its first token has not seen the others.
        """
        if config is None:
            kept = {key: options[key] for key in (*WHERE, *HOW) if key in options}
            asked = {key: value for key, value in options.items() if key not in HOW}
            config, options = AutoConfig.from_pretrained(name, return_unused_kwargs=True, **asked)
            options |= kept
        return class_of(config.__class__).from_pretrained(name, config=config, **options)


@cache
def class_of(config: Any) -> Any:
    """The class for an architecture, by that of its configuration."""
    if config not in MODEL_FOR_MASKED_LM_MAPPING or config().is_encoder_decoder:
        raise UserError(
            f"--classifier first-token: needs an encoder (BERT, RoBERTa, …), not "
            f"{config.__name__.removesuffix('Config')}, whose first token does not attend to the others"
        )
    encoder: Any = MODEL_MAPPING[config]
    parent = next(one for one in encoder.__mro__[1:] if issubclass(one, PreTrainedModel))
    return type(f"{encoder.__name__.removesuffix('Model')}{NAME}", (_Reading, parent), {"encoder": encoder})


def _blank(config: Any) -> Any:
    kind = class_of(config)
    return kind.__new__(kind)


class _Reading:
    """What all of them share, above the architecture's own PreTrainedModel."""

    encoder: Any
    base_model_prefix: str
    config: Any
    loss_function: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.num_labels = config.num_labels
        setattr(self, self.base_model_prefix, without_pooler(self.encoder, config))
        self.first_token_classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its configuration: the class itself is made when it is asked for."""
        return _blank, (type(self.config),), self.__dict__

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> SequenceClassifierOutput:
        """(B, N) token ids → scores (B, labels), and the loss where labels are given."""
        if token_type_ids is not None:
            options["token_type_ids"] = token_type_ids
        encoder = getattr(self, self.base_model_prefix)
        found = encoder(input_ids, attention_mask=attention_mask, return_dict=True, **options)
        logits = self.first_token_classifier(torch.relu(found.last_hidden_state[:, 0]))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )


def without_pooler(encoder: Any, config: Any) -> Any:
    """The encoder, without what nothing would read."""
    try:
        return encoder(config, add_pooling_layer=False)
    except TypeError:
        return encoder(config)
