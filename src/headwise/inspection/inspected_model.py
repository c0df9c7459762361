"""A model with its tokenizer, for inspection: encodes texts and decodes predictions."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from headwise.errors import UserError
from headwise.models import encode_document, pad_documents
from headwise.native_errors import tokenizer_errors

#: The texts of a row: one, or the two of a pair.
Texts = tuple[str, ...]

#: Number of labels of a prediction that are shown.
MAX_LABELS = 5
#: Key positions are stored in two bytes.
MAX_TOKENS = 2**16


@dataclass(frozen=True)
class Passage:
    """The tokens that a model's layers process at once.

    Most models have one passage per text. Siamese pairs have two, hierarchical models have words and sentences.

    Args:
        title: the name of the passage; empty if the text has only one.
        sequences: the tokens of each sequence in the batch.
    """

    title: str
    sequences: tuple[tuple[str, ...], ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(token for sequence in self.sequences for token in sequence)


@dataclass(frozen=True)
class EncodedBatch:
    """A batch of rows, encoded for a model.

    Args:
        inputs: the keyword arguments of the model's forward pass.
        passages: the tokens.
        truncated: True if a text was too long for the model.
    """

    inputs: dict[str, Tensor]
    passages: tuple[Passage, ...]
    truncated: bool


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for a text: labels with probabilities, a value (regression), a label for each token, or the
    text that an encoder-decoder model generates. `is_given` states that the text was given and not generated."""

    labels: tuple[tuple[str, float], ...] = ()
    value: float | None = None
    token_labels: tuple[str, ...] = ()
    text: str | None = None
    is_given: bool = False


@dataclass(frozen=True, kw_only=True)
class InspectedModel:
    """A model with its tokenizer and a name.

    Args:
        name: the name in figures and on the page.
        model: a headwise or Hugging Face model.
        tokenizer: the model's tokenizer.
        max_length: the maximum number of tokens; longer texts are truncated. By default the limit of the model and
            the tokenizer.
        labels: the names of the outputs; by default those of the model's configuration.
        reads: the number of texts of a row, 1 or 2; by default that of the model's configuration, or any number.
        temperature: divides the scores of one class per row before the softmax; that of a finished run was fit on dev.
        part_of: the whole model that `model` is a part of, such as a recommender. Learned parameters are drawn for
            all of it.
        generation: options of `generate`, for encoder-decoder models.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from headwise.models import build_tokenizer
        >>> tokenizer = build_tokenizer(["a fine film"], framed=True)
        >>> bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> model = InspectedModel(name="tiny", model=bert, tokenizer=tokenizer)
        >>> model.encode([("A fine film",)]).passages[0].tokens
        ('[CLS]', 'a', 'fine', 'film', '[SEP]')
    """

    name: str
    model: nn.Module
    tokenizer: Any
    max_length: int | None = None
    labels: Sequence[str] | None = None
    reads: int | None = None
    temperature: float = 1.0
    part_of: nn.Module | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    _token_texts: dict[int, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def config(self) -> Any:
        return getattr(self.model, "config", None)

    @property
    def is_siamese(self) -> bool:
        return getattr(self.config, "pair", None) == "siamese"

    @property
    def pads_left(self) -> bool:
        """Whether batches are padded on the left: the classifier of XLNet reads the last token."""
        return getattr(self.config, "model_type", "") == "xlnet"

    @property
    def generates_text(self) -> bool:
        """Whether the model is an encoder-decoder model that generates text, such as a translator."""
        can_generate = getattr(self.model, "can_generate", lambda: False)
        return bool(getattr(self.config, "is_encoder_decoder", False)) and bool(can_generate())

    @property
    def num_texts(self) -> int | None:
        """The number of texts of a row; None if any number is accepted."""
        is_headwise = getattr(self.config, "model_type", "") == "headwise"
        return self.reads or ((1 if self.config.pair is None else 2) if is_headwise else None)

    @property
    def max_tokens(self) -> int:
        limits = [self.max_length]
        if self.max_length is None:
            limits = [self.tokenizer.model_max_length, getattr(self.config, "max_position_embeddings", None)]
        return min(int(limit) for limit in [*limits, MAX_TOKENS] if limit and limit > 0)  # XLNet has −1

    @property
    def start_token(self) -> str | None:
        token = self.tokenizer.cls_token or self.tokenizer.bos_token
        return None if token is None else str(token)

    @property
    def end_token(self) -> str | None:
        token = self.tokenizer.sep_token or self.tokenizer.eos_token
        return None if token is None else str(token)

    def encode(self, rows: Sequence[Texts]) -> EncodedBatch:
        """Encode rows of texts as a batch.

        Raises:
            UserError: a text is empty, or the number of texts is not the one that the model expects.
        """
        for texts in rows:
            if not all(text.strip() for text in texts):
                raise UserError("a text is empty")
            if self.num_texts is not None and len(texts) != self.num_texts:
                expected = "one text, got a pair" if self.num_texts == 1 else "a pair of texts: add the second text"
                raise UserError(f"{self.name} expects {expected}")
        with tokenizer_errors(self.tokenizer):
            return self._encode(rows)

    def _encode(self, rows: Sequence[Texts]) -> EncodedBatch:
        if self.is_siamese:
            first = self._encode_side([(texts[0],) for texts in rows], "first text")
            second = self._encode_side([(texts[1],) for texts in rows], "second text")
            pair = {f"pair_{name}": x for name, x in second.inputs.items() if name != "token_type_ids"}
            passages = (*first.passages, *second.passages)
            return EncodedBatch(first.inputs | pair, passages, first.truncated or second.truncated)
        return self._encode_side(rows, "")

    def _encode_side(self, rows: Sequence[Texts], title: str) -> EncodedBatch:
        """Encode rows that the model processes in one pass: whole rows, or one side of siamese pairs."""
        if getattr(self.config, "hierarchy", None):
            return self._encode_documents([texts[0] for texts in rows], title)
        columns = [list(column) for column in zip(*rows, strict=True)]
        encoding = self.tokenizer(
            *columns, truncation=True, max_length=self.max_tokens, return_overflowing_tokens=False
        )
        ids = [list(row) for row in encoding["input_ids"]]
        if not all(ids):
            raise UserError("a text contains no tokens")
        inputs = {
            "input_ids": pad(ids, self.tokenizer.pad_token_id or 0, left=self.pads_left),
            "attention_mask": pad([[1] * len(row) for row in ids], left=self.pads_left),
        }
        if "token_type_ids" in encoding and has_argument(self.model, "token_type_ids"):
            inputs["token_type_ids"] = pad(encoding["token_type_ids"], left=self.pads_left)
        tokens = tuple(tuple(map(self.token_text, row)) for row in ids)
        truncated = any(getattr(row, "overflowing", None) for row in encoding.encodings or ())
        return EncodedBatch(self._to_device(inputs), (Passage(title, tokens),), truncated)

    def _encode_documents(self, texts: Sequence[str], title: str) -> EncodedBatch:
        """Encode texts for a hierarchical model: words of sentences, and sentences of documents."""
        max_words, max_sentences = self.config.hierarchy
        full = [encode_document(text, self.tokenizer, hierarchy=(max_words, max_sentences + 1)) for text in texts]
        documents = [document[:max_sentences] or [[self.tokenizer.unk_token_id]] for document in full]
        num_sentences = max(map(len, documents))
        words = tuple(
            tuple(map(self.token_text, document[index])) if index < len(document) else ()
            for document in documents
            for index in range(num_sentences)
        )
        sentences = tuple(tuple(f"sentence {index + 1}" for index in range(len(document))) for document in documents)
        prefix = f"{title}, " if title else ""
        return EncodedBatch(
            self._to_device(pad_documents(documents, self.tokenizer.pad_token_id)),
            (Passage(f"{prefix}words", words), Passage(f"{prefix}sentences", sentences)),
            any(len(document) > max_sentences for document in full),
        )

    def _to_device(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        device = next(self.model.parameters()).device
        return {name: x.to(device) for name, x in inputs.items()}

    def token_text(self, token_id: int) -> str:
        """Return the readable text of a token. Continuation prefixes (##) are kept."""
        if token_id not in self._token_texts:
            raw = str(self.tokenizer.convert_ids_to_tokens(token_id))
            text = self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False).strip()
            self._token_texts[token_id] = text or raw
        return self._token_texts[token_id]

    def get_prediction(self, output: Any, row: int = 0) -> Prediction | None:
        """Return the prediction of a model's output for one row; None if the model has no classifier."""
        logits = getattr(output, "logits", None)
        names = self.labels or [str(name) for name in (getattr(self.config, "id2label", None) or {}).values()]
        if logits is None or not names or logits.shape[-1] != len(names):
            return None
        scores = logits[row].detach().float().cpu()
        if scores.dim() == 2:
            return Prediction(token_labels=tuple(names[int(label)] for label in scores.argmax(dim=-1)))
        problem_type = getattr(self.config, "problem_type", None)
        if problem_type == "regression" or len(names) == 1:
            return Prediction(value=float(scores[0]))
        is_multi_label = problem_type == "multi_label_classification"
        probabilities = scores.sigmoid() if is_multi_label else (scores / self.temperature).softmax(dim=-1)
        top = probabilities.argsort(descending=True)[:MAX_LABELS].tolist()
        return Prediction(labels=tuple((names[index], float(probabilities[index])) for index in top))


def pad(rows: Sequence[Sequence[int]], padding_value: int = 0, *, left: bool = False) -> Tensor:
    """Return rows of different lengths as one tensor, padded on the right or on the left."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    side = "left" if left else "right"
    return pad_sequence(tensors, batch_first=True, padding_value=padding_value, padding_side=side)


def has_argument(model: Any, name: str) -> bool:
    """Return whether a model's forward pass has an argument of this name."""
    return name in inspect.signature(model.forward).parameters
