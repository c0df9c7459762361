"""The interactive page: what heads look at, of up to four models, in one HTML file that needs nothing else.

Texts and numbers stand in it as JSON, maps as compressed bytes in base64, a chunk for each layer, which the page
unpacks when they are looked at. Its script is the files in `assets`, one after another; the browser runs that script
and, by the page's own policy, no other.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.errors import UserError
from headwise.inspection.attention_maps import Reading, read, same_tokens
from headwise.inspection.head_statistics import MEASURES, HeadStatistics
from headwise.inspection.inspected_model import InspectedModel, Prediction, Texts
from headwise.inspection.page import LOOK
from headwise.inspection.quantize import group_size

MOST_MODELS = 4
THUMB = 32  # cells along a small picture's side, at most
SCRIPTS = ("data", "state", "colours", "text", "grid", "heatmap", "arcs", "head", "statistics", "main")


@cache
def asset(name: str) -> str:
    return (files("headwise.inspection") / "assets" / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Example:
    """One passage of a text, as each model reads it.

    Args:
        title: what it is called.
        label: what it should be labelled, if that is known.
        readings: one for each model.
    """

    title: str
    label: str | None
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class Viewer:
    """A page to look into models with; in a notebook it displays itself.

    Args:
        title: the page's, in a few words.
        names: the models'.
        examples: the texts.
        statistics: of each model over a data set, if there is one.

    Example:
        viewer = look([Subject(name="BERT", model=model, tokenizer=tokenizer)], ["A fine film."])
        viewer.write(Path("page.html"))
    """

    title: str
    names: tuple[str, ...]
    examples: tuple[Example, ...]
    statistics: tuple[HeadStatistics, ...] = ()

    def parts(self) -> Iterator[str]:
        """The page, piece by piece; what is seen first comes first."""
        script = '"use strict";\n(() => {\n' + "\n".join(asset(f"{name}.js") for name in SCRIPTS) + "})();\n"
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:"
        yield (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}: what heads look at</title>\n"
            f"<style>{LOOK}{asset('viewer.css')}</style>\n</head>\n<body>\n"
        )
        yield asset("viewer.html")
        yield f'<script type="application/json" id="about-data">{as_json(self.about())}</script>\n'
        for text, example in enumerate(self.examples):
            for model, reading in enumerate(example.readings):
                yield chunk(f"thumbs-{text}-{model}", np.stack([thumbs(layer.cells) for layer in reading.layers]))
        yield f"<script>{script}</script>\n"
        for model, found in enumerate(self.statistics):
            alike = np.where(np.isnan(found.similarity), 255, np.round((found.similarity + 1) * 127))
            yield chunk(f"similarity-{model}", alike.astype(np.uint8))
        for text, example in enumerate(self.examples):
            for model, reading in enumerate(example.readings):
                for number, layer in enumerate(reading.layers):
                    yield chunk(f"cells-{text}-{model}-{number}", layer.cells)
                    if layer.keys is not None and layer.weights is not None:
                        yield chunk(f"keys-{text}-{model}-{number}", layer.keys.astype("<u2"))
                        yield chunk(f"weights-{text}-{model}-{number}", layer.weights)
        yield "</body>\n</html>\n"

    def about(self) -> dict[str, Any]:
        """All but the maps."""
        return {
            "title": self.title,
            "models": [{"name": name} for name in self.names],
            "measures": MEASURES,
            "texts": [about_text(example) for example in self.examples],
            "statistics": [about_statistics(found) for found in self.statistics],
        }

    def html(self) -> str:
        return "".join(self.parts())

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(self.parts())

    def _repr_html_(self) -> str:
        frame = "width: 100%; height: 760px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{frame}" srcdoc="{escape(self.html())}"></iframe>'


def build_viewer(
    subjects: Sequence[InspectedModel],
    texts: Sequence[str | Texts],
    *,
    titles: Sequence[str] | None = None,
    labels: Sequence[str | None] | None = None,
    statistics: Sequence[HeadStatistics] = (),
) -> Viewer:
    """Look at texts through the heads of up to four models.

    Args:
        subjects: the models, with their tokenizers and names.
        texts: each a text, or a pair of texts.
        titles: what the texts are called; by default their beginnings.
        labels: what the texts should be labelled.
        statistics: of each model over a data set (`headwise.inspection.statistics`), to be shown on the page too.

    Raises:
        UserError: no model, more than four, two of one name, no text, an empty one, a model whose attention cannot be
            seen, or models that cut a text into different tokens.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from headwise.models import build_tokenizer
        >>> tokenizer = build_tokenizer(["a fine film"], framed=True)
        >>> bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> viewer = look([Subject(name="tiny", model=bert, tokenizer=tokenizer)], ["a fine film"])
        >>> viewer.html().startswith("<!doctype html>")
        True
    """
    check_examples([subject.name for subject in subjects])
    rows = [(text,) if isinstance(text, str) else text for text in texts]
    if not rows:
        raise UserError("no text was given: there is nothing to look at")
    names = tuple(subject.name for subject in subjects)
    examples = []
    for number, row in enumerate(rows):
        found = [read(subject, row) for subject in subjects]
        same_tokens(names, found)
        title = titles[number] if titles else truncate_label(" / ".join(row))
        for passages in zip(*found, strict=True):
            if len({(len(reading.layers), len(reading.layers[0].cells)) for reading in passages}) > 1:
                raise UserError(f"{', '.join(names)} have different numbers of layers or heads: show them one by one")
            of = f": {passages[0].title}" if passages[0].title else ""
            examples.append(Example(title + of, labels[number] if labels else None, passages))
    return Viewer(", ".join(names), names, tuple(examples), tuple(statistics))


def check_examples(names: Sequence[str]) -> None:
    """So many models of different names can be shown side by side.

    Raises:
        UserError: they cannot.
    """
    if not 1 <= len(names) <= MOST_MODELS:
        raise UserError(f"up to {MOST_MODELS} models can be looked at side by side, got {len(names)}")
    if len(set(names)) < len(names):
        raise UserError(f"two models have the same name: {', '.join(names)}")


def truncate_label(text: str, most: int = 60) -> str:
    """
    >>> beginning("a long story", most=8)
    'a long…'
    """
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def about_text(example: Example) -> dict[str, Any]:
    first = example.readings[0]
    return {
        "title": example.title,
        "label": example.label,
        "tokens": first.tokens,
        "size": group_size(len(first.tokens)),
        "side": first.layers[0].cells.shape[1],
        "thumb": thumbs(first.layers[0].cells[:1]).shape[1],
        "cut": any(reading.cut for reading in example.readings),
        "models": [about_reading(reading) for reading in example.readings],
    }


def about_reading(reading: Reading) -> dict[str, Any]:
    layers = reading.layers
    return {
        "prediction": about_prediction(reading.prediction),
        "largest": [rounded(layer.largest) for layer in layers],
        "strongest": [None if layer.strongest is None else rounded(layer.strongest) for layer in layers],
        "distance": [rounded(layer.distance) for layer in layers],
        "entropy": [rounded(layer.entropy) for layer in layers],
        "w": [rounded(layer.w) for layer in layers if layer.w is not None] or None,
    }


def about_prediction(prediction: Prediction | None) -> dict[str, Any] | None:
    if prediction is None:
        return None
    if prediction.rating is not None:
        return {"rating": prediction.rating}
    if prediction.of_tokens:
        return {"tokens": prediction.of_tokens}
    return {"labels": [[label, round(share, 4)] for label, share in prediction.labels]}


def about_statistics(found: HeadStatistics) -> dict[str, Any]:
    return {
        "name": found.name,
        "texts": found.texts,
        "tokens": found.tokens,
        "empty": found.empty,
        "measures": {name: [rounded(row) for row in values] for name, values in found.measures.items()},
        "received": [[rounded(head) for head in layer] for layer in found.received],
        "clusters": found.clusters.tolist(),
    }


def rounded(x: NDArray[np.floating[Any]]) -> list[float]:
    return [float(f"{value:.5g}") for value in x]


def thumbs(cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Maps (H, n, n) as small pictures: where several cells fall on one, the strongest is seen."""
    side = cells.shape[1]
    if side <= THUMB:
        return cells
    edges = np.linspace(0, side, THUMB + 1).astype(int)[:-1]
    found: NDArray[np.uint8] = np.maximum.reduceat(np.maximum.reduceat(cells, edges, axis=1), edges, axis=2)
    return found


def chunk(name: str, data: NDArray[Any]) -> str:
    """Bytes that the page unpacks: deflated, in base64, in an element that no browser runs."""
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(data).tobytes(), 6)).decode("ascii")
    return f'<script type="application/octet-stream" id="{name}">{packed}</script>\n'


def as_json(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    told = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (
        told.replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )
