"""A graph network through the commands that read data: each file is one graph, however many nodes it has."""

from pathlib import Path

import numpy as np
import pytest
from builders import Shape, graph, model, node, rng, save, weight
from onnx import TensorProto
from typer.testing import CliRunner

from quantkit.cli.app import app

COMMANDS = {
    "calibrate": ["calibrate", "g.onnx", "--data", "graphs", "-o", "ranges.safetensors"],
    "static": ["quantize", "static", "g.onnx", "q.onnx", "--data", "graphs"],
    "weights": ["quantize", "weights", "g.onnx", "q.onnx", "--data", "graphs"],
    "float16": ["quantize", "float16", "g.onnx", "q.onnx", "--data", "graphs"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As many edges as nodes, so that arrays could be cut into rows."""
    nodes = [
        node("MatMul", ["feat", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "v"], ["c"]),
        node("Gather", ["c", "edge_to"], ["y"], axis=0),
    ]
    inputs: dict[str, Shape] = {"feat": ["nodes", 64], "edge_to": ["edges"]}
    weights = {"w": weight(64, 256), "v": weight(256, 256, seed=1, scale=0.1)}
    types = {"edge_to": TensorProto.INT64}
    save(
        model(graph(nodes, inputs, {"y": ["edges", 256]}, weights, types=types)),
        tmp_path / "g.onnx",
    )
    (tmp_path / "graphs").mkdir()
    for number in range(24):
        size = 6 + number % 3
        feat = rng(number).standard_normal((size, 64)).astype(np.float32)
        np.savez(tmp_path / f"graphs/{number}.npz", feat=feat, edge_to=np.arange(size)[::-1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTKIT_MEASURE", "0")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.slow
def test_each_file_is_one_sample(command: str, folder: Path) -> None:
    found = CliRunner().invoke(app, COMMANDS[command])
    assert found.exit_code == 0, found.output
    assert folder.is_dir()
    assert "24 samples (one per file: outputs of a row depend on the others)" in found.output


@pytest.mark.slow
def test_the_result_is_verified_and_evaluated_by_files(folder: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, COMMANDS["static"]).exit_code == 0
    found = runner.invoke(app, ["verify", "q.onnx", "--float", "g.onnx", "--data", "graphs"])
    assert found.exit_code == 0, found.output
    found = runner.invoke(app, ["evaluate", "g.onnx", "q.onnx", "--data", "graphs"])
    assert found.exit_code == 0, found.output
    assert "24 samples" in found.output
    assert "does not run" not in found.output
    assert (folder / "evaluation" / "result.json").is_file()
