"""From an image file to the model's input, by the steps of a `Preprocessing`.

The size: with `resize`, the shorter side becomes that (or both sides, if two are given). Without,
an image that covers the crop is only cropped; a smaller one is enlarged until it covers it; one
more than 1.5 times larger is first reduced, to crop / 0.875 (256 for 224). Then the centre is cut
out. A photograph is first turned upright as its EXIF tag says: so do viewers, OpenCV and `datasets`;
torchvision and Keras do not, and `exif = false` is for models whose users load images with these.

With `letterbox` instead, the image is scaled until it just fits, and centred between grey borders.

Pixels outside the crop are never computed: PIL resizes the box that the crop comes from, and a
JPEG much larger than needed is decoded at a half, quarter or eighth of its size.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from quantkit.data.boxes import Boxes
from quantkit.data.model import Array
from quantkit.data.preprocessing import Preprocessing
from quantkit.settings import memory_text

# EXIF's orientation -> the number of PIL's Transpose that undoes it, and which of them swap the sides.
_TAG = 0x0112
_UPRIGHT = 1
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
_ON_ITS_SIDE = (5, 6, 7, 8)

# What PIL may take a file for, whatever its name. It knows others: PostScript goes to Ghostscript.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_PIXEL = 4  # bytes that a decoded pixel takes at most
_BORDER = 114  # of a letterbox
_OPAQUE = 255
_MUCH_LARGER = 1.5
_CROP_SHARE = 0.875  # 224 / 256, the share of the shorter side that the usual transform keeps
_DRAFT = 2  # decode to at least so many times the wanted size: the rest is filtered by `resize`


class ImageSizeError(ValueError):
    """An image that would take more memory than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The whole image's size after scaling, and the part of it that is kept, in pixels."""

    width: int
    height: int
    left: int
    top: int
    right: int
    bottom: int


def read_image(source: Path | IO[bytes], steps: Preprocessing, memory: int) -> Array:
    """Return an image file as an array; see `to_array`.

    Args:
        source: The file, or one that is open.
        steps: What is done to it.
        memory: Bytes that the decoded image may take.

    Raises:
        ImageSizeError: It would take more memory than it may.
        ValueError: It cannot be read; says why.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with _quiet(), Image.open(source, formats=_FORMATS) as image:
            _check_size(image.size, memory)
            return to_array(image, steps)
    except UnidentifiedImageError as e:
        raise ValueError(f"it is no image that quantkit reads ({', '.join(_FORMATS)})") from e
    except (ImageSizeError, Image.DecompressionBombError) as e:
        raise ImageSizeError(str(e).rstrip(".")) from e
    except Exception as e:  # a decoder raises anything for a broken file
        raise ValueError(str(e).rstrip(".") or type(e).__name__) from e


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PIL from printing what it thinks of large images and damaged tags: no line beside ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


def stored_size(file: Path) -> tuple[int, int] | None:
    """Return an image's width and height, by its header; None if it has none that can be read."""
    from PIL import Image

    try:
        with _quiet(), Image.open(file, formats=_FORMATS) as image:
            size: tuple[int, int] = image.size
            return size
    except Exception:  # noqa: BLE001 - reading it will tell
        return None


def stored_turned(file: Path) -> bool:
    """Return True for a photograph whose pixels are not stored upright."""
    from PIL import Image

    try:
        with _quiet(), Image.open(file, formats=("JPEG",)) as image:
            return _orientation(image) != _UPRIGHT
    except Exception:  # noqa: BLE001 - no JPEG, or a damaged one: reading it will tell
        return False


def _orientation(image: Any) -> int:
    """Return how an opened image is stored, 1 to 8 as EXIF numbers it; 1 is upright."""
    if image.format == "TIFF":
        image.load()  # PIL turns these by itself
    try:
        found = image.getexif().get(_TAG, _UPRIGHT)
    except Exception:  # noqa: BLE001 - the tags are damaged, and raise anything; pixels may be good
        return _UPRIGHT
    return found if found in _TURNS else _UPRIGHT


def _check_size(size: tuple[int, int], memory: int) -> None:
    taken = size[0] * size[1] * _PIXEL
    if taken > memory:
        raise ImageSizeError(
            f"its {size[0]}x{size[1]} pixels take {memory_text(taken)} and quantkit may hold "
            f"{memory_text(memory)}, allow more with --memory"
        )


def to_array(image: Any, steps: Preprocessing) -> Array:
    """Return a PIL image as an array of shape [1, C, H, W] or [1, H, W, C], contiguous."""
    turn = _orientation(image) if steps.exif else _UPRIGHT
    size = image.size[::-1] if turn in _ON_ITS_SIDE else image.size
    cut = _cut(size, steps)
    if (cut.width, cut.height) != size:
        wanted = (cut.width * _DRAFT, cut.height * _DRAFT)
        image.draft(None, wanted[::-1] if turn in _ON_ITS_SIDE else wanted)
    image = _plain(image, steps.mode)
    if turn in _TURNS:
        image = image.transpose(_TURNS[turn])
    if steps.letterbox:
        part = _framed(image, cut, steps.mode)
    elif (cut.width, cut.height) == image.size:
        part = image.crop((cut.left, cut.top, cut.right, cut.bottom))
    else:
        part = _resized(image, cut)
    if part.mode != steps.mode:
        part = part.convert(steps.mode)
    return _normalized(np.asarray(part), steps)


def place_in(boxes: Boxes, steps: Preprocessing) -> Boxes:
    """Return the boxes of an image as they lie in the array that `to_array` makes of it."""
    cut = _cut((boxes.width, boxes.height), steps)
    return boxes.moved(
        scale=(cut.width / boxes.width, cut.height / boxes.height),
        shift=(-cut.left, -cut.top),
        size=(cut.right - cut.left, cut.bottom - cut.top),
    )


def _cut(size: tuple[int, int], steps: Preprocessing) -> _Cut:
    width, height = _scaled(size, steps)
    crop_height, crop_width = steps.letterbox or steps.crop or (height, width)
    # Rounded as torchvision's center_crop does; a letterbox as YOLO does, an odd pixel to the right.
    less = 0.1 if steps.letterbox else 0.0
    left = round((width - crop_width) / 2 + less)
    top = round((height - crop_height) / 2 + less)
    return _Cut(
        width=width,
        height=height,
        left=left,
        top=top,
        right=left + crop_width,
        bottom=top + crop_height,
    )


def _scaled(size: tuple[int, int], steps: Preprocessing) -> tuple[int, int]:
    width, height = size
    if steps.letterbox is not None:
        scale = min(steps.letterbox[0] / height, steps.letterbox[1] / width)
        return max(1, round(width * scale)), max(1, round(height * scale))
    if isinstance(steps.resize, tuple):
        return steps.resize[1], steps.resize[0]
    cover = 0.0  # the scale at which the image just covers the crop
    if steps.crop is not None:
        cover = max(steps.crop[0] / height, steps.crop[1] / width)
    if steps.resize is not None:
        scale = max(steps.resize / min(size), cover)
    elif cover > 1:
        scale = cover
    elif cover and cover * _MUCH_LARGER < 1:
        scale = cover / _CROP_SHARE
    else:
        return size
    crop_height, crop_width = steps.crop or (1, 1)
    # Cut off, not rounded, as torchvision does (the small number is for 255.99999999).
    return (
        max(crop_width, int(width * scale + 1e-6)),
        max(crop_height, int(height * scale + 1e-6)),
    )


def _plain(image: Any, mode: str) -> Any:
    """Return the image in a mode that can be resized: palettes and deep pixels cannot."""
    if image.mode in {"L", "RGB", mode}:
        return image
    if image.mode.startswith("I;16"):
        from PIL import Image

        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise ValueError(f"its pixels have 32 bits (mode {image.mode}), use .npy for such data")
    return image.convert(mode)


def _framed(image: Any, cut: _Cut, mode: str) -> Any:
    """Return the whole image, scaled, between borders: the cut is larger than it."""
    from PIL import Image

    fill = _BORDER if mode == "L" else (_BORDER,) * 3 + (_OPAQUE,) * (mode == "RGBA")
    frame = Image.new(mode, (cut.right - cut.left, cut.bottom - cut.top), fill)
    if image.size != (cut.width, cut.height):
        image = image.resize((cut.width, cut.height), Image.Resampling.BILINEAR)
    frame.paste(image.convert(mode), (-cut.left, -cut.top))
    return frame


def _resized(image: Any, cut: _Cut) -> Any:
    from PIL import Image

    x, y = image.width / cut.width, image.height / cut.height
    box = (
        cut.left * x,
        cut.top * y,
        min(cut.right * x, image.width),
        min(cut.bottom * y, image.height),
    )
    size = (cut.right - cut.left, cut.bottom - cut.top)
    return image.resize(size, Image.Resampling.BILINEAR, box=box)


def _normalized(pixels: Array, steps: Preprocessing) -> Array:
    """Return (pixels / unit - mean) / std in the model's layout.

    In place and channel by channel: a plane of float32 stays in the cache for all steps.
    """
    if pixels.ndim == 2:
        pixels = pixels[..., np.newaxis]
    height, width, channels = pixels.shape
    nchw = steps.layout == "NCHW"
    shape = (1, channels, height, width) if nchw else (1, height, width, channels)
    out = np.empty(shape, np.float32)
    for c, source in enumerate(steps.order):
        plane = out[0, c] if nchw else out[0, :, :, c]
        plane[...] = pixels[:, :, source]
        if steps.unit != 1:
            plane /= np.float32(steps.unit)
        if steps.mean[c]:
            plane -= np.float32(steps.mean[c])
        if steps.std[c] != 1:
            plane /= np.float32(steps.std[c])
    if steps.dtype == np.float32:
        return out
    if steps.dtype.kind in "iu":
        np.rint(out, out=out)
    return out.astype(steps.dtype)
