"""What `print(result)` shows: a few lines with what counts, whatever the size of the model."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, save, weight
from result_cases import example_result

import quantkit

LAYERS = 40


def deep_model() -> onnx.ModelProto:
    """Build x -> 40 times MatMul, Relu -> y, with the long names of a transformer."""
    nodes, weights, last = [], {}, "x"
    for i in range(LAYERS):
        name = f"/encoder/layer.{i}/attention/self/query/MatMul"
        weights[f"encoder.layer.{i}.attention.self.query.weight"] = weight(128, 128, seed=i) / 12
        nodes.append(node("MatMul", [last, list(weights)[-1]], [f"{name}_output_0"], name))
        last = "y" if i == LAYERS - 1 else f"/encoder/layer.{i}/Relu_output_0"
        nodes.append(node("Relu", [f"{name}_output_0"], [last], f"/encoder/layer.{i}/Relu"))
    return model(graph(nodes, {"x": ["N", 128]}, {"y": ["N", 128]}, weights))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("printed")
    source = save(deep_model(), folder / "m.onnx")
    data = {"x": np.random.default_rng(0).normal(size=(8, 128)).astype(np.float32)}
    calibration = quantkit.calibrate(source, data)
    static = quantkit.quantize_static(source, folder / "s.onnx", calibration)
    return {
        "static": static,
        "dynamic": quantkit.quantize_dynamic(source, folder / "d.onnx"),
        "plan": static.plan,
        "calibration": calibration,
        "optimized": quantkit.optimize(source, folder / "o.onnx"),
        "inspection": quantkit.inspect_model(source),
        "verification": static.verification,
        "attestation": quantkit.verify_file(folder / "s.onnx", source),
        "evaluation": example_result(),
    }


KINDS = ["static", "dynamic", "plan", "calibration", "optimized", "inspection", "evaluation"]
KINDS += ["attestation"]


@pytest.mark.parametrize("kind", KINDS)
def test_printing_takes_a_few_lines(kind: str, results: dict[str, Any]) -> None:
    text = str(results[kind])
    assert len(text.splitlines()) <= 12
    assert len(text) < 1000


@pytest.mark.parametrize("kind", KINDS)
def test_a_representation_is_one_line(kind: str, results: dict[str, Any]) -> None:
    text = repr(results[kind])
    assert text.startswith("<")
    assert "\n" not in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("static", ("% of float) in ", "40 static int8", "verified: valid, loads and runs", " dB")),
        ("dynamic", ("% of float) in ", "40 dynamic int8", "verified")),
        ("plan", ("79 nodes (40 static int8, 39 fused", "40 quantized weights")),
        ("calibration", ("ranges of ", "tensors by mse from 8 samples")),
        ("optimized", ("80 -> 80 nodes", "verified")),
        ("inspection", ("m.onnx", "80 nodes", "input x float[N, 128]", "40 MatMul")),
        ("evaluation", ("% of float's size",)),
        ("attestation", ("static, written by", "float: ok: ", "verified; 1 check skipped")),
    ],
)
def test_what_counts_is_in_it(kind: str, said: tuple[str, ...], results: dict[str, Any]) -> None:
    for words in said:
        assert words in str(results[kind])


def test_a_candidate_is_one_line() -> None:
    found = example_result()
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found.candidates)
    for line, candidate in zip(lines[1:], found.candidates, strict=True):
        assert line.startswith(f"{candidate.name}: ")


def test_many_outputs_are_counted(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm")]
    nodes += [node("Relu", ["m"], [f"out{i}"], f"r{i}") for i in range(30)]
    outputs: dict[str, list[int | str | None]] = {f"out{i}": ["N", 128] for i in range(30)}
    many = model(graph(nodes, {"x": ["N", 128]}, {**outputs}, {"w": weight(128, 128)}))
    source = save(many, tmp_path / "m.onnx")
    assert "and 27 more" in str(quantkit.quantize_dynamic(source, tmp_path / "o.onnx"))
    assert "and 26 more" in str(quantkit.inspect_model(source))
