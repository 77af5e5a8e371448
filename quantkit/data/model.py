"""The values that pass between data and the rest: what a model wants, and what the data gives.

`Samples` is random access, can be pickled (a worker in another process opens the files again) and
read from several threads. `Stream` is a Python iterator: once through, no length.

A digest by which calibration files and reports say which data they were made from.

The whole of a data set would take minutes to hash; names, sizes and both ends of every file tell
data sets apart in practice. Nothing of the machine goes in: a copy has the same fingerprint.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantkit.data.boxes import Boxes
from quantkit.errors import DataError

__all__ = [
    "Array",
    "Description",
    "InputSpec",
    "Label",
    "Padding",
    "Sample",
    "Samples",
    "Stream",
    "digest",
    "file_fingerprint",
    "shape_text",
]

_END = 64 * 1024


def digest(parts: Iterable[str | bytes]) -> str:
    """Return a hex digest of the parts in order; ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        # A file's name may be no UTF-8.
        content = part.encode(errors="backslashreplace") if isinstance(part, str) else part
        state.update(len(content).to_bytes(8, "little"))
        state.update(content)
    return state.hexdigest()


def file_fingerprint(files: Sequence[Path], root: Path, settings: object) -> str:
    """Return the digest of files, named relative to `root`, and of settings by their repr.

    The settings must hold no absolute path.

    Args:
        files: Whose contents count, in this order.
        root: What their names are relative to, so that a moved folder has the same digest.
        settings: What else makes the samples what they are.
    """
    parts: list[str | bytes] = [repr(settings)]
    for file in files:
        parts.append(file.relative_to(root).as_posix())
        parts.extend(_ends(file))
    return digest(parts)


def _ends(file: Path) -> Iterable[str | bytes]:
    try:
        with file.open("rb") as stream:
            size = file.stat().st_size
            yield str(size)
            yield stream.read(_END)
            stream.seek(max(_END, size - _END))
            yield stream.read(_END)
    except OSError as e:
        raise DataError(f"Cannot read '{file}': {e.strerror}.") from e


Array = NDArray[Any]
Label = int | float | str | Boxes | None


def shape_text(dtype: np.dtype[Any], shape: Sequence[int | None]) -> str:
    """Return for example 'float32[?, 3, 224, 224]'; a free dimension is a question mark."""
    name = "string" if dtype.kind in "OUS" else dtype.name
    return f"{name}[{', '.join('?' if n is None else str(n) for n in shape)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of the model. A free dimension is None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.name} {shape_text(self.dtype, self.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How samples of different length are made equal on axis 1 when they are batched.

    Attributes:
        values: What each input is filled with: the pad id, 0 for a mask.
        left: Fill before the text, as some decoders want it.
    """

    values: Mapping[str, int]
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One thing to run the model on. Arrays have the model's rank and dtype, batch axis first.

    Attributes:
        feeds: Input name -> array.
        name: Where it comes from: a file name, or "rows.csv row 17" (rows count from 0).
        label: Its label, where there is one.
        padding: Set for text, whose length differs.
        advice: What to try if the model does not run on it: "; set ...", or nothing.
    """

    feeds: Mapping[str, Array]
    name: str
    label: Label = None
    padding: Padding | None = None
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What was found, for people and for the provenance.

    Attributes:
        kind: "image folder", "onnx test sets", "npz", "npy", "csv", "Python iterable", ...
        location: The path, or the Python type.
        samples: How many; None if only reading them tells.
        inputs: Each input as the first sample has it: "input float32[1, 3, 224, 224]".
        preprocessing: What is done to a sample, one step per line.
        settings: What tells two preparations of the same files apart, by name; empty where nothing is prepared.
        labels: "1000 classes from labels.csv", or "none".
        classes: The names of the labels 0, 1, ..., where they have any.
        mislabelled: That there are more or fewer labels than samples, so that none is used; else "".
        warnings: What may be wrong.
    """

    kind: str
    location: str
    samples: int | None
    inputs: tuple[str, ...] = ()
    preprocessing: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    labels: str = "none"
    classes: tuple[str, ...] = ()
    mislabelled: str = ""
    warnings: tuple[str, ...] = field(default=())


@runtime_checkable
class Samples(Protocol):
    """Random access to samples. Pickles by what it was opened with; threads may share it."""

    description: Description
    """What was found."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def fingerprint(self) -> str:
        """Return a hex digest of what the samples are made of.

        Of names, sizes, the first and last 64 KB of every file, and the settings that change an
        array. Not of times, absolute paths, or which samples are chosen (batch, limit, shuffle).
        """


@runtime_checkable
class Stream(Protocol):
    """Samples that come one after the other."""

    description: Description
    """What was found."""

    def __iter__(self) -> Iterator[Sample]: ...
