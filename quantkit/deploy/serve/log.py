"""The log on standard error: a line for people on a terminal, else a line of JSON."""

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

_OWN_WORDS = ("note", "error", "reason")  # facts that need no name before them


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Lines on standard error.

    Attributes:
        level: Which requests have a line; start, stop and the like always have.
        readable: Lines are for people, not JSON.
    """

    level: str
    readable: bool = field(default_factory=_is_terminal)

    def __call__(self, level: str, event: str, facts: Mapping[str, Any]) -> None:
        """Write a line."""
        now = datetime.now(UTC)
        if self.readable:
            line = f"{now.astimezone():%H:%M:%S} {_readable(level, event, facts)}"
        else:
            time = now.isoformat(timespec="milliseconds")
            plain = {"time": time, "level": level, "event": event, **facts}
            line = msgspec.json.encode(plain).decode()
        with suppress(OSError):  # nobody reads it any more
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def wants(self, *, failed: bool) -> bool:
        """Return True if a request has a line."""
        return self.level == "info" or (self.level == "warning" and failed)


def _readable(level: str, event: str, facts: Mapping[str, Any]) -> str:
    """Return a line for people; what callers sent cannot change the terminal."""
    mark = "" if level == "info" or event == "request" else f"{level}: "
    left = dict(facts)
    if event == "started":
        words = _started(left)
    elif event == "request":
        words = _request(left)
    else:
        parts = [_fact(key, value) for key, value in left.items()]
        words = ", ".join([*([] if event == "note" else [event]), *filter(None, parts)])
    return "".join(c if c.isprintable() else "?" for c in mark + words)


def _started(facts: Mapping[str, Any]) -> str:
    provider = str(facts["provider"]).removesuffix("ExecutionProvider")
    prepared = "".join(f"; {line}" for line in facts["preprocessing"])
    return (
        f"serving '{facts['model']}' on {facts['address']} (see /docs): {provider}, "
        f"{facts['workers']} workers, batch {facts['batch']}, token {facts['token']}{prepared}"
    )


def _request(facts: dict[str, Any]) -> str:
    start = " ".join(str(facts.pop(key)) for key in ("method", "path", "status"))
    said = facts.pop("error", "")
    times = [f"{facts.pop('ms'):.1f} ms"]
    times += [
        f"{word} {facts.pop(key):.1f}"
        for word, key in (("run", "run_ms"), ("wait", "wait_ms"))
        if key in facts
    ]
    rest = ", ".join([*times, *filter(None, (_fact(*pair) for pair in facts.items()))])
    return f"{start} ({rest})" + (f": {said}" if said else "")


def _fact(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = "; ".join(map(str, value))
    if value in ("", None):
        return ""
    return str(value) if name in _OWN_WORDS else f"{name} {value}"


class ForwardedWarnings(logging.Handler):
    """Writes what other packages warn of as lines of the same log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        facts = {"by": record.name, "note": record.getMessage().strip()}
        if record.exc_info is not None:
            facts["error"] = repr(record.exc_info[1])
        self._log(record.levelname.lower(), "note", facts)
