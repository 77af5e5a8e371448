"""Readers of samples, tables of ranges, and `calibration_cache_path`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from builders import conv_model, rng, save, weight

from quantkit import Calibration, ort
from quantkit.errors import UsageError

SAMPLES = 6


def samples(seed: int = 3) -> Any:
    return rng(seed).standard_normal((SAMPLES, 1, 3, 8, 8)).astype(np.float32) + 0.25


class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, seed: int = 3) -> None:
        self.rest = iter(samples(seed))
        self.given = 0

    def get_next(self) -> dict[str, Any] | None:
        found = next(self.rest, None)
        self.given += found is not None
        return None if found is None else {"x": found}


def test_a_reader_is_read_to_its_end(source: Path, tmp_path: Path) -> None:
    reader = Reader()
    reader.rest = iter(list(samples()) * 60)
    ort.quantize_static(source, tmp_path / "out.onnx", reader)
    assert reader.given == 60 * SAMPLES


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(conv_model(), tmp_path / "in.onnx")


# --- readers ---


def test_readers_are_told_by_what_they_do() -> None:
    class Duck:
        def get_next(self) -> None:
            return None

    assert isinstance(Duck(), ort.CalibrationDataReader)
    assert not isinstance(3, ort.CalibrationDataReader)
    assert isinstance(Reader(), peer.CalibrationDataReader)


class Windows(ort.CalibrationDataReader):  # type: ignore[misc]
    """Shows the first window of its samples until it is told to show another."""

    def __init__(self, shown: int) -> None:
        self.all = [{"x": array} for array in samples()]
        self.set_range(0, shown)
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self.all)

    def set_range(self, start_index: int, end_index: int) -> None:
        self.rest = iter(range(start_index, end_index))

    def get_next(self) -> dict[str, Any] | None:
        number = next(self.rest, None)
        if number is None:
            return None
        self.seen.append(number)
        return self.all[number]


@pytest.mark.parametrize("stride", [2, 4])
def test_a_reader_is_read_a_window_at_a_time(stride: int, source: Path, tmp_path: Path) -> None:
    reader, options = Windows(stride), {"CalibStridedMinMax": stride}
    result = ort.quantize_static(
        source,
        tmp_path / "o.onnx",
        reader,
        calibrate_method=ort.CalibrationMethod.MinMax,
        extra_options=options,
    )
    assert reader.seen == list(range(SAMPLES))
    assert result.plan.activation["x"].high == pytest.approx(samples().max(), rel=1e-2)
    with pytest.raises(UsageError, match="number of samples"):
        ort.quantize_static(
            source, tmp_path / "p.onnx", reader, extra_options={"CalibStridedMinMax": "2"}
        )
    with pytest.raises(UsageError, match="set_range"):
        ort.quantize_static(source, tmp_path / "p.onnx", samples(), extra_options=options)


# --- tables ---


def test_objects_of_onnxruntimes_own_are_written(source: Path, tmp_path: Path) -> None:
    theirs = peer.create_calibrator(source, [], str(tmp_path / "a.onnx"))
    theirs.collect_data(Reader())
    found = theirs.compute_data()
    ort.save_tensors_data(found, tmp_path / "k.json")
    assert ort.load_tensors_data(tmp_path / "k.json").calibration_method.name == "MinMax"
    ort.write_calibration_table(found, tmp_path)
    assert set(ort.load_tensors_data(tmp_path / "calibration.json")) == set(found.keys())


# --- caches ---


def test_a_cache_is_a_table_that_is_used_the_second_time(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "k.json"
    first = ort.quantize_static(source, tmp_path / "a.onnx", Reader(), calibration_cache_path=path)
    table = ort.load_tensors_data(path)
    assert set(table) == {"x", "m", "a", "y"}
    assert table.calibration_method == "mse"
    assert peer.load_tensors_data(path).calibration_method == "mse"
    reader = Reader()
    second = ort.quantize_static(source, tmp_path / "b.onnx", reader, calibration_cache_path=path)
    assert reader.given == 0
    assert first.plan == second.plan
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert not any("another model" in warning for warning in second.warnings)


def test_a_cache_of_a_graph_that_is_asked_for_holds_extremes(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    for name, reader in (("a.onnx", Reader()), ("b.onnx", None)):
        ort.quantize_static(
            source, tmp_path / name, reader, ort.QuantFormat.QDQ, calibration_cache_path=path
        )
    assert peer.load_tensors_data(path).calibration_method == peer.CalibrationMethod.MinMax
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_cache_may_be_a_calibration_of_quantkits(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "k.calibration"
    methods = [None, ort.CalibrationMethod.Entropy, ort.CalibrationMethod.MinMax]
    for reader, method in zip([Reader(), None, None], methods, strict=True):
        ort.quantize_static(
            source,
            tmp_path / "o.onnx",
            reader,
            calibrate_method=method,
            calibration_cache_path=path,
        )
        assert Calibration.load(path).tensors


def test_a_cache_by_another_method_is_not_used(source: Path, tmp_path: Path) -> None:
    path, target = tmp_path / "k.json", tmp_path / "o.onnx"

    def call(reader: Any, method: str | None, **options: Any) -> None:
        ort.quantize_static(
            source,
            target,
            reader,
            calibrate_method=None if method is None else ort.CalibrationMethod[method],
            calibration_cache_path=path,
            extra_options=options,
        )

    call(Reader(), "MinMax")
    before = path.read_bytes()
    for reader in (Reader(), None):
        with pytest.raises(ValueError, match="by MinMax, and Entropy is asked for"):
            call(reader, "Entropy")
    call(None, "MinMax")
    call(None, None)
    assert path.read_bytes() == before
    path.unlink()
    call(Reader(), "Percentile", CalibPercentile=99.0)
    with pytest.raises(ValueError, match=r"Percentile \(keep 99.0\), and Percentile \(keep 99.9\)"):
        call(None, "Percentile", CalibPercentile=99.9)


def test_a_cache_of_another_model_is_said(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    ort.quantize_static(source, tmp_path / "a.onnx", Reader(), calibration_cache_path=path)
    other = conv_model()
    other.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(weight(8, 3, 3, 3, seed=9), "w1")
    )
    result = ort.quantize_static(other, tmp_path / "b.onnx", calibration_cache_path=path)
    assert any("another model" in warning for warning in result.warnings)


def test_a_cache_of_a_smoothed_model_is_made_anew(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, target = tmp_path / "k.json", tmp_path / "o.onnx"
    table = ort.TensorsData(ort.CalibrationMethod.MinMax, {"x": (np.float32(-1), np.float32(1))})
    ort.save_tensors_data(table, path, smooth_quant=True)
    with pytest.raises(UsageError, match="calibration_data_reader"):
        ort.quantize_static(source, target, calibration_cache_path=path)
    ort.quantize_static(source, target, Reader(), calibration_cache_path=path)
    assert "smooth_quant" in caplog.text
    assert json.loads(path.read_text())["smooth_quant"] is False


def test_smoothing_needs_the_data_itself(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, options = tmp_path / "k.json", {"SmoothQuant": True}
    with pytest.raises(UsageError, match="SmoothQuant looks at channels"):
        ort.quantize_static(
            source, tmp_path / "o.onnx", calibration_cache_path=path, extra_options=options
        )
    ort.quantize_static(
        source, tmp_path / "o.onnx", Reader(), calibration_cache_path=path, extra_options=options
    )
    assert "is not used" in caplog.text
    assert not path.exists()


def test_caches_that_cannot_be(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    for kind in (UsageError, FileNotFoundError):
        with pytest.raises(kind, match="calibration_data_reader"):
            ort.quantize_static(source, target, calibration_cache_path=tmp_path / "no")
    with pytest.raises(UsageError, match="calibration_data_reader"):
        ort.quantize_static(source, target)
    with pytest.raises(UsageError, match="directory"):
        ort.quantize_static(source, target, Reader(), calibration_cache_path=tmp_path)
    with pytest.raises(UsageError, match="no table of ranges: it is no text"):
        ort.quantize_static(source, target, Reader(), calibration_cache_path=source)
    assert not target.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lowest": float("nan")}, "range of tensor 'x' is none: nan"),
        ({"highest": float("inf")}, "range of tensor 'x' is none"),
        ({"lowest": 5.0, "highest": -5.0}, "is none: 5 to -5"),
        ({"lowest": "low"}, "no table of ranges"),
        ({"lowest": 10**400}, "no table of ranges"),
        ({"lowest": None}, "no range of tensor 'x'"),
    ],
)
def test_a_cache_that_was_damaged_is_refused(
    change: dict[str, Any], said: str, source: Path, tmp_path: Path
) -> None:
    path, target = tmp_path / "k.json", tmp_path / "o.onnx"
    ort.quantize_static(source, target, Reader(), calibration_cache_path=path)
    target.unlink()
    table = json.loads(path.read_text())
    for key, value in change.items():
        if value is None:
            del table["data"]["x"][key]
        else:
            table["data"]["x"][key]["data"] = value
    path.write_text(json.dumps(table | {"model": 3, "settings": [1]}))
    with pytest.raises(UsageError, match=said):
        ort.quantize_static(source, target, calibration_cache_path=path)
    assert not target.exists()


def test_a_cache_is_not_the_output(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    with pytest.raises(UsageError, match="one file"):
        ort.quantize_static(source, target, Reader(), calibration_cache_path=target)
    assert not target.exists()


def test_a_table_of_onnxruntimes_is_a_cache(source: Path, tmp_path: Path) -> None:
    def array(value: float) -> dict[str, Any]:
        return {"data": value, "dtype": "float32", "CLS": "numpy.array"}

    ends = {"x": (-4.0, 4.0), "a": (0.0, 3.0), "y": (-2.0, 2.0)}
    table = {
        "CLS": "TensorsData",
        "data": {
            name: {"lowest": array(low), "highest": array(high), "CLS": "TensorData"}
            for name, (low, high) in ends.items()
        },
        "calibration_method": {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"},
    }
    (tmp_path / "table.json").write_text(json.dumps(table))
    result = ort.quantize_static(
        source, tmp_path / "o.onnx", calibration_cache_path=tmp_path / "table.json"
    )
    assert result.plan.activation["a"].high == pytest.approx(3.0)
    assert not any("another model" in warning for warning in result.warnings)
