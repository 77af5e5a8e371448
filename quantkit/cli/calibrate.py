"""`quantkit calibrate [MODEL] --data dir/`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.calibration_view import present, watching
from quantkit.cli.console import JsonOption
from quantkit.errors import InterruptedRunError, UsageError

if TYPE_CHECKING:
    from quantkit.observe import Calibration
    from quantkit.recipe import DataSettings, Recipe

__all__ = ["calibrate"]


def calibrate(  # noqa: PLR0913 - one parameter a flag
    model: Annotated[
        Path | None, typer.Argument(help="The float32 model; or in quantkit.toml.", metavar="MODEL")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Directory or file of real samples; or in quantkit.toml."
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Result. Default: <model>.calibration here."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="mse (default), minmax, percentile, entropy, moving_average, or a plug-in. All but "
            "the last two can be chosen again afterwards."
        ),
    ] = None,
    percentile: Annotated[
        float | None, typer.Option(metavar="P", help="Per cent of the values kept: 99.99.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Use N samples.", min=1)] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Samples a run.", min=1)] = None,
    shuffle: Annotated[
        bool | None, typer.Option("--shuffle/--no-shuffle", help="Mix the order (default).")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the shuffle.", min=0)] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Images", help="imagenet, symmetric (-1..1), unit (0..1), raw."
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(metavar="M", rich_help_panel="Images", help="127, or 0.485,0.456,0.406."),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(metavar="S", rich_help_panel="Images", help="128, or 0.229,0.224,0.225."),
    ] = None,
    resize: Annotated[
        str | None,
        typer.Option(metavar="N", rich_help_panel="Images", help="Shorter side, or HxW."),
    ] = None,
    crop: Annotated[
        str | None, typer.Option(metavar="N", rich_help_panel="Images", help="Centre, N or HxW.")
    ] = None,
    pixels: Annotated[
        str | None,
        typer.Option(
            metavar="R", rich_help_panel="Images", help="0-1 or 0-255, before mean and std."
        ),
    ] = None,
    layout: Annotated[
        str | None, typer.Option(rich_help_panel="Images", help="NCHW or NHWC.")
    ] = None,
    channels: Annotated[
        str | None, typer.Option(rich_help_panel="Images", help="RGB or BGR.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel="Text", help="A tokenizer.json.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", rich_help_panel="Text", help="The column; two for pairs."),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", rich_help_panel="Text", help="Tokens at most.", min=1)
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out samples that cannot be read.")
    ] = False,
    minmax_only: Annotated[
        bool,
        typer.Option(
            "--minmax-only", help="Only minima and maxima, inside the graph: fastest, least memory."
        ),
    ] = False,
    every_value: Annotated[
        bool,
        typer.Option(
            "--every-value",
            help="Count every value, not about a million evenly spaced ones a tensor.",
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Workers",
            metavar="N",
            help="A local dask cluster of N processes.",
            min=1,
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Workers",
            metavar="ADDRESS",
            help="A dask scheduler: tcp://host:8786.",
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            rich_help_panel="Workers",
            metavar="N",
            help="For one operator; for very large models.",
            min=1,
        ),
    ] = 1,
    show: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print a calibration and exit.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write onnxruntime's JSON calibration table."),
    ] = None,
    all_tensors: Annotated[bool, typer.Option("--all", help="List every tensor.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Learn activation ranges from a directory of real data.

    Interrupted? The same command continues where it stopped. Formats: see the README.
    """
    if show is not None:
        found = _shown(show, method, percentile)
        present(found, show, export=export, all_tensors=all_tensors, as_json=as_json)
        return
    from quantkit.calibration import CalibrateOptions, calibrate_model
    from quantkit.recipe import load_recipe

    recipe = load_recipe()
    source = model or recipe.model
    if source is None:
        raise UsageError(
            "Which model? quantkit calibrate MODEL --data DIR, or model in quantkit.toml."
        )
    images = {
        "preset": preset,
        "mean": _numbers("--mean", mean),
        "std": _numbers("--std", std),
        "resize": _size("--resize", resize),
        "crop": _size("--crop", crop),
        "pixels": pixels,
        "layout": layout,
        "channels": channels,
    }
    texts = {
        "tokenizer": tokenizer,
        "column": tuple(column) if column else None,
        "max_length": max_length,
    }
    order = {"path": data, "limit": limit, "batch": batch, "shuffle": shuffle, "seed": seed}
    settings = _settings(recipe, order, images, texts)
    if settings.path is None:
        raise UsageError("Which data? Add --data DIR, or path under [data] in quantkit.toml.")
    workers = workers or recipe.calibrate.workers
    target = target or recipe.calibrate.output or Path(f"{source.stem}.calibration")
    chosen = _chosen(method or ("minmax" if minmax_only else None), percentile, recipe)
    if minmax_only and chosen.name != "minmax":
        raise UsageError(f"--minmax-only takes what --method minmax needs, not {chosen.name}.")
    options = CalibrateOptions(
        method=chosen,
        minmax_only=minmax_only,
        every_value=every_value,
        skip_bad=skip_bad,
        workers=workers,
        processes=workers is not None,
        scheduler=scheduler,
        threads=threads,
    )
    try:
        with watching(quiet=as_json) as monitor:
            found = calibrate_model(source, settings.path, target, options, settings, monitor)
    except KeyboardInterrupt as e:
        raise InterruptedRunError(str(e)) from None
    said = found.header["data"]["warnings"]
    present(found, target, export=export, all_tensors=all_tensors, as_json=as_json, said=said)


def _settings(
    recipe: "Recipe", order: dict[str, Any], images: dict[str, Any], texts: dict[str, Any]
) -> "DataSettings":
    """Return the recipe's settings with the flags that were given in their place."""

    def given(flags: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in flags.items() if value is not None}

    data = recipe.data
    return replace(
        data,
        **given(order),
        image=replace(data.image, **given(images)),
        text=replace(data.text, **given(texts)),
    )


def _chosen(method: str | None, percentile: float | None, recipe: "Recipe") -> Any:
    """Return the calibrator that flags and recipe ask for; a flag's method leaves out the recipe's percentile."""
    if method is None and percentile is None:
        method, percentile = recipe.calibrate.method, recipe.calibrate.percentile
    elif method == "percentile" and percentile is None:
        percentile = recipe.calibrate.percentile
    return _calibrator(method, percentile)


def _calibrator(name: str | None, percentile: float | None) -> Any:
    from calibrators import names
    from quantkit.observe import CalibratorAsk
    from quantkit.recipe import closest

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
            f"{flag} '{text}' is not a number, nor one a channel with commas between."
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


def _shown(path: Path, method: str | None, percentile: float | None) -> "Calibration":
    from quantkit.observe import Calibration

    found = Calibration.load(path)
    if method is None and percentile is None:
        return found
    return found.by(_calibrator(method, percentile))
