"""Reports and inspection pages: any text is text, and any number is a number, wherever it stands on a page."""

import json
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

from tests.robustness.fuzz.kinds import Kind, write_file
from tests.robustness.fuzz.model_dirs import refuse_constant
from tests.robustness.fuzz.mutations import TEXTS

#: Numbers of maps and measures.
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, 3.4e38, float("nan"), float("inf"), float("-inf")]


class TagCollector(HTMLParser):
    """Collects the tags of a page and fails for attributes that run code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs), "an attribute runs code"


def random_text(random: Random) -> str:
    """Return a few hostile strings in a row."""
    return "".join(random.choices(TEXTS, k=random.randint(1, 6)))


def mutate_report(random: Random, directory: Path) -> None:
    (directory / "texts.json").write_text(json.dumps([random_text(random) for _ in range(6)]))


def write_report(directory: Path, out: Path) -> None:
    """Write a report with any texts. It must have the same tags as one with harmless texts."""
    texts = json.loads((directory / "texts.json").read_text())
    assert TagCollector(build_report(texts)).tags == TagCollector(build_report(["a"] * 6)).tags, "a text became a tag"


def build_report(texts: list[str]) -> str:
    from headwise.inspection import Page

    page = Page(texts[0])
    page.section(texts[1])
    page.text(texts[2])
    page.code(texts[3])
    page.table([texts[4]], [[texts[5]]])
    return page.html()


def mutate_page(random: Random, directory: Path) -> None:
    """Choose texts, the sizes of maps, and numbers in them."""
    num_tokens = random.choice([1, 2, 3, 3, 8, 33, 257, 600])
    content = {
        "texts": [random_text(random) for _ in range(6)],
        "tokens": [random.choice(TEXTS) for _ in range(num_tokens)],
        "heads": random.choice([1, 2, 5]),
        "layers": random.choice([1, 2]),
        "numbers": random.choices(NUMBERS, k=random.randint(1, 8)),
        "weights": [random.random() for _ in range(7)],
        "statistics": random.random() < 0.5,
    }
    (directory / "page.json").write_text(json.dumps(content))


def write_page(directory: Path, out: Path) -> None:
    """Write an inspection page. It must be a valid page whose data is what was put in."""
    content = json.loads((directory / "page.json").read_text())
    viewer = build_page(content)
    viewer.write(out / "page.html")
    page = (out / "page.html").read_text(encoding="utf-8")
    metadata_text = page.partition('id="metadata">')[2].partition("</script>")[0]
    metadata = json.loads(metadata_text, parse_constant=refuse_constant)
    assert metadata["title"] == content["texts"][0], "the title changed"
    assert metadata["texts"][0]["tokens"] == content["tokens"], "the tokens changed"
    harmless = content | {"texts": ["a"] * 6, "tokens": ["a"] * len(content["tokens"])}
    assert TagCollector(page).tags == TagCollector(build_page(harmless).html()).tags, "a text became a tag"
    assert page.count("<script>") == 1, "the page has a script that is not ours"


def build_page(content: dict[str, Any]) -> Any:
    """Build the page that a model with these maps would have."""
    import numpy as np
    import torch

    from headwise.inspection.head_statistics import MEASURES, HeadStatistics
    from headwise.inspection.inspected_model import Prediction
    from headwise.inspection.passages import PassageAttention
    from headwise.inspection.quantize import quantize_layer
    from headwise.inspection.viewer import Example, Viewer
    from headwise.integrations import AttentionRows

    title, name, label, passage_title, predicted, other = content["texts"]
    tokens, heads, num_layers = content["tokens"], content["heads"], content["layers"]
    count = len(tokens)
    weights = torch.tensor(content["weights"]).repeat(heads * count * count // 7 + 1)[: heads * count * count]
    weights = weights.view(1, heads, count, count).softmax(dim=-1)
    weights.view(-1)[: len(content["numbers"])] = torch.tensor(content["numbers"])[: weights.numel()]
    real = torch.ones(1, count, dtype=torch.bool)
    rows = AttentionRows(heads, real, None, lambda start, stop: weights[:, :, start:stop])
    layer = quantize_layer(rows, [count])
    value = content["numbers"][0]
    prediction = Prediction(labels=((predicted, value), (other, 0.5)), value=value, token_labels=(predicted,) * count)
    passage = PassageAttention(passage_title, tuple(tokens), (layer,) * num_layers, prediction, truncated=True)
    statistics = []
    if content["statistics"]:
        measures = np.resize(np.array(content["numbers"]), (num_layers, heads))
        size = num_layers * heads
        similarity = np.clip(np.resize(np.array(content["numbers"]), (size, size)), -1, 1)
        shares = np.resize(np.array(content["numbers"]), (num_layers, heads, 5))
        received = np.resize(np.array(content["numbers"]), (num_layers, heads, 20))
        clusters = np.zeros(size, dtype=np.int64)
        by_name = dict.fromkeys(MEASURES, measures)
        statistics = [
            HeadStatistics(name, 1, count, 0, by_name, shares, received, similarity, clusters, measures, measures)
        ]
    return Viewer(title, (name,), (Example(label, label, (passage,)),), tuple(statistics))


EMPTY_PAGE = {
    "texts": ["a"] * 6, "tokens": ["a", "b"], "heads": 1, "layers": 1, "numbers": [0.5], "weights": [0.1] * 7,
    "statistics": True,
}  # fmt: skip

KINDS = [
    Kind(
        name="report page",
        share=6,
        requires=("headwise.inspection",),
        prepare=write_file("texts.json", json.dumps(["a"] * 6).encode()),
        mutate=mutate_report,
        read=write_report,
    ),
    Kind(
        name="inspection page",
        share=5,
        requires=("headwise.inspection.viewer",),
        prepare=write_file("page.json", json.dumps(EMPTY_PAGE).encode()),
        mutate=mutate_page,
        read=write_page,
    ),
]
