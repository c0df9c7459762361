"""Ctrl-C while packages are imported, which takes seconds."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def raise_caught_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of a block of imports that was interrupted.

    Some packages catch every exception of their own imports. They then go on without what they could not import, or
    report a missing module.

    Raises:
        KeyboardInterrupt: the user has pressed Ctrl-C in this block.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()  # others cannot set handlers
    if handler is not signal.default_int_handler or not is_main:
        yield
        return
    is_interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:  # packages report an interrupt as an error of any type
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
    if is_interrupted:
        raise KeyboardInterrupt
