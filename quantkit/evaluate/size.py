"""What a model weighs: on disk by cause, as a package is downloaded, and in the memory of a process that runs it."""

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from quantkit.files import scratch
from quantkit.model.graph.size import account
from quantkit.result import Memory, Size
from quantkit.runtime.synthetic_inputs import Feeds

__all__ = ["compressed_size", "measure_memory", "run_alone", "size_of"]

_PROBE = "quantkit.evaluate.cost.memory_probe"
_PATIENCE = 600  # seconds


def measure_memory(path: Path, feeds: Feeds) -> Memory | None:
    """Load the model in a fresh process with the default session, run one sample, and see by how much it grew.

    Returns:
        None where this cannot be seen (no such figures on the system), or the process failed.
    """
    done = run_alone(path, feeds)
    return None if done is None or done.returncode else _answer(done.stdout)


def run_alone(path: Path, feeds: Feeds) -> subprocess.CompletedProcess[str] | None:
    """Load and run a model once in a fresh interpreter, which prints what memory it took; None if there is none."""
    if not sys.executable:
        return None
    with scratch() as folder:
        sample = folder / "sample.npz"
        np.savez(sample, *feeds.values())  # by number: names of inputs may hold a slash
        job = {"model": str(path.resolve()), "sample": str(sample), "names": list(feeds)}
        try:
            # -P: modules are not looked for in the user's folder.
            return subprocess.run(  # noqa: S603 - this interpreter, this package
                [sys.executable, "-P", "-m", _PROBE, json.dumps(job)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
                env=os.environ | {"PYTHONPATH": _where_quantkit_is()},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None


def _where_quantkit_is() -> str:
    inherited = os.environ.get("PYTHONPATH")
    own = str(Path(__file__).resolve().parents[3])
    return os.pathsep.join([own, *([inherited] if inherited else [])])


def _answer(text: str) -> Memory | None:
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None
    return Memory(resident=found["resident"], peak=found["peak"]) if found else None


_BLOCK = 1 << 20  # bytes
_WHOLE = 200 << 20  # bytes; a longer file is sampled
_SAMPLED = 64  # blocks
_LEVEL = 6  # zlib's default, as wheels and most archives have it


def size_of(path: Path, base: Path) -> Size:
    """Weigh a model against the float model `base`.

    Raises:
        ModelError: One of them is no ONNX model.
    """
    found = account(path)
    return Size(
        disk=found.nbytes,
        ratio=found.nbytes / account(base).nbytes,
        parts=found.parts,
        compressed=sum(compressed_size(file) for file in found.files),
    )


def compressed_size(path: Path, *, whole: int = _WHOLE, sampled: int = _SAMPLED) -> int:
    """Return a file's size after zlib, level 6; in memory there is one block of 1 MB.

    Of a file longer than `whole` bytes, `sampled` evenly spaced blocks are compressed and the result is scaled by
    size / bytes compressed: an estimate (16 blocks of a 90 MB encoder gave 1.6 % less than all 87).

    Args:
        path: The file.
        whole: Bytes up to which all of it is compressed.
        sampled: How many blocks of a longer one are.
    """
    size = path.stat().st_size
    if not size:
        return 0
    starts: Sequence[int] = range(0, size, _BLOCK)
    if size > whole:
        last = len(starts) - 1
        starts = [starts[round(i * last / max(sampled - 1, 1))] for i in range(sampled)]
    packer = zlib.compressobj(_LEVEL)
    read = packed = 0
    for block in _blocks(path, starts):
        read += len(block)
        packed += len(packer.compress(block))
    packed += len(packer.flush())
    return packed if read == size else round(packed * size / read)


def _blocks(path: Path, starts: Sequence[int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            yield file.read(_BLOCK)
