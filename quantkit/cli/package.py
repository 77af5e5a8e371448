"""`quantkit package MODEL -o DIR`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import line, marked, print_notes, write_json
from quantkit.cli.data_options import PreparationFlags, data_settings
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import JsonOption
from quantkit.cli.progress import progress
from quantkit.errors import UsageError
from quantkit.numbers import human
from quantkit.settings import (
    BatchSettings,
    GateSettings,
    LimitSettings,
    PackageSettings,
    ServeSettings,
    ShadowSettings,
    load_recipe,
)
from quantkit.settings.declare import declared
from quantkit.settings.gate import LIVE_RULES

if TYPE_CHECKING:
    from quantkit.pipeline.package import Packaged

__all__ = ["package"]


class _PackageFlags(Flags):
    """What is written."""

    kinds = (PackageSettings,)


class _ServeFlags(Flags):
    """How the model is served there."""

    kinds = (ServeSettings, BatchSettings, LimitSettings, ShadowSettings)
    left_out = frozenset({"host", "token", "reload"})  # the container's, a secret, a read-only file


class _RuleFlags(Flags):
    """What a second model must keep."""

    kinds = (GateSettings,)
    left_out = frozenset(declared(GateSettings)) - set(LIVE_RULES)


@expanded
def package(  # noqa: PLR0913 - one parameter per group of flags
    *,
    model: Annotated[
        Path | None, typer.Argument(help="The model; or in quantkit.toml.", metavar="MODEL")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")
    ],
    what: _PackageFlags,
    how: _ServeFlags,
    prepared: PreparationFlags,
    rules: _RuleFlags,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The quantkit.toml to read. Default: the one here."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a container build folder for a model: Dockerfile, manifests, settings, lock, SBOM and a smoke test.

    The image serves it as `quantkit serve` does, as an unprivileged user, on a read-only root.
    """
    from quantkit import package_model

    found = load_recipe(recipe)
    source = model or found.model
    if source is None:
        raise UsageError("Which model? quantkit package MODEL -o DIR, or model in quantkit.toml.")
    with progress() as show:
        made = package_model(
            source,
            output,
            settings=what.over(found.package),
            serve=how.over(found.serve),
            data=data_settings(found.data, prepared),
            rules=rules.over(found.gate),
            progress=show,
        )
    if as_json:
        write_json(made.to_json())
    else:
        _print(made)


def _print(made: "Packaged") -> None:
    size = human(sum(int(about["bytes"]) for about in made.files.values()))
    hashes = "with hashes" if made.hashed else "without hashes"
    packages = f", {len(made.packages)} packages {hashes}" if made.packages else ""
    marked(f"[bold]{made.image}[/]  {made.form}: {len(made.files) + 1} files, {size}{packages}")
    line(f"written to {made.folder}; there:")
    for command in made.commands:
        for part in command.splitlines():
            line(f"  {part}")
    print_notes(made.notes)
