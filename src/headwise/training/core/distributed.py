"""Several processes, one run: the first reads and writes, and a mistake that it finds is everyone's."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from headwise.errors import UserError

T = TypeVar("T")


def state() -> PartialState:
    """Which process this is, of how many. Without an accelerator they must be told to share the CPU, by gloo."""
    return PartialState(cpu=on_cpu())


def on_cpu() -> bool:
    return not torch.accelerator.is_available()


def first_then_all(action: Callable[[], T]) -> T:
    """What every process does for itself, after the first, which leaves in the cache what the others find there.

    Raises:
        UserError: the first process found one.
    """
    found = first_only(action)
    return found if state().is_main_process else action()


def first_only(action: Callable[[], T]) -> Any:
    """What the first process alone does, while the others wait; they get None.

    Raises:
        UserError: the first process found one.
    """
    found, mistakes = None, [""]
    if state().is_main_process:
        try:
            found = action()
        except UserError as mistake:
            mistakes = [str(mistake)]
    broadcast_object_list(mistakes)
    if mistakes[0]:
        raise UserError(mistakes[0])
    return found
