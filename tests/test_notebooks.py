"""Notebooks are executed, cell by cell, as a reader would."""

import ast
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from quantkit import ReportFiles
from quantkit.result import Result

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def shown_values(path: Path) -> list[object]:
    """Execute the cells; return the value of the last expression of each, which a notebook shows below it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    scope: dict[str, object] = {"__name__": "__main__"}
    shown = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        parsed = ast.parse("".join(cell["source"]))
        last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
        exec(compile(parsed, str(path), "exec"), scope)  # noqa: S102
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), str(path), "eval"), scope))  # noqa: S307
    return shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
@pytest.mark.slow
def test_notebook_shows_tables_and_pictures(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = shown_values(path)
    assert capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["quantkit-demo"]
    tables = [v for v in shown if isinstance(v, Result)]
    assert tables
    assert all(v._repr_html_().count("<tr>") == len(v.models) + 1 for v in tables)
    reports = [v for v in shown if isinstance(v, ReportFiles)]
    drawn = [v._repr_svg_() for v in reports if not v.html]
    assert drawn
    assert all(svg and ET.fromstring(svg).tag.endswith("svg") for svg in drawn)  # noqa: S314 - our own
    pages = [v._repr_html_() or "" for v in reports if v.html]
    assert len(pages) == (path.stem == "may_it_go_out")
    assert all(page.startswith("<iframe") for page in pages)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
