"""The flags that say which data, how it is prepared, and how ranges are estimated from it."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.errors import UsageError

if TYPE_CHECKING:
    from quantkit.observe import CalibratorAsk
    from quantkit.settings import CalibrateSettings, DataSettings, ImageSettings

__all__ = ["DataFlags", "MethodFlags", "calibrator", "chosen_calibrator", "data_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFlags:
    """How ranges are estimated."""

    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="mse (default), minmax, percentile, entropy, moving_average, or a plug-in. All but "
            "the last two can be chosen again afterwards.",
        ),
    ] = None
    percentile: Annotated[
        float | None, typer.Option(metavar="P", help="Percentage of the values kept: 99.99.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlags:
    """Which data, in which order, and how samples become arrays. None: as quantkit.toml says."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Directory or file of real samples; or in quantkit.toml."
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Use at most N samples.", min=1)
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="Samples per run of the model (batch size).", min=1),
    ] = None
    shuffle: Annotated[
        bool | None,
        typer.Option("--shuffle/--no-shuffle", help="Draw samples in random order (default)."),
    ] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the shuffle.", min=0)] = (
        None
    )
    label: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Key or column of the labels, or a COCO file. Default: the usual names.",
        ),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory to use at most: 500MB, 1GB. Default: a quarter of what is free, 2GB at most.",
        ),
    ] = None
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip samples that cannot be read.")
    ] = False
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Images",
            help="imagenet, symmetric (-1..1), unit (0..1), raw.",
        ),
    ] = None
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="M", rich_help_panel="Images", help="Subtracted: 127, or 0.485,0.456,0.406."
        ),
    ] = None
    std: Annotated[
        str | None,
        typer.Option(
            metavar="S", rich_help_panel="Images", help="Divided by: 128, or 0.229,0.224,0.225."
        ),
    ] = None
    resize: Annotated[
        str | None,
        typer.Option(
            metavar="N", rich_help_panel="Images", help="Size of the shorter side, or HxW."
        ),
    ] = None
    crop: Annotated[
        str | None,
        typer.Option(
            metavar="N", rich_help_panel="Images", help="Size of the centre crop, N or HxW."
        ),
    ] = None
    letterbox: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            rich_help_panel="Images",
            help="Fit into N or HxW between grey borders, as YOLO does; instead of the two.",
        ),
    ] = None
    pixels: Annotated[
        str | None,
        typer.Option(
            metavar="R", rich_help_panel="Images", help="0-1 or 0-255, before mean and std."
        ),
    ] = None
    layout: Annotated[
        str | None, typer.Option(metavar="L", rich_help_panel="Images", help="NCHW or NHWC.")
    ] = None
    channels: Annotated[
        str | None, typer.Option(metavar="C", rich_help_panel="Images", help="RGB or BGR.")
    ] = None
    exif: Annotated[
        bool | None,
        typer.Option(
            "--exif/--no-exif",
            rich_help_panel="Images",
            help="Turn photographs upright as EXIF says (default).",
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel="Text", help="The tokenizer.json of the model."
        ),
    ] = None
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Text",
            help="The column with the text; give two for pairs.",
        ),
    ] = None
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", rich_help_panel="Text", help="Longer texts are cut to N tokens.", min=1
        ),
    ] = None

    def used(self) -> str:
        """Return the first of these flags that was given, as the user wrote it; "" if none was."""
        given = (f.name for f in fields(self) if getattr(self, f.name) not in (f.default, None, []))
        name = next(given, "")
        return f"--{name.replace('_', '-')}" if name else ""


def data_settings(recipe: "DataSettings", flags: DataFlags) -> "DataSettings":
    """Return the recipe's settings with the flags that were given in their place."""
    from quantkit.settings import parse_memory

    order = {
        "path": flags.data,
        "limit": flags.limit,
        "batch": flags.batch,
        "shuffle": flags.shuffle,
        "seed": flags.seed,
        "label": flags.label,
        "memory": None if flags.memory is None else parse_memory(flags.memory),
    }
    images = {
        "preset": flags.preset,
        "mean": _numbers("--mean", flags.mean),
        "std": _numbers("--std", flags.std),
        "resize": _size("--resize", flags.resize),
        "crop": _size("--crop", flags.crop),
        "letterbox": _size("--letterbox", flags.letterbox),
        "pixels": flags.pixels,
        "layout": flags.layout,
        "channels": flags.channels,
        "exif": flags.exif,
    }
    texts = {
        "tokenizer": flags.tokenizer,
        "column": tuple(flags.column) if flags.column else None,
        "max_length": flags.max_length,
    }
    told = [*_over(_of_preset(recipe.image), _given(images)), *_over(recipe.text, _given(texts))]
    if told:
        from quantkit.cli.result_view import print_warnings

        print_warnings((f"Over quantkit.toml: {', '.join(told)}.",))
    image = recipe.image
    if flags.preset is not None:  # what it sets must not be undone by single values for another one
        from quantkit.settings import preset_keys

        image = replace(image, **dict.fromkeys(preset_keys(flags.preset)))
    sized = [key for key in ("resize", "crop", "letterbox") if images[key] is not None]
    if sized:  # a size that is given leaves out the other way to say one
        others = ("resize", "crop") if "letterbox" in sized else ("letterbox",)
        image = replace(image, **dict.fromkeys(others))
    return replace(
        recipe,
        **_given(order),
        image=replace(image, **_given(images)),
        text=replace(recipe.text, **_given(texts)),
    )


def _of_preset(image: "ImageSettings") -> "ImageSettings":
    """Return the recipe's settings with the values of its preset, if it names one."""
    return image.resolved() if image.preset is not None else image


def _over(recipe: object, given: dict[str, Any]) -> list[str]:
    """Return in words which of the values given take the place of others in the recipe."""
    found = dict(given)
    if "preset" in given:
        from quantkit.settings import preset_keys

        found = dict.fromkeys(preset_keys(given["preset"])) | found
    before = {key: getattr(recipe, key) for key in found}
    return [
        f"{key} {_plain(value if value is not None else given['preset'])} instead of {_plain(before[key])}"
        for key, value in found.items()
        if before[key] not in (None, (), value)
    ]


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def read_by(settings: "DataSettings", *models: Path) -> list[Path | None]:
    """Return what is read to run models on data: their files, the data, and the tokenizer wherever it may be."""
    from quantkit.graph.load import model_files

    folders = {path.parent for path in models} | ({settings.path} if settings.path else set())
    return [
        *(file for path in models for file in model_files(path)),
        settings.path,
        settings.text.tokenizer,
        *(folder / "tokenizer.json" for folder in folders),
    ]


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if value is not None}


def chosen_calibrator(flags: MethodFlags, recipe: "CalibrateSettings") -> "CalibratorAsk":
    """Return the calibrator that flags and recipe ask for; a flag's method leaves out the recipe's percentile."""
    method, percentile = flags.method, flags.percentile
    if method is None and percentile is None:
        method, percentile = recipe.method, recipe.percentile
    elif method == "percentile" and percentile is None:
        percentile = recipe.percentile
    return calibrator(method, percentile)


def calibrator(name: str | None, percentile: float | None) -> "CalibratorAsk":
    """Return a calibrator by its name, or the percentile; "mse" if neither is given.

    Raises:
        UsageError: There is no such calibrator, or its setting makes no sense.
    """
    from calibrators import names
    from quantkit.observe import CalibratorAsk
    from quantkit.settings import closest

    name = name or ("mse" if percentile is None else "percentile")
    known = names()
    if name not in known:
        raise UsageError(
            f"--method '{name}' is unknown{closest(name, known)}: use one of {', '.join(known)}."
        )
    if percentile is not None and name != "percentile":
        raise UsageError(f"--percentile is for --method percentile, not {name}.")
    settings = (("keep", percentile),) if percentile is not None else ()
    ask = CalibratorAsk(name=name, settings=settings)
    try:
        ask.create(1)
    except ValueError as e:
        raise UsageError(str(e)) from e
    return ask


def _numbers(flag: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"{flag} '{text}' is not a number, nor one per channel with commas between."
        ) from None


def _size(flag: str, text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    try:
        sides = [int(part) for part in text.lower().split("x")]
    except ValueError:
        sides = []
    if len(sides) == 1:
        return sides[0]
    if len(sides) == 2:  # noqa: PLR2004 - height and width
        return sides[0], sides[1]
    raise UsageError(f"{flag} '{text}' is not a number of pixels, nor HxW.")
