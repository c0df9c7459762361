"""Our docstrings say "Example:", where the site's reader of them knows "Examples:"."""

from typing import Any

import griffe


class Plural(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
