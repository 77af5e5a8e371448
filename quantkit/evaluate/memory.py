"""The process that `measure_memory` starts: ``python -m quantkit.evaluate.cost.memory_probe JOB``.

Prints ``{"resident": bytes, "peak": bytes}``, or ``null`` where the system does not say.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quantkit.runtime.session import make_session, runtime_limits

__all__ = ["Usage", "growth", "main", "usage"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Usage(NamedTuple):
    """Bytes of this process in memory, and the most it ever had."""

    resident: int
    peak: int


def usage() -> Usage | None:
    """Return what the system says: Linux in /proc; else getrusage, which knows the peak only."""
    if _STATUS.is_file():
        lines = (line.split() for line in _STATUS.read_text(encoding="utf-8").splitlines())
        known = {words[0]: int(words[1]) * 1024 for words in lines if words[0].startswith("Vm")}
        return Usage(known["VmRSS:"], known["VmHWM:"]) if "VmHWM:" in known else None
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = peak if sys.platform == "darwin" else peak * 1024
    return Usage(peak, peak)


def growth(before: Usage, after: Usage) -> dict[str, int]:
    """Return by how much a process grew, above what was resident before.

    If the peak is still the one from before, it says nothing about what came later than that.
    """
    resident = max(after.resident - before.resident, 0)
    peak = after.peak - before.resident if after.peak > before.peak else 0
    return {"resident": resident, "peak": max(peak, resident)}


def _forget_peak() -> None:
    """Let the peak start again at what is resident now, where that is permitted."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return


def main(job: Mapping[str, Any]) -> None:
    """Measure, and print what was found."""
    with np.load(job["sample"]) as arrays:
        feeds = dict(zip(job["names"], [arrays[key] for key in arrays.files], strict=True))
    runtime_limits()  # makes sessions of one node: what onnxruntime needs for itself is not the model's
    _forget_peak()
    before = usage()
    session = make_session(job["model"])
    session.run(None, feeds)
    after = usage()
    found = growth(before, after) if before and after else None
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
