"""`quantkit serve MODEL`."""

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.flags import Flags, expanded
from quantkit.errors import UsageError
from quantkit.settings import (
    BatchSettings,
    GateSettings,
    LimitSettings,
    ServeSettings,
    ShadowSettings,
    load_recipe,
)
from quantkit.settings.declare import declared

__all__ = ["serve"]


class _ServeFlags(Flags):
    """How it is served."""

    kinds = (ServeSettings, BatchSettings, LimitSettings, ShadowSettings)


class _RuleFlags(Flags):
    """What a second model must keep."""

    kinds = (GateSettings,)
    left_out = frozenset(declared(GateSettings)) - {"max_flips", "min_sqnr_db", "max_latency_ratio"}


@expanded
def serve(
    *,
    model: Annotated[
        Path | None, typer.Argument(help="The model; or in quantkit.toml.", metavar="MODEL")
    ] = None,
    how: _ServeFlags,
    rules: _RuleFlags,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The quantkit.toml to read. Default: the one here."),
    ] = None,
) -> None:
    """Answer requests with a model, over HTTP: the Open Inference Protocol, and /predict for images, texts and rows.

    Inputs are prepared as the model was calibrated. Stops on SIGTERM without losing a request; loads a changed file again.
    """
    from quantkit.serve.main import over
    from quantkit.serve.main import serve as work

    found = load_recipe(recipe)
    source = model or found.model
    if source is None:
        raise UsageError("Which model? quantkit serve MODEL, or model in quantkit.toml.")
    code = work(source, over(found, {**how.given, **rules.given}))
    if code:
        raise typer.Exit(code)
