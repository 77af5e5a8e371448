"""Arguments and options that several commands have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.flags import Flags
from quantkit.errors import UsageError

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
