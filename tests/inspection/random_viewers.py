"""Pages of any size, filled with random maps."""

from typing import Any

import numpy as np

from headwise.inspection.inspected_model import Prediction
from headwise.inspection.measures import num_distance_bins
from headwise.inspection.passages import PassageAttention
from headwise.inspection.quantize import NUM_TOP_KEYS, QuantizedLayer, group_size
from headwise.inspection.viewer import Example, Viewer


def random_passage(num_tokens: int, *, layers: int, heads: int) -> PassageAttention:
    """Return random maps with a strong diagonal. Random bytes are the worst case for compression."""
    rng = np.random.default_rng(0)
    size = group_size(num_tokens)
    num_groups = -(-num_tokens // size)

    def random_layer() -> QuantizedLayer:
        cells = rng.integers(0, 160, (heads, num_groups, num_groups)).astype(np.uint8)
        cells[:, range(num_groups), range(num_groups)] = 255
        cell_max, distance, entropy, w, top_weight_max = (rng.random(heads).astype(np.float32) + 0.1 for _ in range(5))
        shares = rng.dirichlet(np.ones(2 * num_distance_bins(num_tokens) + 1), heads).astype(np.float32)
        measures: dict[str, Any] = {
            "cell_max": cell_max,
            "distance": distance,
            "entropy": entropy,
            "w": w,
            "distance_shares": shares,
        }
        if size == 1:
            return QuantizedLayer(cells=cells, **measures)
        keys = rng.integers(0, num_tokens, (heads, num_tokens, NUM_TOP_KEYS)).astype(np.uint16)
        weights = -np.sort(-rng.integers(0, 256, (heads, num_tokens, NUM_TOP_KEYS)), axis=-1)
        return QuantizedLayer(
            cells=cells,
            **measures,
            top_keys=keys,
            top_weights=weights.astype(np.uint8),
            top_weight_max=top_weight_max,
        )

    tokens = tuple(f"word{number % 997}" for number in range(num_tokens))
    prediction = Prediction(labels=(("positive", 0.75), ("negative", 0.25)))
    return PassageAttention("", tokens, tuple(random_layer() for _ in range(layers)), prediction, truncated=False)


def make_viewer(*passages: PassageAttention) -> Viewer:
    names = tuple(f"model {number}" for number in range(len(passages)))
    return Viewer("random", names, (Example("a text", "positive", passages),))
