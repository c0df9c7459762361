"""From rows of text to what a model takes: tokens, in batches."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from datasets import Dataset, disable_progress_bars, enable_progress_bars
from torch import Tensor

from headwise.mistakes import Mistake
from headwise.models import encode_document

#: So many rows take long enough for a bar.
MANY = 50_000

#: What fills up the shorter rows of a batch; ids are filled with the tokenizer's padding.
FILLING = {"labels": -100}


@dataclass(frozen=True)
class Reader:
    """Tokenises rows once, and puts them together in batches.

    Args:
        tokenizer: the model's.
        kind: the task's.
        pair: how two texts are read; None for one.
        max_length: the most tokens; longer texts are cut.
        hierarchy: most words in a sentence and sentences in a text, for models that read sentences first.
    """

    tokenizer: Any
    kind: str
    pair: Literal["joint", "siamese"] | None
    max_length: int
    hierarchy: tuple[int, int] | None = None

    def encoded(self, rows: Dataset) -> Dataset:
        """The rows as tokens, their labels where they have them, their length, and whether they were cut."""
        with nullcontext() if len(rows) >= MANY else without_bars():
            return rows.map(
                self.encode,
                batched=True,
                remove_columns=rows.column_names,
                load_from_cache_file=False,
                desc="tokenising",
            )

    def encode(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """A batch of rows, columns in and columns out."""
        if self.kind == "tokens":
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
            several = self.kind == "multi-label"
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
        """Sentences in words: a word's label stands at its first token, all other tokens have none."""
        words = [list(row) for row in rows["words"]]
        encoded = self.tokenizer(words, is_split_into_words=True, truncation=True, max_length=self.max_length)
        labels, cut = [], []
        for place, sentence in enumerate(words):
            of_word = encoded.word_ids(place)
            firsts = [at for at, word in enumerate(of_word) if word is not None and word not in of_word[:at]]
            cut.append(len(firsts) < len(sentence))
            own = rows["label"][place] if "label" in rows else [0] * len(sentence)
            labels.append([own[of_word[at]] if at in set(firsts) else -100 for at in range(len(of_word))])
        found = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"], "labels": labels}
        return found | {"length": [len(ids) for ids in encoded["input_ids"]], "cut": cut}

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Encoded rows as a batch, padded to the longest."""
        names = [name for name in rows[0] if name not in ("length", "cut")]
        return {name: padded([row[name] for row in rows], self.filling(name)) for name in names}

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
    depth = 2 if rows[0] and isinstance(rows[0][0], list) else 1
    if depth == 1 and isinstance(rows[0][0], float):
        return torch.tensor(rows)
    longest = max(map(len, rows))
    if depth == 1:
        return torch.tensor([row + [filling] * (longest - len(row)) for row in rows])
    widest = max(len(part) for row in rows for part in row)
    blank = [filling] * widest
    full = [[part + [filling] * (widest - len(part)) for part in row] + [blank] * (longest - len(row)) for row in rows]
    return torch.tensor(full)


def longest_allowed(max_length: int, model: Any, tokenizer: Any) -> None:
    """Refuse what a model cannot read.

    Raises:
        Mistake: texts of max_length tokens are longer than the model's positions.
    """
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    limit = min(x for x in limits if x)
    if max_length > limit:
        raise Mistake(f"--max-length {max_length}: this model reads at most {limit} tokens")
