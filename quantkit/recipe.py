"""quantkit.toml, and the settings that the file and the command line's flags share.

A `Recipe` is frozen data: `load_recipe` reads the file, flags override single fields with
`dataclasses.replace`. What a value may be is said once, in each class's `__post_init__`, so that a
flag and a line of the file fail alike; the file's errors also name the file and the table.
Paths in the file are relative to the file's folder.

Knows nothing of models and arrays; imports the standard library and `quantkit.errors`.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from quantkit.errors import UsageError

__all__ = [
    "PRESETS",
    "RECIPE_NAME",
    "CalibrateSettings",
    "DataSettings",
    "ImageSettings",
    "Layout",
    "Pixels",
    "Recipe",
    "Size",
    "TextSettings",
    "closest",
    "load_recipe",
]

RECIPE_NAME = "quantkit.toml"

Pixels = Literal["0-1", "0-255"]
Layout = Literal["NCHW", "NHWC"]
Size = int | tuple[int, int]
"""One number (the shorter side, or both sides), or height and width."""


def closest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name nearest to `name`, or ""."""
    by_lower = {k.lower(): k for k in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean '{by_lower[near[0]]}'?)" if near else ""


def _choice(key: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise UsageError(
            f"{key} '{value}' is unknown{closest(value, known)}: use one of {', '.join(known)}."
        )


def _at_least(key: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise UsageError(f"{key} '{value}' is too small: use a whole number of at least {low}.")


def _size(key: str, value: Size | None) -> None:
    for side in value if isinstance(value, tuple) else (value,):
        _at_least(key, side, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """How an image file becomes an array. None: from the preset, else from the model.

    Attributes:
        preset: A name in `PRESETS`; the other fields override what it sets.
        resize: The shorter side in pixels, or exactly (height, width).
        crop: The centre that is kept: one number for a square, or (height, width).
        pixels: The range of a pixel before mean and std are applied.
        mean: Subtracted; one number, or one a channel in the order of `channels`.
        std: Divided by, after the mean; as `mean`.
        layout: Where the model wants the channels.
        channels: The order of the colours.
    """

    preset: str | None = None
    resize: Size | None = None
    crop: Size | None = None
    pixels: Pixels | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: Layout | None = None
    channels: Literal["RGB", "BGR"] | None = None

    def __post_init__(self) -> None:
        _choice("preset", self.preset, tuple(PRESETS))
        _size("resize", self.resize)
        _size("crop", self.crop)
        _choice("pixels", self.pixels, ("0-1", "0-255"))
        _choice("layout", self.layout, ("NCHW", "NHWC"))
        _choice("channels", self.channels, ("RGB", "BGR"))
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in {1, 3, 4}:
                raise UsageError(
                    f"{key} '{list(values)}' has {len(values)} numbers: "
                    "give one, or one for each channel."
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
        _at_least("max_length", self.max_length, 1)
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
        seed: Of the shuffle.
        label: The column or key that holds the labels; None: one of the usual names.
        image: For image files and image columns.
        text: For text columns.
    """

    path: Path | None = None
    batch: int | None = None
    limit: int | None = None
    shuffle: bool = True
    seed: int = 0
    label: str | None = None
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)

    def __post_init__(self) -> None:
        _at_least("batch", self.batch, 1)
        _at_least("limit", self.limit, 1)
        _at_least("seed", self.seed, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateSettings:
    """How ranges are estimated. Which methods there are is known to `calibrators`, not here.

    Attributes:
        method: The calibrator's name; None: the caller's default.
        percentile: For the method "percentile": the share of values kept, in percent.
        output: The calibration file to write; None: beside the model.
        workers: Processes that run the model.
    """

    method: str | None = None
    percentile: float | None = None
    output: Path | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        _at_least("workers", self.workers, 1)
        if self.percentile is not None and not 50 < self.percentile <= 100:  # noqa: PLR2004
            raise UsageError(
                f"percentile '{self.percentile}' is out of range: use more than 50, at most 100."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What quantkit.toml says. `folder` is where it stands (else the working directory)."""

    model: Path | None = None
    data: DataSettings = field(default_factory=DataSettings)
    calibrate: CalibrateSettings = field(default_factory=CalibrateSettings)
    folder: Path = field(default_factory=Path)


def load_recipe(path: Path | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: The file; None: quantkit.toml in the working directory if there is one, else the
            defaults.

    Raises:
        UsageError: The file cannot be read, or holds a key or value that quantkit does not know.
    """
    if path is None:
        path = Path(RECIPE_NAME)
        if not path.exists():
            return Recipe()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise UsageError(f"There is no recipe '{path}': give the path of a {RECIPE_NAME}.") from e
    except OSError as e:
        raise UsageError(f"Cannot read the recipe '{path}': {e.strerror}.") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: this is no UTF-8 text: save the file as UTF-8.") from e
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path}: this is no TOML: {e}.") from e
    return _recipe(document, path)


Value = Callable[[object, Path], Any]
"""Turns a TOML value into a field's; raises `_WrongTypeError` saying what it expects."""


class _WrongTypeError(Exception):
    """The value has a type that the key does not take; the text says which it takes."""


def _text(value: object, _: Path) -> str:
    if not isinstance(value, str) or not value:
        raise _WrongTypeError("a text in quotes")
    return value


def _path(value: object, folder: Path) -> Path:
    return folder / Path(_text(value, folder)).expanduser()


def _whole(value: object, _: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _WrongTypeError("a whole number")
    return value


def _number(value: object, _: Path) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _WrongTypeError("a number")
    return float(value)


def _flag(value: object, _: Path) -> bool:
    if not isinstance(value, bool):
        raise _WrongTypeError("true or false")
    return value


def _numbers(value: object, folder: Path) -> tuple[float, ...]:
    try:
        values = value if isinstance(value, list) else [value]
        return tuple(_number(v, folder) for v in values)
    except _WrongTypeError as e:
        raise _WrongTypeError("a number, or a list with one for each channel") from e


def _height_width(value: object, folder: Path) -> Size:
    try:
        if isinstance(value, list):
            height, width = (_whole(v, folder) for v in value)
            return height, width
        return _whole(value, folder)
    except (_WrongTypeError, ValueError) as e:
        raise _WrongTypeError("a whole number, or [height, width]") from e


def _columns(value: object, folder: Path) -> tuple[str, ...]:
    try:
        return tuple(_text(v, folder) for v in (value if isinstance(value, list) else [value]))
    except _WrongTypeError as e:
        raise _WrongTypeError("a column's name, or a list of two") from e


_TOP: Mapping[str, Value] = {"model": _path}
_TABLES: Mapping[str, Mapping[str, Value]] = {
    "data": {
        "path": _path,
        "batch": _whole,
        "limit": _whole,
        "shuffle": _flag,
        "seed": _whole,
        "label": _text,
    },
    "data.image": {
        "preset": _text,
        "resize": _height_width,
        "crop": _height_width,
        "pixels": _text,
        "mean": _numbers,
        "std": _numbers,
        "layout": _text,
        "channels": _text,
    },
    "data.text": {"column": _columns, "tokenizer": _path, "max_length": _whole},
    "calibrate": {"method": _text, "percentile": _number, "output": _path, "workers": _whole},
}


def _recipe(document: dict[str, object], path: Path) -> Recipe:
    folder = path.parent
    data_table = _table(document, "data", path)
    image_table = _table(data_table, "data.image", path)
    text_table = _table(data_table, "data.text", path)
    calibrate_table = _table(document, "calibrate", path)
    top = _read(document, _TOP, "", path, ("data", "calibrate"))
    return Recipe(
        model=cast("Path | None", top.get("model")),
        data=replace(
            _build(DataSettings, data_table, "data", path, ("image", "text")),
            image=_build(ImageSettings, image_table, "data.image", path),
            text=_build(TextSettings, text_table, "data.text", path),
        ),
        calibrate=_build(CalibrateSettings, calibrate_table, "calibrate", path),
        folder=folder,
    )


def _table(parent: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    found = parent.get(name.rpartition(".")[2], {})
    if not isinstance(found, dict):
        raise UsageError(f"{path}: '{name}' must be a table: write [{name}] on a line of its own.")
    return found


_Settings = TypeVar("_Settings")


def _build(
    kind: type[_Settings],
    table: Mapping[str, object],
    name: str,
    path: Path,
    inner: Sequence[str] = (),
) -> _Settings:
    values = _read(table, _TABLES[name], name, path, inner)
    try:
        return kind(**values)
    except UsageError as e:
        raise UsageError(f"{path}: [{name}] {e}") from e


def _read(
    table: Mapping[str, object],
    known: Mapping[str, Value],
    name: str,
    path: Path,
    inner: Sequence[str],
) -> dict[str, Any]:
    """Return the table's values as the fields want them. `inner` are tables read elsewhere."""
    where = f"[{name}] " if name else ""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key in inner:
            continue
        if key not in known:
            what = "table" if isinstance(value, dict) else "key"
            names = (*known, *inner)
            raise UsageError(
                f"{path}: {where}unknown {what} '{key}'{closest(key, names)}: "
                f"known here are {', '.join(names)}."
            )
        try:
            found[key] = known[key](value, path.parent)
        except _WrongTypeError as e:
            raise UsageError(f"{path}: {where}{key} = {value!r}: {key} takes {e}.") from e
    return found
