"""Pages to look at: small ones from real models, and large ones from made-up maps."""

import numpy as np

from headwise.inspection.attention_maps import Reading
from headwise.inspection.inspected_model import Prediction
from headwise.inspection.quantize import STRONGEST, Layer, group_size
from headwise.inspection.viewer import Example, Viewer


def made_up(tokens: int, *, layers: int, heads: int) -> Reading:
    """Bytes without any order, which is the worst that compression can meet, but for a diagonal to see."""
    draw = np.random.default_rng(0)
    size = group_size(tokens)
    side = -(-tokens // size)

    def layer() -> Layer:
        cells = draw.integers(0, 160, (heads, side, side)).astype(np.uint8)
        cells[:, range(side), range(side)] = 255
        largest, distance, entropy, w, strongest = (draw.random(heads).astype(np.float32) + 0.1 for _ in range(5))
        if size == 1:
            return Layer(cells, largest, distance, entropy, w)
        keys = draw.integers(0, tokens, (heads, tokens, STRONGEST)).astype(np.uint16)
        weights = -np.sort(-draw.integers(0, 256, (heads, tokens, STRONGEST)), axis=-1)
        return Layer(cells, largest, distance, entropy, w, keys, weights.astype(np.uint8), strongest)

    words = tuple(f"word{number % 997}" for number in range(tokens))
    prediction = Prediction(labels=(("praise", 0.75), ("blame", 0.25)))
    return Reading("", words, tuple(layer() for _ in range(layers)), prediction, cut=False)


def page_of(*readings: Reading) -> Viewer:
    names = tuple(f"model {number}" for number in range(len(readings)))
    return Viewer("made up", names, (Example("a text", "praise", readings),))
