"""Notebooks are executed, cell by cell, as a reader would."""

import json
from pathlib import Path

import pytest

from quantkit.result import Result

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    scope: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(path), "exec"), scope)  # noqa: S102
    assert capsys.readouterr().out
    assert any((tmp_path / "quantkit-demo").glob("*.onnx"))
    shown = [v for v in scope.values() if isinstance(v, Result)]
    assert all(v._repr_html_().count("<tr>") == len(v.models) + 1 for v in shown)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
