"""`tune` and `compress`: the fastest or smallest file of a model that keeps a budget of accuracy, time and size."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.api.arguments import as_path, checked_kinds, sample_settings, settings_from
from quantkit.api.files import files_read
from quantkit.calibration.monitor import Monitor
from quantkit.data.objects import check_data
from quantkit.errors import UsageError
from quantkit.evaluate.accuracy import AccuracyOptions
from quantkit.files import check_folder, check_unasked
from quantkit.pipeline.tune import Tuned, TuneJob
from quantkit.pipeline.tune import tune as work
from quantkit.pipeline.tune.folder import places_in
from quantkit.settings import (
    CompressSettings,
    DataSettings,
    EvaluateSettings,
    Percent,
    Recipe,
    StaticSettings,
    TuneSettings,
)


@checked_kinds
def tune(  # noqa: PLR0913 - one parameter per question
    model: str | Path,
    data: object,
    output: str | Path,
    *,
    max_drop: float | str | None = None,
    max_latency: float | None = None,
    max_size: float | None = None,
    minutes: float = 10.0,
    candidates: int | None = None,
    seed: int = 0,
    metric: str | None = None,
    pairs: bool = False,
    answer: str | None = None,
    static: StaticSettings | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    scheduler: str | None = None,
    again: bool = False,
) -> Tuned:
    """Search for the fastest file of a model that keeps a budget.

    Samples are divided: some calibrate, others choose among the candidates, and the rest judges what was chosen. Without
    labels `max_drop` bounds the decisions that differ from float's, or, where no output decides, the noise as a share
    of the outputs' power (0.01 is 20 dB). Interrupted, the same call goes on where it was.

    Args:
        model: The float32 model, a path.
        data: What `quantkit.calibrate` takes, other than what can be read only once; with labels where there are any.
        output: A folder: model.onnx, plan.json and quantkit.toml of the best, result.json and report.html of the frontier,
            and every candidate.
        max_drop: Largest allowed metric drop: 0.005 in its units, or "0.5%", which is half a point of top-1 (for errors such
            as MSE, 0.5 % of the float value).
        max_latency: How slow, as a multiple of float's time.
        max_size: How large, as a share of float's file.
        minutes: How long to search.
        candidates: Make at most so many files; None: as many as it takes.
        seed: Of the order of samples and of their division.
        metric: As for `evaluate_models`.
        pairs: As for `evaluate_models`.
        answer: Which output to score; None: the first that fits.
        static: What holds for every candidate: target, types, rules for nodes and tensors.
        settings: How samples are prepared and ordered.
        limit: Use so many samples in all; overrides the settings.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        scheduler: Address of a dask scheduler whose workers make candidates; time is measured here.
        again: Start anew where another search stands in the folder.

    Returns:
        The candidates, the chosen one, whether the budget is met, and what limits it.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    return _searched(TuneSettings, locals())


@checked_kinds
def compress(  # noqa: PLR0913 - one parameter per question
    model: str | Path,
    data: object,
    output: str | Path,
    *,
    max_drop: float | str | None = None,
    max_latency: float | None = None,
    max_size: float | None = None,
    goal: str = "speed",
    minutes: float = 30.0,
    candidates: int | None = None,
    seed: int = 0,
    metric: str | None = None,
    pairs: bool = False,
    answer: str | None = None,
    static: StaticSettings | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    again: bool = False,
) -> Tuned:
    """Search over all forms and their combinations for the fastest or smallest file that keeps a budget.

    It begins as `tune` does, and goes on with fewer bits, and with steps that make the model itself smaller before it is
    quantized. Samples, losses and files are those of `tune`; recipe.json says how each file was made.

    Args:
        model: The float32 model, a path.
        data: As for `tune`.
        output: As for `tune`.
        max_drop: As for `tune`.
        max_latency: As for `tune`.
        max_size: As for `tune`.
        goal: What counts within the budget: "speed" or "size".
        minutes: How long to search.
        candidates: As for `tune`.
        seed: As for `tune`.
        metric: As for `tune`.
        pairs: As for `tune`.
        answer: As for `tune`.
        static: As for `tune`.
        settings: As for `tune`.
        limit: As for `tune`.
        memory: As for `tune`.
        skip_bad: As for `tune`.
        again: As for `tune`.

    Returns:
        The candidates, the chosen one, whether the budget is met, and what limits it.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    return _searched(CompressSettings, locals())


def _searched(kind: type[TuneSettings], given: Mapping[str, Any]) -> Tuned:
    """Search as the arguments of a call say, by their names."""
    data, model = given["data"], given["model"]
    if not isinstance(data, str | Path):
        check_data(data)
    recipe = Recipe(
        data=sample_settings(given["settings"], limit=given["limit"], memory=given["memory"]),
        static=given["static"] or StaticSettings(),
        evaluate=settings_from(EvaluateSettings, given, output=None),
    )
    name = "compress" if kind is CompressSettings else "tune"
    return tune_recipe(
        as_path(model, "model"),
        recipe,
        as_path(given["output"], "output"),
        settings_from(kind, given, max_drop=_drop(given["max_drop"]), output=None),
        data=data,
        skip_bad=given["skip_bad"],
        scheduler=given.get("scheduler"),
        again=given["again"],
        command=f"quantkit.{name}({str(model)!r}, ...)",
    )


def tune_recipe(  # noqa: PLR0913 - one parameter per question
    model: Path,
    recipe: Recipe,
    output: Path,
    budget: TuneSettings,
    *,
    data: object = None,
    typed: bool = True,
    skip_bad: bool = False,
    scheduler: str | None = None,
    again: bool = False,
    command: str = "",
    monitor: Monitor | None = None,
) -> Tuned:
    """Search as a recipe says.

    Args:
        model: The float32 model.
        recipe: `data` says which samples, `static` what holds for every candidate, `evaluate` how candidates are measured.
        output: The folder of the search.
        budget: What must be kept; its class says whether to tune or to compress.
        data: Samples instead of those of the recipe.
        typed: The user typed that folder. Others are only written into where quantkit wrote what is there.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        scheduler: Address of a dask scheduler whose workers make candidates.
        again: Start anew where another search stands in the folder.
        command: How to do it again.
        monitor: Told what is done; None: nobody.
    """
    if not typed:  # TuneFolder knows its own files
        check_unasked(places_in(output), recipe.folder, lambda _: True)
    check_folder(output, (), [*files_read(recipe.data, model), recipe.file])
    wanted = recipe.evaluate
    job = TuneJob(
        source=model,
        data=recipe.data.path if data is None else data,
        output=output,
        budget=budget,
        samples=recipe.data,
        static=recipe.static,
        accuracy=AccuracyOptions(
            metric=wanted.metric, pairs=wanted.pairs, answer=wanted.answer, skip_bad=skip_bad
        ),
        scheduler=scheduler,
        again=again,
        command=command,
        recipe=recipe.text,
    )
    return work(job, monitor)


def _drop(given: float | str | None) -> float | None:
    """Return a limit of a drop: a number, or a text such as "0.5%"."""
    if not isinstance(given, str):
        return given
    try:
        return (
            Percent(float(given.strip().removesuffix("%")) / 100) if "%" in given else float(given)
        )
    except ValueError:
        raise UsageError(f"max_drop {given!r} is not a number: write 0.005, or '0.5%'.") from None
