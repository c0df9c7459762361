"""A finished translator's run, ready to be used."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import headwise.models  # noqa: F401, whose models Auto classes load
from headwise.errors import UserError
from headwise.inspection.inspected_model import InspectedModel
from headwise.training.core import run_dir
from headwise.training.core.environment import uses_bfloat16
from headwise.training.core.pretrained import loading_errors
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.decoding import Decoder
from headwise.training.translation.tokens import clipped_to, encoded, too_long


@dataclass(frozen=True)
class TranslationModel:
    """A finished run's settings and translator.

    Example:
        translator = TrainedTranslator.load(Path("runs/en-de"))
        translator.translate(["A little girl."], places=["line 1"])
    """

    settings: TranslationConfig
    decoder: Decoder

    @classmethod
    def load(cls, run: Path, *, source: str | None = None, target: str | None = None) -> "TranslationModel":
        """A run's translator from its folder.

        Args:
            run: the folder.
            source, target: the languages that are asked for, if any.

        Raises:
            UserError: the folder holds no finished run, or one of other languages.
        """
        run_dir.check_finished(run)
        settings = TranslationConfig.load(run / run_dir.CONFIG)
        asked = (source or settings.source, target or settings.target)
        if asked != settings.pair:
            raise UserError(
                f"{run}: translates from {settings.source} to {settings.target}, not from {asked[0]} to {asked[1]}"
            )
        with loading_errors(run):
            model: Any = AutoModelForSeq2SeqLM.from_pretrained(run, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(run)
        model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        how = Decoder(model, tokenizer, settings.beams, settings.length_penalty, uses_bfloat16(settings))
        return cls(settings, how)

    def translate(
        self, texts: Sequence[str], places: Sequence[str], *, clip: bool = False, shown: bool = False
    ) -> list[str]:
        """Translations of texts, in their order; an empty text has an empty one.

        Args:
            texts: sentences.
            places: where each stands, for messages.
            clip: cut sentences that are too long.
            shown: show a bar.

        Raises:
            UserError: a sentence is too long, and shall not be cut.
        """
        longest = self.settings.max_length
        ids = list(encoded(self.decoder.tokenizer, [text for text in texts if text.strip()]))
        real = [place for place, text in zip(places, texts, strict=True) if text.strip()]
        for number, (one, place) in enumerate(zip(ids, real, strict=True)):
            if len(one) > longest:
                if not clip:
                    raise too_long(place, len(one), longest)
                ids[number] = clipped_to(one, longest)
        said = iter(self.decoder.translate(ids, shown=shown))
        return [next(said) if text.strip() else "" for text in texts]


def open_inspected(run: Path, name: str) -> InspectedModel:
    """A run to look into: its encoder, which reads sentences."""
    trained = TranslationModel.load(run)
    model = trained.decoder.model
    return InspectedModel(
        name=name,
        model=model.get_encoder(),
        tokenizer=trained.decoder.tokenizer,
        max_length=trained.settings.max_length,
        reads=1,
        part_of=model,
    )
