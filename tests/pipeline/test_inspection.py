from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, save, weight
from onnx import numpy_helper

from quantkit import inspect_model, quantize_dynamic
from quantkit.quantize.plan import Mode
from quantkit.samples import fashion_mnist


def test_size_parts_add_up_to_the_file(tmp_path: Path) -> None:
    proto = matmul_model()
    proto.graph.initializer.append(numpy_helper.from_array(weight(128, 192), "copy"))
    proto.graph.initializer.append(numpy_helper.from_array(weight(64, 64), "dead"))
    proto.graph.node.append(node("MatMul", ["x", "copy"], ["z"], "mm2"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, None))
    proto.doc_string = "a note"
    path = save(proto, tmp_path / "m.onnx")
    found = inspect_model(path)
    assert sum(part.nbytes for part in found.size) == path.stat().st_size
    parts = {part.cause: part for part in found.size}
    assert parts["dead"].nbytes == 64 * 64 * 4
    assert parts["duplicates"].nbytes == 128 * 192 * 4
    assert parts["weights of MatMul"].nbytes == 128 * 192 * 4
    assert parts["metadata"].nbytes == len("a note")


def test_size_parts_of_external_data_add_up(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(
        matmul_model(), str(path), save_as_external_data=True, location="m.bin", size_threshold=0
    )
    found = inspect_model(path)
    on_disk = path.stat().st_size + (tmp_path / "m.bin").stat().st_size
    assert found.nbytes == on_disk == sum(part.nbytes for part in found.size)


def test_a_file_that_goes_by_two_names_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = matmul_model()
    proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
    proto.graph.initializer[-1].name = "again"
    onnx.save(proto, str(path), save_as_external_data=True, location="m.bin", size_threshold=0)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[-1].external_data[0].value = "./m.bin"
    path.write_bytes(proto.SerializeToString())
    found = inspect_model(path)
    on_disk = path.stat().st_size + (tmp_path / "m.bin").stat().st_size
    assert found.nbytes == on_disk == sum(part.nbytes for part in found.size)


def test_plans_say_what_each_mode_would_do_and_why() -> None:
    found = inspect_model(fashion_mnist().model)
    modes = {n.op_type: n.mode.value for n in found.plans["dynamic"].nodes}
    assert modes["Conv"] == "stored"
    assert found.plans["dynamic"].node["fc1"].mode == "integer"
    assert all(n.why for n in found.plans["dynamic"].nodes)
    assert {n.mode.value for n in found.plans["stored"].nodes} <= {"stored", "float"}


def test_layers_that_static_and_dynamic_quantization_bring_to_int8_are_counted() -> None:
    found = inspect_model(fashion_mnist().model)
    modes = Counter(n.mode for n in found.plans["static"].nodes if n.op_type in {"Conv", "Gemm"})
    assert found.int8["static"] == found.int8["layers"] == modes[Mode.STATIC]
    assert 0 < found.int8["dynamic"] < found.int8["static"]
    assert found.next_mode == "static"
    assert found.foreseen["static"] < found.nbytes / 3


def test_nothing_is_advised_for_a_model_that_is_quantized(tmp_path: Path) -> None:
    made = quantize_dynamic(save(matmul_model(), tmp_path / "m.onnx"), tmp_path / "q.onnx")
    assert made is not None
    found = inspect_model(tmp_path / "q.onnx")
    assert found.quantized
    assert not found.next_mode


def test_ports_show_dynamic_dimensions() -> None:
    found = inspect_model(fashion_mnist().model)
    assert found.inputs[0].shape == ("batch", 1, 28, 28)
    assert found.inputs[0].is_dynamic


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: setattr(m, "ir_version", 99), "IR version 99"),
        (lambda m: setattr(m.opset_import[0], "version", 99), "opset 99"),
        (
            lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 4),
            "fixed batch of 4",
        ),
    ],
    ids=["ir-version", "opset", "fixed-batch"],
)
def test_warnings(change: object, expected: str) -> None:
    proto = matmul_model()
    change(proto)  # type: ignore[operator]
    assert any(expected in hazard for hazard in inspect_model(proto).hazards)


def test_weight_with_nan_is_a_warning() -> None:
    w = weight(128, 192)
    w[0, 0] = np.nan
    proto = model(
        graph([node("MatMul", ["x", "w"], ["y"], "mm")], {"x": ["N", 128]}, {"y": None}, {"w": w})
    )
    assert any("NaN" in hazard for hazard in inspect_model(proto).hazards)


def test_healthy_model_has_no_warnings() -> None:
    assert inspect_model(fashion_mnist().model).hazards == ()


def test_weight_analysis_covers_the_largest() -> None:
    found = inspect_model(fashion_mnist().model, weights=2)
    assert len(found.weights) == 2
    assert found.weights[0].tensor.startswith("fc1")
    assert found.weights[0].analysis.sqnr_channel >= found.weights[0].analysis.sqnr_tensor
