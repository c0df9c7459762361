"""The version of the installed distribution."""

from importlib import metadata

try:
    __version__ = metadata.version("headwise")
except metadata.PackageNotFoundError:
    __version__ = "0+not-installed"
