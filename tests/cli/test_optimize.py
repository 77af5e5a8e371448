"""`quantkit optimize`: what it prints, writes, and how it exits."""

import json
from pathlib import Path

import onnx
import pytest
from builders import graph, model, node, op_types, save, weight

from quantkit.cli.app import run
from quantkit.quantize.rewrite.simplify import PASSES


def call(*arguments: str | Path) -> int:
    return run(["optimize", *(str(a) for a in arguments)])


@pytest.fixture
def float_model(tmp_path: Path) -> Path:
    nodes = [
        node("Identity", ["x"], ["i"]),
        node("MatMul", ["i", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Dropout", ["a"], ["y"]),
    ]
    held = {"w": weight(16, 8), "b": weight(8)}
    return save(model(graph(nodes, {"x": ["N", 16]}, {"y": ["N", 8]}, held)), tmp_path / "in.onnx")


def test_prints_what_changed_and_writes(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.onnx"
    assert call(float_model, target) == 0
    out = capsys.readouterr().out
    for text in ("Identity", "Gemm", "total", "matmul_add 1", "verified", "dB", "out.onnx"):
        assert text in out
    assert op_types(onnx.load(target)) == ["Gemm"]


def test_exact_is_called_exact(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(float_model, tmp_path / "o.onnx", "--only", "identity", "--only", "noops") == 0
    out = capsys.readouterr().out
    assert "y exact" in " ".join(out.split())
    assert op_types(onnx.load(tmp_path / "o.onnx")) == ["MatMul", "Add"]


def test_skip(float_model: Path, tmp_path: Path) -> None:
    assert call(float_model, tmp_path / "o.onnx", "--skip", "matmul_add", "--no-verify") == 0
    assert op_types(onnx.load(tmp_path / "o.onnx")) == ["MatMul", "Add"]


def test_json(float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(float_model, tmp_path / "o.onnx", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["simplified"]["nodes_before"] == 4
    assert plain["simplified"]["nodes_after"] == 1
    assert plain["simplified"]["changes"]["noops"] == 1
    assert plain["verification"]["ran"]


def test_nothing_to_do_is_said_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = model(graph([node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]}))
    assert call(save(proto, tmp_path / "in.onnx"), tmp_path / "o.onnx") == 0
    assert "nothing to simplify: 1 nodes" in capsys.readouterr().out
    assert (tmp_path / "o.onnx").exists()


def test_list_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PASSES)
    assert all(line.endswith(".") and len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize("flag", ["--only", "--skip"])
def test_an_unknown_pass_is_exit_2_with_a_near_name(
    float_model: Path, tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(float_model, tmp_path / "o.onnx", flag, "batch_norm") == 2
    err = capsys.readouterr().err
    assert "no pass 'batch_norm'; did you mean 'batchnorm'?" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "o.onnx").exists()


def test_overwriting_the_input_is_refused(
    float_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(float_model, float_model) == 2
    assert "overwrite the input" in capsys.readouterr().err


@pytest.mark.slow
def test_external_data(tmp_path: Path) -> None:
    held = {"w": weight(64, 64)}
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    source = save(model(graph(nodes, {"x": [2, 64]}, {"y": [2, 64]}, held)), tmp_path / "i.onnx")
    assert call(source, tmp_path / "o.onnx", "--external-data") == 0
    assert len(list(tmp_path.glob("o.onnx.*.data"))) == 1
