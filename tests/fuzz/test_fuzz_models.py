"""Hostile models, through every command that reads one: a result, or one clear error."""

from pathlib import Path

import numpy as np
import pytest
from builders import graph, matmul_model, model, node, weight
from fuzzing import chance, check, mutated, seeds
from onnx import ModelProto

COMMANDS = ("inspect", "optimize", "dynamic", "static", "calibrate")


def convolution() -> ModelProto:
    """Conv, Relu, pooling, Gemm: small, with something for every stage."""
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("GlobalAveragePool", ["r"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flat"),
        node("Gemm", ["f", "w1", "b1"], ["y"], "gemm"),
    ]
    weights = {
        "w0": weight(16, 3, 3, 3),
        "b0": weight(16),
        "w1": weight(16, 20),
        "b1": weight(20),
    }
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 20]}, weights))


def write_data(path: Path) -> Path:
    """Four samples for `convolution`; other models find them wanting."""
    np.savez(path, x=np.random.default_rng(0).random((4, 3, 8, 8), dtype=np.float32))
    return path


def check_model(command: str, path: Path, folder: Path, *, cold: bool = False) -> None:
    """Run one command on a model file and assert the contract."""
    data = write_data(folder / "data.npz")
    lines: dict[str, list[str | Path]] = {
        "inspect": ["inspect", path],
        "optimize": ["optimize", path, "out.onnx"],
        "dynamic": ["quantize", "dynamic", path, "out.onnx"],
        "static": ["quantize", "static", path, "out.onnx", "--data", data],
        "calibrate": ["calibrate", path, "--data", data, "-o", "out.calibration"],
    }
    writes = ["out.onnx", "out.onnx.data", "out.calibration"]
    check(*lines[command], folder=folder, writes=writes, cold=cold)


@pytest.mark.parametrize("seed", seeds(25))
def test_changed_bytes_of_a_model_are_a_result_or_one_error(seed: int, tmp_path: Path) -> None:
    source = chance(seed)
    whole = source.choice((matmul_model, convolution))().SerializeToString()
    (tmp_path / "in.onnx").write_bytes(mutated(whole, source))
    check_model(source.choice(COMMANDS), tmp_path / "in.onnx", tmp_path, cold=seed % 20 == 0)
