"""quantkit.ort.execution_providers.qnn.qnn_preprocess_model, and fusions in an ONNXModel."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, op_types, rng, run, save, sqnr, weight

from quantkit.errors import UsageError
from quantkit.ort.execution_providers.qnn import qnn_preprocess_model
from quantkit.ort.fusions import FusionGelu
from quantkit.ort.onnx_model import ONNXModel


def network(rows: int | str = "N") -> onnx.ModelProto:
    """x [N, 3, 6, 6] -> Conv -> Gelu by Erf -> {p, Conv -> y}."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], "first"),
        node("Div", ["c", "root"], ["d"], "div"),
        node("Erf", ["d"], ["e"], "erf"),
        node("Add", ["e", "one"], ["a"], "add"),
        node("Mul", ["c", "a"], ["h"], "mul"),
        node("Mul", ["h", "half"], ["p"], "halve"),
        node("Conv", ["p", "v"], ["y"], "second"),
    ]
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    held = {name: np.array(number, np.float32) for name, number in numbers.items()}
    held |= {"w": weight(4, 3, 1, 1), "v": weight(5, 4, 3, 3, seed=1)}
    outputs = {"p": [rows, 4, 6, 6], "y": [rows, 5, 4, 4]}
    return model(graph(nodes, {"x": [rows, 3, 6, 6]}, outputs, held), opset=18)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(network(), tmp_path / "in.onnx")


FEED = rng(3).standard_normal((2, 3, 6, 6)).astype(np.float32)


def test_inputs_and_outputs_change_their_layout_and_nothing_else(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.onnx"
    assert qnn_preprocess_model(
        source,
        target,
        inputs_to_make_channel_last=["x"],
        outputs_to_make_channel_last=["p", "y"],
    )
    result = onnx.load(target)
    onnx.checker.check_model(result, full_check=True)
    assert op_types(result).count("Transpose") == 3
    assert "Gelu" in op_types(result)
    expected = run(source, {"x": FEED})
    found = run(target, {"x": FEED.transpose(0, 2, 3, 1)})
    for one, other in zip(expected, found, strict=True):
        assert sqnr(one, other.transpose(0, 3, 1, 2)) > 80


def test_a_model_with_nothing_to_change_is_not_written(tmp_path: Path) -> None:
    plain = save(
        model(
            graph(
                [node("Conv", ["x", "w"], ["y"], "c")],
                {"x": [1, 3, 4, 4]},
                {"y": [1, 4, 4, 4]},
                {"w": weight(4, 3, 1, 1)},
            )
        ),
        tmp_path / "in.onnx",
    )
    target = tmp_path / "out.onnx"
    assert not qnn_preprocess_model(plain, target)
    assert not target.exists()
    assert qnn_preprocess_model(onnx.load(plain), target, inputs_to_make_channel_last=["x"])
    assert target.exists()


def test_shapes_that_are_given_are_fixed(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    assert qnn_preprocess_model(source, target, dynamic_input_shapes=[("x", "2,3,6,6")])
    held = ONNXModel(onnx.load(target))
    for name, extents in {"x": [2, 3, 6, 6], "y": [2, 5, 4, 4]}.items():
        declared = held.get_tensor_type(name)
        assert declared is not None
        assert [extent.dim_value for extent in declared.shape.dim] == extents
    assert sqnr(run(source, {"x": FEED})[1], run(target, {"x": FEED})[1]) > 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dynamic_input_shapes": [("x", "2,3")]}, "4 axes, and 2"),
        ({"dynamic_input_shapes": [("x", "a,b,c,d")]}, "1,3,224,224"),
        ({"dynamic_input_shapes": [("none", "1")]}, "no input 'none'"),
        ({"inputs_to_make_channel_last": ["none"]}, "no input 'none'"),
        ({"outputs_to_make_channel_last": ["x"]}, "no output 'x'"),
        (
            {
                "save_as_external_data": True,
                "all_tensors_to_one_file": True,
                "external_data_location": "in.onnx",
                "external_data_size_threshold": 0,
            },
            "overwrite",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_written(
    arguments: dict[str, object], said: str, source: Path, tmp_path: Path
) -> None:
    before = source.read_bytes()
    with pytest.raises(UsageError, match=said):
        qnn_preprocess_model(source, tmp_path / "out.onnx", **arguments)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx"]
    assert source.read_bytes() == before


def test_weights_go_to_a_file_that_is_named(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    qnn_preprocess_model(
        source,
        target,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        external_data_location="weights.bin",
        external_data_size_threshold=0,
    )
    assert (tmp_path / "weights.bin").stat().st_size > 4 * 180
    assert sqnr(run(source, {"x": FEED})[1], run(target, {"x": FEED})[1]) > 80


def test_a_fusion_changes_a_model_in_place() -> None:
    held = ONNXModel(network())
    assert FusionGelu(held).apply()
    assert op_types(held.model) == ["Conv", "Gelu", "Conv"]
    assert not FusionGelu(held).apply()
