"""What a user asks for by name and does not get is said, with the reason."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight
from static_cases import IMAGE, conv, conv_weights

from quantkit import TensorRule, ort, quantize_dynamic, quantize_static
from quantkit.cli.app import run

DATA = [{"x": x} for x in rng(3).standard_normal((6, 1, 8, 6, 6)).astype(np.float32)]


def network() -> onnx.ModelProto:
    """Two convolutions in integers, and what no layer in integers reads."""
    nodes = [
        conv("x", "a", "c1"),
        node("Relu", ["a"], ["r"], "relu"),
        conv("r", "b", "c2"),
        node("Add", ["b", "r"], ["s"], "add"),
        node("Softmax", ["s"], ["y"], "sm"),
    ]
    return model(graph(nodes, IMAGE, {"y": None}, conv_weights("c1", "c2")))


class Reader:
    def __init__(self) -> None:
        self.left = iter(DATA)

    def get_next(self) -> Any:
        return next(self.left, None)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "an operator": (
        {"op_types_to_quantize": ["Conv", "Add"]},
        "Add was asked for and does not run in integers: no layer in integers reads it.",
    ),
    "a node": (
        {"nodes_to_quantize": ["c1", "add"]},
        "'add' was asked for and does not run in integers: no layer in integers reads it.",
    ),
    "a pattern": ({"nodes_to_quantize": ["c*", "s*"]}, "'s*' was asked for and does not run"),
    "a tensor that is fused": (
        {"tensors": [TensorRule(tensor="a", range=(-1.0, 1.0))]},
        "The rule for tensor 'a' has no effect: 'relu' behind it is fused, and its result 'r' is",
    ),
    "a tensor in float": (
        {"tensors": [TensorRule(tensor="s", dtype="uint16")]},
        "The rule for tensor 's' has no effect: not quantized because node 'sm' stays float: no",
    ),
    "a weight": (
        {"tensors": [TensorRule(tensor="c1_w", range=(-1.0, 1.0))]},
        "The rule for tensor 'c1_w' has no effect: it is a weight; use the weight settings.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_has_no_effect_is_a_warning(case: str, tmp_path: Path) -> None:
    options, said = CASES[case]
    result = quantize_static(network(), tmp_path / "q.onnx", DATA, **options)
    assert [w for w in result.warnings if w.startswith(said)]


@pytest.mark.parametrize(
    "options",
    [
        {"op_types_to_quantize": ["Conv"]},
        {"op_types_to_quantize": ["Conv", "Softmax"], "nodes_to_exclude": ["sm"]},
        {"nodes_to_quantize": ["c*"]},
        {"tensors": [TensorRule(tensor="r", range=(0.0, 4.0))]},
        {"tensors": [TensorRule(tensor="s", keep_float=True)]},
        {"op_types_to_quantize": ["Conv", "Add", "Softmax"], "coverage": "all"},
    ],
    ids=str,
)
def test_what_is_done_or_left_out_by_the_user_is_none(
    options: dict[str, Any], tmp_path: Path
) -> None:
    result = quantize_static(network(), tmp_path / "q.onnx", DATA, **options)
    assert not [w for w in result.warnings if "asked for" in w or "no effect" in w]


def test_some_nodes_of_an_operator_are_counted(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "first"),
        node("MatMul", ["h", "z"], ["y"], "second"),
    ]
    proto = model(
        graph(nodes, {"x": ["N", 128], "z": [192, 3]}, {"y": None}, {"w": weight(128, 192)})
    )
    said = (
        "1 of 2 nodes do not run in integers, the first 'second': has no constant float32 weight."
    )
    result = quantize_dynamic(proto, tmp_path / "q.onnx", op_types_to_quantize=["MatMul"])
    assert f"MatMul was asked for and {said}" in result.warnings
    named = quantize_dynamic(proto, tmp_path / "n.onnx", nodes_to_quantize=["first", "second"])
    assert [w for w in named.warnings if w.startswith("'second' was asked for and does not run")]
    assert not [w for w in quantize_dynamic(proto, tmp_path / "p.onnx").warnings if "asked" in w]


def test_overrides_of_onnxruntime_that_have_no_effect_are_said(tmp_path: Path) -> None:
    options = {"TensorQuantOverrides": {"s": [{"rmin": -1.0, "rmax": 1.0}]}}
    result = ort.quantize_static(
        network(), tmp_path / "q.onnx", Reader(), extra_options=options, coverage="gain"
    )
    assert [w for w in result.warnings if w.startswith("The rule for tensor 's' has no effect")]


@pytest.mark.parametrize("verb", [["quantize", "static"], ["plan"]], ids=" ".join)
def test_the_command_line_says_it_too(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = save(network(), tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.concatenate([sample["x"] for sample in DATA]))
    output = [str(tmp_path / "q.onnx")] if "quantize" in verb else []
    arguments = [*verb, str(source), *output, "--data", str(tmp_path / "data.npy")]
    assert run([*arguments, "--op-types", "Conv,Add"]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert "note: Add was asked for and does not run in integers" in said
