"""The flags of static quantization, and the settings that they and quantkit.toml give."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.flags import Switches
from quantkit.errors import UsageError
from quantkit.settings import RecoverSettings

if TYPE_CHECKING:
    from quantkit.settings import StaticSettings, TensorRule

__all__ = ["StaticFlags", "static_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFlags:
    """What is decided about nodes and tensors. None: as quantkit.toml says, else as the target runs it best."""

    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What quantkit calibrate wrote, instead of --data."),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What will run it: see quantkit targets. Default: the plan's, or cpu (any CPU).",
        ),
    ] = None
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            rich_help_panel="Integers",
            help="qdq (default), which every runtime reads, or qoperator: QLinear operators.",
        ),
    ] = None
    activation_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE", rich_help_panel="Integers", help="uint8, int8, uint16 or int16."
        ),
    ] = None
    weight_type: Annotated[
        str | None,
        typer.Option(metavar="TYPE", rich_help_panel="Integers", help="int8 or uint8."),
    ] = None
    per_tensor: Annotated[
        bool | None,
        typer.Option(
            "--per-tensor/--per-channel",
            rich_help_panel="Integers",
            help="One scale per tensor, or one per output channel (default).",
        ),
    ] = None
    symmetric_activations: Annotated[
        bool | None,
        typer.Option(
            "--symmetric-activations/--asymmetric-activations",
            rich_help_panel="Integers",
            help="Zero points of activations in the middle of the type, or where they fit best.",
        ),
    ] = None
    op_types: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPES",
            rich_help_panel="Selection",
            help="Only these operator types: Conv,Gemm,... May be repeated.",
        ),
    ] = None
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE",
            rich_help_panel="Selection",
            help="Only this node (name or pattern). May be repeated.",
        ),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE",
            rich_help_panel="Selection",
            help="Never this node (name or pattern). May be repeated.",
        ),
    ] = None
    float_tensor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENSOR",
            rich_help_panel="Selection",
            help="Leave this activation in float (name or pattern). May be repeated.",
        ),
    ] = None
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="TENSOR=LOW,HIGH",
            rich_help_panel="Selection",
            help="Use this range for an activation, not the observed one. May be repeated.",
        ),
    ] = None
    recover: Annotated[dict[str, bool], Switches(of=RecoverSettings, panel="Accuracy")] = field(
        default_factory=dict
    )


def static_settings(recipe: "StaticSettings", flags: StaticFlags) -> "StaticSettings":
    """Return the recipe's settings with the flags that were given in their place; rules are added to its own."""
    given: dict[str, Any] = {
        "target": flags.target,
        "format": None if flags.output_format is None else _format(flags.output_format),
        "activation_type": flags.activation_type,
        "weight_type": flags.weight_type,
        "per_channel": None if flags.per_tensor is None else not flags.per_tensor,
        "symmetric_activations": flags.symmetric_activations,
        "include": tuple(flags.include or ()) or None,
        "exclude": tuple(flags.exclude or ()) or None,
        "op_types": tuple(t for group in flags.op_types or () for t in group.split(",")) or None,
    }
    return replace(
        recipe,
        **{key: value for key, value in given.items() if value is not None},
        tensors=(*recipe.tensors, *_rules(flags)),
        recover=replace(recipe.recover, **flags.recover),
    )


def _format(name: str) -> str:
    if name.lower() not in {"qdq", "qoperator"}:
        raise UsageError(f"--format '{name}' is unknown: use qdq or qoperator.")
    return name.lower()


def _rules(flags: StaticFlags) -> list["TensorRule"]:
    from quantkit.settings import TensorRule

    floats = flags.float_tensor or []
    rules = [TensorRule(tensor=tensor, keep_float=True) for tensor in floats]
    for text in flags.ranges or ():
        tensor, low, high = _range(text)
        if tensor in floats:
            raise UsageError(f"'{tensor}' is given to both --float-tensor and --range: remove one.")
        rules.append(TensorRule(tensor=tensor, range=(low, high)))
    return rules


def _range(text: str) -> tuple[str, float, float]:
    tensor, _, ends = text.rpartition("=")
    try:
        low, high = (float(end) for end in ends.split(","))
    except ValueError:
        tensor = ""
    if not tensor:
        raise UsageError(f"--range '{text}' is not TENSOR=LOW,HIGH, such as logits=-4,12.5.")
    return tensor, low, high
