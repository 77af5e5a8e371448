"""The command line: one file per command, imported when it runs. Here is the process: signals, standard streams, exit code.

Standard output can fail without ending a command (a full disk, a reader that has gone): what a command has done is done.
"""

import errno
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, TextIO, cast

_INTERRUPTED = 130
# What writing to a pipe without a reader fails with.
_GONE = {errno.EPIPE} | ({errno.EINVAL} if os.name == "nt" else set())
_SIGNALS = 128  # what shells add to the number of a signal that ended a process
# What these commands print is all that they do; the others write files, or answer by their exit code.
_PRINTING = frozenset({"inspect", "plan", "diff", "targets"})


class _Stream:
    """A text stream whose failures are noted, once, and not raised.

    Attributes:
        lost: Why not everything was printed; None if it was, or if its reader wanted no more.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or note why not."""
        try:
            return self._stream.write(text)
        except OSError as e:
            self._give_up(e)
            return len(text)

    def flush(self) -> None:
        """Flush, or note why not."""
        try:
            self._stream.flush()
        except OSError as e:
            self._give_up(e)

    def _give_up(self, error: OSError) -> None:
        if error.errno not in _GONE:
            self.lost = self.lost or error.strerror or str(error)
        # What is still in the stream's own memory must go somewhere, or the interpreter fails when it ends.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def main() -> None:
    """Run the command line and exit."""
    out = _guarded()
    ended = _ended_by()
    arguments = sys.argv[1:]
    try:
        from quantkit.cli.app import run  # takes a while, in which the user may change their mind

        code = run(arguments)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED and ended:
        code = _SIGNALS + ended[0]
    sys.exit(_told(out, arguments) if code == 0 else code)


def _ended_by() -> list[int]:
    """Treat a request to end as Ctrl-C, so that everything is tidied up; return a list in which its number will stand."""
    ended: list[int] = []
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker has nothing to tidy up
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        ended.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(signal.SIGINT, frame)
        else:  # it is ignored in the background of a shell
            raise KeyboardInterrupt

    for name in (
        "SIGTERM",
        "SIGHUP",
        "SIGBREAK",
    ):  # Windows has no SIGHUP; Ctrl-Break sends SIGBREAK
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)
    return ended


def _told(out: _Stream, arguments: list[str]) -> int:
    """Return the exit code of what succeeded: 0, unless its only result could not be printed."""
    out.flush()
    if out.lost is None:
        return 0
    written = any(a.startswith(("-o", "--output")) for a in arguments)
    failed = bool(_PRINTING.intersection(arguments[:1])) and not written
    word = "error" if failed else "note"
    rest = "" if failed else "; everything else was done"
    sys.stderr.write(f"{word}: the output could not be printed: {out.lost}{rest}\n")
    return 2 if failed else 0


def _guarded() -> _Stream:
    """Guard both streams; return standard output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets this number, which otherwise a model would get
    found = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for good
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # not every terminal has every letter
        found.append(_Stream(stream))
        setattr(sys, name, cast("TextIO", found[-1]))
    return found[0]
