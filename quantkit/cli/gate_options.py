"""Flags that name the rules of a release, for all commands that judge."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from quantkit.settings import GateSettings

__all__ = ["GateFlags", "gate_settings", "part"]

_PANEL = "Gate"


def part(value: str | float) -> float:
    """Read a number: ``0.005``, or ``0.5%``."""
    text = str(value).strip()
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError as e:
        raise typer.BadParameter(f"'{value}' is no number: write 0.005, or 0.5%") from e


def _drop(value: str | float) -> float:
    """Read a limit of a drop, which keeps in mind that it was written in per cent."""
    from quantkit.settings import Percent

    found = part(value)
    return (
        Percent(found) if isinstance(value, Percent) or str(value).strip().endswith("%") else found
    )


@dataclass(frozen=True, kw_only=True)
class GateFlags:
    """The rules, each None unless given."""

    max_drop: Annotated[
        float | None,
        typer.Option(
            parser=_drop,
            metavar="X",
            rich_help_panel=_PANEL,
            help="How much worse the metric may be: 0.01 in its units; 1% is one point, of mse and the like 1% of float's.",
        ),
    ] = None
    min_size_reduction: Annotated[
        float | None,
        typer.Option(
            parser=part,
            metavar="X",
            rich_help_panel=_PANEL,
            help="How much smaller the file must be: 70%.",
        ),
    ] = None
    max_latency_ratio: Annotated[
        float | None,
        typer.Option(
            parser=part,
            metavar="X",
            rich_help_panel=_PANEL,
            help="How slow, as a multiple of float: 0.8.",
        ),
    ] = None
    min_int8_share: Annotated[
        float | None,
        typer.Option(
            parser=part,
            metavar="X",
            rich_help_panel=_PANEL,
            help="Share of layers (Conv, Gemm, MatMul, ...) in integers: 90%.",
        ),
    ] = None
    max_flips: Annotated[
        float | None,
        typer.Option(
            parser=part,
            metavar="X",
            rich_help_panel=_PANEL,
            help="Decisions that may differ from float's: 1%.",
        ),
    ] = None
    min_sqnr_db: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            rich_help_panel=_PANEL,
            help="Signal to noise of the worst output, in dB: 20.",
        ),
    ] = None
    estimate: Annotated[
        bool | None,
        typer.Option(
            "--estimate",
            rich_help_panel=_PANEL,
            help="Judge the estimate, not the worst end of its 95% interval.",
        ),
    ] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OBJECTION",
            rich_help_panel=_PANEL,
            help="Let an evaluation count despite an objection: preprocessing, calibrated, ... May be repeated.",
        ),
    ] = None


def gate_settings(settings: "GateSettings", flags: GateFlags) -> "GateSettings":
    """Return the settings with what flags say over them.

    Raises:
        UsageError: A flag's value is out of range.
    """
    given = {key: v for key, v in asdict(flags).items() if v is not None}
    if flags.allow:
        given["allow"] = (*settings.allow, *flags.allow)
    if flags.estimate:
        settings = replace(settings, confidence=None)
    return replace(settings, **given)
