"""`quantize_static` as users call it: on the sample model, with data of every kind."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, op_types, run, save, sqnr, weight

import quantkit
from quantkit import quantize_static
from quantkit.errors import DataError, NothingToQuantizeError, QuantkitError, UsageError
from quantkit.quantize.plan import Mode, write_plan
from quantkit.samples import fashion_mnist
from quantkit.settings import NodeRule, RecoverSettings, TensorRule

SAMPLE = fashion_mnist()
IMAGES = SAMPLE.images[:32]
JUDGED = {"image": SAMPLE.images[1000:]}
FAST = RecoverSettings(rounding=False, equalize=False, smooth=False)


def top1(path: Path, *, optimize: bool = True) -> float:
    guessed = run(path, JUDGED, optimize=optimize)[0].argmax(axis=1)
    return float((guessed == SAMPLE.labels[1000:]).mean())


@pytest.mark.parametrize("quant_format", ["qdq", "qoperator"])
def test_accuracy_is_kept_and_everything_runs_in_integers(
    quant_format: str, tmp_path: Path
) -> None:
    out = tmp_path / "q.onnx"
    result = quantize_static(SAMPLE.model, out, SAMPLE.images[:128], quant_format=quant_format)
    for optimize in (True, False):
        assert abs(top1(out, optimize=optimize) - top1(SAMPLE.model)) <= 0.004
    assert sqnr(run(SAMPLE.model, JUDGED)[0], run(out, JUDGED)[0]) > 30
    assert result.fusion is not None
    assert result.fusion.integer == {"QGemm": 2, "QLinearConv": 3}
    assert not result.fusion.float
    assert result.output_bytes == out.stat().st_size < 0.28 * result.input_bytes
    assert result.verification is not None
    assert result.verification.worst is not None
    assert result.verification.worst > 25
    assert not result.warnings


class Reader:
    """onnxruntime's way to give data."""

    def __init__(self) -> None:
        self._feeds = iter([{"image": x[None]} for x in IMAGES])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def folder(path: Path) -> Path:
    (path / "data").mkdir()
    for i, image in enumerate(IMAGES):
        np.save(path / "data" / f"{i:03}.npy", image)
    return path / "data"


def generated() -> Iterator[dict[str, Array]]:
    return ({"image": x[None]} for x in IMAGES)


DATA: dict[str, Callable[[Path], Any]] = {
    "array": lambda _: IMAGES,
    "mapping": lambda _: {"image": IMAGES},
    "list": lambda _: list(generated()),
    "iterator": lambda _: generated(),
    "reader": lambda _: Reader(),
    "folder": folder,
    "folder as text": lambda path: str(folder(path)),
    "batches": lambda _: [{"image": IMAGES[:16]}, {"image": IMAGES[16:]}],
}
CALIBRATIONS: dict[str, Callable[[Path], Any]] = {
    "object": lambda path: quantkit.calibrate(SAMPLE.model, IMAGES, path / "c.calibration"),
    "file": lambda path: (
        quantkit.calibrate(SAMPLE.model, IMAGES, path / "c.calibration"),
        path / "c.calibration",
    )[1],
}


@pytest.mark.parametrize("kind", [*DATA, *CALIBRATIONS])
def test_every_kind_of_data_gives_the_same_activations(kind: str, tmp_path: Path) -> None:
    data = {**DATA, **CALIBRATIONS}[kind](tmp_path)
    # Ranges are fitted only to data that can be read again.
    recover = replace(FAST, activation_ranges=False)
    result = quantize_static(SAMPLE.model, tmp_path / "q.onnx", data, recover=recover)
    expected = quantize_static(SAMPLE.model, tmp_path / "e.onnx", IMAGES, recover=recover)
    assert [n.mode for n in result.plan.nodes] == [n.mode for n in expected.plan.nodes]
    for found, wanted in zip(result.plan.activations, expected.plan.activations, strict=True):
        # What cannot be counted before it is read is thinned otherwise.
        assert found.scale == pytest.approx(wanted.scale, rel=0.15), found.tensor
    assert abs(top1(tmp_path / "q.onnx") - top1(SAMPLE.model)) < 0.02


def test_a_calibration_is_used_again_with_another_method(tmp_path: Path) -> None:
    seen = quantkit.calibrate(SAMPLE.model, IMAGES, tmp_path / "c.calibration")
    plans = [
        quantize_static(SAMPLE.model, tmp_path / "q.onnx", seen, method=method, recover=FAST).plan
        for method in ("minmax", "percentile", "entropy", "mse")
    ]
    assert len({plan.activation["relu1_out"].scale for plan in plans}) > 1


def test_a_proto_and_external_data(tmp_path: Path) -> None:
    proto = onnx.load(SAMPLE.model)
    quantize_static(proto, tmp_path / "p.onnx", IMAGES, recover=FAST)
    onnx.save(
        proto, tmp_path / "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0
    )
    result = quantize_static(
        tmp_path / "e.onnx",
        tmp_path / "q.onnx",
        IMAGES,
        recover=FAST,
        use_external_data_format=True,
    )
    assert result.external_data
    (data,) = tmp_path.glob("q.onnx.*.data")
    assert data.stat().st_size > 200_000
    results = [run(tmp_path / name, JUDGED)[0] for name in ("p.onnx", "q.onnx")]
    np.testing.assert_array_equal(results[0], results[1])


def test_the_input_is_never_touched(tmp_path: Path) -> None:
    source = tmp_path / "float.onnx"
    source.write_bytes(SAMPLE.model.read_bytes())
    proto = onnx.load(source)
    before = (sha256(source.read_bytes()).digest(), proto.SerializeToString(deterministic=True))
    quantize_static(source, tmp_path / "q.onnx", IMAGES, recover=FAST)
    quantize_static(proto, tmp_path / "p.onnx", IMAGES, recover=FAST)
    after = (sha256(source.read_bytes()).digest(), proto.SerializeToString(deterministic=True))
    assert before == after
    with pytest.raises(UsageError, match="would overwrite the input"):
        quantize_static(source, source, IMAGES, recover=FAST)


NO_PRODUCT = model(graph([node("Relu", ["x"], ["y"])], {"x": [1, 4]}, {"y": [1, 4]}))
Arguments = dict[str, Any]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": []}, DataError, "no samples"),
        ({"data": iter([])}, DataError, "'list_iterator' gave no samples"),
        ({"data": "nowhere"}, DataError, "nowhere"),
        ({"data": IMAGES * np.float32("nan")}, DataError, "only NaN or infinity"),
        ({"data": np.zeros((4, 3, 28, 28), np.float32)}, DataError, "axis 1 must be 1"),
        ({"data": Path("none.calibration")}, DataError, "There is no file"),
        ({"target": "gpu"}, UsageError, "did you mean 'cpu'"),
        ({"quant_format": "int8"}, UsageError, "use 'qdq' or 'qoperator'"),
        ({"activation_type": "int3"}, UsageError, "activation_type 'int3' is unknown"),
        ({"weight_type": "float8"}, UsageError, r"weight_type 'float8' is unknown: use one of .*int8"),
        ({"weight_type": "uint16"}, UsageError, "use 8 bits, or coverage 'all'"),
        ({"activation_type": "uint16", "quant_format": "qoperator"}, UsageError, "use 8 bits, or the QDQ format"),
        ({"method": "best"}, UsageError, "best"),
        ({"nodes_to_exclude": ["conv9"]}, UsageError, "did you mean 'conv"),
        ({"nodes_to_exclude": "conv1"}, UsageError, "is a list of names"),
        ({"nodes_to_exclude": ["*"]}, NothingToQuantizeError, "3 Conv: excluded"),
        ({"op_types_to_quantize": ["conv"]}, UsageError, "did you mean 'Conv'"),
        ({"tensors": [TensorRule(tensor="nope", dtype="int8")]}, UsageError, "no tensor 'nope'"),
        ({"tensors": [TensorRule(tensor="image", method="best")]}, UsageError, "No calibrator is called 'best'"),
        ({"plan": "none.json"}, UsageError, "Cannot read plan 'none.json'"),
        ({"model_input": NO_PRODUCT, "data": np.zeros((2, 1, 4), np.float32)}, NothingToQuantizeError, "no Conv, Gemm or MatMul"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_line_and_nothing_is_written(
    arguments: Arguments, error: type[QuantkitError], message: str, tmp_path: Path
) -> None:
    given = {"model_input": SAMPLE.model, "data": IMAGES, "recover": FAST, **arguments}
    source, data = given.pop("model_input"), given.pop("data")
    with pytest.raises(error, match=message) as caught:
        quantize_static(source, tmp_path / "q.onnx", data, **given)
    assert "\n" not in str(caught.value)
    assert "quantkit-" not in str(caught.value)  # no temporary folder
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_is_there_survives_a_failure(tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    out.write_bytes(b"mine")
    with pytest.raises(UsageError):
        quantize_static(SAMPLE.model, out, IMAGES, nodes_to_exclude=["conv9"])
    assert out.read_bytes() == b"mine"


CALLS: dict[str, Callable[..., Any]] = {
    "static": quantize_static,
    "dynamic": quantkit.quantize_dynamic,
}


@pytest.mark.parametrize("again", CALLS)
def test_a_quantized_model_is_refused(again: str, tmp_path: Path) -> None:
    quantize_static(SAMPLE.model, tmp_path / "q.onnx", IMAGES, recover=FAST)
    more = (IMAGES,) if again == "static" else ()
    with pytest.raises(NothingToQuantizeError, match="quantized already"):
        CALLS[again](tmp_path / "q.onnx", tmp_path / "r.onnx", *more)


def test_nan_in_some_samples_is_reported(tmp_path: Path) -> None:
    spoiled = IMAGES.copy()
    spoiled[3] = np.nan
    result = quantize_static(SAMPLE.model, tmp_path / "q.onnx", spoiled, recover=FAST)
    assert any("NaN" in warning for warning in result.warnings)


@pytest.mark.parametrize("recover", [RecoverSettings(), FAST], ids=["default", "fast"])
@pytest.mark.parametrize("data", [IMAGES[:1], 0 * IMAGES[:2]], ids=["one sample", "all zeros"])
def test_little_data_is_enough_to_run(
    data: Array, recover: RecoverSettings, tmp_path: Path
) -> None:
    out = tmp_path / "q.onnx"
    result = quantize_static(SAMPLE.model, out, data, recover=recover)
    assert result.fusion is not None
    assert result.fusion.integer_count == 5
    assert np.isfinite(run(out, JUDGED)[0]).all()


@pytest.mark.parametrize("target", ["x86-avx2", "x86-vnni", "arm64", "tensorrt", "openvino", "qnn"])
def test_every_target_gives_a_model_that_runs_here(target: str, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    quantize_static(SAMPLE.model, out, IMAGES, target=target, recover=FAST)
    for optimize in (True, False):
        assert abs(top1(out, optimize=optimize) - top1(SAMPLE.model)) < 0.01


def test_rules_for_nodes_and_tensors(tmp_path: Path) -> None:
    rules = [
        TensorRule(tensor="image", range=(0.0, 2.0)),
        TensorRule(tensor="relu1_out", method="minmax"),
    ]
    # conv1 would be computed in float with the node that reads it, and 'image' not be quantized
    nodes = [NodeRule(node="conv2", mode="float"), NodeRule(node="conv1", mode="integer")]
    result = quantize_static(
        SAMPLE.model, tmp_path / "q.onnx", IMAGES, tensors=rules, nodes=nodes, recover=FAST
    )
    assert result.plan.activation["image"].high == pytest.approx(2.0)
    assert result.plan.node["conv2"].mode is Mode.FLOAT
    assert result.fusion is not None
    assert result.fusion.float_products == ("conv2",)


def test_a_plan_is_made_edited_and_applied(tmp_path: Path) -> None:
    plan = quantkit.plan_static(SAMPLE.model, IMAGES, quantkit.StaticSettings(recover=FAST))
    write_plan(plan, tmp_path / "plan.json")
    out = tmp_path / "q.onnx"
    result = quantize_static(SAMPLE.model, out, IMAGES, plan=tmp_path / "plan.json", recover=FAST)
    assert result.plan == plan
    with pytest.raises(UsageError, match="equalized with other data"):
        quantize_static(SAMPLE.model, out, IMAGES, plan=tmp_path / "plan.json")
    other = save(
        model(
            graph(
                [node("MatMul", ["x", "w"], ["y"], "m")],
                {"x": [4, 16]},
                {"y": None},
                {"w": weight(16, 8)},
            )
        ),
        tmp_path / "o.onnx",
    )
    with pytest.raises(UsageError, match="which the model does not have"):
        quantize_static(
            other, out, [{"x": weight(4, 16)}], plan=tmp_path / "plan.json", recover=FAST
        )


def test_the_same_call_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        quantize_static(SAMPLE.model, tmp_path / name, IMAGES)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_qoperator_holds_no_float_product(tmp_path: Path) -> None:
    quantize_static(
        SAMPLE.model, tmp_path / "q.onnx", IMAGES, quant_format="QOperator", recover=FAST
    )
    found = op_types(onnx.load(tmp_path / "q.onnx"))
    assert not {"Conv", "Gemm", "MatMul", "Relu"} & {*found}
