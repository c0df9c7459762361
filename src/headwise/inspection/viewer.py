"""The interactive page: the attention of up to four models, in one self-contained HTML file.

Texts and numbers are stored as JSON. Maps are stored as compressed bytes in base64, one chunk per layer, which the
page decompresses on demand. The script is the concatenation of the files in `assets`; the content security policy
allows only this script.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.errors import UserError
from headwise.inspection.encoder_decoder import capture_text
from headwise.inspection.head_statistics import MEASURES, HeadStatistics
from headwise.inspection.inspected_model import InspectedModel, Prediction, Texts
from headwise.inspection.measures import num_distance_bins, uniform_shares
from headwise.inspection.page import load_asset
from headwise.inspection.passages import PassageAttention, check_same_tokens
from headwise.inspection.quantize import QuantizedLayer, group_size

MAX_MODELS = 4
#: Largest width and height of a thumbnail in cells.
MAX_THUMBNAIL_SIZE = 32
SCRIPTS = (
    *("data", "state", "colors", "text", "grid", "heatmap", "zoom", "arcs", "alignment", "head", "distances"),
    *("statistics", "main"),
)


@dataclass(frozen=True)
class Example:
    """One passage of a text, with the attention of each model.

    Args:
        title: the title of the text.
        label: the true label of the text, if it is known.
        passages: the attention of each model. Their title is that of the passage.
        row: the number of the text.
    """

    title: str
    label: str | None
    passages: tuple[PassageAttention, ...]
    row: int = 0


@dataclass(frozen=True)
class Viewer:
    """The contents of an interactive page. In a notebook it displays itself.

    Args:
        title: the title of the page.
        names: the names of the models.
        examples: the texts.
        statistics: the head statistics of each model over a dataset; empty without a dataset.

    Example:
        viewer = build_viewer([InspectedModel(name="BERT", model=model, tokenizer=tokenizer)], ["A fine film."])
        viewer.write(Path("page.html"))
    """

    title: str
    names: tuple[str, ...]
    examples: tuple[Example, ...]
    statistics: tuple[HeadStatistics, ...] = ()

    def iter_html(self) -> Iterator[str]:
        """Yield the page in parts.

        Thumbnails and the first layer of the first text come before the script. Those of the first text are not
        compressed, because browsers decompress asynchronously: they draw them before they have read the rest.
        """
        script = '"use strict";\n(() => {\n' + "\n".join(load_asset(f"{name}.js") for name in SCRIPTS) + "})();\n"
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
        yield (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}: attention heads</title>\n"
            f"<style>{load_asset('theme.css')}{load_asset('viewer.css')}</style>\n</head>\n<body>\n"
        )
        yield load_asset("viewer.html")
        yield f'<script type="application/json" id="metadata">{to_script_json(self.metadata())}</script>\n'
        for text, example in enumerate(self.examples):
            for model, passage in enumerate(example.passages):
                thumbnails = np.stack([make_thumbnails(layer.cells) for layer in passage.layers])
                yield encode_chunk(f"thumbnails-{text}-{model}", thumbnails, compress=text > 0)
        for model, passage in enumerate(self.examples[0].passages):
            yield from encode_layer(f"0-{model}-0", passage.layers[0], compress=False)
        yield f"<script>{script}</script>\n"
        for model, statistics in enumerate(self.statistics):
            correlation = statistics.similarity
            quantized = np.where(np.isnan(correlation), 255, np.round((correlation + 1) * 127))
            yield encode_chunk(f"similarity-{model}", quantized.astype(np.uint8))
        for text, example in enumerate(self.examples):
            for model, passage in enumerate(example.passages):
                for number, layer in enumerate(passage.layers):
                    if text or number:
                        yield from encode_layer(f"{text}-{model}-{number}", layer)
        yield "</body>\n</html>\n"

    def metadata(self) -> dict[str, Any]:
        """Return the contents of the page except for the maps."""
        return {
            "title": self.title,
            "models": [{"name": name} for name in self.names],
            "measures": MEASURES,
            "texts": [example_metadata(example) for example in self.examples],
            "statistics": [statistics_metadata(statistics) for statistics in self.statistics],
        }

    def html(self) -> str:
        """Return the page as HTML."""
        return "".join(self.iter_html())

    def write(self, path: Path) -> None:
        """Write the page to a file."""
        with path.open("w", encoding="utf-8") as file:
            file.writelines(self.iter_html())

    def _repr_html_(self) -> str:
        css = "width: 100%; height: 760px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{css}" srcdoc="{escape(self.html())}"></iframe>'


def build_viewer(
    models: Sequence[InspectedModel],
    texts: Sequence[str | Texts],
    *,
    targets: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    labels: Sequence[str | None] | None = None,
    statistics: Sequence[HeadStatistics] = (),
) -> Viewer:
    """Run up to four models on texts and return the page that shows their attention.

    Args:
        models: the models.
        texts: texts or pairs of texts.
        targets: for encoder-decoder models, the text that the decoder reads for each text; by default the one that the
            model generates.
        titles: the titles of the texts; by default their first words.
        labels: the true labels of the texts.
        statistics: the head statistics of each model over a dataset (`compute_head_statistics`), shown on the page.

    Raises:
        UserError: there is no model or more than four, two models have the same name, there is no text, a text is
            empty, a model's attention is not accessible, or the models' tokens, layers or heads differ.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from headwise.models import build_tokenizer
        >>> tokenizer = build_tokenizer(["a fine film"], framed=True)
        >>> bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> viewer = build_viewer([InspectedModel(name="tiny", model=bert, tokenizer=tokenizer)], ["a fine film"])
        >>> viewer.html().startswith("<!doctype html>")
        True
    """
    check_model_names([model.name for model in models])
    rows = [(text,) if isinstance(text, str) else text for text in texts]
    if not rows:
        raise UserError("there are no texts to show")
    names = tuple(model.name for model in models)
    examples = []
    for number, row in enumerate(rows):
        target = targets[number] if targets else None
        model_passages = [capture_text(model, row, target) for model in models]
        check_same_tokens(names, model_passages)
        title = titles[number] if titles else truncate_label(" / ".join(row))
        for passages in zip(*model_passages, strict=True):
            if len({(len(passage.layers), len(passage.layers[0].cells)) for passage in passages}) > 1:
                raise UserError(f"{', '.join(names)} have different numbers of layers or heads: show them separately")
            examples.append(Example(title, labels[number] if labels else None, passages, number))
    return Viewer(", ".join(names), names, tuple(examples), tuple(statistics))


def check_model_names(names: Sequence[str]) -> None:
    """Check the number of models and that their names are distinct.

    Raises:
        UserError: the models cannot be shown together.
    """
    if not 1 <= len(names) <= MAX_MODELS:
        raise UserError(f"between 1 and {MAX_MODELS} models can be shown together, got {len(names)}")
    if len(set(names)) < len(names):
        raise UserError(f"two models have the same name: {', '.join(names)}")


def truncate_label(text: str, max_length: int = 60) -> str:
    """Return a text on one line, truncated to a maximum length.

    >>> truncate_label("a long story", max_length=8)
    'a long…'
    """
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1].rstrip() + "…"


def example_metadata(example: Example) -> dict[str, Any]:
    passage = example.passages[0]
    keys = passage.key_tokens or passage.tokens
    num_groups, num_key_groups = passage.layers[0].cells.shape[1:]
    return {
        "title": example.title,
        "part": passage.title,
        "row": example.row,
        "label": example.label,
        "tokens": passage.tokens,
        "key_tokens": passage.key_tokens,
        "group_sizes": [group_size(len(passage.tokens)), group_size(len(keys))],
        "num_groups": [num_groups, num_key_groups],
        "thumbnail_size": make_thumbnails(passage.layers[0].cells[:1]).shape[1:],
        "uniform_shares": None if passage.key_tokens is not None else uniform_metadata(passage),
        "truncated": any(passage.truncated for passage in example.passages),
        "models": [passage_metadata(passage) for passage in example.passages],
    }


def passage_metadata(passage: PassageAttention) -> dict[str, Any]:
    layers = passage.layers
    return {
        "prediction": prediction_metadata(passage.prediction),
        "cell_max": [round_values(layer.cell_max) for layer in layers],
        "top_weight_max": [
            None if layer.top_weight_max is None else round_values(layer.top_weight_max) for layer in layers
        ],
        "distance": optional_values([layer.distance for layer in layers]),
        "distance_shares": optional_values([layer.distance_shares for layer in layers]),
        "entropy": [round_values(layer.entropy) for layer in layers],
        "w": optional_values([layer.w for layer in layers]),
    }


def optional_values(arrays: Sequence[NDArray[np.float32] | None]) -> list[Any] | None:
    """Return the rounded values of each layer, or None if a layer has none."""
    return None if any(x is None for x in arrays) else [round_values(x) for x in arrays if x is not None]


def uniform_metadata(passage: PassageAttention) -> list[float]:
    """Return the shares by distance of equal weights: on all tokens, or on all earlier tokens if heads are causal."""
    shares = [layer.distance_shares for layer in passage.layers if layer.distance_shares is not None]
    num_bins = num_distance_bins(len(passage.tokens))
    is_causal = not any(x[:, num_bins + 1 :].any() for x in shares)
    return list(round_values(uniform_shares(len(passage.tokens), causal=is_causal)))


def prediction_metadata(prediction: Prediction | None) -> dict[str, Any] | None:
    if prediction is None:
        return None
    if prediction.text is not None:
        return {"text": prediction.text, "is_given": prediction.is_given}
    if prediction.value is not None:
        return {"value": prediction.value}
    if prediction.token_labels:
        return {"token_labels": prediction.token_labels}
    return {"labels": [[label, round(probability, 4)] for label, probability in prediction.labels]}


def statistics_metadata(statistics: HeadStatistics) -> dict[str, Any]:
    return {
        "name": statistics.name,
        "texts": statistics.texts,
        "tokens": statistics.tokens,
        "empty": statistics.empty,
        "measures": {name: [round_values(row) for row in values] for name, values in statistics.measures.items()},
        "received": [[round_values(head) for head in layer] for layer in statistics.received],
        "distance_shares": [round_values(layer) for layer in statistics.distance_shares],
        "clusters": statistics.clusters.tolist(),
    }


def round_values(x: NDArray[np.floating[Any]]) -> list[Any]:
    """Round to five significant digits."""
    return [float(f"{value:.5g}") if np.ndim(value) == 0 else round_values(value) for value in x]


def make_thumbnails(cells: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reduce maps (H, n, m) to thumbnails by max pooling."""
    for axis in (1, 2):
        size = cells.shape[axis]
        if size > MAX_THUMBNAIL_SIZE:
            edges = np.linspace(0, size, MAX_THUMBNAIL_SIZE + 1).astype(int)[:-1]
            cells = np.maximum.reduceat(cells, edges, axis=axis)
    return cells


def encode_layer(name: str, layer: QuantizedLayer, *, compress: bool = True) -> Iterator[str]:
    """Yield the chunks of a layer."""
    yield encode_chunk(f"cells-{name}", layer.cells, compress=compress)
    if layer.top_keys is not None and layer.top_weights is not None:
        yield encode_chunk(f"keys-{name}", layer.top_keys.astype("<u2"), compress=compress)
        yield encode_chunk(f"weights-{name}", layer.top_weights, compress=compress)


def encode_chunk(name: str, data: NDArray[Any], *, compress: bool = True) -> str:
    """Return an element with an array's bytes in base64, compressed or not. Browsers do not execute it."""
    content = np.ascontiguousarray(data).tobytes()
    encoded = base64.b64encode(zlib.compress(content, 6) if compress else content).decode("ascii")
    kind = f"application/{'zlib' if compress else 'octet-stream'}"
    return f'<script type="{kind}" id="{name}">{encoded}</script>\n'


def to_script_json(value: Any) -> str:
    """Return JSON that cannot close the script element that contains it.

    Raises:
        UserError: a number is NaN or infinite, which is not JSON.
    """
    try:
        content = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise UserError(
            "attention weights, predictions or statistics are NaN or infinite: the model's weights are damaged, or its "
            "training has diverged"
        ) from None
    for character in "<>\u2028\u2029":
        content = content.replace(character, f"\\u{ord(character):04x}")
    return content
