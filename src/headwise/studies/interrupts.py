"""Interrupts (SIGINT, SIGTERM) that wait until an operation of the database has ended.

A KeyboardInterrupt in the middle of a transaction leaves SQLAlchemy's session in a state from which it does not
recover, so that the runs in progress could not be returned to the queue.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_depth = 0
_is_pending = False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, after a block of `delay_interrupts` at the first signal and at once at the second."""
    global _is_pending
    if _depth and not _is_pending:
        _is_pending = True
        return
    raise KeyboardInterrupt


@contextmanager
def interrupt_on(*signals: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt on these signals, even if a shell started this process with SIGINT ignored."""
    old_handlers = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt for a signal of `interrupt_on` at the end of this block, not within it."""
    global _depth, _is_pending
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _is_pending and not _depth:
            _is_pending = False
            raise KeyboardInterrupt
