"""Which cause a tensor is counted under."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import MS, Array, graph, matmul_model, model, node, save, weight
from graph.cases import function_model, if_model, loop_model
from onnx import TensorProto, helper, numpy_helper

from quantkit.api.quantize import Task, quantize
from quantkit.model.graph.size import account
from quantkit.samples import fashion_mnist
from quantkit.settings import DynamicSettings

SCALE, ZERO = np.array(0.1, np.float32), np.array(0, np.uint8)
INTEGERS = np.arange(400, dtype=np.uint8).reshape(20, 20)


def parts(proto: onnx.ModelProto) -> dict[str, int]:
    found = account(proto)
    assert sum(part.nbytes for part in found.parts) == found.nbytes == proto.ByteSize()
    return {part.cause: part.nbytes for part in found.parts}


def in_and_out(nodes: list[onnx.NodeProto], weights: dict[str, Array]) -> onnx.ModelProto:
    return model(graph(nodes, {"x": [20, 20]}, {"y": None}, weights), domains={MS: 1})


def test_integers_behind_dequantizelinear_are_weights_of_what_multiplies() -> None:
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["d"]),
        node("Transpose", ["d"], ["t"]),
        node("MatMul", ["x", "t"], ["y"]),
    ]
    found = parts(in_and_out(nodes, {"w": INTEGERS, "s": SCALE, "z": ZERO}))
    assert found["weights of MatMul"] == 400
    assert found["scales"] == 5


def test_integers_behind_cast_sub_mul_are_weights_of_what_multiplies() -> None:
    nodes = [
        node("Cast", ["w"], ["c"], to=TensorProto.FLOAT),
        node("Sub", ["c", "z"], ["d"]),
        node("Mul", ["d", "s"], ["m"]),
        node("MatMul", ["x", "m"], ["y"]),
    ]
    found = parts(in_and_out(nodes, {"w": INTEGERS, "s": SCALE, "z": np.array([3], np.float32)}))
    assert found["weights of MatMul"] == 400
    assert found["scales"] == 8


def test_scales_that_are_looked_up_are_scales() -> None:
    nodes = [
        node("Gather", ["w", "i"], ["q"]),
        node("Gather", ["s", "i"], ["qs"]),
        node("Cast", ["q"], ["c"], to=TensorProto.FLOAT),
        node("Mul", ["c", "qs"], ["y"]),
    ]
    proto = model(
        graph(
            nodes,
            {"i": [2]},
            {"y": None},
            {"w": INTEGERS, "s": weight(20, 1)},
            types={"i": TensorProto.INT64},
        )
    )
    found = parts(proto)
    assert found["weights of Gather"] == 400
    assert found["scales"] == 80


def test_scale_beside_the_one_taken_at_run_time_is_a_scale() -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "xs", "xz"]),
        node("MatMulInteger", ["q", "w", "xz", "z"], ["p"]),
        node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["xs", "s"], ["both"]),
        node("Mul", ["f", "both"], ["y"]),
    ]
    found = parts(in_and_out(nodes, {"w": INTEGERS, "s": SCALE, "z": ZERO}))
    assert found["weights of MatMul"] == 400
    assert found["scales"] == 5


@pytest.mark.parametrize(
    ("op", "domain", "inputs", "scales", "cause"),
    [
        ("QLinearConv", "", ["x", "s", "z", "w", "s", "z", "s", "z", "b"], 5, "Conv"),
        ("QLinearMatMul", "", ["x", "s", "z", "w", "s", "z", "s", "z"], 5, "MatMul"),
        ("QGemm", MS, ["x", "s", "z", "w", "s", "z", "b", "s", "z"], 5, "Gemm"),
        ("MatMulNBits", MS, ["x", "w", "s", "z"], 5, "MatMul"),
        ("DynamicQuantizeLSTM", MS, ["x", "w", "w", "", "", "", "", "", "s", "z"], 5, "LSTM"),
        ("QLinearAdd", MS, ["x", "s", "z", "w", "s", "z", "s", "z"], 5, "Add"),
        ("QLinearConcat", MS, ["s", "z", "x", "s", "z", "w", "s", "z"], 5, "Concat"),
    ],
)
def test_quantized_operators_count_as_the_float_operator(
    op: str, domain: str, inputs: list[str], scales: int, cause: str
) -> None:
    weights: dict[str, Array] = {
        "w": INTEGERS,
        "s": SCALE,
        "z": ZERO,
        "b": np.arange(20, dtype=np.int32),
    }
    if "b" not in inputs:
        del weights["b"]
    found = parts(in_and_out([node(op, inputs, ["y"], domain=domain)], weights))
    assert found[f"weights of {cause}"] == 400 + (80 if "b" in inputs else 0)
    assert found["scales"] == scales


def test_constant_nodes_count_like_initializers() -> None:
    nodes = [
        node("Constant", [], ["w"], value=numpy_helper.from_array(weight(20, 20))),
        node("Constant", [], ["b"], value_floats=[1.0] * 20),
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["y"]),
    ]
    found = parts(in_and_out(nodes, {}))
    assert found["weights of MatMul"] == 1600
    assert found["weights of Add"] == 80


def test_what_only_dead_nodes_read_is_dead() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["x", "v"], ["unread"])]
    found = parts(in_and_out(nodes, {"w": weight(20, 20), "v": weight(20, 20, seed=1)}))
    assert found["dead"] == 1600
    assert found["weights of MatMul"] == 1600


def test_equal_tensors_are_duplicates_but_dead_ones_are_dead() -> None:
    nodes = [node("MatMul", ["x", "a"], ["m"]), node("MatMul", ["m", "b"], ["y"])]
    same = weight(20, 20)
    found = parts(in_and_out(nodes, {"dead": same, "a": same, "b": same.copy()}))
    assert (found["dead"], found["weights of MatMul"], found["duplicates"]) == (1600, 1600, 1600)


def test_tensors_of_subgraphs_count_for_their_readers() -> None:
    assert parts(if_model())["weights of MatMul"] == 3200
    assert parts(loop_model())["weights of MatMul"] == 1600


def test_a_function_that_is_called_twice_is_in_the_file_once() -> None:
    assert parts(function_model())["weights of MatMul"] == 1600


def test_a_constant_that_a_branch_hands_out_is_a_weight_of_the_if() -> None:
    def branch(name: str, seed: int) -> onnx.GraphProto:
        return graph([], {}, {name: None}, {name: weight(20, 20, seed=seed)}, name=name)

    assert parts(if_model(branch("t", 1), branch("e", 2)))["weights of If"] == 3200


def test_numbers_are_counted_as_they_are_written() -> None:
    """A negative int8 in int32_data takes ten bytes."""
    tensor = helper.make_tensor("w", TensorProto.INT8, [20, 20], [-1] * 400)
    assert not tensor.raw_data
    proto = in_and_out(
        [node("DequantizeLinear", ["w", "s"], ["d"]), node("MatMul", ["x", "d"], ["y"])],
        {"s": SCALE},
    )
    proto.graph.initializer.append(tensor)
    assert parts(proto)["weights of MatMul"] == 4000


def test_int4_takes_half_a_byte() -> None:
    tensor = helper.make_tensor("w", TensorProto.INT4, [20, 20], b"\x11" * 200, raw=True)
    proto = in_and_out(
        [node("DequantizeLinear", ["w", "s"], ["d"]), node("MatMul", ["x", "d"], ["y"])],
        {"s": SCALE},
    )
    proto.graph.initializer.append(tensor)
    assert parts(proto)["weights of MatMul"] == 200


def test_doc_strings_and_properties_are_metadata_wherever_they_are() -> None:
    proto = matmul_model()
    proto.doc_string = proto.graph.doc_string = "ab"
    proto.graph.node[0].doc_string = proto.graph.initializer[0].doc_string = "cde"
    proto.graph.input[0].doc_string = "f"
    assert parts(proto)["metadata"] == 2 + 2 + 3 + 3 + 1


def test_quantkit_files_have_their_scales_apart(tmp_path: Path) -> None:
    quantize(Task(source=fashion_mnist().model, how=DynamicSettings()), tmp_path / "q.onnx")
    found = account(tmp_path / "q.onnx")
    named = {row.name: row.cause for row in found.tensors}
    for name, cause in named.items():
        assert (cause == "scales") == name.endswith(("_scale", "_zero_point")), name
    assert {c for n, c in named.items() if "weight_quantized" in n} == {
        "weights of Conv",
        "weights of MatMul",
        "weights of Gemm",
    }


def test_a_cycle_of_nodes_ends(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["a"], ["b"], to=1),
        node("Identity", ["b"], ["a"]),
        node("Cast", ["a"], ["c"], to=1),
        node("Mul", ["c", "a"], ["y"]),
    ]
    path = save(in_and_out(nodes, {"w": INTEGERS}), tmp_path / "m.onnx")
    assert account(path).nbytes == path.stat().st_size
