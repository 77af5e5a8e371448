"""The memory that a process takes to load a model and run it once.

``python -m quantkit.evaluate.memory JOB`` is that process; it prints ``{"resident": bytes, "peak": bytes}``, or ``null``
where the system does not say.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from quantkit.files import scratch
from quantkit.result import Memory
from quantkit.runtime.session import make_session, runtime_limits
from quantkit.runtime.synthetic_inputs import Feeds

_PATIENCE = 600  # seconds
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_memory(path: Path, feeds: Feeds) -> Memory | None:
    """Load the model in a fresh process with the default session, run one sample, and see by how much it grew.

    Returns:
        None where this cannot be seen (no such figures on the system), or the process failed.
    """
    done = run_alone(path, feeds) if usage() else None
    lines = done.stdout.strip().splitlines() if done and not done.returncode else []
    try:
        return msgspec.json.decode(lines[-1], type=Memory | None) if lines else None
    except msgspec.MsgspecError:
        return None


def run_alone(path: Path, feeds: Feeds) -> subprocess.CompletedProcess[str] | None:
    """Load and run a model once in a fresh interpreter, which prints what memory it took; None if there is none."""
    if not sys.executable:
        return None
    inherited = os.environ.get("PYTHONPATH")
    own = str(Path(__file__).resolve().parents[2])
    with scratch() as folder:
        sample = folder / "sample.npz"
        np.savez(sample, *feeds.values())  # by number: names of inputs may hold a slash
        job = {"model": str(path.resolve()), "sample": str(sample), "names": list(feeds)}
        try:
            # -P: modules are not looked for in the user's folder.
            return subprocess.run(  # noqa: S603 - this interpreter, this package
                [sys.executable, "-P", "-m", "quantkit.evaluate.memory", json.dumps(job)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (own, inherited)))},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None


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


def growth(before: Usage, after: Usage) -> Memory:
    """Return by how much a process grew, above what was resident before.

    If the peak is still the one from before, it says nothing about what came later than that.
    """
    resident = max(after.resident - before.resident, 0)
    peak = after.peak - before.resident if after.peak > before.peak else 0
    return Memory(resident=resident, peak=max(peak, resident))


def _forget_peak() -> None:
    """Let the peak start again at what is resident now, where that is permitted."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return


def main(job: Mapping[str, Any]) -> None:
    """Measure, and print the growth."""
    with np.load(job["sample"]) as arrays:
        feeds = dict(zip(job["names"], [arrays[key] for key in arrays.files], strict=True))
    runtime_limits()  # makes sessions of one node: what onnxruntime needs for itself is not the model's
    _forget_peak()
    before = usage()
    session = make_session(job["model"])
    session.run(None, feeds)
    after = usage()
    found = growth(before, after) if before and after else None
    sys.stdout.write(f"\n{msgspec.json.encode(found).decode()}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
