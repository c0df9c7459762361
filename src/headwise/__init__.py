"""Self-attention that knows how far apart tokens are, and that can be told what to look at."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from headwise import attention as _attention
from headwise.attention import *  # noqa: F403

if TYPE_CHECKING:
    from headwise.guidance import *  # noqa: F403
    from headwise.models import *  # noqa: F403

try:
    __version__ = version("headwise")  # the tag's, as it was installed
except PackageNotFoundError:
    __version__ = "0+not-installed"

__all__ = [*_attention.__all__]


def __getattr__(name: str) -> Any:
    """What needs transformers, imported when it is asked for first: that takes seconds."""
    if not name.startswith("_"):
        for room in map(import_module, ("headwise.guidance", "headwise.models")):
            if name in room.__all__:
                return getattr(room, name)
    raise AttributeError(f"module 'headwise' has no attribute {name!r}")
