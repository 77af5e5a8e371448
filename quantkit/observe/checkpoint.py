"""What is known so far, on disk: an interrupted run continues where it stopped.

Written beside the result every few seconds; `kill -9` loses no more than that. A checkpoint of another job
(other data, other settings) is not used.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import DataError
from quantkit.observe.container import read_container, write_container
from quantkit.observe.observations import Observations
from quantkit.observe.requests import Request

__all__ = ["Checkpoint"]

_FORMAT = "quantkit.partial.1"
_SECONDS = 3.0
_SHARE = 0.1  # of the time, at most, goes into writing


class Checkpoint:
    """The file of one run."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key
        self._written = time.monotonic()
        self._pause = _SECONDS

    def save_if_due(self, segments: Mapping[int, Observations], done: NDArray[np.bool_]) -> None:
        """Save, if the last time is long enough ago."""
        if time.monotonic() - self._written >= self._pause:
            self.save(segments, done)

    def save(self, segments: Mapping[int, Observations], done: NDArray[np.bool_]) -> None:
        """Write everything that is known."""
        started = time.monotonic()
        header = {
            "format": _FORMAT,
            "key": self.key,
            "bad": {s: seen.reasons() for s, seen in segments.items()},
        }
        arrays: dict[str, NDArray[np.generic]] = {"done": done}
        for segment, seen in segments.items():
            arrays |= {f"{segment}/{name}": a for name, a in seen.to_arrays().items()}
        write_container(self.path, header, arrays)
        self._written = time.monotonic()
        self._pause = max(_SECONDS, (self._written - started) / _SHARE)

    def load(
        self, asked: Mapping[int, Sequence[Request]]
    ) -> tuple[dict[int, Observations], NDArray[np.bool_]] | None:
        """Return what an earlier run of the same job has seen, by part; None if there is none."""
        if not self.path.exists():
            return None
        try:
            header, arrays = read_container(self.path)
        except DataError:
            return None  # written by something else, or cut off: start anew
        if header.get("format") != _FORMAT or header.get("key") != self.key:
            return None
        try:
            return _restored(header["bad"], arrays, asked), arrays["done"].astype(bool)
        except Exception:  # noqa: BLE001 - whatever restoring nonsense raises: start anew
            return None

    def remove(self) -> None:
        """Delete the file: the result is written."""
        self.path.unlink(missing_ok=True)


def _restored(
    bad: Mapping[str, Sequence[str]],
    arrays: Mapping[str, NDArray[np.generic]],
    asked: Mapping[int, Sequence[Request]],
) -> dict[int, Observations]:
    segments = {}
    for segment, reasons in bad.items():
        prefix = f"{segment}/"
        own = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
        segments[int(segment)] = Observations.from_arrays(own, asked[int(segment)], reasons)
    return segments
