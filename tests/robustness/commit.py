"""The commit of the source, for the records of long runs."""

import subprocess
from pathlib import Path


def find_commit() -> str:
    """Return the commit of the source, with a plus sign if files have changed; empty outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--match", ""]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
