"""Ctrl-C while packages are imported, which takes seconds, and SIGTERM, with which schedulers end jobs."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process has got SIGTERM. Commands end as with Ctrl-C: they keep what is complete and say how to continue."""


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Raise Terminated on SIGTERM in this block.

    Raises:
        Terminated: the process has got SIGTERM.
    """
    is_main = threading.current_thread() is threading.main_thread()  # others cannot set handlers
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            raise Terminated
        signal.signal(number, signal.SIG_DFL)  # a forked process, such as one that reads data, just ends
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
