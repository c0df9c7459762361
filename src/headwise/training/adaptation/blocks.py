"""Blocks of tokens for masked language modelling: texts are joined and divided into blocks of one length.

Tokens lie in one flat file of 32-bit integers, which is memory-mapped. A block's mask depends on the seed, the epoch
and the block alone. A resumed run therefore masks the same tokens, for any number of processes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import data
from transformers import DataCollatorForLanguageModeling

from headwise.errors import UserError
from headwise.files import read_lines
from headwise.native_errors import tokenizer_errors
from headwise.tasks.columns import choose_columns
from headwise.tasks.formats import file_extension, read_batches, read_head

#: One of this many texts belongs to dev, if there is no file for it.
DEV_INTERVAL = 20
#: The number of texts that are tokenized together.
TOKENIZED_TEXTS = 1000


class SpecialTokens(NamedTuple):
    """The tokens that a tokenizer adds before and after a text."""

    prefix: list[int]
    suffix: list[int]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "SpecialTokens":
        with tokenizer_errors(tokenizer):
            plain = tokenizer("a", add_special_tokens=False)["input_ids"]
            full = tokenizer("a")["input_ids"]
        starts = [i for i in range(len(full)) if full[i : i + len(plain)] == plain]
        if not starts:
            name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
            raise UserError(f"{name}: the tokens of a text change when special tokens are added; use another tokenizer")
        start = starts[0]
        return cls(full[:start], full[start + len(plain) :])


def read_texts(paths: Sequence[str], text: str | None) -> Iterator[str]:
    """Yield the texts of files that are not empty.

    Args:
        paths: tables, or text files with one text per line.
        text: the text column of tables; detected by default.

    Raises:
        UserError: a file does not exist, is invalid or has no such column.
    """
    for path in map(Path, paths):
        if file_extension(path) == ".txt":
            yield from (line.strip() for line in read_lines(path) if line.strip())
            continue
        columns = choose_columns(read_head(path), text=text, labelled=False)
        names = [name for name in (columns.text, columns.pair) if name is not None]
        for batch in read_batches(path, names):
            for name in names:
                for index, value in enumerate(batch.columns[name]):
                    if value is not None and not isinstance(value, str):
                        raise UserError(f"{batch.location(index)}: {name} is {value!r:.40}, expected a text")
                    if value and value.strip():
                        yield value


def write_tokens(texts: Iterable[str], tokenizer: Any, path: Path) -> int:
    """Write the tokens of texts to a file, with the tokenizer's separator after each text.

    Returns:
        The number of texts.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    separator, count, texts = SpecialTokens.from_tokenizer(tokenizer).suffix, 0, iter(texts)
    with path.open("wb") as file:
        while group := list(islice(texts, TOKENIZED_TEXTS)):
            with tokenizer_errors(tokenizer):
                tokenized = tokenizer(group, add_special_tokens=False, return_attention_mask=False, verbose=False)
            tokens = [np.asarray(ids + separator, dtype=np.int32) for ids in tokenized["input_ids"]]
            file.write(np.concatenate(tokens).tobytes())
            count += len(group)
    return count


def split_texts(texts: Iterable[str], *, dev: bool) -> Iterator[str]:
    """Yield the texts of dev, every 20th, or all others."""
    return (text for index, text in enumerate(texts) if (index % DEV_INTERVAL == 0) == dev)


class MaskedBlocks(data.Dataset[dict[str, Tensor]]):
    """Blocks of tokens with masks, from which a DataLoader takes whole batches.

    Args:
        path: the file of `write_tokens`.
        tokenizer: the tokenizer, which has a mask token.
        max_length: tokens of a block, with special tokens. Only the last block may be shorter.
        probability: the share of masked tokens.
        seed: the seed of the masks.
        max_blocks: use this number of blocks at most, taken at regular intervals.
    """

    #: The sampler of the training batches, which has the epoch; None for dev, whose masks are always the same.
    sampler: Any = None

    def __init__(
        self,
        path: Path,
        tokenizer: Any,
        *,
        max_length: int,
        probability: float,
        seed: int,
        max_blocks: int | None = None,
    ) -> None:
        self.special = SpecialTokens.from_tokenizer(tokenizer)
        num_special = len(self.special.prefix) + len(self.special.suffix)
        self.num_tokens = path.stat().st_size // np.dtype(np.int32).itemsize
        self.tokens = np.memmap(path, dtype=np.int32, mode="r") if self.num_tokens else np.empty(0, np.int32)
        self.size = max_length - num_special
        self.starts = np.arange(0, self.num_tokens, self.size)
        self.num_blocks = len(self.starts)
        if max_blocks is not None and self.num_blocks > max_blocks:
            self.starts = self.starts[np.arange(max_blocks) * self.num_blocks // max_blocks]
        self.lengths = np.minimum(self.size, self.num_tokens - self.starts) + num_special
        self.seed = seed
        self.padding_id = int(tokenizer.pad_token_id)
        self.special_ids = torch.tensor(sorted(tokenizer.all_special_ids))
        self.collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitems__(self, blocks: Sequence[int]) -> dict[str, Tensor]:
        """Return a batch of masked blocks, padded to the longest."""
        masked = [self.mask(block) for block in blocks]
        inputs, labels = (
            torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
            for rows, value in zip(zip(*masked, strict=True), (self.padding_id, -100), strict=True)
        )
        lengths = torch.from_numpy(self.lengths[np.asarray(blocks)])
        mask = (torch.arange(inputs.shape[1]) < lengths[:, None]).long()
        return {"input_ids": inputs, "attention_mask": mask, "labels": labels}

    def __getitem__(self, block: int) -> dict[str, Tensor]:
        return self.__getitems__([block])

    def mask(self, block: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of a block; at least one token has a label, if it is not a special one."""
        start = int(self.starts[block])
        text = self.tokens[start : start + self.size].tolist()
        ids = torch.tensor([*self.special.prefix, *text, *self.special.suffix])
        is_special = torch.isin(ids, self.special_ids)
        epoch = 0 if self.sampler is None else self.sampler.epoch
        state = np.random.SeedSequence((self.seed, epoch, block)).generate_state(1, np.uint64)
        self.collator.generator = torch.Generator().manual_seed(int(state[0]) >> 1)
        while True:
            inputs, labels = self.collator.torch_mask_tokens(ids.clone(), special_tokens_mask=is_special)
            if bool((labels != -100).any()) or bool(is_special.all()):
                return inputs, labels
