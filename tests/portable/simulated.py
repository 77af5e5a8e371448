"""Lets quantkit see another system than the Linux it runs on: ``pytest --portable windows`` or ``--portable macos``.

Python imports `sitecustomize` when it starts with this folder on its path, so that processes which tests start see the same system.
Only quantkit and calibrators are deceived; the standard library and other packages go on as on Linux.

- Modules lack the names that the other system lacks, and `os.name`, `sys.platform` and `platform` name that system.
- /proc and /sys are not there, and nothing can be forked.
- As on Windows, a file that this process has open or mapped is neither removed nor replaced, a mapped file is not truncated,
  and `os.rename` does not replace. What quantkit tries all the same is listed in `VIOLATIONS`: some callers ignore errors.
"""

import builtins
import ctypes
import io
import mmap
import multiprocessing
import os
import platform
import re
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Self

__all__ = ["SYSTEM", "VIOLATIONS", "simulate"]

SYSTEM = "QUANTKIT_SIMULATED_SYSTEM"
VIOLATIONS: list[str] = []

# Names that the modules have on Linux, by the "Availability" notes of Python's documentation.
_LINUX = (
    "sched_.*|SCHED_.*|posix_fadvise|posix_fallocate|POSIX_FADV_.*|getrandom|GRND_.*|memfd_create|MFD_.*|eventfd.*|EFD_.*|"
    "pidfd_open|copy_file_range|splice|SPLICE_.*|[gs]etresuid|[gs]etresgid|.*xattr|XATTR_.*|fdatasync|pipe2|O_DIRECT|O_PATH|"
    "O_TMPFILE|O_NOATIME|O_LARGEFILE|O_RSYNC"
)
_UNIX = (
    "chown|fchown|lchown|chroot|confstr.*|ctermid|fchdir|fchmod|fork.*|fpathconf|fstatvfs|ftruncate_|getegid|geteuid|getgid|"
    "getgroup.*|getloadavg|getpgid|getpgrp|getpriority|getsid|getuid|initgroups|killpg|lockf|F_.*|login_tty|major|makedev|minor|"
    "mkfifo|mknod|nice|openpty|pathconf.*|posix_spawn.*|POSIX_SPAWN_.*|pread.*|pwrite.*|PRIO_.*|readv|writev|register_at_fork|"
    "sendfile|set[ug]id|sete[ug]id|setre[ug]id|setgroups|setpgid|setpriority|setsid|statvfs.*|ST_.*|sync|sysconf.*|tcgetpgrp|"
    "tcsetpgrp|ttyname|uname.*|wait|wait3|wait4|waitid.*|W[A-Z]+|P_[A-Z]+|O_CLOEXEC|O_DIRECTORY|O_NOFOLLOW|O_NONBLOCK|O_NDELAY|"
    "O_NOCTTY|O_SYNC|O_DSYNC|O_ASYNC|O_ACCMODE|RTLD_.*|SEEK_DATA|SEEK_HOLE|RWF_.*|get_blocking_|mkfifo|nl_langinfo"
)
_ABSENT = {
    "windows": {
        "os": re.compile(f"{_LINUX}|{_UNIX}"),
        "signal": re.compile(
            r"(?!SIG(ABRT|FPE|ILL|INT|SEGV|TERM|BREAK|_DFL|_IGN)$)SIG.*|ITIMER.*|alarm|pause|sig(wait|pending|timed|interrupt).*|"
            "pthread_.*|[gs]etitimer|pidfd_.*"
        ),
        "mmap": re.compile("MAP_.*|PROT_.*|MADV_.*"),
        "socket": re.compile("AF_UNIX|SO_REUSEPORT|sendmsg_afalg|AF_VSOCK|AF_NETLINK|AF_PACKET"),
    },
    "macos": {
        "os": re.compile(_LINUX),
        "signal": re.compile("SIGPOLL|SIGPWR|SIGRT.*|SIGSTKFLT|sigtimedwait|sigwaitinfo|pidfd_.*"),
        "mmap": re.compile("MAP_(DENYWRITE|EXECUTABLE|POPULATE|STACK)|MADV_(NO)?HUGEPAGE"),
        "socket": re.compile("AF_NETLINK|AF_PACKET|AF_VSOCK"),
    },
}
_MISSING_MODULES = {
    "windows": {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "uvloop", "syslog"},
    "macos": set[str](),
}
_BETWEEN = {
    __name__,
    "pathlib",
    "os",
    "shutil",
    "tempfile",
    "contextlib",
    "weakref",
    "zipfile",
    "posixpath",
    "genericpath",
}
_OURS = ("quantkit", "calibrators")
_HIDDEN = ("/proc/", "/sys/")


def _is_ours(name: object) -> bool:
    return str(name).partition(".")[0] in _OURS


def _asked_by_us() -> bool:
    """Return whether quantkit calls, itself or through the modules of the standard library that are about files."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return frame is not None and _is_ours(frame.f_globals.get("__name__"))


class _Seen(ModuleType):
    """A module as quantkit sees it: without some names, and with other values of some."""

    def __init__(self, real: ModuleType, absent: re.Pattern[str] | None, other: Any) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(_real=real, _absent=absent, _other=other)

    def __getattr__(self, name: str) -> Any:
        if name in self._other:
            return self._other[name]
        if self._absent is not None and self._absent.fullmatch(name):
            raise AttributeError(f"module '{self._real.__name__}' has no attribute '{name}'")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


class _Map(mmap.mmap):
    """A map with the arguments and methods that it has on Windows."""

    def __new__(
        cls,
        fileno: int,
        length: int,
        tagname: str | None = None,
        access: int = mmap.ACCESS_DEFAULT,
        offset: int = 0,
    ) -> Self:
        del tagname
        return super().__new__(cls, fileno, length, access=access, offset=offset)

    @property
    def madvise(self) -> None:  # type: ignore[override]
        raise AttributeError("madvise")


class _Library(ctypes.CDLL):
    def __init__(self, name: str | None, *args: Any) -> None:
        if name is None:
            raise TypeError("there is no library of the process itself")
        super().__init__(name, *args)


def _no_context(method: str | None = None) -> Any:
    if method not in {None, "spawn"}:
        raise ValueError(f"cannot find context for {method!r}")
    return multiprocessing.get_context("spawn")


def _kill(pid: int, number: int) -> None:
    VIOLATIONS.append(f"os.kill({pid}, {number}) ends the process")
    raise PermissionError


def _others(system: str) -> dict[str, dict[str, Any]]:
    """Return what quantkit sees instead of the values of some modules."""
    spawning = {"get_all_start_methods": lambda: ["spawn"], "get_context": _no_context}
    if system == "macos":
        return {
            "sys": {"platform": "darwin"},
            "platform": {"system": lambda: "Darwin"},
            "multiprocessing": spawning,
        }
    return {
        "os": {"name": "nt", "kill": _kill},
        "sys": {"platform": "win32"},
        "platform": {"system": lambda: "Windows", "machine": lambda: "AMD64"},
        "mmap": {"mmap": _Map},
        "ctypes": {"CDLL": _Library},
        "multiprocessing": spawning,
    }


def _deceive(system: str) -> None:
    """Give quantkit other modules whenever it imports some."""
    real, absent, other = builtins.__import__, _ABSENT[system], _others(system)
    modules: tuple[ModuleType, ...] = (os, sys, signal, mmap, socket, platform, ctypes)
    seen = {
        module.__name__: _Seen(module, absent.get(module.__name__), other.get(module.__name__, {}))
        for module in (*modules, multiprocessing)
    }

    def imported(name: str, globals: Any = None, *rest: Any, **more: Any) -> ModuleType:  # noqa: A002
        ours = globals is not None and _is_ours(globals.get("__name__"))
        if ours and name in _MISSING_MODULES[system]:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        found = real(name, globals, *rest, **more)
        return seen.get(found.__name__, found) if ours else found

    builtins.__import__ = imported


def _hide_files() -> None:
    """Let quantkit find nothing in /proc and /sys."""

    def hiding(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            if str(text).startswith(_HIDDEN) and _asked_by_us():
                raise FileNotFoundError(2, "No such file or directory", text)
            return real(path, *args, **kwargs)

        return call

    for name in ("stat", "lstat", "open", "readlink", "scandir", "listdir"):
        setattr(os, name, hiding(getattr(os, name)))
    io.open = builtins.open = hiding(io.open)


def _taken(*, mapped_alone: bool = False) -> set[str]:
    """Return the files that this process has open or mapped."""
    with _OPEN("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found = {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}
    if not mapped_alone:
        for number in _LISTDIR("/proc/self/fd"):
            try:
                found.add(_READLINK(f"/proc/self/fd/{number}"))
            except OSError:  # that of the listing itself
                continue
    return found


_OPEN, _LISTDIR, _READLINK = io.open, os.listdir, os.readlink


def _refuse(verb: str, path: Any, taken: set[str]) -> None:
    real = os.path.realpath(path)
    held = [file for file in taken if file == real or file.startswith(f"{real}/")]
    if held:
        where = "".join(traceback.format_stack(limit=12)[:-2])
        VIOLATIONS.append(f"{verb} '{path}' while '{held[0]}' is open or mapped\n{where}")
        raise PermissionError(13, "The file is used by another process", str(path))


def _lock_files() -> None:
    """Refuse what Windows refuses for files that are open or mapped."""
    unlink, rename, replace, opened = os.unlink, os.rename, os.replace, io.open

    def locked_unlink(path: Any, **kwargs: Any) -> None:
        if _asked_by_us():
            _refuse("removed", path, _taken())
        unlink(path, **kwargs)

    def locked_rename(src: Any, dst: Any, **kwargs: Any) -> None:
        if _asked_by_us():
            if os.path.lexists(dst):
                VIOLATIONS.append(f"renamed '{src}' to '{dst}', which exists")
                raise FileExistsError(17, "File exists", str(dst))
            _refuse("renamed", src, _taken())
        rename(src, dst, **kwargs)

    def locked_replace(src: Any, dst: Any, **kwargs: Any) -> None:
        if _asked_by_us():
            taken = _taken()
            _refuse("renamed", src, taken)
            _refuse("replaced", dst, taken)
        replace(src, dst, **kwargs)

    def locked_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "w" in mode and not isinstance(file, int) and _asked_by_us():
            _refuse("truncated", file, _taken(mapped_alone=True))
        return opened(file, mode, *args, **kwargs)

    os.unlink = os.remove = locked_unlink
    os.rename, os.replace = locked_rename, locked_replace
    io.open = builtins.open = locked_open
    shutil._use_fd_functions = False  # type: ignore[attr-defined]


def _forbid_forks() -> None:
    def fork() -> int:
        raise AssertionError("forked")

    os.fork = fork


def simulate(system: str) -> None:
    """Let quantkit see "windows" or "macos" from now on, in this process and in those it starts."""
    if os.environ.get(SYSTEM) == system and hasattr(builtins, SYSTEM):
        return
    setattr(builtins, SYSTEM, system)
    os.environ[SYSTEM] = system
    paths = [
        str(Path(__file__).parent),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    _forbid_forks()
    _hide_files()
    if system == "windows":
        _lock_files()
    _deceive(system)


if os.environ.get(SYSTEM):
    simulate(os.environ[SYSTEM])
