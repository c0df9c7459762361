"""Decoding with translators, and the translator of a finished run."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import headwise.models  # noqa: F401, registers the models with the Auto classes
from headwise.errors import UserError
from headwise.inspection.inspected_model import InspectedModel
from headwise.training.core import run_dir
from headwise.training.core.environment import get_device, uses_bfloat16
from headwise.training.core.pretrained import load_pretrained, loading_errors, running_errors
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.model import MAX_EXTRA_TOKENS
from headwise.training.translation.tokens import clip_ids, encode, too_long_error


@dataclass(frozen=True)
class Decoder:
    """A translator, its tokenizer and its decoding options.

    Args:
        model: the translator.
        tokenizer: the tokenizer of both languages.
        num_beams: the number of beams; 1 decodes greedily.
        length_penalty: a beam's log-probability is divided by its length to this power.
        bfloat16: compute in bfloat16.
        max_batch_tokens: the maximum number of tokens that a batch can generate, over all beams.
    """

    model: Any
    tokenizer: Any
    num_beams: int = 4
    length_penalty: float = 0.6
    bfloat16: bool = False
    max_batch_tokens: int = 2**18

    @property
    def generation_options(self) -> dict[str, Any]:
        """The options of `generate`; it warns about a length penalty without beams."""
        return {"num_beams": self.num_beams} | ({"length_penalty": self.length_penalty} if self.num_beams > 1 else {})

    def translate(self, sources: Sequence[Sequence[int]], *, show_progress: bool = False) -> list[str]:
        """Translate sentences, given as token ids with their end token; return the translations in the same order."""
        lengths = np.array([len(ids) for ids in sources], dtype=int)
        order = np.argsort(lengths, kind="stable")
        translations: list[str] = [""] * len(sources)
        start = 0
        with tqdm(total=len(sources), desc="translating", leave=False, delay=1, disable=not show_progress) as bar:
            while start < len(order):
                end = self.find_batch_end(lengths[order], start)
                rows = order[start:end]
                for row, text in zip(rows, self.translate_batch([sources[row] for row in rows]), strict=True):
                    translations[row] = text
                bar.update(len(rows))
                start = end
        return translations

    def find_batch_end(self, lengths: Any, start: int) -> int:
        """Return the end of the batch that begins at `start`, given ascending lengths; a batch is never empty."""
        num_tokens = np.arange(1, len(lengths) - start + 1) * (lengths[start:] + MAX_EXTRA_TOKENS) * self.num_beams
        return start + max(1, int(np.searchsorted(num_tokens, self.max_batch_tokens, side="right")))

    def translate_batch(self, sources: Sequence[Sequence[int]]) -> list[str]:
        model, pad_id = self.model, self.tokenizer.pad_token_id
        max_length = max(map(len, sources))
        input_ids = torch.tensor([[*ids, *[pad_id] * (max_length - len(ids))] for ids in sources], device=model.device)
        precision: Any = torch.autocast(model.device.type, torch.bfloat16) if self.bfloat16 else nullcontext()
        with torch.inference_mode(), precision:
            output_ids = model.generate(
                input_ids=input_ids,
                attention_mask=(input_ids != pad_id).long(),
                do_sample=False,
                max_new_tokens=max_length + MAX_EXTRA_TOKENS,
                **self.generation_options,
            )
        texts: list[str] = self.tokenizer.batch_decode(output_ids.tolist(), skip_special_tokens=True)
        return texts


@dataclass(frozen=True)
class TranslationModel:
    """The configuration and translator of a finished run.

    Example:
        translator = TranslationModel.load(Path("runs/en-de"))
        translator.translate(["A little girl."], locations=["line 1"])
    """

    config: TranslationConfig
    decoder: Decoder

    @classmethod
    def load(cls, run: Path, *, source: str | None = None, target: str | None = None) -> "TranslationModel":
        """Load the translator of a run.

        Args:
            run: the run directory.
            source, target: the requested languages, if any.

        Raises:
            UserError: the directory contains no finished run, or its languages are not the requested ones.
        """
        config = cls.read_config(run, source=source, target=target)
        with loading_errors(run):
            model: Any = load_pretrained(AutoModelForSeq2SeqLM, run, complete=True, use_safetensors=True)
            tokenizer = load_pretrained(AutoTokenizer, run)
        model = model.to(get_device()).eval()
        return cls(config, Decoder(model, tokenizer, config.beams, config.length_penalty, uses_bfloat16(config)))

    @staticmethod
    def read_config(run: Path, *, source: str | None = None, target: str | None = None) -> TranslationConfig:
        """Read the configuration of a run. The arguments and errors are those of `load`."""
        run_dir.check_finished(run)
        config = TranslationConfig.load(run / run_dir.CONFIG)
        languages = (source or config.source, target or config.target)
        if languages != config.pair:
            raise UserError(
                f"{run}: translates from {config.source} to {config.target}, not from {languages[0]} to {languages[1]}"
            )
        return config

    def translate(
        self, texts: Sequence[str], locations: Sequence[str], *, clip: bool = False, show_progress: bool = False
    ) -> list[str]:
        """Translate sentences; return the translations in the same order, empty ones for empty texts.

        Args:
            texts: the sentences.
            locations: the file and line of each sentence, for messages.
            clip: cut sentences that are too long.
            show_progress: show a progress bar.

        Raises:
            UserError: a sentence is too long and `clip` is false.
        """
        max_length = self.config.max_length
        with running_errors(self.decoder.model):
            sources = list(encode(self.decoder.tokenizer, [text for text in texts if text.strip()]))
        source_locations = [location for location, text in zip(locations, texts, strict=True) if text.strip()]
        for index, (ids, location) in enumerate(zip(sources, source_locations, strict=True)):
            if len(ids) > max_length:
                if not clip:
                    raise too_long_error(location, len(ids), max_length)
                sources[index] = clip_ids(ids, max_length)
        with running_errors(self.decoder.model):
            translations = iter(self.decoder.translate(sources, show_progress=show_progress))
        return [next(translations) if text.strip() else "" for text in texts]


def open_inspected(run: Path, name: str) -> InspectedModel:
    """Return the translator of a run for inspection."""
    translator = TranslationModel.load(run)
    return InspectedModel(
        name=name,
        model=translator.decoder.model,
        tokenizer=translator.decoder.tokenizer,
        max_length=translator.config.max_length,
        reads=1,
        generation=translator.decoder.generation_options,
    )
