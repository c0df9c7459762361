"""Heads on the encoder: labels, ratings or several labels for a text or a pair of texts, and labels for tokens."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from headwise.errors import UserError
from headwise.models.configuration import HeadwiseConfig
from headwise.models.encoder import HeadwiseModel, HeadwisePreTrainedModel
from headwise.models.hierarchy import Document, flattened
from headwise.models.pooling import make_pooling


class Comparison(nn.Module):
    """Two texts' vectors a and b as one: ReLU of a dense layer on [a ; b ; |a − b| ; a ∘ b]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(4 * dim, dim)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.relu(self.dense(torch.cat([a, b, (a - b).abs(), a * b], dim=-1)))


def make_classifier(config: HeadwiseConfig) -> nn.Linear:
    assert config.num_labels is not None
    return nn.Linear(config.dim, config.num_labels)


class Encoded(NamedTuple):
    """A text's vector (B, dim), and the encoder's own output."""

    vector: Tensor
    states: BaseModelOutput


class HeadwiseForSequenceClassification(HeadwisePreTrainedModel):
    """A text, a pair of texts or a document of sentences in; a number for each label out.

    `config.problem_type` says what the numbers are, as everywhere in transformers: `single_label_classification`,
    `multi_label_classification` or `regression`; where it is None the labels' type and number tell.

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
        self.pooling = make_pooling(config)
        self.document = None if config.hierarchy is None else Document(config)
        self.comparison = Comparison(config.dim) if config.pair == "siamese" else None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = make_classifier(config)
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
        """Word ids → logits (B, num_labels), and the loss if labels are given.

        Args:
            input_ids: (B, N), or (B, sentences, words) in a hierarchy; empty sentences are all padding.
            attention_mask: as input_ids, not 0 where a token is real; by default all but the padding's id.
            token_type_ids: (B, N), 0 and 1 for the two texts of a joint pair; other models ignore them.
            labels: (B,) classes, (B, num_labels) of 0 and 1, or (B,) ratings, as the problem type has it.
            pair_input_ids, pair_attention_mask: the second text of a siamese pair.
            output_attentions, output_hidden_states: see `HeadwiseModel`; of a siamese pair both texts', in turn.
        """
        if (pair_input_ids is not None) != (self.comparison is not None):
            raise UserError(
                f"a siamese pair, and no other input, has pair_input_ids; this model has pair={self.config.pair!r}"
            )
        wanted: dict[str, Any] = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        texts = [self.encode(input_ids, attention_mask, token_type_ids, **wanted)]
        vector = texts[0].vector
        if self.comparison is not None and pair_input_ids is not None:
            texts.append(self.encode(pair_input_ids, pair_attention_mask, **wanted))
            vector = self.comparison(vector, texts[1].vector)
        logits = self.classifier(self.dropout(vector))
        return SequenceClassifierOutput(
            loss=None if labels is None else self.loss_function(labels, logits, self.config),
            logits=logits,
            hidden_states=_in_turn(text.states.hidden_states for text in texts),
            attentions=_in_turn(text.states.attentions for text in texts),
        )

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **wanted: Any,
    ) -> Encoded:
        """Texts → a vector each (B, dim), before any comparison or classifier."""
        real = self.model.real_tokens(input_ids, attention_mask)
        if self.document is None:
            states = self.model(input_ids, real, token_type_ids, return_dict=True, **wanted)
            return Encoded(self.pooling(states.last_hidden_state, real), states)
        words, real_words = flattened("input_ids", input_ids), flattened("attention_mask", real)
        states = self.model(words, real_words, return_dict=True, **wanted)
        sentences = self.pooling(states.last_hidden_state, real_words).unflatten(0, input_ids.shape[:2])
        return Encoded(self.document(sentences, real.any(dim=-1)), states)


class HeadwiseForTokenClassification(HeadwisePreTrainedModel):
    """A text in; for each of its tokens a number for each label out.

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
            raise UserError("token classification takes a text or a joint pair, no siamese pair and no hierarchy")
        self.model = HeadwiseModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = make_classifier(config)
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
        """(B, N) word ids → logits (B, N, num_labels), and the loss if labels (B, N) are given; −100 is no label."""
        states = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(states.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else self.loss_function(logits, labels, self.config),
            logits=logits,
            hidden_states=states.hidden_states,
            attentions=states.attentions,
        )


def _in_turn(parts: Iterable[tuple[torch.FloatTensor, ...] | None]) -> tuple[torch.FloatTensor, ...] | None:
    """The tensors of one text after those of another; None where none were asked for."""
    return tuple(tensor for part in parts for tensor in part or ()) or None
