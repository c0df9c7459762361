"""Classification models: labels, several labels or ratings for texts and pairs, and labels for tokens."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from headwise.errors import UserError
from headwise.models.configuration import HeadwiseConfig
from headwise.models.encoder import HeadwiseModel, HeadwisePreTrainedModel
from headwise.models.hierarchy import DocumentEncoder, flatten_sentences
from headwise.models.pooling import build_pooling

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky-relu": partial(F.leaky_relu, negative_slope=0.1),
    "relu": F.relu,
}


class Comparison(nn.Module):
    """Combines the vectors a and b of two texts: (leaky) ReLU of a linear layer on [a; b; |a − b|; a∘b].

    The vectors of all texts have a large mean in common, so the first training steps move all units in one direction.
    Units with ReLU can end at 0 for all pairs, where they have no gradient; those with leaky ReLU keep one.
    """

    def __init__(self, dim: int, activation: str) -> None:
        super().__init__()
        self.dense = nn.Linear(4 * dim, dim)
        self.activation = ACTIVATIONS[activation]

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.activation(self.dense(torch.cat([a, b, (a - b).abs(), a * b], dim=-1)))


def build_classifier(config: HeadwiseConfig) -> nn.Linear:
    """Build the output layer."""
    assert config.num_labels is not None
    return nn.Linear(config.dim, config.num_labels)


class EncodedText(NamedTuple):
    """The vectors (B, D) of texts, and the output of the encoder."""

    vector: Tensor
    output: BaseModelOutput


class HeadwiseForSequenceClassification(HeadwisePreTrainedModel):
    """A classifier of texts, text pairs or documents.

    `config.problem_type` selects the loss as in transformers: `single_label_classification`,
    `multi_label_classification` or `regression`. If it is None, it follows from the labels.

    Example:
        >>> import torch
        >>> from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification
        >>> config = HeadwiseConfig(vocab_size=100, word_dim=50, pair="siamese", num_labels=3)
        >>> model = HeadwiseForSequenceClassification(config)
        >>> premise, hypothesis = torch.randint(1, 100, (2, 9)), torch.randint(1, 100, (2, 5))
        >>> output = model(premise, pair_input_ids=hypothesis, labels=torch.tensor([0, 2]))
        >>> output.logits.shape, output.loss.shape
        (torch.Size([2, 3]), torch.Size([]))
    """

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__(config)
        self.model = HeadwiseModel(config)
        self.pooling = build_pooling(config)
        self.document = None if config.hierarchy is None else DocumentEncoder(config)
        self.comparison = Comparison(config.dim, config.pair_activation) if config.pair == "siamese" else None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = build_classifier(config)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        pair_input_ids: Tensor | None = None,
        pair_attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Compute logits (B, num_labels), and the loss if labels are given.

        Args:
            input_ids: Word ids (B, N), or (B, sentences, words) in a hierarchy; empty sentences are all padding.
            attention_mask: Nonzero for real tokens; by default all tokens except padding.
            token_type_ids: (B, N), 0 and 1 for the two texts of a joint pair; ignored by other models.
            labels: Classes (B,), 0/1 values (B, num_labels) or ratings (B,), depending on the problem type.
            pair_input_ids: Word ids of the second text of a siamese pair.
            pair_attention_mask: Its attention mask.
            output_attentions: See `HeadwiseModel`; for siamese pairs, the first text's before the second's.
            output_hidden_states: See `HeadwiseModel`.
        """
        if (pair_input_ids is not None) != (self.comparison is not None):
            raise UserError(
                f"pair_input_ids are for models with pair='siamese', and required by them; this model has "
                f"pair={self.config.pair!r}"
            )
        outputs: dict[str, Any] = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        texts = [self.encode(input_ids, attention_mask, token_type_ids, **outputs)]
        vector = texts[0].vector
        if self.comparison is not None and pair_input_ids is not None:
            texts.append(self.encode(pair_input_ids, pair_attention_mask, **outputs))
            vector = self.comparison(vector, texts[1].vector)
        logits = self.classifier(self.dropout(vector))
        return SequenceClassifierOutput(
            loss=None if labels is None else self.loss_function(labels, logits, self.config),
            logits=logits,
            hidden_states=_concatenate(text.output.hidden_states for text in texts),
            attentions=_concatenate(text.output.attentions for text in texts),
        )

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **outputs: Any,
    ) -> EncodedText:
        """Encode texts to vectors (B, D), before comparison and classification."""
        mask = self.model.padding_mask(input_ids, attention_mask)
        if self.document is None:
            output = self.model(input_ids, mask, token_type_ids, return_dict=True, **outputs)
            return EncodedText(self.pooling(output.last_hidden_state, mask), output)
        words, word_mask = flatten_sentences("input_ids", input_ids), flatten_sentences("attention_mask", mask)
        output = self.model(words, word_mask, return_dict=True, **outputs)
        sentences = self.pooling(output.last_hidden_state, word_mask).unflatten(0, input_ids.shape[:2])
        return EncodedText(self.document(sentences, mask.any(dim=-1)), output)


class HeadwiseForTokenClassification(HeadwisePreTrainedModel):
    """A classifier of tokens.

    Example:
        >>> import torch
        >>> from headwise.models import HeadwiseConfig, HeadwiseForTokenClassification
        >>> config = HeadwiseConfig(vocab_size=100, word_dim=50, scheme="tener", num_labels=9)
        >>> model = HeadwiseForTokenClassification(config)
        >>> model(torch.randint(1, 100, (2, 7))).logits.shape
        torch.Size([2, 7, 9])
    """

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__(config)
        if config.pair == "siamese" or config.hierarchy is not None:
            raise UserError("token classification does not support siamese pairs and hierarchies")
        self.model = HeadwiseModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = build_classifier(config)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> TokenClassifierOutput:
        """Compute logits (B, N, num_labels), and the loss if labels (B, N) are given; −100 is ignored."""
        output = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(output.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else self.loss_function(logits, labels, self.config),
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


def _concatenate(parts: Iterable[tuple[torch.FloatTensor, ...] | None]) -> tuple[torch.FloatTensor, ...] | None:
    """Concatenate the tensors of several texts; None if there are none."""
    return tuple(tensor for part in parts for tensor in part or ()) or None
