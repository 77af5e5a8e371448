"""The flags that say which data, how it is prepared, and how ranges are estimated from it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import print_notes
from quantkit.cli.flags import Flags
from quantkit.errors import UsageError
from quantkit.settings import (
    CalibrateSettings,
    DataSettings,
    ImageSettings,
    Recipe,
    TextSettings,
    closest,
    preset_keys,
)

if TYPE_CHECKING:
    from quantkit.calibration import CalibratorOf

__all__ = ["DataFlags", "MethodFlags", "PreparationFlags", "calibrator", "chosen_calibrator"]
__all__ += ["data_settings", "model_of", "read_by"]


class MethodFlags(Flags):
    """How ranges are estimated."""

    kinds = (CalibrateSettings,)
    left_out = frozenset({"output", "workers"})

    @property
    def chosen(self) -> tuple[str | None, float | None]:
        """Method and percentile, as far as they were given."""
        return self.given.get("method"), self.given.get("percentile")


@dataclass(frozen=True, kw_only=True)
class DataFlags(Flags):
    """Which data, in which order, and how samples become arrays. Not given: as quantkit.toml says."""

    kinds = (DataSettings, ImageSettings, TextSettings)

    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip samples that cannot be read.")
    ] = False


class PreparationFlags(Flags):
    """How an image or a text that somebody sends becomes arrays. Not given: as the model or quantkit.toml says."""

    kinds = (ImageSettings, TextSettings)
    left_out = frozenset(
        {"column", "max_length"}
    )  # of data, and of the model that was calibrated with it


def model_of(given: Path | None, recipe: Recipe) -> Path:
    """Return the model that a command is about: what was given, or what quantkit.toml says.

    Raises:
        UsageError: Neither says it.
    """
    model = given or recipe.model
    if model is None:
        raise UsageError("Which model? Give its path, or model in quantkit.toml.")
    return model


def data_settings(recipe: DataSettings, flags: Flags) -> DataSettings:
    """Return the recipe's settings with the flags that were given in their place."""
    given, image = flags.given, recipe.image
    before = image.resolved() if image.preset is not None else image
    told = [*_over(before, given), *_over(recipe.text, given)]
    if told:
        print_notes([f"Over quantkit.toml: {', '.join(told)}."])
    if "preset" in given:  # what it sets must not be undone by single values for another one
        image = replace(image, **dict.fromkeys(preset_keys(given["preset"])))
    sized = given.keys() & {"resize", "crop", "letterbox"}
    if sized:  # a size that is given leaves out the other way to say one
        others = ("resize", "crop") if "letterbox" in sized else ("letterbox",)
        image = replace(image, **dict.fromkeys(others))
    return flags.over(replace(recipe, image=image))


def _over(recipe: ImageSettings | TextSettings, flags: Mapping[str, Any]) -> list[str]:
    """Return in words which of the values given take the place of others in the recipe."""
    given = {key: value for key, value in flags.items() if hasattr(recipe, key)}
    found = dict(given)
    if "preset" in given:
        found = dict.fromkeys(preset_keys(given["preset"])) | found
    before = {key: getattr(recipe, key) for key in found}
    return [
        f"{key} {_plain(value if value is not None else given['preset'])} instead of {_plain(before[key])}"
        for key, value in found.items()
        if before[key] not in (None, (), value)
    ]


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def read_by(settings: DataSettings, *models: Path) -> list[Path | None]:
    """Return what is read to run models on data: their files, the data, and the tokenizer wherever it may be."""
    from quantkit.model.graph.load import model_files

    folders = {path.parent for path in models} | ({settings.path} if settings.path else set())
    return [
        *(file for path in models for file in model_files(path)),
        settings.path,
        settings.text.tokenizer,
        *(folder / "tokenizer.json" for folder in folders),
    ]


def chosen_calibrator(
    flags: MethodFlags, recipe: CalibrateSettings, usual: str | None = None
) -> "CalibratorOf":
    """Return the calibrator that flags and recipe ask for; a flag's method leaves out the recipe's percentile.

    Args:
        flags: What the user gave.
        recipe: What quantkit.toml says.
        usual: A method that goes before the recipe's where no flag names one.
    """
    method, percentile = flags.chosen
    method = method or usual
    if method is None and percentile is None:
        method, percentile = recipe.method, recipe.percentile
    elif method == "percentile" and percentile is None:
        percentile = recipe.percentile
    return calibrator(method, percentile)


def calibrator(name: str | None, percentile: float | None) -> "CalibratorOf":
    """Return a calibrator by its name, or the percentile; "mse" if neither is given.

    Raises:
        UsageError: There is no such calibrator, or its setting makes no sense.
    """
    from calibrators import names
    from quantkit.api.arguments import range_method

    name = name or ("mse" if percentile is None else "percentile")
    known = names()
    if name not in known:
        raise UsageError(
            f"--method '{name}' is unknown{closest(name, known)}: use one of {', '.join(known)}."
        )
    if percentile is not None and name != "percentile":
        raise UsageError(f"--percentile is for --method percentile, not {name}.")
    return range_method(name, percentile)
