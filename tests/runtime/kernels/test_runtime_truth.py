"""How each product of a file runs, by name, and what would change it."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as oq
import pytest
from builders import MS, Array, graph, matmul_model, model, node, rng, save, weight
from fusion_cases import Case, residual
from layer_cases import float_model
from onnx import TensorProto
from onnxruntime.quantization.shape_inference import quant_pre_process
from tasks import Sizes, tasks

from quantkit import quantize_dynamic, quantize_static
from quantkit.result import Runtime
from quantkit.runtime.kernels import fusion_of, runtime_of
from quantkit.samples import fashion_mnist
from quantkit.settings import RecoverSettings
from quantkit.targets import this_machine

SHARED = Path(__file__).parents[4] / "shared"
Feeds = Mapping[str, Array]


class Reader(oq.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Iterable[Feeds]) -> None:
        self.samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        return next((dict(s) for s in self.samples), None)


def ort_static(source: Path, target: Path, samples: Iterable[Feeds], **options: Any) -> Runtime:
    oq.quantize_static(str(source), str(target), Reader(samples), **options)
    return runtime_of(target)


def by_runs(found: Runtime) -> dict[str, str]:
    return {n.node: n.runs for n in found.nodes}


def consistent(path: Path, found: Runtime) -> None:
    counts = fusion_of(path)
    assert (found.integer, found.products) == (counts.integer_count, counts.product_count)
    assert found.share == (found.integer / found.products if found.products else 0)
    assert found.conversions == sum(counts.conversions.values())
    assert {n.node for n in found.nodes if n.runs == "float"} == set(counts.float_products)
    for node_ in found.nodes:
        assert (node_.runs == "float") == bool(node_.why) == bool(node_.fix)
        assert (node_.runs == "gone") == (not node_.kernel)
        assert not node_.kernel or found.kernels[node_.kernel]


on_x86 = pytest.mark.skipif(
    this_machine().architecture != "x86_64", reason="int8 activations run as they are on ARM"
)


@on_x86
@pytest.mark.filterwarnings("ignore")
def test_the_default_call_of_onnxruntime_leaves_what_a_residual_connection_touches_in_float(
    tmp_path: Path,
) -> None:
    source = save(residual(), tmp_path / "float.onnx")
    samples = [{"x": rng(i).standard_normal((1, 8, 12, 12)).astype(np.float32)} for i in range(4)]
    found = ort_static(source, tmp_path / "s8s8.onnx", samples)
    # 'stem' makes the tensor that both 'a' and the Add read.
    lost = {"stem": "float", "a": "float", "b": "integer", "head": "integer"}
    assert by_runs(found) == lost
    assert found.share == 0.5
    (advice,) = found.advice
    assert advice.startswith("2 Conv stay float: int8 activations that several nodes read")
    assert "activation_type=QuantType.QUInt8" in advice
    assert "`quantkit quantize static`" in advice
    consistent(tmp_path / "s8s8.onnx", found)
    # Both fixes hold what they promise.
    mended = ort_static(
        source, tmp_path / "u8s8.onnx", samples, activation_type=oq.QuantType.QUInt8
    )
    assert set(by_runs(mended).values()) == {"integer"}
    assert mended.advice == ()
    quantize_static(source, tmp_path / "own.onnx", samples)
    assert set(by_runs(runtime_of(tmp_path / "own.onnx")).values()) == {"integer"}


@pytest.mark.filterwarnings("ignore")
def test_the_sample_without_residuals_runs_in_integers_in_the_default_call_too(
    tmp_path: Path,
) -> None:
    sample = fashion_mnist()
    source = tmp_path / "float.onnx"
    shutil.copyfile(sample.model, source)
    samples = [{"image": sample.images[i : i + 1]} for i in range(4)]
    found = ort_static(source, tmp_path / "s8s8.onnx", samples)
    assert by_runs(found) == dict.fromkeys(["conv1", "conv2", "conv3", "fc1", "fc2"], "integer")
    consistent(tmp_path / "s8s8.onnx", found)
    wide = ort_static(
        source,
        tmp_path / "u16.onnx",
        samples,
        activation_type=oq.QuantType.QUInt16,
        extra_options={"UseQDQContribOps": True},
    )
    assert wide.integer == 0
    (advice,) = wide.advice
    assert advice.startswith("3 Conv and 2 Gemm stay float: 16-bit integers")


@on_x86
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "lost", "total"),
    [("efficientnet_lite0", 14, 50), ("mobilenet_v2", 15, 53), ("resnet20_cifar10", 12, 22)],
)
@pytest.mark.slow
def test_real_models_by_the_default_call(tmp_path: Path, name: str, lost: int, total: int) -> None:
    task = tasks(SHARED, Sizes(images=1, small=4, pairs=1, calibration=4))[name]()
    if task is None:
        pytest.skip(f"{name} is not there")
    shutil.copyfile(task.model, tmp_path / "float.onnx")
    quant_pre_process(str(tmp_path / "float.onnx"), str(tmp_path / "ready.onnx"))
    found = ort_static(tmp_path / "ready.onnx", tmp_path / "s8s8.onnx", task.calibration)
    assert (found.products - found.integer, found.products) == (lost, total)
    float_nodes = [n for n in found.nodes if n.runs == "float"]
    assert all("int8 activations that several nodes read" in n.why for n in float_nodes)
    (advice,) = found.advice
    assert advice.startswith(f"{lost} Conv stay float")
    consistent(tmp_path / "s8s8.onnx", found)
    mended = ort_static(
        tmp_path / "ready.onnx",
        tmp_path / "u8s8.onnx",
        task.calibration,
        activation_type=oq.QuantType.QUInt8,
    )
    assert (mended.integer, mended.products, mended.advice) == (total, total, ())


def test_dynamic_and_stored_weights(tmp_path: Path) -> None:
    sample = fashion_mnist()
    quantize_dynamic(sample.model, tmp_path / "q.onnx")
    found = runtime_of(tmp_path / "q.onnx")
    runs = {n.op_type: n.runs for n in found.nodes}
    assert runs["MatMulInteger"] == "dynamic"
    assert runs["Conv"] == "float"
    assert any("8 bits in the file and becomes float" in n.why for n in found.nodes)
    consistent(tmp_path / "q.onnx", found)


@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
def test_static_files(tmp_path: Path, output_format: str) -> None:
    sample = fashion_mnist()
    samples = [{"image": sample.images[i : i + 1]} for i in range(4)]
    path = tmp_path / "q.onnx"
    plain = RecoverSettings(rounding=False, equalize=False, smooth=False)  # no matter of accuracy
    quantize_static(sample.model, path, samples, quant_format=output_format, recover=plain)
    found = runtime_of(path)
    assert (found.integer, found.products, found.advice) == (5, 5, ())
    assert [n.kernel for n in found.nodes] == ["QLinearConv"] * 3 + ["QGemm"] * 2
    consistent(path, found)


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
def test_unnamed_products_are_traced_by_their_weight(tmp_path: Path, op: str) -> None:
    proto = Case(op=op).build()
    for item in proto.graph.node:
        item.name = ""
    found = runtime_of(save(proto, tmp_path / "m.onnx"))
    assert by_runs(found) == {"m": "integer"}


def test_what_is_folded_is_gone(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["w", "w"], ["c"], "constant"), node("Add", ["x", "c"], ["y"])]
    proto = model(graph(nodes, {"x": [4, 4]}, {"y": None}, {"w": weight(4, 4)}))
    found = runtime_of(save(proto, tmp_path / "m.onnx"))
    assert by_runs(found) == {"constant": "gone"}
    assert (found.integer, found.products, found.share) == (0, 0, 0.0)


def test_a_product_joined_with_the_add_behind_it_keeps_its_name(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"], "first"), node("Add", ["x", "m"], ["y"])]
    nodes += [node("MatMul", ["y", "v"], ["n"], "second"), node("Add", ["y", "n"], ["z"])]
    constants: dict[str, Array] = {"w": weight(4, 4), "v": weight(4, 4, seed=1)}
    path = save(model(graph(nodes, {"x": [4, 4]}, {"z": [4, 4]}, constants)), tmp_path / "m.onnx")
    found = runtime_of(path)
    assert by_runs(found) == {"first": "float", "second": "float"}
    consistent(path, found)


@pytest.mark.parametrize(("level", "runs"), [(0, "float"), (4, "dynamic")])
def test_weights_of_four_bits(tmp_path: Path, level: int, runs: str) -> None:
    attributes = {"K": 32, "N": 8, "bits": 4, "block_size": 32, "accuracy_level": level}
    product = node("MatMulNBits", ["x", "w", "s"], ["y"], "nbits", domain=MS, **attributes)
    constants: dict[str, Array] = {
        "w": np.ones((8, 1, 16), np.uint8),
        "s": np.ones((8, 1), np.float32),
    }
    path = save(model(graph([product], {"x": [2, 32]}, {"y": [2, 8]}, constants)), tmp_path / "m")
    found = runtime_of(path)
    assert by_runs(found) == {"nbits": runs}
    assert ("accuracy_level" in found.nodes[0].fix) == (runs == "float")
    consistent(path, found)


def test_a_float_model(tmp_path: Path) -> None:
    path = save(matmul_model(), tmp_path / "m.onnx")
    found = runtime_of(path)
    (advice,) = found.advice
    assert advice.startswith("1 MatMul stays float: weight and input are float in the file; fix: ")
    consistent(path, found)


def test_equal_names_in_two_graphs_do_not_get_lost(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": graph(
            [node("MatMul", ["x", f"w_{name}"], [f"y_{name}"], "same")],
            {},
            {f"y_{name}": None},
            {f"w_{name}": weight(8, 8)},
        )
        for name in ("then", "else")
    }
    choice = node("If", ["flag"], ["y"], **branches)
    inputs = {"x": [2, 8], "flag": []}
    proto = model(graph([choice], inputs, {"y": None}, types={"flag": TensorProto.BOOL}))
    found = runtime_of(save(proto, tmp_path / "m.onnx"))
    assert [(n.node, n.runs) for n in found.nodes] == [("same", "float")] * 2


def test_large_weights_stay_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(matmul_model(), path, save_as_external_data=True, location="m.data")
    assert by_runs(runtime_of(path)) == {"mm": "float"}
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.data"}


def test_a_file_made_by_quantize_static_is_not_told_to_use_it(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    quantize_static(source, tmp_path / "q.onnx", feeds, nodes_to_exclude=["deep"])
    found = runtime_of(tmp_path / "q.onnx")
    floats = [node for node in found.nodes if node.runs == "float"]
    assert {"deep", "wide"} == {node.node for node in floats}
    assert found.advice == ()
    assert all(node.fix.startswith("none: left in float when it was quantized") for node in floats)


def test_a_product_that_runs_in_integers_is_not_listed_as_float_for_a_kernel_traced_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = save(matmul_model(), tmp_path / "m.onnx")
    (product,) = (n for n in onnx.load(path).graph.node if n.op_type == "MatMul")
    integer = node("MatMulIntegerToFloat", ["xq", "wq"], ["a"], product.name)
    other = node("FusedMatMul", [product.input[1]], ["b"], "of_onnxruntime")
    monkeypatch.setattr(
        "quantkit.runtime.kernels.truth.optimized_nodes", lambda _: (integer, other)
    )
    found = runtime_of(path)
    assert by_runs(found) == {product.name: "integer", "of_onnxruntime": "float"}
    consistent(path, found)
