"""Griffe extension for docstrings with a section "Example:", which griffe expects as "Examples:"."""

from typing import Any

import griffe


class RenameExampleSection(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
