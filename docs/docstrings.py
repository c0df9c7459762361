"""A griffe extension that renames the docstring section "Example:" to "Examples:", which griffe knows."""

from typing import Any

import griffe


class ExamplesSection(griffe.Extension):
    """Renames the section in all docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
