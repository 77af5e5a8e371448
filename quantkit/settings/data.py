"""The tables [data], [data.image] and [data.text]: which data, and how a sample becomes an array."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from quantkit.errors import UsageError
from quantkit.settings.checks import check_at_least, check_choice
from quantkit.settings.memory import check_memory, memory_of
from quantkit.settings.values import (
    Size,
    Values,
    amount,
    columns,
    flag,
    height_width,
    numbers,
    path,
    text,
    whole,
)

__all__ = ["PRESETS", "DataSettings", "ImageSettings", "Layout", "Pixels", "TextSettings"]
__all__ += ["preset_keys"]

_MOST_PIXELS = 8192  # a side
_MOST_TOKENS = 1_000_000
_LARGEST = 1e30  # of a mean; far from what float32 holds

Pixels = Literal["0-1", "0-255"]
Layout = Literal["NCHW", "NHWC"]

IMAGE_VALUES: Values = {
    "preset": text,
    "resize": height_width,
    "crop": height_width,
    "letterbox": height_width,
    "pixels": text,
    "mean": numbers,
    "std": numbers,
    "layout": text,
    "channels": text,
    "exif": flag,
}
TEXT_VALUES: Values = {"column": columns, "tokenizer": path, "max_length": whole}
DATA_VALUES: Values = {
    "path": path,
    "batch": whole,
    "limit": whole,
    "shuffle": flag,
    "seed": whole,
    "label": text,
    "memory": amount,
}


def _size(key: str, value: Size | None) -> None:
    for side in value if isinstance(value, tuple) else (value,):
        check_at_least(key, side, 1, _MOST_PIXELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """How an image file becomes an array. None: from the preset, else from the model.

    Attributes:
        preset: A name in `PRESETS`; the other fields override what it sets.
        resize: The shorter side in pixels, or exactly (height, width).
        crop: The centre that is kept: one number for a square, or (height, width).
        letterbox: Instead of both: the image is scaled to fit into (height, width), one number for a
            square, and centred there between borders of grey 114, as detectors of the YOLO family are
            fed.
        pixels: The range of a pixel before mean and std are applied.
        mean: Subtracted; one number, or one a channel in the order of `channels`.
        std: Divided by, after the mean; as `mean`.
        layout: Where the model wants the channels.
        channels: The order of the colours.
        exif: Turn photographs upright as their EXIF tag says, as viewers, OpenCV and `datasets` do;
            None is yes. False: the pixels as they are stored, as torchvision and Keras read them.
    """

    preset: str | None = None
    resize: Size | None = None
    crop: Size | None = None
    letterbox: Size | None = None
    pixels: Pixels | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: Layout | None = None
    channels: Literal["RGB", "BGR"] | None = None
    exif: bool | None = None

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, tuple(PRESETS))
        _size("resize", self.resize)
        _size("crop", self.crop)
        _size("letterbox", self.letterbox)
        if self.letterbox is not None and (self.resize, self.crop) != (None, None):
            raise UsageError("letterbox sets the size alone: leave out resize and crop.")
        check_choice("pixels", self.pixels, ("0-1", "0-255"))
        check_choice("layout", self.layout, ("NCHW", "NHWC"))
        check_choice("channels", self.channels, ("RGB", "BGR"))
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in {1, 3, 4}:
                raise UsageError(
                    f"{key} '{list(values)}' has {len(values)} numbers: "
                    "give one, or one for each channel."
                )
            if values is not None and not all(abs(v) <= _LARGEST for v in values):
                raise UsageError(
                    f"{key} '{list(values)}' must be finite: pixels are shifted and divided by it."
                )
        if self.std is not None and min(self.std) <= 0:
            raise UsageError(f"std '{list(self.std)}' must be above 0: pixels are divided by it.")

    def resolved(self) -> "ImageSettings":
        """Return these settings with the preset's values where none are given, and `pixels` set.

        Without `pixels`, a mean or std above 1 can only be meant for pixels of 0-255.
        """
        preset = PRESETS[self.preset] if self.preset else ImageSettings()
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        merged = {k: getattr(preset, k) if v is None else v for k, v in given.items()}
        if self.letterbox is not None:
            merged |= {"resize": None, "crop": None}
        if self.pixels is None and max((*(self.mean or ()), *(self.std or ())), default=0.0) > 1:
            merged["pixels"] = "0-255"
        if merged["pixels"] is None:
            merged["pixels"] = "0-1"
        return ImageSettings(**merged)


PRESETS: dict[str, ImageSettings] = {}
"""Preprocessings that have a name; filled below, where the class exists."""
PRESETS.update(
    # torchvision's reference transform for ImageNet classifiers.
    imagenet=ImageSettings(
        resize=256, crop=224, pixels="0-1", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
    symmetric=ImageSettings(pixels="0-255", mean=(127.5,), std=(127.5,)),
    unit=ImageSettings(pixels="0-1", mean=(0.0,), std=(1.0,)),
    raw=ImageSettings(pixels="0-255", mean=(0.0,), std=(1.0,)),
)


def preset_keys(name: str) -> tuple[str, ...]:
    """Return which settings a preset makes; none for a name that there is not."""
    preset = PRESETS.get(name, ImageSettings())
    return tuple(f.name for f in fields(preset) if getattr(preset, f.name) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """How a text becomes token ids.

    Attributes:
        column: The column with the text, or the two columns of a pair; empty: the only one.
        tokenizer: A tokenizer.json; None: looked for beside the data and in `search`.
        max_length: Longer texts are cut; None: what tokenizer.json says, else the model's own
            sequence extent, else 512.
        search: Further folders to look for tokenizer.json in, given by the caller (the model's).
    """

    column: tuple[str, ...] = ()
    tokenizer: Path | None = None
    max_length: int | None = None
    search: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        check_at_least("max_length", self.max_length, 1, _MOST_TOKENS)
        if len(self.column) > 2:  # noqa: PLR2004 a text, or a pair
            raise UsageError(
                f"column '{list(self.column)}' names {len(self.column)} columns: "
                "give one, or two for a pair."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Which data, how much of it, and how it is prepared.

    Attributes:
        path: The directory or file.
        batch: Samples in one run of the model; None: as many as run well together.
        limit: Use at most so many samples.
        shuffle: Mix the order by `seed`, so that `limit` takes a fair part of data that is sorted
            by class. A Python iterator cannot be shuffled.
        seed: Seed of the shuffle.
        label: The column or key that holds the labels; None: one of the usual names.
        memory: Bytes that may be held at once while data is read, observed and solved for; None: see
            `memory_limit`. It changes no result, and is recorded nowhere.
        image: For image files and image columns.
        text: For text columns.
    """

    path: Path | None = None
    batch: int | None = None
    limit: int | None = None
    shuffle: bool = True
    seed: int = 0
    label: str | None = None
    memory: int | None = None
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)

    def __post_init__(self) -> None:
        check_at_least("batch", self.batch, 1)
        check_at_least("limit", self.limit, 1)
        check_at_least("seed", self.seed, 0)
        check_memory(self.memory)

    @property
    def memory_limit(self) -> int:
        """The bytes that may be held: as set, else a quarter of what the machine has left, 2 GB at most."""
        return memory_of(self.memory)
