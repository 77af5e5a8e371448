"""`quantkit diff`: what it prints and how it exits."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, rng, save, weight
from result_cases import candidate, example_result

from quantkit.cli.app import run
from quantkit.result import save_result


def call(*arguments: str | Path) -> int:
    return run(["diff", *(str(a) for a in arguments)])


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two models, data, two results and two plans."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    save(matmul_model(), tmp_path / "a.onnx")
    assert run(["quantize", "dynamic", "a.onnx", "b.onnx"]) == 0
    np.save(tmp_path / "x.npy", rng(0).standard_normal((20, 128)).astype(np.float32))
    before = example_result()
    save_result(before, tmp_path / "old.json")
    worse = candidate(drop=0.05)
    after = replace(before, models=(before.models[0], worse, before.models[2]))
    (tmp_path / "new").mkdir()
    save_result(after, tmp_path / "new" / "result.json")
    return tmp_path


@pytest.mark.usefixtures("work")
def test_two_models(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call("a.onnx", "b.onnx") == 0
    out = capsys.readouterr().out
    for text in (
        "made-up input",
        "output y",
        "1 MatMul -> MatMulInteger",
        "1 float32 -> uint8",
        "size: weights of MatMul -",
        "everything: --all",
    ):
        assert text in out
    assert len(out.splitlines()) <= 16
    assert call("a.onnx", "b.onnx", "--all") == 0
    out = capsys.readouterr().out
    for text in ("Size breakdown", "Error of each tensor", "Weights that differ", "total"):
        assert text in out


@pytest.mark.usefixtures("work")
def test_exit_codes() -> None:
    assert call("a.onnx", "b.onnx", "--exit-code") == 1
    assert call("a.onnx", "a.onnx", "--exit-code") == 0
    assert call("old.json", "old.json", "--exit-code") == 0
    assert call("old.json", "new", "--exit-code") == 1
    assert call("old.json", "new") == 0


@pytest.mark.usefixtures("work")
def test_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call("a.onnx", "a.onnx") == 0
    assert "the same" in capsys.readouterr().out
    assert call("old.json", "old.json") == 0
    assert "the same" in capsys.readouterr().out


@pytest.mark.usefixtures("work")
def test_data_is_described_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("a.onnx", "b.onnx", "--data", "x.npy") == 0
    out = capsys.readouterr().out
    assert "x.npy" in out
    assert "run on 8 samples" in out
    assert call("a.onnx", "b.onnx", "--data", "x.npy", "--limit", "3", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["errors"]["samples"] == 3
    assert plain["errors"]["made_up"] is False


def test_renamed_single_candidates_are_compared(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = example_result()
    for file, name, drop in (("a", "v1", 0.003), ("b", "v2", 0.05)):
        one = replace(candidate(name, drop=drop))
        save_result(
            replace(result, models=(result.models[0], one), verdicts=()), work / f"{file}.json"
        )
    assert call("a.json", "b.json") == 0
    assert "v1 -> v2" in capsys.readouterr().out
    assert call("a.json", "b.json", "--fail-if-worse") == 1
    assert call("b.json", "a.json", "--fail-if-worse") == 0
    assert call("a.json", "a.json", "--fail-if-worse") == 0


def test_nothing_in_common_is_an_error(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = example_result()
    both = tuple(replace(m, name=f"new {m.name}") for m in result.candidates)
    others = replace(result, models=(result.models[0], *both), verdicts=())
    save_result(others, work / "b.json")
    capsys.readouterr()
    assert call("old.json", "b.json") == 2
    said = capsys.readouterr()
    assert not said.out
    assert "Nothing was compared: 'old.json' has static, ort default and 'b.json' has" in said.err
    assert call("a.onnx", "b.onnx", "--fail-if-worse") == 2


@pytest.mark.usefixtures("work")
def test_two_results(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call("old.json", "new") == 0
    out = capsys.readouterr().out
    assert "worse: static, drop of top-1 0.30% -> 5.00%" in out
    assert "float: the same" in out
    assert call("old.json", "new", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "results"


def test_two_plans(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], "c1")]
    proto = graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": None}, {"w": weight(8, 3, 1, 1)})
    save(model(proto), work / "c.onnx")
    np.save(work / "i.npy", rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32))
    assert run(["plan", "c.onnx", "--data", "i.npy", "-o", "p.json"]) == 0
    assert run(["plan", "c.onnx", "--data", "i.npy", "-o", "q.json", "--range", "x=-1,1"]) == 0
    capsys.readouterr()
    assert call("p.json", "q.json", "--exit-code") == 1
    assert "tensor 'x': scale" in capsys.readouterr().out
    assert call("p.json", "p.json", "--exit-code") == 0
    assert "the same" in capsys.readouterr().out
    assert call("p.json", "q.json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "plans"


def many(count: int, op: str) -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", f"w{i}"], [f"m{i}"], f"n{i}") for i in range(count)]
    nodes.append(node(op, [f"m{i}" for i in range(count)], ["y"], "last"))
    held = {f"w{i}": weight(8, 8, seed=i + (op == "Max")) for i in range(count)}
    return model(graph(nodes, {"x": [1, 8]}, {"y": None}, held))


def test_short_unless_all_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    a, b = (save(many(30, op), tmp_path / f"{op}.onnx") for op in ("Sum", "Max"))
    assert call(a, b) == 0
    out = capsys.readouterr().out
    assert "everything: --all" in out
    assert len(out.splitlines()) <= 14
    assert call(a, b, "--all") == 0
    full = capsys.readouterr().out
    assert "--all" not in full
    assert len(full.splitlines()) > 60


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nope.onnx", "a.onnx"), "There is no file 'nope.onnx'"),
        (("a.onnx", "old.json"), "is a model and 'old.json' a result"),
        (("a.onnx", "other.json"), "neither a model nor a result nor a plan"),
        (("old.json", "broken.json"), "is not JSON"),
        (("old.json", "newer.json"), "schema"),
        (("a.onnx", "x.npy"), "x.npy"),
        (("a.onnx", "empty"), "without result.json"),
        (("old.json", "new", "--data", "x.npy"), "--data is for two models"),
        (("a.onnx", "b.onnx", "--limit", "3"), "--limit needs --data"),
        (("a.onnx", "b.onnx", "--data", "nowhere"), "nowhere"),
        (("a.onnx",), "B"),
    ],
)
def test_bad_input_is_one_line(
    work: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    (work / "other.json").write_text('{"a": 1}')
    (work / "broken.json").write_text('{"schema": ')
    (work / "newer.json").write_text('{"schema": "quantkit.result/99"}')
    (work / "empty").mkdir()
    capsys.readouterr()
    assert call(*arguments) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1, err
    assert expected in err[0]


def test_help_imports_nothing_heavy_and_fits_a_terminal() -> None:
    commands = ["demo", "evaluate", "report", "gate", "diff", "verify"]
    code = (
        "import sys\n"
        "from quantkit.cli.app import run\n"
        f"code = max(run([name, '--help']) for name in {commands})\n"
        "heavy = {'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'scipy', 'jinja2'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "--exit-code" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
