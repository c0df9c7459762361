"""`headwise bench`: what things cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg
from tyro.extras import SubcommandApp

from headwise.bench import attention, guiding

app = SubcommandApp()


@app.command(name="attention")
@dataclass(frozen=True, kw_only=True)
class Attention(attention.AttentionBenchConfig):
    """Attention: our backends beside torch's SDPA, the naive formula, torch.compile of it and FlexAttention.

    $ headwise bench attention --out bench
    $ headwise bench attention --schemes distance-aware rpr --lengths 1024 4096 --out bench
    $ headwise bench attention --implementations headwise-blockwise naive --forward-only
    $ headwise bench attention --device cuda --dtype bfloat16 --batch 4 --heads 16 --lengths 4096 --out bench
    """

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to write attention.csv, attention.md and attention.png; without it the table is only printed."""

    def __call__(self, command: str) -> int:
        return 0 if attention.bench(self, self.out, command) else 130


@app.command(name="guiding")
@dataclass(frozen=True, kw_only=True)
class Guiding(guiding.GuidingBenchConfig):
    """Guiding: a training step of BERT with guides, beside the unguided one and beside guides on eager maps.

    $ headwise bench guiding --layers 2 --heads 4 --shapes 8x64
    $ headwise bench guiding --device cuda --dtype bfloat16 --shapes 64x128 64x256 32x512 8x2048 2x8192 --out bench
    """

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to write guiding.csv, guiding.md and guiding.png; without it the table is only printed."""

    def __call__(self, command: str) -> int:
        return 0 if guiding.bench(self, self.out, command) else 130
