"""The end of a worker whose parent process has died."""

import ctypes
import os
import signal
import sys
import threading
import time

#: The environment variable with the process id of the worker's parent.
PARENT_VARIABLE = "HEADWISE_PARENT_PROCESS"

#: Seconds between two checks of the parent process.
POLL_SECONDS = 1.0
#: Seconds after the interrupt until the worker is killed: time to return its run to the queue.
GRACE_SECONDS = 10.0

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def end_with_parent() -> None:
    """Interrupt this process when its parent dies, and kill it if it does not stop.

    The process keeps running without a parent if the environment variable `HEADWISE_PARENT_PROCESS` is not set, as for
    a worker that a user starts.
    """
    parent = os.environ.get(PARENT_VARIABLE, "")
    if not parent.isdecimal():
        return
    is_signalled = False
    if sys.platform == "linux":  # the kernel signals at once; elsewhere the thread notices it
        is_signalled = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) == 0 and os.getppid() == int(parent)

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(POLL_SECONDS)
        if not is_signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent").start()
