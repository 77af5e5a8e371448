"""How much memory may be held at once: as a user writes it, and where nobody says."""

import os
import re
from functools import cache
from pathlib import Path

from quantkit.errors import UsageError

MOST = 2_000_000_000
"""What is taken where nothing is said, on a machine that has it."""

LEAST = 1_000_000
"""Less is a slip: "--memory 1" means a gigabyte."""
_LARGEST = 2**62
_POWERS = "kmgt"
_TEXT = r"(\d+(?:\.\d*)?(?:e\d{1,2})?)\s*([kmgt]i?)?b?"


def parse_memory(text: str | int) -> int:
    """Return the bytes that "500MB", "1GB", "1GiB", "2e9" or a whole number mean.

    Raises:
        UsageError: It is none of these.
    """
    found = re.fullmatch(_TEXT, str(text).strip(), re.IGNORECASE)
    if found is None or isinstance(text, bool):
        raise UsageError(
            f"memory '{text}' is no amount of memory: write 500MB, 1GB, 1GiB or a number of bytes."
        )
    unit = (found[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    power = _POWERS.index(unit[0]) + 1 if unit else 0
    # Whole numbers stay exact; a float is exact enough for "1.5GB".
    number = int(found[1]) if found[1].isdecimal() else float(found[1])
    return min(int(number * base**power), _LARGEST)


def memory_text(nbytes: int) -> str:
    """Return for example "8.5 GB", as `parse_memory` reads it."""
    if nbytes < 1000:  # the first unit
        return f"{nbytes} bytes"
    power = min(len(str(nbytes)) - 1, 3 * len(_POWERS)) // 3
    return f"{nbytes / 1000**power:.3g} {_POWERS[power - 1].upper()}B"


def memory_of(limit: int | None) -> int:
    """Return the limit; without one a quarter of what the machine has left, 2 GB at most."""
    return limit if limit is not None else _usual()


@cache  # one limit a process: what it has read itself must not lower it
def _usual() -> int:
    return max(LEAST, min(MOST, (_left() or 4 * MOST) // 4))


def resident(*, mapped: bool = True) -> int:
    """Return the memory that this process has now, with or without files that it maps; 0 where the system does not say."""
    try:
        _, pages, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[:3]
        return (int(pages) - (0 if mapped else int(shared))) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _left() -> int | None:
    """Return what this process can still get: of the machine, its container and its limits."""
    found = [_machine(), _container(), _limit()]
    return min((n for n in found if n is not None), default=None)


def _machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(s.split()[1]) * 1024 for s in lines if s.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _container() -> int | None:
    """Return what a control group leaves; each of its parents may have a limit as well."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    group = Path("/sys/fs/cgroup", own.strip("/"))
    found = (_group_left(g) for g in (group, *group.parents) if g.is_relative_to("/sys/fs/cgroup"))
    return min((n for n in found if n is not None), default=None)


def _group_left(group: Path) -> int | None:
    try:
        most, used = (
            int((group / name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
    except (OSError, ValueError):  # no limit reads "max"
        return None
    return max(most - used, 0)


def _limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most
