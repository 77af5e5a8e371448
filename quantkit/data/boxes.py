"""Boxes of objects on images, as labels: COCO instances files, scaled and cut with the image."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from quantkit.errors import DataError, as_os_error
from quantkit.settings import memory_text

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
