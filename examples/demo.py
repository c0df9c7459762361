"""Five position schemes, and none, learn to fill in the masked words of one small text; then we look at their heads.

    python examples/demo.py --out demo

Each scheme is a one-layer encoder, trained with the same seeds on the same batches. It is judged by masks that it was
never trained on, but on the same sentences: this shows how schemes look and behave, not which is better in general.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import headwise as hw
from headwise.attention.sinusoids import sinusoids
from headwise.inspection import draw_maps
from headwise.inspection.style import save

DIM, HEADS, HEAD_DIM = 64, 4, 16
STEPS, SEEDS = 250, (0, 1, 2)
SHOWN = 7  # the sentence whose attention is drawn
PADDING, MASK = "[padding]", "[mask]"

SCHEMES: dict[str, Callable[[], hw.Scheme]] = {
    "no positions": hw.Plain,
    "sinusoids": hw.Plain,
    "rpr": lambda: hw.RelativePositions(HEADS, HEAD_DIM, k=8),
    "transformer-xl": lambda: hw.TransformerXL(HEADS, HEAD_DIM),
    "tener": lambda: hw.Tener(HEADS, HEAD_DIM),
    "distance-aware": lambda: hw.DistanceAware(HEADS),
}


class Filler(nn.Module):
    """A one-layer encoder that predicts every word."""

    def __init__(self, words: int, scheme: hw.Scheme, *, add_sinusoids: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, DIM, padding_idx=0)
        self.layer = hw.EncoderLayer(DIM, HEADS, scheme=scheme, dropout=0.1)
        self.predict = nn.Linear(DIM, words)
        self.add_sinusoids = add_sinusoids

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        return x + sinusoids(torch.arange(ids.shape[1]), DIM).to(x) if self.add_sinusoids else x

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.predict(self.layer(self.embed(ids), key_padding=ids != 0))
        return logits

    @torch.no_grad()
    def maps(self, ids: Tensor) -> Tensor:
        """The attention weights (B, heads, N, N)."""
        x = self.embed(ids)
        weights: Tensor = self.layer.attention(x, x, x, ids == 0, average_attn_weights=False)[1]
        return weights


@dataclass(frozen=True)
class Text:
    sentences: list[list[str]]
    vocabulary: dict[str, int]
    ids: Tensor  # (sentences, longest)

    @classmethod
    def read(cls, path: Path) -> "Text":
        lines = path.read_text(encoding="utf-8").lower().splitlines()
        sentences = [line.replace(",", " ,").replace(".", " .").split() for line in lines]
        words = sorted({word for sentence in sentences for word in sentence})
        vocabulary = {word: number for number, word in enumerate([PADDING, MASK, *words])}
        ids = [torch.tensor([vocabulary[word] for word in sentence]) for sentence in sentences]
        return cls(sentences, vocabulary, nn.utils.rnn.pad_sequence(ids, batch_first=True))

    def masks(self, draw: random.Random, *, held_out: bool) -> Tensor:
        """A quarter of each sentence's words. Positions whose sum is a multiple of five are held out from training."""
        masked = torch.zeros_like(self.ids, dtype=torch.bool)
        for row, sentence in enumerate(self.sentences):
            positions = draw.sample(range(len(sentence)), len(sentence) // 4)
            while (sum(positions) % 5 == 0) != held_out:
                positions = draw.sample(range(len(sentence)), len(sentence) // 4)
            masked[row, positions] = True
        return masked


@dataclass(frozen=True)
class Outcome:
    accuracy: float
    loss: float
    distance: float  # mean |i−j| that attention spans
    entropy: float  # of a query's attention, in nats
    seconds: float
    model: Filler


def learn(text: Text, name: str, seed: int) -> Outcome:
    start = time.perf_counter()
    torch.manual_seed(seed)
    model = Filler(len(text.vocabulary), SCHEMES[name](), add_sinusoids=name == "sinusoids")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draw = random.Random(seed)
    for _ in range(STEPS):
        loss, _ = fill_in(model, text, text.masks(draw, held_out=False))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        draw = random.Random("held out")
        tests = [fill_in(model, text, text.masks(draw, held_out=True)) for _ in range(20)]
    distance, entropy = span(model.maps(text.ids), text.ids != 0)
    losses, accuracies = ([float(x) for x in column] for column in zip(*tests, strict=True))
    return Outcome(mean(accuracies), mean(losses), distance, entropy, time.perf_counter() - start, model)


def fill_in(model: Filler, text: Text, masked: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and accuracy on the masked words."""
    logits = model(text.ids.masked_fill(masked, text.vocabulary[MASK]))[masked]
    words = text.ids[masked]
    return F.cross_entropy(logits, words), (logits.argmax(dim=-1) == words).float().mean()


def span(weights: Tensor, real: Tensor) -> tuple[float, float]:
    """Mean distance and mean entropy of the attention of real queries."""
    positions = torch.arange(weights.shape[-1])
    distance = (weights * (positions - positions[:, None]).abs()).sum(dim=-1)
    entropy = torch.special.entr(weights).sum(dim=-1)
    of_real = real[:, None, :].expand_as(distance)
    return float(distance[of_real].mean()), float(entropy[of_real].mean())


def tabulate(outcomes: dict[str, list[Outcome]]) -> tuple[list[str], list[list[str]]]:
    header = ["scheme", "parameters", "accuracy", "loss", "attention distance", "entropy", "seconds"]
    rows = []
    for name, runs in outcomes.items():
        scheme = runs[0].model.layer.attention.scheme
        rows.append(
            [
                name,
                str(sum(parameter.numel() for parameter in scheme.parameters())),
                spread([100 * run.accuracy for run in runs], "{:.1f} %"),
                spread([run.loss for run in runs], "{:.2f}"),
                spread([run.distance for run in runs], "{:.2f}"),
                spread([run.entropy for run in runs], "{:.2f}"),
                f"{mean(run.seconds for run in runs):.1f}",
            ]
        )
    return header, rows


def spread(values: Sequence[float], form: str) -> str:
    """Mean ± standard deviation over the seeds."""
    number, *unit = form.split(" ")
    return " ".join([f"{number.format(mean(values))} ± {number.format(stdev(values))}", *unit])


def head_titles(model: Filler, maps: Tensor) -> list[str]:
    """What a head has learned: w and v where it has them, and how far it looks on average."""
    scheme = model.layer.attention.scheme
    real = torch.ones(1, maps.shape[-1], dtype=torch.bool)
    titles = []
    for head in range(HEADS):
        title = f"head {head}: distance {span(maps[None, head : head + 1], real)[0]:.1f}"
        if isinstance(scheme, hw.DistanceAware) and scheme.v is not None:
            title += f", w = {scheme.w[head].item():+.2f}, v = {scheme.v[head].item():+.2f}"
        titles.append(title.replace("-", "−"))
    return titles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for table.md and attention.png")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)  # as fast for models this small, and the figures do not depend on the number of cores
    text = Text.read(Path(__file__).with_name("text.txt"))
    jobs = [(name, seed) for name in SCHEMES for seed in SEEDS]
    outcomes: dict[str, list[Outcome]] = {name: [] for name in SCHEMES}
    for name, seed in track(jobs, "learning", console=Console(stderr=True), transient=True):
        outcomes[name].append(learn(text, name, seed))

    header, rows = tabulate(outcomes)
    caption = (
        f"Masked words of {len(text.sentences)} sentences, {STEPS} steps, masks not trained on; mean ± standard "
        f"deviation over {len(SEEDS)} seeds. Distance-aware attention knows how far a word is, not on which side. "
        "This shows how schemes look on a small text, not which is better in general."
    )
    table = Table(*header, caption=caption)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    lines = [header, ["---"] * len(header), *rows]
    markdown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    (out / "table.md").write_text(f"{markdown}\n\n{caption}\n", encoding="utf-8")

    sentence = text.sentences[SHOWN]
    models = [runs[0].model for runs in outcomes.values()]
    maps = [model.maps(text.ids[SHOWN : SHOWN + 1, : len(sentence)])[0] for model in models]
    heads = [head_titles(model, own) for model, own in zip(models, maps, strict=True)]
    save(draw_maps(maps, sentence, list(outcomes), heads=heads), out / "attention.png")
    print(f"wrote {out / 'table.md'} and {out / 'attention.png'}")


if __name__ == "__main__":
    main()
