"""From rows of text to what a model takes: tokens, in batches."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset, disable_progress_bars, enable_progress_bars
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models import encode_document
from headwise.training.text.arrow_dataset import NOTES, ArrowDataset

#: So many rows take long enough for a bar.
MANY = 50_000

#: What fills up the shorter rows of a batch; ids are filled with the tokenizer's padding.
FILLING = {"labels": -100}


@dataclass(frozen=True)
class TextEncoder:
    """Tokenises rows once, and puts them together in batches.

    Args:
        tokenizer: the model's.
        label_type: the task's.
        pair: how two texts are read; None for one.
        max_length: the most tokens; longer texts are cut.
        hierarchy: most words in a sentence and sentences in a text, for models that read sentences first.
    """

    tokenizer: Any
    label_type: str
    pair: Literal["joint", "siamese"] | None
    max_length: int
    hierarchy: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.tokenizer.pad_token_id is None:
            raise UserError("this model's tokenizer has no token to fill up short texts with (pad_token)")
        special = self.tokenizer.num_special_tokens_to_add(pair=self.pair == "joint")
        if self.hierarchy is None and self.max_length <= special:
            raise UserError(f"--max-length {self.max_length} leaves no room for a text beside {special} special tokens")

    def encoded(self, rows: Dataset, file: Path, *, again: bool = True) -> Dataset:
        """The rows as tokens, their labels where they have them, their length, and whether they were cut.

        Args:
            rows: of one split.
            file: where tokens are kept, out of memory.
            again: tokenise even if there is such a file.
        """
        with nullcontext() if len(rows) >= MANY else without_bars():
            return rows.map(
                self.encode,
                batched=True,
                remove_columns=rows.column_names,
                cache_file_name=str(file),
                load_from_cache_file=not again,
                new_fingerprint=file.stem,  # the function's own hash would take the tokenizer apart
                desc="tokenising",
            )

    def encode(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """A batch of rows, columns in and columns out."""
        if self.label_type == "tokens":
            return self.of_words(rows)
        if self.hierarchy is not None:
            encoded = self.of_sentences(rows["text"])
        elif self.pair == "joint":
            encoded = self.cut(rows["text"], rows["pair"])
        else:
            encoded = self.cut(rows["text"])
        if self.pair == "siamese":
            second = self.of_sentences(rows["pair"]) if self.hierarchy is not None else self.cut(rows["pair"])
            short = [a or b for a, b in zip(encoded["cut"], second.pop("cut"), strict=True)]
            length = [a + b for a, b in zip(encoded["length"], second.pop("length"), strict=True)]
            encoded |= {"cut": short, "length": length} | {f"pair_{name}": x for name, x in second.items()}
        if "label" in rows:
            labels = rows["label"]
            several = self.label_type == "multi-label"
            encoded["labels"] = [[float(x) for x in label] for label in labels] if several else list(labels)
        return encoded

    def cut(self, *texts: Sequence[str]) -> dict[str, list[Any]]:
        """Texts, or pairs, as tokens, at most so many of them."""
        both = len(texts) == 2
        encoded = self.tokenizer(
            *map(list, texts), truncation=True, max_length=self.max_length, return_token_type_ids=both or None
        )
        names = ["input_ids", "attention_mask"] + (["token_type_ids"] if both else [])
        found = {name: list(encoded[name]) for name in names if name in encoded}
        lengths = [len(ids) for ids in found["input_ids"]]
        cut = (
            [bool(one.overflowing) for one in encoded.encodings]
            if encoded.encodings
            else [length >= self.max_length for length in lengths]
        )
        return found | {"length": lengths, "cut": cut}

    def of_sentences(self, texts: Sequence[str]) -> dict[str, list[Any]]:
        """Documents as lists of sentences, each a list of tokens."""
        assert self.hierarchy is not None
        words, most = self.hierarchy
        whole = [encode_document(text, self.tokenizer, hierarchy=(words, most + 1)) for text in texts]
        documents = [document[:most] or [[self.tokenizer.unk_token_id]] for document in whole]
        return {
            "input_ids": documents,
            "attention_mask": [[[1] * len(sentence) for sentence in document] for document in documents],
            "length": [sum(map(len, document)) for document in documents],
            "cut": [len(document) > most for document in whole],
        }

    def of_words(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Sentences in words: a word's label stands at its first token, all other tokens have none.

        `places` are the words that have a token, in order: some are cut off, and of some tokenizers leave nothing.
        """
        words = [list(row) for row in rows["words"]]
        encoded = self.tokenizer(words, is_split_into_words=True, truncation=True, max_length=self.max_length)
        labels, places, cut = [], [], []
        for number, sentence in enumerate(words):
            of_token = encoded.word_ids(number)
            own = rows["label"][number] if "label" in rows else [0] * len(sentence)
            first = [
                word is not None and word != before
                for word, before in zip(of_token, [None, *of_token[:-1]], strict=True)
            ]
            labels.append([own[word] if begins else -100 for word, begins in zip(of_token, first, strict=True)])
            places.append([word for word, begins in zip(of_token, first, strict=True) if begins])
            cut.append(bool(encoded.encodings[number].overflowing))
        found = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"], "labels": labels}
        return found | {"length": [len(ids) for ids in encoded["input_ids"]], "places": places, "cut": cut}

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Encoded rows as a batch, padded to the longest."""
        names = [name for name in rows[0] if name not in NOTES]
        return {name: padded([row[name] for row in rows], self.filling(name)) for name in names}

    def batches(self, rows: Dataset) -> ArrowDataset:
        """Encoded rows, of which batches are taken as `collate` would put them together."""
        return ArrowDataset(rows, self.filling)

    def example(self, rows: Dataset) -> dict[str, Tensor]:
        """A small batch: the first rows."""
        encoded = self.encode(rows[:2])
        return self.collate([dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)])

    def filling(self, name: str) -> int:
        return int(self.tokenizer.pad_token_id) if name.endswith("input_ids") else FILLING.get(name, 0)


@contextmanager
def without_bars() -> Iterator[None]:
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def padded(rows: Sequence[Any], filling: int) -> Tensor:
    """Numbers, lists or lists of lists of different lengths as one tensor."""
    if not isinstance(rows[0], list):
        return torch.tensor(rows)
    first = next((row[0] for row in rows if row), None)
    if isinstance(first, float):
        return torch.tensor(rows)
    longest = max(map(len, rows))
    if not isinstance(first, list):
        return torch.tensor([row + [filling] * (longest - len(row)) for row in rows])
    widest = max(len(part) for row in rows for part in row)
    blank = [filling] * widest
    full = [[part + [filling] * (widest - len(part)) for part in row] + [blank] * (longest - len(row)) for row in rows]
    return torch.tensor(full)


def longest(model: Any, tokenizer: Any) -> int:
    """The most tokens that a model can read. Some keep the first of their positions for padding, as RoBERTa does."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            limits.append(module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1))
    return int(min(limit for limit in limits if limit))
