"""The values that pass between data and the rest: what a model wants, and what the data gives.

`Samples` is random access, can be pickled (a worker in another process opens the files again) and
read from several threads. `Stream` is a Python iterator: once through, no length.

A fingerprint is the digest by which calibration files and reports say which data they were made from. The whole of a
data set would take minutes to hash; names, sizes and both ends of every file tell data sets apart in practice.
Nothing of the machine goes in: a copy has the same fingerprint.

Boxes on images are read from COCO's instances JSON: images, annotations, categories.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import DataError, as_os_error
from quantkit.settings import memory_text

__all__ = [
    "BOXES",
    "Array",
    "Box",
    "Boxes",
    "Description",
    "InputSpec",
    "Label",
    "Padding",
    "Sample",
    "Samples",
    "Stream",
    "boxes_file",
    "digest",
    "file_fingerprint",
    "read_boxes",
    "shape_text",
]

Array = NDArray[Any]

BOXES = re.compile(r"^instances.*\.json$|annotations.*\.json$|coco.*\.json$", re.IGNORECASE)
"""Files beside images that hold their boxes."""

_UNPACKED = 10  # times a file's size that its values take in memory

Box = tuple[float, float, float, float]
"""x1, y1, x2, y2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """What is to be found on one image.

    Attributes:
        boxes: In pixels.
        classes: The category id of each.
        crowd: Whether each stands for several things: nobody has to find it, and finding it is no mistake.
        width: Of the image.
        height: Of the image.
        known: All category ids there are, ascending.
    """

    boxes: tuple[Box, ...]
    classes: tuple[int, ...]
    crowd: tuple[bool, ...]
    width: int
    height: int
    known: tuple[int, ...]

    def __str__(self) -> str:
        return f"{len(self.boxes)} box{'' if len(self.boxes) == 1 else 'es'}"

    def moved(
        self, *, scale: tuple[float, float], shift: tuple[float, float], size: tuple[int, int]
    ) -> "Boxes":
        """Return the boxes of the image scaled, then shifted, then cut to (width, height): x and y each.

        What is cut off altogether cannot be found and is left out.

        Args:
            scale: What x and y are multiplied by.
            shift: What is added then, in pixels.
            size: Width and height that boxes are cut to, in pixels.
        """
        found = [_cut(box, scale, shift, size) for box in self.boxes]
        kept = [i for i, (x1, y1, x2, y2) in enumerate(found) if x2 > x1 and y2 > y1]
        return replace(
            self,
            boxes=tuple(found[i] for i in kept),
            classes=tuple(self.classes[i] for i in kept),
            crowd=tuple(self.crowd[i] for i in kept),
            width=size[0],
            height=size[1],
        )


def _cut(
    box: Box, scale: tuple[float, float], shift: tuple[float, float], size: tuple[int, int]
) -> Box:
    x1, y1, x2, y2 = (
        min(max(value * scale[i % 2] + shift[i % 2], 0.0), float(size[i % 2]))
        for i, value in enumerate(box)
    )
    return x1, y1, x2, y2


def boxes_file(root: Path, label: str | None) -> Path | None:
    """Return the file with the boxes of a folder of images: the one that is named, else the only one that looks like it."""
    if label is not None:
        if not label.endswith(".json"):
            return None
        return next((p for p in (Path(label), root / label) if p.is_file()), Path(label))
    found = (file for file in sorted(root.glob("*.json")) if BOXES.search(file.name))
    return next((file for file in found if file.is_file()), None)


def read_boxes(
    file: Path, names: Iterable[str], memory: int
) -> tuple[dict[str, Boxes], tuple[str, ...]]:
    """Return the boxes of each image, and the names of the categories by ascending id.

    Args:
        file: COCO's instances JSON. Boxes are [x, y, width, height] in pixels of the image.
        names: The images that there are; others in the file are passed over.
        memory: Bytes that may be held at once.

    Raises:
        DataError: It cannot be read, or is something else.
    """
    plain = _read_json(file, memory)
    try:
        categories = {int(c["id"]): str(c.get("name", c["id"])) for c in plain["categories"]}
        known = tuple(sorted(categories))
        images = {i["id"]: i for i in plain["images"]}
        by_image: dict[Any, list[Any]] = defaultdict(list)
        for annotation in plain["annotations"]:
            by_image[annotation["image_id"]].append(annotation)
        wanted = _wanted(names, images.values())
        found = {
            name: _boxes(by_image[image["id"]], int(image["width"]), int(image["height"]), known)
            for name, image in wanted.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        what = f"'{e.args[0]}' is missing" if isinstance(e, KeyError) else str(e)
        raise DataError(
            f"'{file}' is no COCO file of boxes ({what}): it needs images (id, file_name, width, height), annotations "
            "(image_id, category_id, bbox) and categories (id, name)."
        ) from e
    return found, tuple(categories[i] for i in known)


def _read_json(file: Path, memory: int) -> dict[str, Any]:
    try:
        if not file.is_file():
            said = f"There is no file of boxes '{file}': give --label FILE."
            raise as_os_error(DataError(said), FileNotFoundError)
        if (size := file.stat().st_size) * _UNPACKED > memory:
            raise DataError(
                f"'{file}' has {memory_text(size)}, and its boxes take about {memory_text(size * _UNPACKED)} of memory: set "
                "--memory, or leave out what is not evaluated."
            )
        plain = json.loads(file.read_bytes())
    except OSError as e:
        if isinstance(e, DataError):
            raise
        said = f"Cannot read the labels '{file}': {e.strerror}."
        raise as_os_error(DataError(said), e) from e
    except (ValueError, RecursionError) as e:
        raise DataError(f"'{file}' is not JSON: {e}.") from e
    if not isinstance(plain, dict):
        raise DataError(f"'{file}' is no COCO file of boxes: it holds a list.")
    return plain


def _wanted(names: Iterable[str], images: Iterable[Any]) -> dict[str, Any]:
    """Return the entry of each image, by its whole path, else by its file name alone."""
    whole = {str(i["file_name"]).replace("\\", "/").removeprefix("./"): i for i in images}
    short = {name.rpartition("/")[2]: i for name, i in whole.items()}
    pairs = ((name, whole.get(name) or short.get(name.rpartition("/")[2])) for name in names)
    return {name: entry for name, entry in pairs if entry is not None}


def _boxes(found: Sequence[Any], width: int, height: int, known: tuple[int, ...]) -> Boxes:
    if min(width, height) < 1:
        raise ValueError(f"an image of {width}x{height} pixels")
    boxes = []
    for annotation in found:
        x, y, w, h = (float(v) for v in annotation["bbox"])
        if not all(map(isfinite, (x, y, w, h))):
            raise ValueError(f"a box of {annotation['bbox']}")
        boxes.append((x, y, x + w, y + h))
    return Boxes(
        boxes=tuple(boxes),
        classes=tuple(int(a["category_id"]) for a in found),
        crowd=tuple(bool(a.get("iscrowd", 0)) for a in found),
        width=width,
        height=height,
        known=known,
    )


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
