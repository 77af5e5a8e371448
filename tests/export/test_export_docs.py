"""The commands of docs/export.md, as they stand there."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from serve_cases import serving

from quantkit.cli.app import run
from quantkit.result import load_result
from quantkit.runtime.session import make_session

pytest.importorskip("torch", reason="torch is not installed: the examples are not run")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: the examples are not run")

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "export.md").read_text()
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


SAMPLES = {"mlp": "rows.npz", "cnn": "images.npz", "encoder": "texts.npz"}


def assert_answers(path: Path) -> None:
    """Serve a model, and hold its answer to a sample against what the file gives without a server."""
    with np.load(path.parent / SAMPLES[path.name.partition(".")[0]]) as file:
        feeds = {name: file[name][:1] for name in file.files if name != "labels"}
    (expected,) = make_session(str(path)).run(None, feeds)
    kinds = {"f": "FP32", "i": "INT64"}
    tensors = [
        {"name": n, "shape": a.shape, "datatype": kinds[a.dtype.kind], "data": a.ravel().tolist()}
        for n, a in feeds.items()
    ]
    with serving(path) as server:
        status, said = server.json(
            "POST",
            f"/v2/models/{server.name}/infer",
            body=json.dumps({"inputs": tensors}).encode(),
            headers={"Content-Type": "application/json"},
        )
    assert status == 200, said
    np.testing.assert_allclose(said["outputs"][0]["data"], expected.ravel(), atol=1e-5)


def test_the_page_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copy(DOCS / "examples" / "models.py", tmp_path)
    for words in COMMANDS:
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True)
            continue
        assert words[0] == "quantkit"
        if words[1] == "serve":
            assert_answers(tmp_path / words[2])
            continue
        assert run(words[1:]) == 0, (words, capsys.readouterr().err)
    shown = capsys.readouterr().out
    assert "exported from models.py:encoder (torch" in shown  # of the int8 file too
    for name in ("mlp", "cnn", "encoder"):
        result = load_result(tmp_path / f"{name}-report" / "result.json")
        assert result.float_model.metric is not None
        assert result.float_model.metric.value > 0.99
        assert result.candidates[0].size.ratio < 1
    code = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    for block in code:
        exec(compile(block, "docs/export.md", "exec"), {})  # noqa: S102 - the page's own
    assert "Difference(output='output'" in capsys.readouterr().out
