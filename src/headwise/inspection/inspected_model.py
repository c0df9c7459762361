"""A model to look into: how it reads texts, and what it makes of them."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models import encode_document, pad_documents

#: A row's texts: one, or the two of a pair.
Texts = tuple[str, ...]

MOST_LABELS = 5  # shown for a text
MOST_TOKENS = 2**16  # that a place among keys can be told of in two bytes


@dataclass(frozen=True)
class Passage:
    """What a layer's tokens are. Most models read one passage; siamese pairs two, hierarchies words and sentences.

    Args:
        title: which passage of a text it is; empty where there is only one.
        sequences: the tokens of each sequence in the batch.
    """

    title: str
    sequences: tuple[tuple[str, ...], ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(token for sequence in self.sequences for token in sequence)


@dataclass(frozen=True)
class Encoded:
    """A batch of rows as a model takes it."""

    inputs: dict[str, Tensor]
    passages: tuple[Passage, ...]
    cut: bool


@dataclass(frozen=True)
class Prediction:
    """What a model says about a text: labels with their probabilities, a rating, or a label for each token."""

    labels: tuple[tuple[str, float], ...] = ()
    rating: float | None = None
    of_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class InspectedModel:
    """A model with its tokenizer and its name.

    Args:
        name: what it is called in figures and on the page.
        model: one of ours, or a Hugging Face model.
        tokenizer: its own.
        max_length: the most tokens it reads; longer texts are cut. By default what model and tokenizer say.
        labels: what its outputs stand for, where its configuration does not tell.
        reads: how many texts make a row, 1 or 2, where its configuration does not tell; else what is given counts.
        part_of: what it is the reading part of, such as a translator; what heads learned is drawn of all of that.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from headwise.models import build_tokenizer
        >>> tokenizer = build_tokenizer(["a fine film"], framed=True)
        >>> bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> subject = Subject(name="tiny", model=bert, tokenizer=tokenizer)
        >>> subject.encode([("A fine film",)]).passages[0].tokens
        ('[CLS]', 'a', 'fine', 'film', '[SEP]')
    """

    name: str
    model: nn.Module
    tokenizer: Any
    max_length: int | None = None
    labels: Sequence[str] | None = None
    reads: int | None = None
    part_of: nn.Module | None = None
    _known: dict[int, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def config(self) -> Any:
        return getattr(self.model, "config", None)

    @property
    def siamese(self) -> bool:
        return getattr(self.config, "pair", None) == "siamese"

    @property
    def texts(self) -> int | None:
        ours = getattr(self.config, "model_type", "") == "headwise"
        return self.reads or ((1 if self.config.pair is None else 2) if ours else None)

    @property
    def longest(self) -> int:
        limits = [self.max_length]
        if self.max_length is None:
            limits = [self.tokenizer.model_max_length, getattr(self.config, "max_position_embeddings", None)]
        return min(int(limit) for limit in [*limits, MOST_TOKENS] if limit)

    def encode(self, rows: Sequence[Texts]) -> Encoded:
        """Rows of texts as a batch.

        Raises:
            UserError: an empty text, or another number of texts than the model reads.
        """
        for texts in rows:
            if not all(text.strip() for text in texts):
                raise UserError("an empty text: there is nothing to look at")
            if self.texts is not None and len(texts) != self.texts:
                reads = "one text, not two" if self.texts == 1 else "two texts: give the second one too"
                raise UserError(f"{self.name} reads {reads}")
        if self.siamese:
            first, second = (self.one([(texts[side],) for texts in rows], side) for side in (0, 1))
            pair = {f"pair_{name}": x for name, x in second.inputs.items() if name != "token_type_ids"}
            return Encoded(first.inputs | pair, (*first.passages, *second.passages), first.cut or second.cut)
        return self.one(rows, None)

    def one(self, rows: Sequence[Texts], side: int | None) -> Encoded:
        """Rows as a model reads them in one go: all of a text, or one side of a siamese pair."""
        title = "" if side is None else ("first text", "second text")[side]
        if getattr(self.config, "hierarchy", None):
            return self.documents([texts[0] for texts in rows], title)
        columns = [list(column) for column in zip(*rows, strict=True)]
        whole = self.tokenizer(*columns, truncation=True, max_length=self.longest, return_overflowing_tokens=False)
        ids = [list(row) for row in whole["input_ids"]]
        if not all(ids):
            raise UserError("a text without a token: there is nothing to look at")
        longest = max(map(len, ids))
        padding = self.tokenizer.pad_token_id or 0
        names = [name for name in ("input_ids", "token_type_ids") if name in whole]
        if "token_type_ids" in whole and not accepts(self.model, "token_type_ids"):
            names.remove("token_type_ids")
        inputs = {
            name: torch.tensor(
                [list(row) + [padding if name == "input_ids" else 0] * (longest - len(row)) for row in whole[name]]
            )
            for name in names
        }
        inputs["attention_mask"] = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        tokens = tuple(tuple(map(self.token, row)) for row in ids)
        cut = any(getattr(one, "overflowing", None) for one in whole.encodings or ())
        return Encoded(self.placed(inputs), (Passage(title, tokens),), cut)

    def documents(self, texts: Sequence[str], title: str) -> Encoded:
        """Texts as a hierarchy reads them: words in sentences, and sentences in documents."""
        words, sentences = self.config.hierarchy
        whole = [encode_document(text, self.tokenizer, hierarchy=(words, sentences + 1)) for text in texts]
        found = [document[:sentences] or [[self.tokenizer.unk_token_id]] for document in whole]
        most = max(map(len, found))
        of_words = tuple(
            tuple(map(self.token, document[at])) if at < len(document) else ()
            for document in found
            for at in range(most)
        )
        of_sentences = tuple(tuple(f"sentence {at + 1}" for at in range(len(document))) for document in found)
        comma = ", " if title else ""
        return Encoded(
            self.placed(pad_documents(found, self.tokenizer.pad_token_id)),
            (Passage(f"{title}{comma}words", of_words), Passage(f"{title}{comma}sentences", of_sentences)),
            any(len(document) > sentences for document in whole),
        )

    def placed(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        device = next(self.model.parameters()).device
        return {name: x.to(device) for name, x in inputs.items()}

    def token(self, number: int) -> str:
        """A token as one reads it: what the tokenizer itself would write, but with its joints (##) and marks."""
        if number not in self._known:
            raw = str(self.tokenizer.convert_ids_to_tokens(number))
            self._known[number] = self.tokenizer.decode([number], clean_up_tokenization_spaces=False).strip() or raw
        return self._known[number]

    @property
    def first_token(self) -> str | None:
        found = self.tokenizer.cls_token or self.tokenizer.bos_token
        return None if found is None else str(found)

    @property
    def last_token(self) -> str | None:
        found = self.tokenizer.sep_token or self.tokenizer.eos_token
        return None if found is None else str(found)

    def predicted(self, output: Any, row: int = 0) -> Prediction | None:
        """What an output says about one row; None if the model has no classifier."""
        logits = getattr(output, "logits", None)
        names = self.labels or [str(name) for name in (getattr(self.config, "id2label", None) or {}).values()]
        if logits is None or not names or logits.shape[-1] != len(names):
            return None
        scores = logits[row].detach().float().cpu()
        if scores.dim() == 2:
            return Prediction(of_tokens=tuple(names[int(best)] for best in scores.argmax(dim=-1)))
        problem = getattr(self.config, "problem_type", None)
        if problem == "regression" or len(names) == 1:
            return Prediction(rating=float(scores[0]))
        shares = scores.sigmoid() if problem == "multi_label_classification" else scores.softmax(dim=-1)
        best = shares.argsort(descending=True)[:MOST_LABELS].tolist()
        return Prediction(labels=tuple((names[at], float(shares[at])) for at in best))


def accepts(model: Any, name: str) -> bool:
    """Whether a model's forward pass has an argument of this name."""
    return name in inspect.signature(model.forward).parameters
