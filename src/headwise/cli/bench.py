"""`headwise bench`: what things cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg
from tyro.extras import SubcommandApp

from headwise.bench import attention

app = SubcommandApp()


@app.command(name="attention")
@dataclass(frozen=True, kw_only=True)
class Attention(attention.Settings):
    """Attention: our backends beside torch's SDPA, the naive formula, torch.compile of it and FlexAttention.

    $ headwise bench attention --out bench
    $ headwise bench attention --schemes distance-aware rpr --lengths 1024 4096 --out bench
    $ headwise bench attention --rivals headwise-blockwise naive --forward-only
    $ headwise bench attention --device cuda --dtype bfloat16 --batch 4 --heads 16 --lengths 4096 --out bench
    """

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to write attention.csv, attention.md and attention.png; without it the table is only printed."""

    def __call__(self, command: str) -> int:
        return 0 if attention.bench(self, self.out, command) else 130
