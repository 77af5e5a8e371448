"""The folder of an evaluation: its result, the report, and a graph of each candidate beside the float model."""

from collections.abc import Sequence
from pathlib import Path

from quantkit.deploy.view import render_page
from quantkit.errors import OutputError, QuantkitError
from quantkit.evaluate.match import ModelPair, NamedModel
from quantkit.evaluate.report import graph_name, write_pages
from quantkit.files import replace_text
from quantkit.pipeline.view import ViewOptions, view
from quantkit.result import Result, save_result
from quantkit.runtime.session import RUNTIME_ERRORS

_FAILURES: tuple[type[Exception], ...] = (QuantkitError, *RUNTIME_ERRORS)

WRITTEN = ("result.json", "report.html", "report.md")
"""What `write_evaluation` writes into a folder, beside graphs."""


def write_evaluation(
    result: Result, folder: Path, models: Sequence[NamedModel] = ()
) -> tuple[Path, Path, Path]:
    """Write result.json, report.html and report.md; and of each candidate its graph beside float's, which the report links to.

    Args:
        result: What was measured.
        folder: Where to.
        models: The files that were evaluated, float's first; none: no graphs.

    Raises:
        OutputError: They cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(f"Cannot make the folder '{folder}': {e.strerror}.") from e
    # First what took minutes to measure: the pages can be made from it again.
    save_result(result, folder / "result.json")
    for place, model in enumerate(models[1:], 1):
        _write_graph(result, folder / graph_name(place), ModelPair(models[0], model))
    page, text = write_pages(result, folder)
    return folder / "result.json", page, text


def written(models: Sequence[NamedModel]) -> tuple[str, ...]:
    """Return the names of all that `write_evaluation` writes for these models, float's first."""
    return (*WRITTEN, *(graph_name(place) for place in range(1, len(models))))


def _write_graph(result: Result, page: Path, pair: ModelPair) -> None:
    """Draw a candidate beside float. What cannot be drawn has no page, and nothing links to one of another evaluation."""
    try:
        drawn = view(pair.sides, ViewOptions(result=result, foresee=False))
        replace_text(page, render_page(drawn))
    except _FAILURES:
        page.unlink(missing_ok=True)
