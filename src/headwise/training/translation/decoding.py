"""Sentences in, translations out: in batches of one length, told in the order they came."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

#: The most tokens that a translation has beyond its source, as in Vaswani et al. (2017).
BEYOND = 50


@dataclass(frozen=True)
class Decoder:
    """A translator with its tokenizer and how it decodes.

    Args:
        model: the translator.
        tokenizer: of both languages.
        beams, length_penalty: see `generate`; length_penalty divides by length ** penalty.
        bfloat16: compute in it.
        tokens: of a batch's translations at their longest, in all beams.
    """

    model: Any
    tokenizer: Any
    beams: int = 4
    length_penalty: float = 0.6
    bfloat16: bool = False
    tokens: int = 2**18

    @property
    def search(self) -> dict[str, Any]:
        """What `generate` is told; greedy decoding knows no penalty."""
        return {"num_beams": self.beams} | ({"length_penalty": self.length_penalty} if self.beams > 1 else {})

    def translate(self, sources: Sequence[Sequence[int]], *, shown: bool = False) -> list[str]:
        """The translation of each sentence, given as tokens with their end."""
        lengths = np.array([len(ids) for ids in sources], dtype=int)
        order = np.argsort(lengths, kind="stable")
        told: list[str] = [""] * len(sources)
        start = 0
        with tqdm(total=len(sources), desc="translating", leave=False, delay=1, disable=not shown) as bar:
            while start < len(order):
                end = self.end_of_batch(lengths[order], start)
                rows = order[start:end]
                found = self.decode([sources[row] for row in rows])
                for row, text in zip(rows, found, strict=True):
                    told[row] = text
                bar.update(len(rows))
                start = end
        return told

    def end_of_batch(self, lengths: Any, start: int) -> int:
        """Where the batch of sentences of rising lengths ends that begins here; it has at least one."""
        sizes = np.arange(1, len(lengths) - start + 1) * (lengths[start:] + BEYOND) * self.beams
        return start + max(1, int(np.searchsorted(sizes, self.tokens, side="right")))

    def decode(self, sources: Sequence[Sequence[int]]) -> list[str]:
        """One batch."""
        model, padding = self.model, self.tokenizer.pad_token_id
        longest = max(map(len, sources))
        table = torch.tensor([[*ids, *[padding] * (longest - len(ids))] for ids in sources], device=model.device)
        precision: Any = torch.autocast(model.device.type, torch.bfloat16) if self.bfloat16 else nullcontext()
        with torch.inference_mode(), precision:
            found = model.generate(
                input_ids=table,
                attention_mask=(table != padding).long(),
                do_sample=False,
                max_new_tokens=longest + BEYOND,
                **self.search,
            )
        texts: list[str] = self.tokenizer.batch_decode(found.tolist(), skip_special_tokens=True)
        return texts
