"""The tables [data], [data.image], [data.text] and [calibrate]: which data, how a sample becomes an array, how ranges are estimated."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Columns, Floats, Memory, Settings, Size, setting, table
from quantkit.settings.memory import LEAST, memory_of

_MOST_PIXELS = 8192  # per side
_MOST_TOKENS = 1_000_000
_LARGEST = 1e30  # of a mean; far from what float32 holds
_image, _text = partial(setting, panel="Images"), partial(setting, panel="Text")

Pixels = Literal["0-1", "0-255"]
Layout = Literal["NCHW", "NHWC"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings(Settings):
    """How an image file becomes an array. None: from the preset, else from the model.

    Numbers of `mean` and `std` are in the order of `channels`. The borders of `letterbox` are grey 114, as detectors of
    the YOLO family are fed. `exif` is what viewers, OpenCV and `datasets` do; torchvision and Keras read pixels as they
    are stored.
    """

    preset: str | None = _image(
        "imagenet, symmetric (-1..1), unit (0..1), raw.", "NAME", choices=lambda: tuple(PRESETS)
    )
    resize: Size | None = _image("Size of the shorter side, or HxW.", "N", ge=1, le=_MOST_PIXELS)
    crop: Size | None = _image("Size of the centre crop, N or HxW.", "N", ge=1, le=_MOST_PIXELS)
    letterbox: Size | None = _image(
        "Fit into N or HxW between grey borders, as YOLO does; instead of the two.",
        "N",
        ge=1,
        le=_MOST_PIXELS,
    )
    pixels: Pixels | None = _image("0-1 or 0-255, before mean and std.", "R")
    mean: Floats | None = _image(
        "Subtracted: 127, or 0.485,0.456,0.406.", "M", ge=-_LARGEST, le=_LARGEST
    )
    std: Floats | None = _image("Divided by: 128, or 0.229,0.224,0.225.", "S", gt=0, le=_LARGEST)
    layout: Layout | None = _image("NCHW or NHWC.", "L")
    channels: Literal["RGB", "BGR"] | None = _image("RGB or BGR.", "C")
    exif: bool | None = _image("Turn photographs upright as EXIF says (default).")

    def _check(self) -> None:
        if self.letterbox is not None and (self.resize, self.crop) != (None, None):
            raise UsageError("letterbox sets the size alone: leave out resize and crop.")
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in {1, 3, 4}:
                raise UsageError(
                    f"{key} '{list(values)}' has {len(values)} numbers: "
                    "give one, or one for each channel."
                )

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
class TextSettings(Settings):
    """How a text becomes token ids.

    Without a `column`, the only one; without a `tokenizer`, the one found beside the data or in the folders of `search`,
    which the caller gives (the model's). Without `max_length`, what tokenizer.json says, else the model's own sequence
    extent, else 512.
    """

    column: Columns = _text("The column with the text; give two for pairs.", "NAME", default=())
    tokenizer: Path | None = _text("The tokenizer.json of the model.", "FILE")
    max_length: int | None = _text("Longer texts are cut to N tokens.", "N", ge=1, le=_MOST_TOKENS)
    search: tuple[Path, ...] = ()

    def _check(self) -> None:
        if len(self.column) > 2:
            raise UsageError(
                f"column '{list(self.column)}' names {len(self.column)} columns: "
                "give one, or two for a pair."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings(Settings):
    """Which data, how much of it, and how it is prepared.

    Mixed by `seed`, `limit` takes a fair part of data that is sorted by class; a Python iterator cannot be mixed. Without
    `batch`, as many samples run together as run well. `memory` is for all that is held at once while data is read, observed
    and solved for: it changes no result, and is recorded nowhere.
    """

    path: Path | None = setting(
        "Directory or file of real samples; or in quantkit.toml.", "PATH", flag="--data"
    )
    batch: int | None = setting("Samples per run of the model (batch size).", "N", ge=1)
    limit: int | None = setting(
        "Use at most N samples. Default: 256 to calibrate, all to evaluate.", "N", ge=1
    )
    shuffle: bool = setting("Draw samples in random order (default).", default=True)
    seed: int = setting("Seed of the shuffle.", "N", default=0, ge=0)
    label: str | None = setting(
        "Key or column of the labels, or a COCO file. Default: the usual names.",
        "NAME",
        flag="--label --labels",
    )
    memory: Memory | None = setting(
        "Memory to use at most: 500MB, 1GB. Default: a quarter of what is free, 2GB at most.",
        "SIZE",
        ge=LEAST,
    )
    image: ImageSettings = table(ImageSettings)
    text: TextSettings = table(TextSettings)

    @property
    def memory_limit(self) -> int:
        """The bytes that may be held: as set, else a quarter of what the machine has left, 2 GB at most."""
        return memory_of(self.memory)


_MOST_WORKERS = 256  # processes on one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateSettings(Settings):
    """How ranges are estimated. None: as the caller does without. Which methods there are is known to `calibrators`."""

    method: str | None = setting(
        "mse (default), minmax, percentile, entropy, moving_average, or a plug-in. All but the last two can be "
        "chosen again afterwards.",
        "NAME",
    )
    percentile: float | None = setting("Percentage of the values kept: 99.99.", "P", gt=50, le=100)
    output: Path | None = setting(
        "Result. Default: <model>.calibration here.", "FILE", flag="--output -o"
    )
    workers: int | None = setting(
        "Processes on this machine. Default: one per core.",
        "N",
        panel="Workers",
        ge=1,
        le=_MOST_WORKERS,
    )
