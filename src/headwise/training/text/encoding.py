"""Tokenization: from rows of text to the inputs of a model."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, disable_progress_bars, enable_progress_bars
from torch import Tensor

from headwise.errors import UserError
from headwise.guides import Dependency
from headwise.models import encode_document
from headwise.native_errors import tokenizer_errors
from headwise.tasks.fingerprint import hash_dataset
from headwise.training.text.arrow_dataset import METADATA_COLUMNS, ArrowDataset, Padding, pad_rows
from headwise.training.text.config import LongText
from headwise.training.text.data import EXAMPLE_COLUMNS
from headwise.training.text.long_text import (
    WINDOW_ROW,
    check_long_text,
    cut_middle,
    encode_pair_windows,
    encode_windows,
    join_windows,
)

#: Number of rows from which on a progress bar is shown.
MIN_PROGRESS_ROWS = 50_000

#: Labels that losses and metrics ignore.
IGNORED_LABEL = -100


@dataclass(frozen=True)
class TextEncoder:
    """Tokenizes rows and collates them into batches.

    Args:
        tokenizer: the model's tokenizer.
        label_type: the task's type of labels.
        pair: how two texts are encoded; None for single texts.
        max_length: the maximum number of tokens.
        hierarchy: the maximum number of words per sentence and of sentences per text, for hierarchical models.
        long_text: how longer texts are encoded.
    """

    tokenizer: Any
    label_type: str
    pair: Literal["joint", "siamese"] | None
    max_length: int
    hierarchy: tuple[int, int] | None = None
    long_text: LongText = "truncate"

    def __post_init__(self) -> None:
        if self.tokenizer.pad_token_id is None:
            raise UserError("the tokenizer of this model has no padding token (pad_token)")
        num_special = self.tokenizer.num_special_tokens_to_add(pair=self.pair == "joint")
        if self.hierarchy is None and self.max_length <= num_special:
            raise UserError(
                f"--max-length {self.max_length} leaves no room for text: there are {num_special} special tokens"
            )
        check_long_text(
            self.long_text,
            label_type=self.label_type,
            has_pair=self.pair is not None,
            hierarchy=self.hierarchy,
            tokenizer=self.tokenizer,
        )

    def encode_dataset(self, rows: Dataset, path: Path, *, overwrite: bool = True) -> Dataset:
        """Tokenize a split into a file.

        Args:
            rows: the split.
            path: the file, which keeps the tokens out of memory.
            overwrite: whether to tokenize again if the file exists.
        """
        with nullcontext() if len(rows) >= MIN_PROGRESS_ROWS else no_progress_bars():
            return rows.map(
                self.encode if self.long_text != "windows" else self.encode_with_indices,
                batched=True,
                with_indices=self.long_text == "windows",
                remove_columns=rows.column_names,
                cache_file_name=str(path),
                load_from_cache_file=not overwrite,
                new_fingerprint=path.stem,  # by default datasets would pickle and hash the tokenizer
                desc="tokenizing",
            )

    def cache_key(self, rows: Dataset) -> str | None:
        """Return a hash of everything that the tokens of a split depend on; None for a tokenizer in Python."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        backend.no_truncation()  # the settings of an earlier call, which each call sets again
        backend.no_padding()
        names = ("truncation_side", "padding_side", "model_input_names")
        options = [type(self.tokenizer).__name__, *(getattr(self.tokenizer, name, None) for name in names)]
        options += [self.label_type, self.pair, self.max_length, self.hierarchy, self.long_text]
        parts = (repr(options), backend.to_str(), hash_dataset(rows, EXAMPLE_COLUMNS))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def encode_with_indices(self, rows: Mapping[str, Sequence[Any]], indices: Sequence[int]) -> dict[str, list[Any]]:
        """Tokenize a batch of rows into windows, with the index of each window's row in the split."""
        encoded = self.encode(rows)
        return encoded | {WINDOW_ROW: [indices[row] for row in encoded[WINDOW_ROW]]}

    def encode(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Tokenize a batch of rows, given and returned by column.

        The result has the model's inputs, `labels` if the rows have labels, and for each row its `length` and whether
        it was `truncated`. With windows, it has one entry per window, and `window_row` is the index of its row.
        """
        if self.label_type == "tokens":
            return self.encode_words(rows)
        if self.hierarchy is not None:
            encoded = self.encode_sentences(rows["text"])
        elif self.pair == "joint":
            encoded = self.encode_texts(rows["text"], rows["pair"])
        else:
            encoded = self.encode_texts(rows["text"])
        if self.pair == "siamese":
            encode = self.encode_sentences if self.hierarchy is not None else self.encode_texts
            encoded = join_texts(encoded, encode(rows["pair"]))
        if "label" in rows:
            labels = rows["label"]
            is_multi_label = self.label_type == "multi-label"
            labels = [[float(x) for x in label] for label in labels] if is_multi_label else list(labels)
            encoded["labels"] = [labels[row] for row in encoded[WINDOW_ROW]] if WINDOW_ROW in encoded else labels
        return encoded

    def encode_texts(self, *texts: Sequence[str]) -> dict[str, list[Any]]:
        """Tokenize texts, or text pairs as one sequence."""
        if self.long_text == "windows":
            with tokenizer_errors(self.tokenizer):
                if len(texts) == 2:
                    return encode_pair_windows(texts[0], texts[1], self.tokenizer, self.max_length)
                return encode_windows(texts[0], self.tokenizer, self.max_length)
        cut = [False] * len(texts[0])
        if self.long_text == "head-tail":
            room = self.max_length - self.tokenizer.num_special_tokens_to_add()
            shortened, cut = cut_middle(texts[0], self.tokenizer, room)
            texts = (shortened,)
        is_pair = len(texts) == 2
        with tokenizer_errors(self.tokenizer):
            tokenized = self.tokenizer(
                *map(list, texts), truncation=True, max_length=self.max_length, return_token_type_ids=is_pair or None
            )
        names = ["input_ids", "attention_mask"] + (["token_type_ids"] if is_pair else [])
        encoded = {name: list(tokenized[name]) for name in names if name in tokenized}
        lengths = [len(ids) for ids in encoded["input_ids"]]
        truncated = (
            [bool(encoding.overflowing) for encoding in tokenized.encodings]
            if tokenized.encodings
            else [length >= self.max_length for length in lengths]
        )
        truncated = [a or b for a, b in zip(truncated, cut, strict=True)]
        return encoded | {"length": lengths, "truncated": truncated}

    def encode_sentences(self, texts: Sequence[str]) -> dict[str, list[Any]]:
        """Tokenize documents into lists of sentences."""
        assert self.hierarchy is not None
        max_words, max_sentences = self.hierarchy
        # A sentence above the maximum shows that a document is truncated.
        hierarchy = max_words, max_sentences + 1
        with tokenizer_errors(self.tokenizer):
            documents = [encode_document(text, self.tokenizer, hierarchy=hierarchy) for text in texts]
        truncated_documents = [document[:max_sentences] or [[self.tokenizer.unk_token_id]] for document in documents]
        return {
            "input_ids": truncated_documents,
            "attention_mask": [[[1] * len(sentence) for sentence in document] for document in truncated_documents],
            "length": [sum(map(len, document)) for document in truncated_documents],
            "truncated": [len(document) > max_sentences for document in documents],
        }

    def encode_words(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Tokenize sentences of words. The first token of a word has its label, all other tokens are ignored.

        `word_indices` are the words that have a token: truncation and some tokenizers remove words.
        """
        sentences = [list(row) for row in rows["words"]]
        with tokenizer_errors(self.tokenizer):
            tokenized = self.tokenizer(sentences, is_split_into_words=True, truncation=True, max_length=self.max_length)
        labels, word_indices, truncated = [], [], []
        for index, sentence in enumerate(sentences):
            words = tokenized.word_ids(index)  # of each token; None for special tokens
            word_labels = rows["label"][index] if "label" in rows else [0] * len(sentence)
            is_first = [
                word is not None and word != previous for word, previous in zip(words, [None, *words[:-1]], strict=True)
            ]
            labels.append(
                [word_labels[word] if first else IGNORED_LABEL for word, first in zip(words, is_first, strict=True)]
            )
            word_indices.append([word for word, first in zip(words, is_first, strict=True) if first])
            truncated.append(bool(tokenized.encodings[index].overflowing))
        return {
            "input_ids": tokenized["input_ids"],
            "attention_mask": tokenized["attention_mask"],
            "labels": labels,
            "length": [len(ids) for ids in tokenized["input_ids"]],
            "word_indices": word_indices,
            "truncated": truncated,
        }

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Combine tokenized rows into a batch, padded to the longest."""
        names = [name for name in rows[0] if name not in METADATA_COLUMNS]
        return {name: pad_rows([row[name] for row in rows], self.get_padding(name)) for name in names}

    def to_dataset(self, rows: Dataset) -> ArrowDataset:
        """Return a dataset of tokenized rows with the batches of `collate`."""
        return ArrowDataset(rows, self.get_padding)

    def example_batch(self, rows: Dataset) -> dict[str, Tensor]:
        """Return a small batch of the first rows."""
        encoded = {name: values[:2] for name, values in self.encode(rows[:2]).items()}
        return self.collate([dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)])

    def get_padding(self, name: str) -> Padding:
        """Return how a column is padded: on the tokenizer's side, because XLNet classifies by the last token."""
        is_left = getattr(self.tokenizer, "padding_side", "right") == "left"
        if name.endswith("input_ids"):
            return Padding(int(self.tokenizer.pad_token_id), is_left)
        if name in Dependency.input_keys:
            return Padding(-1, is_left)
        return Padding(IGNORED_LABEL if name == "labels" else 0, is_left)


def join_texts(first: dict[str, list[Any]], second: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Combine tokenized texts and their pairs, which the model encodes separately: names of the second get `pair_`."""
    if WINDOW_ROW in first:
        return join_windows(first, second)
    truncated = [a or b for a, b in zip(first["truncated"], second.pop("truncated"), strict=True)]
    length = [a + b for a, b in zip(first["length"], second.pop("length"), strict=True)]
    return first | {"truncated": truncated, "length": length} | {f"pair_{name}": x for name, x in second.items()}


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Disable the progress bars of datasets."""
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
