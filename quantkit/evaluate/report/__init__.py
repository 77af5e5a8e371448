"""Views of a result: a page for people, Markdown for a pull request. They read nothing but the result.

A report is written each file whole or not at all, the folder made if need be.
"""

from pathlib import Path

from quantkit.errors import OutputError
from quantkit.evaluate.report.accuracy_size import accuracy_chart
from quantkit.evaluate.report.frontier import frontier_chart
from quantkit.evaluate.report.html import render_html
from quantkit.evaluate.report.markdown import render_markdown
from quantkit.evaluate.report.scatter import chart_svg
from quantkit.files import replace_text
from quantkit.result import Result

__all__ = [
    "graph_name",
    "picture_svg",
    "render_html",
    "render_markdown",
    "write_html",
    "write_markdown",
    "write_pages",
]


def picture_svg(result: Result) -> str:
    """Return the picture for a README: the frontier of a search, else accuracy against size."""
    return chart_svg(frontier_chart(result) or accuracy_chart(result), alone=True)


def write_pages(result: Result, folder: Path) -> tuple[Path, Path]:
    """Write report.html and report.md; return their paths.

    Raises:
        OutputError: They cannot be written.
    """
    return write_html(result, folder), write_markdown(result, folder)


def graph_name(place: int) -> str:
    """Return what the page with the graph of a candidate is called, by its place in the result."""
    return "graph.html" if place == 1 else f"graph-{place}.html"


def write_html(result: Result, folder: Path) -> Path:
    """Write report.html, with links to the pages of graphs that stand beside it; return its path."""
    names = {place: graph_name(place) for place in range(1, len(result.models))}
    there = {place: name for place, name in names.items() if (folder / name).is_file()}
    return _write(folder, "report.html", render_html(result, there))


def write_markdown(result: Result, folder: Path) -> Path:
    """Write report.md; return its path."""
    return _write(folder, "report.md", render_markdown(result))


def _write(folder: Path, name: str, content: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(f"Cannot make the folder '{folder}': {e.strerror or e}.") from e
    replace_text(folder / name, content)
    return folder / name
