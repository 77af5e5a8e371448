"""`quantkit serve MODEL`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.data_options import PreparationFlags, data_settings
from quantkit.cli.flags import Flags, expanded
from quantkit.errors import UsageError
from quantkit.settings import GateSettings, load_recipe
from quantkit.settings.declare import declared
from quantkit.settings.gate import LIVE_RULES
from quantkit.settings.serve import SERVE_KINDS

__all__ = ["serve"]


class _ServeFlags(Flags):
    """How it is served."""

    kinds = SERVE_KINDS


class _RuleFlags(Flags):
    """What a second model must keep."""

    kinds = (GateSettings,)
    left_out = frozenset(declared(GateSettings)) - set(LIVE_RULES)


@expanded
def serve(
    *,
    model: Annotated[
        Path | None, typer.Argument(help="The model; or in quantkit.toml.", metavar="MODEL")
    ] = None,
    how: _ServeFlags,
    prepared: PreparationFlags,
    rules: _RuleFlags,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The quantkit.toml to read. Default: the one here."),
    ] = None,
) -> None:
    """Answer requests with a model, over HTTP: the Open Inference Protocol, and /predict for images, texts and rows.

    Inputs are prepared as the model was calibrated. Stops on SIGTERM without losing a request; loads a changed file again.
    """
    from quantkit.deploy.serve.main import serve as work

    found = load_recipe(recipe)
    source = model or found.model
    if source is None:
        raise UsageError("Which model? quantkit serve MODEL, or model in quantkit.toml.")
    chosen = replace(
        found,
        serve=how.over(found.serve),
        data=data_settings(found.data, prepared),
        gate=rules.over(found.gate),
    )
    code = work(source, chosen)
    if code:
        raise typer.Exit(code)
