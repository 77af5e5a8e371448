"""`diff_models` and `diff_results`: what changed since the float model, or since the last release."""

from collections.abc import Callable
from pathlib import Path

from quantkit.api.arguments import as_path, checked_kinds, read_result, sample_settings
from quantkit.data import Description
from quantkit.errors import UsageError
from quantkit.evaluate.diff import (
    ModelDiff,
    ResultDiff,
    compare_models,
    compare_results,
    kind_of,
    located,
    read_samples,
)
from quantkit.result import Result
from quantkit.settings import DataSettings

__all__ = ["diff_models", "diff_results", "kind_of", "located"]


@checked_kinds
def diff_models(  # noqa: PLR0913 - one parameter per question
    a: str | Path,
    b: str | Path,
    data: object = None,
    *,
    settings: DataSettings | None = None,
    limit: int | None = None,
    batch: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    described: Callable[[Description], None] = lambda _: None,
) -> ModelDiff:
    """Compare two models: nodes, types, weights, scales, sizes, and what running both shows.

        found = diff_models("model.onnx", "model.int8.onnx", "images/", limit=4)
        print(found.same, found.nbytes, found.nodes.changed)

    Args:
        a: The first: the float model, or the one of the last release.
        b: The second.
        data: What `calibrate` takes, to run both on; None: one input is made up.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings. 8 runs if neither says it.
        batch: Samples per run; overrides the settings.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        progress: Called with what is being done.
        described: Called with what the data was taken for, before it is run.

    Returns:
        The differences, part by part; `same` where there is none.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do: a model that cannot be read, data that does
            not fit.
    """
    first, second = as_path(a, "a"), as_path(b, "b")
    chosen = sample_settings(settings, limit=limit, batch=batch, memory=memory)
    if data is None and chosen != DataSettings():
        raise UsageError("Settings of samples say how data is read: give the data as well.")
    samples = (
        [] if data is None else read_samples(first, data, chosen, described, skip_bad=skip_bad)
    )
    return compare_models(first, second, samples=samples, progress=progress)


def diff_results(a: Result | str | Path, b: Result | str | Path) -> ResultDiff:
    """Compare two evaluations; candidates are matched by name, the float models with each other.

        found = diff_results("last/result.json", "report/result.json")
        for name, figure in found.worse:
            print(name, figure.figure, figure.a, "->", figure.b)

    Args:
        a: The first, of the last release: what `evaluate_models` returned, its result.json, or the folder of that.
        b: The second.

    Returns:
        Every figure of both with what became of it, rules, layers and warnings that changed, and why figures may not
        compare.

    Raises:
        QuantkitError: One of the two cannot be read.
    """
    return compare_results(read_result(a)[0], read_result(b)[0])
