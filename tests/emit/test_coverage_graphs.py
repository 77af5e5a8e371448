"""Coverage "all" of graphs as they grow: valid, loaded, near float, and the same with and without optimization."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, run, sqnr, weight
from onnx import TensorProto
from random_graphs import random_graph
from static_cases import IMAGE, conv, conv_weights

from quantkit import ort, quantize_static

FORMS = [
    ("cpu", "qdq"),
    ("cpu", "qoperator"),
    ("tensorrt", "qdq"),
    ("openvino", "qdq"),
    ("qnn", "qdq"),
]
SAMPLES = rng(5).standard_normal((4, 1, 8, 6, 6)).astype(np.float32)


def covered(
    proto: onnx.ModelProto, folder: Path, form: tuple[str, str], samples: Array = SAMPLES
) -> list[float]:
    """Quantize all of a model, check the file, and return how near its outputs are to float."""
    data = [{"x": x} for x in samples]
    target, written = form
    path = folder / "q.onnx"
    quantize_static(proto, path, data, target=target, quant_format=written, coverage="all")
    onnx.checker.check_model(path)
    plain, optimized = (run(path, data[0], optimize=on) for on in (False, True))
    wanted = run(proto, data[0], optimize=False)
    for a, b in zip(plain, optimized, strict=True):
        assert sqnr(a, b) > 30
    return [sqnr(a, b) for a, b in zip(wanted, plain, strict=True)]


@pytest.mark.parametrize("form", FORMS[:2], ids=" ".join)
@pytest.mark.parametrize("seed", [1, 11, 39])
def test_random_graphs_are_near_float(seed: int, form: tuple[str, str], tmp_path: Path) -> None:
    assert min(covered(random_graph(seed), tmp_path, form)) > 15


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
@pytest.mark.parametrize(
    "bounds",
    [(0, 6, 0, 6), (0, 1, 0, 6), (0, 6, 0, 1), (-1, 1, 0, 6), (0, 6, -1, 1)],
    ids=["same", "first-is-tighter", "last-is-tighter", "below-zero-first", "below-zero-last"],
)
@pytest.mark.slow
def test_clips_in_a_row(bounds: tuple[int, ...], form: tuple[str, str], tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "c1"),
        node("Clip", ["a", "low1", "high1"], ["b"], "first"),
        node("Clip", ["b", "low2", "high2"], ["c"], "last"),
        conv("c", "y", "c2"),
    ]
    names = ("low1", "high1", "low2", "high2")
    held: dict[str, Array] = {
        name: np.array(bound, np.float32) for name, bound in zip(names, bounds, strict=True)
    }
    proto = model(graph(nodes, IMAGE, {"y": IMAGE["x"]}, {**conv_weights("c1", "c2"), **held}))
    assert min(covered(proto, tmp_path, form)) > 25


@pytest.mark.parametrize("form", [f for f in FORMS if f[1] == "qdq"], ids=" ".join)
def test_a_weight_that_is_added_as_well_has_its_scales_along_one_axis(
    form: tuple[str, str], tmp_path: Path
) -> None:
    held = {"w": weight(6, 6) * np.geomspace(0.01, 1, 6).astype(np.float32)}
    nodes = [node("Gemm", ["x", "w", "w"], ["y"], "g")]
    proto = model(graph(nodes, {"x": [6, 6]}, {"y": [6, 6]}, held))
    samples = rng(3).standard_normal((4, 6, 6)).astype(np.float32)
    assert min(covered(proto, tmp_path, form, samples)) > 25


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_doubles_stay_as_they_are(form: tuple[str, str], tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "c1"),
        node("Cast", ["a"], ["b"], "wide", to=TensorProto.DOUBLE),
        node("Add", ["b", "k"], ["c"], "add"),
        node("Cast", ["c"], ["y"], "narrow", to=TensorProto.FLOAT),
    ]
    held = {**conv_weights("c1"), "k": np.array(1.0)}
    proto = model(graph(nodes, IMAGE, {"y": IMAGE["x"]}, held))
    assert min(covered(proto, tmp_path, form)) > 25


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_sequences_of_floats_are_no_floats(form: tuple[str, str], tmp_path: Path) -> None:
    nodes = [
        conv("x", "a", "c1"),
        node("SplitToSequence", ["a"], ["s"], "split", axis=1),
        node("ConcatFromSequence", ["s"], ["y"], "concat", axis=1),
    ]
    proto = model(graph(nodes, IMAGE, {"y": IMAGE["x"]}, conv_weights("c1")))
    path, data = tmp_path / "q.onnx", [{"x": x} for x in SAMPLES]
    asked = ["Conv", "SplitToSequence", "ConcatFromSequence"]
    quantize_static(
        proto,
        path,
        data,
        target=form[0],
        quant_format=form[1],
        coverage="all",
        op_types_to_quantize=asked,
    )
    assert sqnr(run(proto, data[0])[0], run(path, data[0])[0]) > 25


@pytest.mark.parametrize("written", list(ort.QuantFormat), ids=str)
@pytest.mark.parametrize("kind", [ort.QuantType.QUInt8, ort.QuantType.QInt8], ids=str)
def test_a_weight_of_one_axis(
    kind: ort.QuantType, written: ort.QuantFormat, tmp_path: Path
) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"], "mm")]
    proto = model(graph(nodes, IMAGE, {"y": [1, 8, 6]}, {"w": weight(6)}))
    path, data = tmp_path / "q.onnx", [{"x": x} for x in SAMPLES]
    ort.quantize_static(
        proto,
        path,
        _Reader(data),
        activation_type=kind,
        weight_type=ort.QuantType.QInt8,
        quant_format=written,
    )
    assert sqnr(run(proto, data[0])[0], run(path, data[0])[0]) > 25


class _Reader:
    def __init__(self, data: list[dict[str, Array]]) -> None:
        self.left = iter(data)

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)
