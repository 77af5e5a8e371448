"""`quantkit plan`: what it prints, what it writes, how it exits."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import graph, model, node, rng, save, weight

from quantkit.cli.app import run
from quantkit.quantize.plan import read_plan


def call(*arguments: str | Path) -> int:
    return run(["plan", *(str(a) for a in arguments)])


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with m.onnx and x.npy."""
    monkeypatch.chdir(tmp_path)
    nodes = [
        node("Conv", ["x", "w1"], ["m"], "c1"),
        node("Relu", ["m"], ["a"], "r"),
        node("Conv", ["a", "w2"], ["y"], "c2"),
    ]
    held = {"w1": weight(8, 3, 1, 1), "w2": weight(4, 8, 1, 1, seed=2)}
    save(
        model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 8, 8]}, held)), tmp_path / "m.onnx"
    )
    np.save(tmp_path / "x.npy", rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32))
    return tmp_path


def test_shows_what_would_be_done_and_writes_no_model(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("m.onnx", "--data", "x.npy") == 0
    out = capsys.readouterr().out
    for text in ("Execution plan", "static int8", "Conv", "Relu", "weights in 8 bits"):
        assert text in out
    assert "Nodes:" not in out
    assert sorted(p.name for p in work.iterdir()) == ["m.onnx", "x.npy"]


@pytest.mark.usefixtures("work")
def test_nodes_and_tensors_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("m.onnx", "--data", "x.npy", "--nodes", "--exclude", "c2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("c1  Conv  static int8  ") for line in lines)
    assert any(line.startswith("c2  Conv  ") and "excluded" in line for line in lines)
    assert any(line.startswith("x  uint8  0.") and "observed" in line for line in lines)
    assert "w1  int8  one per channel, axis 0" in lines


def test_json_is_the_file(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("m.onnx", "--data", "x.npy", "-o", "p.json", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain == json.loads((work / "p.json").read_text())
    assert read_plan(work / "p.json").node["c1"].mode == "static"


@pytest.mark.usefixtures("work")
def test_difference_between_two_files_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("m.onnx", "--data", "x.npy", "-o", "a.json") == 0
    assert call("m.onnx", "--data", "x.npy", "-o", "b.json", "--range", "x=-1,1") == 0
    Path("m.onnx").unlink()
    capsys.readouterr()
    assert call("a.json", "--diff", "b.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a.json -> b.json"
    assert lines[1].startswith("tensor 'x': scale")
    assert call("a.json", "--diff", "a.json") == 0
    assert "no difference" in capsys.readouterr().out
    assert call("a.json", "--diff", "b.json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["differences"] == lines[1:]


@pytest.mark.usefixtures("work")
def test_difference_between_a_model_and_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("m.onnx", "--data", "x.npy", "-o", "a.json") == 0
    capsys.readouterr()
    assert call("m.onnx", "--data", "x.npy", "--diff", "a.json", "--exclude", "c2") == 0
    out = capsys.readouterr().out
    assert "m.onnx -> a.json" in out
    assert "node 'c2': mode" in out


@pytest.mark.usefixtures("work")
def test_a_file_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("m.onnx", "--data", "x.npy", "-o", "a.json") == 0
    capsys.readouterr()
    assert call("a.json", "--nodes") == 0
    assert "c1  Conv  static" in capsys.readouterr().out


@pytest.mark.usefixtures("work")
def test_the_plan_is_that_of_quantizing() -> None:
    assert call("m.onnx", "--data", "x.npy", "-o", "a.json") == 0
    assert run(["quantize", "static", "m.onnx", "o", "--data", "x.npy", "--save-plan", "b"]) == 0
    assert Path("a.json").read_text() == Path("b").read_text()


def test_the_recipe_is_read(work: Path) -> None:
    (work / "quantkit.toml").write_text(
        'model = "m.onnx"\n[data]\npath = "x.npy"\n[static]\nexclude = ["c2"]\n'
    )
    assert call("-o", "p.json") == 0
    assert read_plan(work / "p.json").node["c2"].mode != "static"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Which model"),
        (("m.onnx",), "Which data"),
        (("m.onnx", "--data", "x.npy", "--calibration", "c"), "remove one"),
        (("m.onnx", "--data", "nowhere"), "nowhere"),
        (("m.onnx", "--data", "x.npy", "--diff", "nope.json"), "nope.json"),
        (("m.onnx", "--data", "x.npy", "-o", "no/p.json"), "does not exist"),
        (("m.onnx", "--data", "x.npy", "-o", "/proc/p.json"), "/proc"),
        (("m.onnx", "--data", "x.npy", "--target", "cpuu"), "did you mean 'cpu'"),
        (("nope.json", "--diff", "nope.json"), "nope.json"),
        (("nope.json", "--data", "x.npy"), "is a plan already"),
    ],
)
def test_bad_input_is_one_line(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    expected: str,
) -> None:
    assert call(*arguments) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1, err
    assert expected in err[0]
    assert sorted(p.name for p in work.iterdir()) == ["m.onnx", "x.npy"]


@pytest.mark.parametrize("command", [["plan"], ["quantize", "static"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys\n"
        "from quantkit.cli.app import run\n"
        f"code = run([*{command}, '--help'])\n"
        "heavy = {'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--calibration" in done.stdout
