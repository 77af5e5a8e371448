"""How much memory a process of its own needs to load a model and run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from quantkit.files import scratch
from quantkit.result import Memory
from quantkit.runtime.synthetic_inputs import Feeds

__all__ = ["measure_memory"]

_PROBE = "quantkit.evaluate.cost.memory_probe"
_PATIENCE = 600  # seconds


def measure_memory(path: Path, feeds: Feeds) -> Memory | None:
    """Load the model in a fresh process with the default session, run one sample, and see by how much it grew.

    Returns:
        None where this cannot be seen (no such figures on the system), or the process failed.
    """
    if not sys.executable:
        return None
    with scratch() as folder:
        sample = folder / "sample.npz"
        np.savez(sample, *feeds.values())  # by number: names of inputs may hold a slash
        job = {"model": str(path.resolve()), "sample": str(sample), "names": list(feeds)}
        try:
            # -P: modules are not looked for in the user's folder.
            done = subprocess.run(  # noqa: S603 - this interpreter, this package
                [sys.executable, "-P", "-m", _PROBE, json.dumps(job)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
                env=os.environ | {"PYTHONPATH": _where_quantkit_is()},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    return _answer(done.stdout) if done.returncode == 0 else None


def _where_quantkit_is() -> str:
    inherited = os.environ.get("PYTHONPATH")
    own = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([own, *([inherited] if inherited else [])])


def _answer(text: str) -> Memory | None:
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None
    return Memory(resident=found["resident"], peak=found["peak"]) if found else None
