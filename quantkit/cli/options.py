"""Arguments, options and flags that several commands have: the model, the data, how samples become arrays, what is written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from quantkit.cli.console import print_notes
from quantkit.cli.flags import Flags
from quantkit.errors import UsageError
from quantkit.settings import DataSettings, ImageSettings, Recipe, TextSettings, preset_keys

_FLOAT_MODEL = "The float32 model; or in quantkit.toml."
SourceArgument = Annotated[Path | None, typer.Argument(help=_FLOAT_MODEL, metavar="IN")]
ModelArgument = Annotated[Path | None, typer.Argument(help=_FLOAT_MODEL, metavar="MODEL")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="The same as OUT.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Quantize as this plan says, written by --save-plan or quantkit plan -o.",
    ),
]
SavePlanOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the plan: every decision with its reason."),
]


@dataclass(frozen=True, kw_only=True)
class WriteFlags(Flags):
    """How a model is written, and how the result is shown."""

    external_data: Annotated[
        bool, typer.Option("--external-data", help="Write weights to a .data file beside OUT.")
    ] = False
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Load, run and compare before writing.")
    ] = True
    as_json: JsonOption = False


def one_output(argument: Path | None, option: Path | None) -> Path | None:
    """Return where to write, given as OUT or with -o; None if neither is.

    Raises:
        UsageError: Both are, and differ.
    """
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"Where to write: OUT says '{argument}' and -o '{option}'. Give one.")
    return argument or option


class _SampleFlags(Flags):
    """How samples become arrays."""

    def over_recipe(self, recipe: DataSettings) -> DataSettings:
        """Return the recipe's settings with the flags that were given in their place, and print which ones these replace."""
        given, image = self.given, recipe.image
        before = image.resolved() if image.preset is not None else image
        replaced = [*_over(before, given), *_over(recipe.text, given)]
        if replaced:
            print_notes([f"Over quantkit.toml: {', '.join(replaced)}."])
        if "preset" in given:  # what it sets must not be undone by single values for another one
            image = replace(image, **dict.fromkeys(preset_keys(given["preset"])))
        sized = given.keys() & {"resize", "crop", "letterbox"}
        if sized:  # a size that is given leaves out the other way to say one
            others = ("resize", "crop") if "letterbox" in sized else ("letterbox",)
            image = replace(image, **dict.fromkeys(others))
        return self.over(replace(recipe, image=image))


@dataclass(frozen=True, kw_only=True)
class DataFlags(_SampleFlags):
    """Which data, in which order, and how samples become arrays. Not given: as quantkit.toml says."""

    kinds = (DataSettings, ImageSettings, TextSettings)

    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip samples that cannot be read.")
    ] = False


class PreparationFlags(_SampleFlags):
    """How an image or a text that somebody sends becomes arrays. Not given: as the model or quantkit.toml says."""

    kinds = (ImageSettings, TextSettings)
    # Of data, and of the model that was calibrated with it.
    left_out = frozenset({"column", "max_length"})


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


def model_of(given: Path | None, recipe: Recipe, usage: str = "Give its path") -> Path:
    """Return the model that a command is about: what was given, or what quantkit.toml says.

    Raises:
        UsageError: Neither says it.
    """
    model = given or recipe.model
    if model is None:
        raise UsageError(f"Which model? {usage}, or model in quantkit.toml.")
    return model


def data_in(settings: DataSettings, flags: str = "--data DIR") -> Path:
    """Return where the data is.

    Raises:
        UsageError: The settings do not say it.
    """
    if settings.path is None:
        raise UsageError(f"Which data? Add {flags}, or path under [data] in quantkit.toml.")
    return settings.path
