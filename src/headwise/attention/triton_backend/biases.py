"""What a head's biases u and v (Transformer-XL) add to scores: u · k_j for every key, v · table[c] for every row.

The queries that meet keys are q + u, those that meet the table q + v. A program for a block of queries adds the biases
to them once (`askew.biased`). One for a block of keys sees other queries in every step: with these products at hand it
takes q as it lies in memory, once for both. So in half precision the ones round q + u, and the others do not.
"""

from typing import Any

from torch import Tensor

from headwise.attention.triton_backend.launch import Launch
from headwise.attention.triton_backend.plan import AROUND, Plan, kernels, named, strides


def add_terms(plan: Plan, tensors: dict[str, Tensor | None]) -> None:
    """Compute both, and add them to the kernels' tensors."""
    biases: Any = tensors["biases_ptr"]
    key_terms = biases.new_empty(plan.batch, plan.heads, plan.m)
    table_terms = biases.new_zeros(plan.heads, plan.table_rows + 2 * AROUND)[:, AROUND:]
    run = plan.launches(_launches)
    run["keys"]({**tensors, "x_ptr": tensors["k_ptr"], "biases_ptr": biases[0], "terms_ptr": key_terms})
    run["table"]({**tensors, "x_ptr": tensors["table_ptr"], "biases_ptr": biases[1], "terms_ptr": table_terms})
    tensors.update(key_terms_ptr=key_terms, table_terms_ptr=table_terms)


def _launches(plan: Plan) -> dict[str, Launch]:
    tile, keys, rows = plan.tile("strips"), plan.m, plan.table_rows
    settings: dict[str, Any] = {"H": plan.heads, "OPT": plan.options(tile)}
    of_keys = {
        **strides("x", "bhn", plan.k),
        **named("terms", "bh", (plan.heads * keys, keys)),
        "GROUP": plan.heads // plan.groups,
        "count": keys,
    }
    of_table = {
        **named("x", "bhn", (0, *plan.table_strides.values())),
        **named("terms", "bh", (0, rows + 2 * AROUND)),
        "GROUP": 1,
        "count": rows,
    }
    kernel = kernels()["bias_terms"]
    return {
        "keys": Launch(kernel, (-(-keys // tile.rows), plan.heads, plan.batch), tile, {**settings, **of_keys}),
        "table": Launch(kernel, (-(-rows // tile.rows), plan.heads, 1), tile, {**settings, **of_table}),
    }
