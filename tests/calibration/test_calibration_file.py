"""The file that calibration leaves: every method, every question, without running again."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, weight

import quantkit
from calibrators import (
    ChannelMoments,
    Entropy,
    MeanSquaredError,
    Method,
    MinMax,
    Percentile,
    SecondMoment,
)
from calibrators import Sketch as Distribution
from quantkit.calibration import (
    Calibration,
    CalibratorOf,
    ChannelSketchesOf,
    MinMaxOf,
    MomentsOf,
    Request,
    SecondMomentOf,
    SketchOf,
    onnxruntime_table,
)
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.container import read_container, write_container
from quantkit.calibration.origin import calibration_digest
from quantkit.calibration.requests import ExtremesOf, Observations, PatchesOf
from quantkit.errors import DataError, OutputError, QuantkitError, UsageError
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.settings import DataSettings

K = 6
ROWS = rng().standard_normal((64, K)).astype(np.float32)
METHODS: list[Method] = [
    MinMax(),
    Percentile(),
    Percentile(keep=99.0),
    Entropy(),
    MeanSquaredError(),
]


def product() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["relu_out"], "r")]
    return model(graph(nodes, {"x": ["N", K]}, {"relu_out": ["N", K]}, {"w": weight(K, K)}))


def hidden_layers() -> tuple[Request, ...]:
    return (
        Request(tensor="x", statistic=MomentsOf(axis=1)),
        Request(tensor="x", statistic=SecondMomentOf(axis=1)),
        Request(tensor="relu_out", statistic=ChannelSketchesOf(axis=1)),
        Request(tensor="m", statistic=MomentsOf(axis=-1)),
        Request(tensor="m", statistic=MinMaxOf()),
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("calibration") / "c.calibration"
    made = quantkit.calibrate(product(), {"x": ROWS}, target, requests=hidden_layers(), workers=1)
    assert made.tensors == ("x", "relu_out", "m")
    return target


def test_the_name_of_a_calibration_in_records_does_not_depend_on_what_classes_are_called() -> None:
    kinds = (
        SketchOf(most=4),
        MinMaxOf(),
        ChannelSketchesOf(axis=1),
        MomentsOf(axis=1),
        ExtremesOf(axis=1),
        SecondMomentOf(axis=1),
        PatchesOf(inputs=2),
        CalibratorOf(name="moving_average"),
    )
    seen = Observations.empty([Request(tensor="x", statistic=kind) for kind in kinds], 1)
    for answer in seen.answers["x"].values():
        answer.observe(np.arange(8, dtype=np.float32).reshape(4, 2))
    found = calibration_digest(Calibration(seen=seen, method=CalibratorOf(name="mse"), header={}))
    # Recorded with the first version that wrote it: `verify` compares it with what is in files.
    assert found == "5800b2f55184897fa5db784c192380b953eea2cedb5b2c466a5a403185c9e674"


def test_a_saved_file_is_read_and_saved_the_same(path: Path, tmp_path: Path) -> None:
    found = Calibration.load(path)
    found.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert found.method == CalibratorOf(name="mse")
    assert found.header["data"]["samples"] == 64
    assert found.header["software"].keys() >= {"quantkit", "onnxruntime", "numpy"}
    assert len(found.header["model"]["sha256"]) == 64


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_every_method_reads_the_file(path: Path, method: Any) -> None:
    found = Calibration.load(path)
    whole = Distribution()
    whole.observe(ROWS)
    given, expected = found.range("x", method), method(whole)
    np.testing.assert_array_equal(given.low, expected.low)
    np.testing.assert_array_equal(given.high, expected.high)


def test_methods_go_by_their_names_too(path: Path) -> None:
    found = Calibration.load(path)
    for name, method in (("minmax", MinMax()), ("mse", MeanSquaredError())):
        assert repr(found.range("x", name)) == repr(found.range("x", method))
    with pytest.raises(
        UsageError, match=r"No calibrator is called 'minmaks'.*Did you mean 'minmax'"
    ):
        found.range("x", "minmaks")
    with pytest.raises(UsageError, match="collects its own statistics"):
        found.range("x", "moving_average")
    with pytest.raises(UsageError, match=r"99\.9 is no range method: give the name of one"):
        found.range("x", 99.9)  # type: ignore[arg-type]


def test_the_methods_do_not_agree(path: Path) -> None:
    found = Calibration.load(path)
    assert len({float(found.range("relu_out", m).high[0]) for m in METHODS}) > 2


def test_an_unknown_tensor_is_answered_with_the_closest_name(path: Path) -> None:
    found = Calibration.load(path)
    with pytest.raises(UsageError, match="no tensor 'relu_ou'; did you mean 'relu_out'"):
        found.range("relu_ou")
    with pytest.raises(UsageError, match="no tensor 'zzzzzzzzzz'"):
        found.sketch("zzzzzzzzzz")


def test_files_call_statistics_as_they_always_did(path: Path) -> None:
    """Calibrations that were written before are read, and other versions read those written now."""
    header, arrays = read_container(path)
    stored = {"SketchAsk", "MomentsAsk", "ProductsAsk", "ChannelsAsk", "SpanAsk"}  # as files say
    assert {kind for _, kind, _ in header["requests"]} == stored
    assert {name.partition("(")[0] for name in arrays if "/" in name} == stored


def test_what_else_was_asked_comes_back(path: Path) -> None:
    found = Calibration.load(path)
    moments = found.answer("x", MomentsOf)
    assert isinstance(moments, ChannelMoments)
    np.testing.assert_allclose(moments.mean, ROWS.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moments.variance, ROWS.var(0), rtol=1e-4)
    products = found.answer("x", SecondMomentOf)
    assert isinstance(products, SecondMoment)
    x = ROWS.astype(np.float64)
    np.testing.assert_allclose(products.matrix, x.T @ x, rtol=1e-12)
    channels = found.answer("relu_out", ChannelSketchesOf)
    assert isinstance(channels, Distribution)
    assert channels.channels == K
    m = ROWS @ weight(K, K)
    np.testing.assert_allclose(channels.high, np.maximum(m, 0).max(0), rtol=1e-5)
    span: Any = found.answer("m", MinMaxOf)
    np.testing.assert_allclose(span.bounds, (m.min(), m.max()), rtol=1e-5)
    assert found.answer("relu_out", SecondMomentOf) is None
    assert found.answer("m", ChannelSketchesOf) is None


def test_a_tensor_asked_for_only_otherwise_has_no_range_of_the_method(tmp_path: Path) -> None:
    """`ranges()` is for the tensors that a plan can need; a request beside them must not break it."""
    target = tmp_path / "c"
    quantkit.calibrate(product(), {"x": ROWS}, target, requests=hidden_layers(), workers=1)
    assert Calibration.load(target).ranges().keys() >= {"x", "relu_out"}


def minmax_only(target: Path | None, name: str) -> Calibration:
    options = CalibrateOptions(minmax_only=True, method=CalibratorOf(name=name))
    return calibrate_model(product(), {"x": ROWS}, target, options, DataSettings())


def test_minima_and_maxima_alone_refuse_other_methods(tmp_path: Path) -> None:
    minmax_only(tmp_path / "c", "minmax")
    found = Calibration.load(tmp_path / "c")
    low, high = found.ranges()["x"]
    assert (low, high) == (ROWS.min(), ROWS.max())
    whole = quantkit.calibrate(product(), {"x": ROWS}, method="minmax")
    assert found.ranges() == whole.ranges()
    for method in METHODS[1:]:
        with pytest.raises(UsageError, match="--minmax-only"):
            found.range("x", method)
    assert found.sketch("x") is None


def test_onnxruntime_reads_the_exported_table(tmp_path: Path) -> None:
    from onnxruntime.quantization.calibrate import load_tensors_data

    found = quantkit.calibrate(product(), {"x": ROWS})
    table = tmp_path / "table.json"
    table.write_text(onnxruntime_table(found))
    read = load_tensors_data(table)
    assert set(read) == set(found.tensors)
    for tensor in found.tensors:
        low, high = read[tensor].range_value
        assert low.dtype == high.dtype == np.float32
        assert (float(low), float(high)) == found.ranges()[tensor]


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    write_container(tmp_path / "c", {"format": "quantkit.calibration.99"}, {})
    with pytest.raises(DataError, match=r"quantkit.calibration.99"):
        Calibration.load(tmp_path / "c")


def test_a_file_that_lacks_what_its_format_has_is_refused(path: Path, tmp_path: Path) -> None:
    header, arrays = read_container(path)
    del header["requests"]
    write_container(tmp_path / "c", header, arrays)
    with pytest.raises(QuantkitError):
        Calibration.load(tmp_path / "c")


def test_truncated_and_missing_files_are_data_errors(path: Path, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(path.read_bytes()[:-100])
    for name in ("c", "gone"):
        with pytest.raises(DataError):
            Calibration.load(tmp_path / name)


def test_saving_into_an_unwritable_folder_is_an_output_error(path: Path) -> None:
    with pytest.raises(OutputError):
        Calibration.load(path).save("/proc/c")


def test_a_method_that_collects_its_own_is_kept_in_the_file(tmp_path: Path) -> None:
    made = quantkit.calibrate(product(), {"x": ROWS}, tmp_path / "c", method="moving_average")
    found = Calibration.load(tmp_path / "c")
    assert found.ranges() == made.ranges()
    assert found.ranges(MinMax())["x"] == (ROWS.min(), ROWS.max())
    assert found.ranges()["x"] != found.ranges(MinMax())["x"]


def test_a_request_for_an_unknown_tensor_is_refused_by_name() -> None:
    request = Request(tensor="nosuch", statistic=MinMaxOf())
    with pytest.raises(QuantkitError, match="nosuch"):
        quantkit.calibrate(product(), {"x": ROWS}, requests=[request])


@pytest.mark.parametrize(
    "part",
    [
        {"audit": {"samples": "many"}},
        {"audit": None},
        {"warnings": "all"},
        {"names": [1]},
        {"data": {"kind": 3}},
        {"data": {"kind": "npz", "location": "a.npz", "samples": 3}},
        {"software": None},
        {"bad": {"a": 1}},
        {"requests": [["x", "SketchAsk", {"most": "all"}]]},  # as files say
        {"requests": [["x", "NoAsk", {}]]},
        {"requests": [[5, "SketchAsk", {}]]},  # as files say
        {"requests": []},
        {"method": {"name": "no such", "settings": []}},
        {"method": {"name": ["mse"], "settings": 7}},
        {"software": 1},
    ],
    ids=str,
)
def test_a_header_that_makes_no_sense_is_one_clear_line(part: Any, tmp_path: Path) -> None:
    file = tmp_path / "c.calibration"
    quantkit.calibrate(product(), {"x": ROWS}, file)
    header, arrays = read_container(file)
    write_container(file, {**header, **part}, arrays)
    with pytest.raises(DataError, match=r"is damaged \(.*\); calibrate again") as e:
        Calibration.load(file)
    assert "\n" not in str(e.value)


def test_arrays_that_are_not_those_of_the_requests_are_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "c.calibration"
    quantkit.calibrate(product(), {"x": ROWS}, file)
    header, arrays = read_container(file)
    for name, array in arrays.items():
        for wrong in (array[:-1], array[..., None], None):
            if wrong is not None and (wrong.dtype, wrong.shape) == (array.dtype, array.shape):
                continue
            others = {k: v for k, v in arrays.items() if k != name}
            write_container(file, header, others if wrong is None else {**others, name: wrong})
            with pytest.raises(DataError, match="is damaged"):
                Calibration.load(file)
