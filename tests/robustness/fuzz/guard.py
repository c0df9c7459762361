"""What no input may lead to: a connection, a process, unpickled objects, foreign code, or files written elsewhere.

The guard is an audit hook, which cannot be removed, so it is installed in worker processes only. It records an event
and raises an exception, so that the action does not happen.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Events that are never allowed.
FORBIDDEN_EVENTS = {
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.sendmsg",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "os.startfile",
    "pickle.find_class",
    "shutil.unpack_archive",
}
#: Events that change files, by the positions of the paths in their arguments.
FILE_EVENTS = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "sqlite3.connect": (0,),
}
#: All events that are looked at. The others, which are the most, cost little.
WATCHED_EVENTS = frozenset({*FORBIDDEN_EVENTS, *FILE_EVENTS, "open", "exec", "import", "ctypes.dlopen"})
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ForbiddenAction(BaseException):
    """An action that the guard has stopped. It is not an Exception, so that no library handles it."""


class Guard:
    """An audit hook of the current process.

    Args:
        root: the only directory where files may be written, and where no code may come from.
    """

    def __init__(self, root: Path) -> None:
        self.root = f"{root.resolve()}{os.sep}"
        self.events: list[str] = []
        self.is_active = False
        sys.addaudithook(self._check)

    @contextmanager
    def watch(self) -> Iterator[list[str]]:
        """Forbid actions in this context. The list of forbidden actions is filled when they are tried."""
        self.events = []
        self.is_active = True
        try:
            yield self.events
        finally:
            self.is_active = False

    def _check(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_active or event not in WATCHED_EVENTS:
            return
        self.is_active = False  # what follows causes events itself
        try:
            problem = self._find_problem(event, args)
        finally:
            self.is_active = True
        if problem:
            self.events.append(problem)
            raise ForbiddenAction(problem)

    def _find_problem(self, event: str, args: tuple[Any, ...]) -> str:
        if event in FORBIDDEN_EVENTS:
            return f"{event} {args!r:.300}"
        if event == "open" and isinstance(args[2], int) and args[2] & WRITE_FLAGS and not self._may_write(args[0]):
            return f"writes {args[0]!r:.300}"
        if event == "exec" and self._is_inside(getattr(args[0], "co_filename", "")):
            return f"runs code of {args[0].co_filename}"
        if event in ("import", "ctypes.dlopen") and len(args) > 1 and self._is_inside(args[1]):
            return f"imports {args[1]!r:.300}"
        if event == "ctypes.dlopen" and self._is_inside(args[0]):
            return f"loads the library {args[0]!r:.300}"
        for position in FILE_EVENTS.get(event, ()):
            has_dir_fd = event.startswith("os.") and isinstance(args[-1], int) and args[-1] >= 0
            if not has_dir_fd and not self._may_write(args[position]):
                return f"{event} {args[position]!r:.300}"
        return ""

    def _is_inside(self, path: Any) -> bool:
        if not isinstance(path, str | bytes):
            return False
        name = os.fsdecode(path)
        return not name.startswith("<") and os.path.realpath(name).startswith(self.root)  # "<string>" is no file

    def _may_write(self, path: Any) -> bool:
        if isinstance(path, int) or path in (os.devnull, ":memory:"):
            return True
        try:
            name = os.fsdecode(path)
        except (TypeError, UnicodeError):
            return False
        return "\0" in name or f"{os.path.realpath(name)}{os.sep}".startswith(self.root)
