"""`quantkit serve MODEL`, and `quantkit package MODEL -o DIR`, whose image does the same."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.console import line, marked, print_notes, write_json
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import JsonOption, PreparationFlags, model_of
from quantkit.cli.progress import progress
from quantkit.settings import GateSettings, PackageSettings, load_recipe
from quantkit.settings.declare import declared
from quantkit.settings.gate import LIVE_RULES
from quantkit.settings.serve import SERVE_KINDS
from quantkit.text import human

if TYPE_CHECKING:
    from quantkit.api.results import Packaged


class _PackageFlags(Flags):
    """What is written."""

    kinds = (PackageSettings,)


class _ServeFlags(Flags):
    """How the model is served."""

    kinds = SERVE_KINDS


class _ImageFlags(Flags):
    """How the model is served in a container."""

    kinds = SERVE_KINDS
    left_out = frozenset({"host", "token", "reload"})  # the container's, a secret, a read-only file


class _RuleFlags(Flags):
    """What a second model must keep."""

    kinds = (GateSettings,)
    left_out = frozenset(declared(GateSettings)) - set(LIVE_RULES)


_ModelArgument = Annotated[
    Path | None, typer.Argument(help="The model; or in quantkit.toml.", metavar="MODEL")
]
_RecipeOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The quantkit.toml to read. Default: the one here."),
]


@expanded
def serve(
    *,
    model: _ModelArgument = None,
    how: _ServeFlags,
    prepared: PreparationFlags,
    rules: _RuleFlags,
    recipe: _RecipeOption = None,
) -> None:
    """Answer requests with a model, over HTTP: the Open Inference Protocol, and /predict for images, texts and rows.

    Inputs are prepared as the model was calibrated. Stops on SIGTERM without losing a request; loads a changed file again.
    """
    from quantkit.api.serve import serve_recipe

    found = load_recipe(recipe)
    source = model_of(model, found, "quantkit serve MODEL")
    chosen = replace(
        found,
        serve=how.over(found.serve),
        data=prepared.over_recipe(found.data),
        gate=rules.over(found.gate),
    )
    code = serve_recipe(source, chosen)
    if code:
        raise typer.Exit(code)


@expanded
def package(  # noqa: PLR0913 - one parameter per group of flags
    *,
    model: _ModelArgument = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")
    ],
    what: _PackageFlags,
    how: _ImageFlags,
    prepared: PreparationFlags,
    rules: _RuleFlags,
    recipe: _RecipeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a container build folder for a model: Dockerfile, manifests, settings, lock, SBOM and a smoke test.

    The image serves it as `quantkit serve` does, as an unprivileged user, on a read-only root.
    """
    from quantkit import package_model

    found = load_recipe(recipe)
    source = model_of(model, found, "quantkit package MODEL -o DIR")
    with progress() as show:
        made = package_model(
            source,
            output,
            settings=what.over(found.package),
            serve=how.over(found.serve),
            data=prepared.over_recipe(found.data),
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
