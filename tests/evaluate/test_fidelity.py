"""Whether a file means the same wherever it runs is measured, not believed."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as oq
import pytest
from builders import Array, graph, matmul_model, model, node, rng, save
from fusion_cases import Case

from quantkit import quantize_dynamic, quantize_static
from quantkit.evaluate import fidelity as subject
from quantkit.evaluate.fidelity import fidelity_of, saturates_here
from quantkit.evaluate.integer_layers import integer_layers, layers_among, matmul_integer
from quantkit.evaluate.match import SharedModel
from quantkit.model.graph.load import load
from quantkit.runtime.saturation import integer_products
from quantkit.runtime.session import RUNTIME_ERRORS
from quantkit.samples import fashion_mnist
from quantkit.settings import RecoverSettings
from quantkit.targets import this_machine

pytestmark = pytest.mark.filterwarnings("ignore")


class Reader(oq.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: list[dict[str, Array]]) -> None:
        self.samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        return next(self.samples, None)


@pytest.fixture(scope="module")
def samples() -> list[dict[str, Array]]:
    images = fashion_mnist().images
    return [{"image": images[i : i + 1]} for i in range(4)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("float") / "float.onnx"
    proto = onnx.load(fashion_mnist().model)
    del proto.graph.value_info[
        :
    ]  # onnxruntime.quantize_dynamic changes shapes and then trips on them
    onnx.save(proto, path)
    return path


def ort_static(source: Path, path: Path, samples: list[dict[str, Array]], **options: Any) -> Path:
    oq.quantize_static(str(source), str(path), Reader(samples), **options)
    return path


def test_a_float_model(source: Path, samples: list[dict[str, Array]]) -> None:
    said: list[str] = []
    found = fidelity_of(SharedModel(source), samples, progress=said.append)
    assert found.sentence == (
        "No Conv, Gemm or MatMul with constant int8 weights: nothing can saturate."
    )
    assert (found.products, found.unsafe, found.saturated_db, found.portable) == (0, (), None, True)
    assert found.plain_db is None or found.plain_db > 100
    assert found.plain_max < 1e-4
    assert (found.plain_flips, found.samples) == (0, 4)
    assert said


@pytest.mark.parametrize("output_format", ["qdq", "qoperator"])
def test_static_files_of_quantkit_are_portable(
    tmp_path: Path, samples: list[dict[str, Array]], output_format: str
) -> None:
    path = tmp_path / "q.onnx"
    # Weights in one format are rounded by what they multiply, in the other to the nearest.
    recover = RecoverSettings(rounding=output_format == "qdq", equalize=False, smooth=False)
    options: dict[str, Any] = {"quant_format": output_format, "recover": recover}
    quantize_static(fashion_mnist().model, path, samples, **options)
    found = fidelity_of(SharedModel(path), samples)
    assert found.sentence.startswith("Layers give the same integers on AVX2, VNNI and ARM")
    assert (found.products, found.portable, found.saturated_db) == (5, True, None)
    assert found.plain_flips == 0


def test_a_dynamic_file_of_quantkit_has_no_int8_weights_to_saturate(
    tmp_path: Path, samples: list[dict[str, Array]]
) -> None:
    quantize_dynamic(fashion_mnist().model, tmp_path / "q.onnx")
    found = fidelity_of(SharedModel(tmp_path / "q.onnx"), samples)
    assert (found.products, found.portable) == (0, True)


@pytest.mark.parametrize(
    "options",
    [
        {"activation_type": oq.QuantType.QUInt8, "per_channel": True},
        {"activation_type": oq.QuantType.QUInt8, "quant_format": oq.QuantFormat.QOperator},
        {},
    ],
    ids=["U8S8 by channel", "QOperator", "S8S8"],
)
def test_files_of_onnxruntime_could_answer_differently(
    tmp_path: Path, source: Path, samples: list[dict[str, Array]], options: dict[str, Any]
) -> None:
    path = ort_static(source, tmp_path / "q.onnx", samples, **options)
    found = fidelity_of(SharedModel(path), samples)
    assert len(found.unsafe) == found.products == 5
    assert not found.portable
    assert found.saturated_db is not None
    assert 0 < found.saturated_db < 60
    assert found.sentence.startswith("5 of 5 layers can saturate on x86 without VNNI: ")
    assert f"{found.saturated_db:.1f} dB" in found.sentence
    assert "quantkit quantize static" in found.sentence
    assert found.plain_flips == 0


def test_the_fix_named_is_one(
    tmp_path: Path, source: Path, samples: list[dict[str, Array]]
) -> None:
    path = ort_static(
        source,
        tmp_path / "q.onnx",
        samples,
        activation_type=oq.QuantType.QUInt8,
        reduce_range=True,
    )
    found = fidelity_of(SharedModel(path), samples)
    assert (found.products, found.unsafe, found.portable) == (5, (), True)


def test_int8_activations_of_qlinear_operators_are_multiplied_exactly(
    tmp_path: Path, source: Path, samples: list[dict[str, Array]]
) -> None:
    path = ort_static(source, tmp_path / "q.onnx", samples, quant_format=oq.QuantFormat.QOperator)
    assert fidelity_of(SharedModel(path), samples).portable


def test_ranges_taken_at_run_time_are_seen(
    tmp_path: Path, source: Path, samples: list[dict[str, Array]]
) -> None:
    oq.quantize_dynamic(str(source), str(tmp_path / "q.onnx"))
    found = fidelity_of(SharedModel(tmp_path / "q.onnx"), samples)
    assert len(found.unsafe) == 5
    assert found.saturated_db is not None
    layers = integer_layers(tmp_path / "q.onnx", samples, 8)
    assert all(layer.sums > 0 for layer in layers)


def _quantizes_itself(op_type: str) -> onnx.ModelProto:
    """Return a product that reads floats, with int8 weights whose pairs overflow 16 bits."""
    full = partial(np.full, fill_value=127, dtype=np.int8)
    lstm = op_type == "DynamicQuantizeLSTM"
    inits = (
        {"w": full((1, 16, 32)), "r": full((1, 8, 32)), "b": np.zeros((1, 64), np.float32)}
        if lstm
        else {"w": full((16, 32))}
    )
    inits |= {"s": np.full((1, 32) if lstm else 32, 0.01, np.float32)}
    inits |= {"z": np.zeros((1, 32) if lstm else 32, np.int8)}
    read = ["x", "w", *(["r", "b", "", "", "", "", "s", "z", "s", "z"] if lstm else ["s", "z"])]
    attributes: dict[str, Any] = {"hidden_size": 8} if lstm else {}
    product = node(op_type, read, ["y"], domain="com.microsoft", **attributes)
    shape = [3, 1, 1, 8] if lstm else [3, 1, 32]
    made = graph([product], {"x": [3, 1, 16]}, {"y": shape}, inits)
    return model(made, domains={"com.microsoft": 1})


@pytest.mark.parametrize("op_type", ["DynamicQuantizeMatMul", "DynamicQuantizeLSTM"])
def test_what_quantizes_its_input_itself_is_judged_by_its_weights(
    tmp_path: Path, op_type: str
) -> None:
    path = save(_quantizes_itself(op_type), tmp_path / "m.onnx")
    found = fidelity_of(
        SharedModel(path), [{"x": rng(0).normal(size=(3, 1, 16)).astype(np.float32)}]
    )
    assert not found.portable
    assert found.saturated_db is None
    assert "what they read was not to be seen" in found.sentence


def test_without_samples_only_weights_are_judged(
    tmp_path: Path, source: Path, samples: list[dict[str, Array]]
) -> None:
    path = ort_static(source, tmp_path / "q.onnx", samples)
    found = fidelity_of(SharedModel(path), [])
    assert (found.samples, found.saturated_db, found.plain_db) == (0, None, None)
    assert "was not measured" in found.sentence


def test_what_runs_only_optimized_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path, samples: list[dict[str, Array]]
) -> None:
    from quantkit.runtime import pieces, taps
    from quantkit.runtime.session import make_session

    def refusing(given: Any, *, level: int = 99, **options: Any) -> Any:
        if level == 0:
            raise RuntimeError("no kernel\nand more")
        return make_session(given, level=level, **options)

    path = ort_static(source, tmp_path / "q.onnx", samples)
    for module in (pieces, taps):
        monkeypatch.setattr(module, "make_session", refusing)
    found = fidelity_of(SharedModel(path), samples)
    assert found.sentence.startswith("It does not run with optimization off, so that was not")
    assert "no kernel." in found.sentence
    assert "by how much was not measured: it does not run with optimization off" in found.sentence
    assert (found.samples, found.plain_db, found.plain_max) == (0, None, 0.0)


def test_what_does_not_load_is_the_runtimes_error(tmp_path: Path) -> None:
    proto = matmul_model()
    proto.opset_import[0].version = 9999
    with pytest.raises(RUNTIME_ERRORS):
        fidelity_of(SharedModel(save(proto, tmp_path / "m.onnx")), [])


def test_optimization_that_changes_a_file_is_told(tmp_path: Path) -> None:
    # Scales along the axis that is summed over: onnxruntime's kernel takes them for those of columns.
    proto = Case(op="MatMul", made=None, channels=0).build()
    for item in proto.graph.initializer:
        if item.name == "ws":
            item.CopyFrom(
                onnx.numpy_helper.from_array(np.array([1, 0.1, 0.01, 5], np.float32), "ws")
            )
    x = {"x": rng().random((2, 4)).astype(np.float32) * 10}
    found = fidelity_of(SharedModel(save(proto, tmp_path / "m.onnx")), [x])
    assert found.plain_db is not None
    assert found.plain_db < 20
    assert found.sentence.startswith("Optimization changes the outputs: they are ")


def test_values_that_one_session_alone_has_finite_are_told() -> None:
    """They enter no sum; without a word the two would seem equal."""
    sums = subject._Sums()
    sums.add(np.array([[1.0, 2.0, np.nan]]), np.array([[1.0, np.inf, np.nan]]))
    found = subject._joined({"y": sums}, 1)
    assert (found.db, found.largest) == (None, 0.0)
    assert found.note.startswith("Output 'y': 1 values are finite in only one of the two sessions")


def test_the_probe_agrees_with_what_the_cpu_says_of_itself() -> None:
    known = this_machine().saturates
    assert known is None or saturates_here() == known
    assert ("accumulates without saturation" in subject._this_cpu()) != saturates_here()


def dense(weights: Array, dtype: type) -> onnx.ModelProto:
    nodes = [node("MatMulInteger", ["x", "w"], ["y"], "dense")]
    proto = model(graph(nodes, {"x": ["N", weights.shape[0]]}, {"y": None}, {"w": weights}))
    proto.graph.input[0].type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(
        np.dtype(dtype)
    )
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)
    )
    return proto


def test_the_reference_is_the_kernels_arithmetic(tmp_path: Path) -> None:
    weights = rng().integers(-127, 128, (33, 8)).astype(np.int8)
    x = rng(1).integers(0, 256, (5, 33)).astype(np.uint8)
    path = save(dense(weights, np.uint8), tmp_path / "m.onnx")
    exact, clipped = (matmul_integer(x, weights, saturate=s) for s in (False, True))
    (layer,) = integer_layers(path, [{"x": x}], 5)
    assert layer.sums == 40
    assert layer.differing == (exact != clipped).sum() > 0
    noise = np.square((exact - clipped).astype(float)).sum() / np.square(exact.astype(float)).sum()
    assert layer.noise_db == pytest.approx(10 * np.log10(noise))
    found = fidelity_of(SharedModel(path), [{"x": x}])
    assert found.saturated_db == pytest.approx(-10 * np.log10(noise))


def test_work_is_bounded(tmp_path: Path) -> None:
    weights = rng().integers(-127, 128, (32, 8)).astype(np.int8)
    x = {"x": rng(1).integers(0, 256, (50, 32)).astype(np.uint8)}
    path = save(dense(weights, np.uint8), tmp_path / "m.onnx")
    products = list(integer_products(load(path).model))
    (all_rows,) = layers_among(path, products, [x], 1)
    assert all_rows.sums == 50 * 8  # a position of each of 50 samples
    (few,) = layers_among(path, products, [x, x], 32, work=1)
    assert few.sums == 2 * 50 * 8


def test_two_sessions_are_not_confused_by_labels(tmp_path: Path) -> None:
    nodes = [node("ArgMax", ["x"], ["y"], "top", axis=1)]
    proto = model(graph(nodes, {"x": ["N", 4]}, {"y": None}))
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None)
    )
    found = fidelity_of(
        SharedModel(save(proto, tmp_path / "m.onnx")), [{"x": rng().random((3, 4), np.float32)}]
    )
    assert (found.plain_db, found.plain_max, found.plain_flips) == (None, 0.0, None)


def test_nothing_is_left_beside_the_model(tmp_path: Path, samples: list[dict[str, Array]]) -> None:
    shutil.copyfile(fashion_mnist().model, tmp_path / "m.onnx")
    fidelity_of(SharedModel(tmp_path / "m.onnx"), samples[:1])
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
