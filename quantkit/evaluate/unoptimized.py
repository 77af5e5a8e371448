"""The default session against one that optimizes nothing: does the file mean what onnxruntime makes of it?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.evaluate.accuracy.drift import decibels
from quantkit.graph.mapped_model import mapped_model
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, make_session, readable_ir_version
from quantkit.runtime.synthetic_inputs import Feeds

__all__ = ["Plain", "compare_plain"]

_LARGE = 1 << 28  # bytes; larger files are mapped, so that two sessions do not hold them twice
_DECISIONS = 2  # axes of an output that holds scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """How far the two are apart.

    Attributes:
        db: SQNR of the worst output, over all samples; None: equal, or not compared.
        largest: The largest absolute difference.
        flips: Rows of scores with another maximum; None without scores.
        samples: How many were compared.
        note: What could not be compared, and why.
    """

    db: float | None = None
    largest: float = 0.0
    flips: int | None = None
    samples: int = 0
    note: str = ""


@dataclass(slots=True)
class _Sums:
    """Of one output: power of signal and of difference, and what `Plain` says of it."""

    signal: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    flips: int | None = None
    other_shape: bool = False
    broken: int = 0  # values that one of the two alone has finite

    def add(self, plain: NDArray[Any], usual: NDArray[Any]) -> None:
        """Take in one sample; values that are not finite in either are left out of the sums."""
        if plain.shape != usual.shape:
            self.other_shape = True
            return
        if plain.dtype.kind not in "biuf":
            return
        expected, actual = plain.astype(np.float64), usual.astype(np.float64)
        finite = np.isfinite(expected) & np.isfinite(actual)
        self.broken += int((np.isfinite(expected) != np.isfinite(actual)).sum())
        difference = expected[finite] - actual[finite]
        self.signal += float(np.square(expected[finite]).sum())
        self.noise += float(np.square(difference).sum())
        self.largest = max(self.largest, float(np.abs(difference).max(initial=0)))
        if plain.dtype.kind == "f" and plain.ndim == _DECISIONS and plain.shape[1] > 1:
            changed = int((expected.argmax(axis=1) != actual.argmax(axis=1)).sum())
            self.flips = (self.flips or 0) + changed

    @property
    def db(self) -> float | None:
        """The SQNR; None if there is no difference."""
        return decibels(self.signal / self.noise) if self.noise else None


def compare_plain(path: Path, samples: Sequence[Feeds]) -> Plain:
    """Run both on the samples, one after the other, keeping sums only.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: the default session does not load or run.
    """
    usual = _session(path, 99)
    try:
        plain = _session(path, 0)
        if samples:
            plain.run(None, dict(samples[0]))
    except RUNTIME_ERRORS as e:
        return Plain(
            note=f"It does not run with optimization off, so that was not compared: {first_line(e)}."
        )
    names = [output.name for output in usual.get_outputs()]
    sums = {name: _Sums() for name in names}
    for sample in samples:
        pairs = zip(plain.run(names, dict(sample)), usual.run(names, dict(sample)), strict=True)
        for one, (expected, actual) in zip(sums.values(), pairs, strict=True):
            if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
                one.add(expected, actual)
    return _joined(sums, len(samples))


def _joined(sums: Mapping[str, _Sums], samples: int) -> Plain:
    found = [one.db for one in sums.values()]
    flips = [one.flips for one in sums.values() if one.flips is not None]
    return Plain(
        db=min((db for db in found if db is not None), default=None),
        largest=max((one.largest for one in sums.values()), default=0.0),
        flips=sum(flips) if flips else None,
        samples=samples,
        note=next(filter(None, (_note(name, one) for name, one in sums.items())), ""),
    )


def _note(output: str, found: _Sums) -> str:
    if found.other_shape:
        return f"Output '{output}' has another shape with optimization off."
    if found.broken:
        return f"Of output '{output}', {found.broken} values are finite in one only of the session as users make it and one with optimization off."
    return ""


def _session(path: Path, level: int) -> Any:
    """Make a session; two of them take turns in this process, so threads do not spin."""
    if path.stat().st_size < _LARGE:
        return make_session(str(path), level=level, spinning=False)
    mapped = mapped_model(path, readable_ir_version)
    return make_session(
        mapped.structure, folder=mapped.folder, level=level, prepack=False, spinning=False
    )
