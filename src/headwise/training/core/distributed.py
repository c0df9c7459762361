"""Runs of several processes: the main process reads and writes, and its errors are raised in all of them."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from headwise.errors import UserError

T = TypeVar("T")


def state() -> PartialState:
    """Return the process's rank and the number of processes. Without an accelerator, processes use gloo."""
    return PartialState(cpu=is_on_cpu())


def is_on_cpu() -> bool:
    return not torch.accelerator.is_available()


def shows_progress_bars() -> bool:
    """Return whether this process shows progress bars: the main process, unless `--quiet` has set `TQDM_DISABLE`."""
    return bool(state().is_main_process) and os.environ.get("TQDM_DISABLE", "0") in ("", "0")


def main_process_first(action: Callable[[], T]) -> T:
    """Run an action in the main process, then in all others, which find its results in the cache.

    Raises:
        UserError: the main process raised it.
    """
    result = main_process_only(action)
    return result if state().is_main_process else action()


def main_process_only(action: Callable[[], T], *, share: bool = False) -> Any:
    """Run an action in the main process while the others wait. They get None, or with `share` its result.

    Raises:
        UserError: the main process raised it.
    """
    result, message = None, ""
    if state().is_main_process:
        try:
            result = action()
        except UserError as error:
            message = str(error)
    shared: list[Any] = [message, result if share else None]
    broadcast_object_list(shared)
    if shared[0]:
        raise UserError(shared[0])
    return shared[1] if share else result
