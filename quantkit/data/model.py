"""The values that pass between data and the rest: what a model wants, and what the data gives.

`Samples` is random access, can be pickled (a worker in another process opens the files again) and
read from several threads. `Stream` is a Python iterator: once through, no length.

A fingerprint is the digest by which calibration files and reports say which data they were made from. The whole of a
data set would take minutes to hash; names, sizes and both ends of every file tell data sets apart in practice.
Nothing of the machine goes in: a copy has the same fingerprint.

Boxes on images are read from COCO's instances JSON: images, annotations, categories.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantkit.data.boxes import Boxes

Array = NDArray[Any]


Label = int | float | str | Boxes | None


def shape_text(dtype: np.dtype[Any], shape: Sequence[int | None]) -> str:
    """Return for example 'float32[?, 3, 224, 224]'; a free dimension is a question mark."""
    name = "string" if dtype.kind in "OUS" else dtype.name
    return f"{name}[{', '.join('?' if n is None else str(n) for n in shape)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of the model. A free dimension is None.

    `axis` is the name that the model gives to its first axis; "" where that is fixed or has no name.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    axis: str = ""

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
        whole: Its first axes do not count samples (nodes of a graph, steps of time): it runs alone and is not divided.
    """

    feeds: Mapping[str, Array]
    name: str
    label: Label = None
    padding: Padding | None = None
    advice: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What was found, for people and for the provenance.

    Attributes:
        kind: "image folder", "onnx test sets", "npz", "npy", "csv", "Python iterable", ...
        location: The path, or the Python type.
        samples: How many; None if only reading them tells.
        division: What one sample is of files that may hold several: "one per file", "rows of axis 0 'batch'"; else "".
        inputs: Each input as the first sample has it: "input float32[1, 3, 224, 224]".
        preprocessing: What is done to a sample, one step per line.
        settings: What tells two preparations of the same files apart, by name; empty where nothing is prepared.
        labels: "1000 classes from labels.csv", or "none".
        classes: The names of the labels 0, 1, ..., where they have any.
        mislabelled: That there are more or fewer labels than samples, so that none is used; else "".
        warnings: What may be wrong.
        guessed: Nothing says how images are prepared: which values their pixels become is a guess.
    """

    kind: str
    location: str
    samples: int | None
    division: str = ""
    inputs: tuple[str, ...] = ()
    preprocessing: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    labels: str = "none"
    classes: tuple[str, ...] = ()
    mislabelled: str = ""
    warnings: tuple[str, ...] = field(default=())
    guessed: bool = False


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
