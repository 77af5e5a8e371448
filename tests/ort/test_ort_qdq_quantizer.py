"""`quantkit.ort.QDQQuantizer`: a model and ranges that somebody has."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from builders import conv_model, op_types, rng, run, save, sqnr

from quantkit import ort
from quantkit.errors import UsageError
from quantkit.ort.qdq_quantizer import QDQQuantizer

DATA = [{"x": array} for array in rng(3).standard_normal((6, 1, 3, 8, 8)).astype(np.float32)]


class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.rest = iter(DATA)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.rest, None)


def ranges() -> Any:
    with TemporaryDirectory() as folder:
        calibrater = ort.create_calibrator(
            save(conv_model(), Path(folder, "in.onnx")), [], str(Path(folder, "augmented.onnx"))
        )
        calibrater.collect_data(Reader())
        return calibrater.compute_data()


def quantizer(*more: Any, found: Any = None, exclude: Any = (), **options: Any) -> QDQQuantizer:
    return QDQQuantizer(
        conv_model(),
        True,
        False,
        *more,
        ort.QuantType.QInt8,
        ort.QuantType.QUInt8,
        ranges() if found is None else found,
        [],
        list(exclude),
        ["Conv"],
        options,
    )


def test_a_model_is_quantized_by_the_ranges_that_are_given(tmp_path: Path) -> None:
    made = quantizer()
    result = made.quantize_model()
    assert result is made.model.model
    made.model.save_model_to_file(tmp_path / "q.onnx", False)
    source = save(conv_model(), tmp_path / "f.onnx")
    for optimize in (False, True):
        got = run(tmp_path / "q.onnx", DATA[0], optimize=optimize)[0]
        assert sqnr(run(source, DATA[0])[0], got) > 30
    scales = {i.name: i for i in result.graph.initializer}
    (reads,) = [n for n in result.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x"]
    low, high = (float(end[0]) for end in ranges()["x"].range_value)
    scale = onnx.numpy_helper.to_array(scales[reads.input[1]])
    assert scale == pytest.approx((high - low) / 255, rel=1e-2)


def test_ranges_may_be_a_dictionary_of_ends_or_of_onnxruntimes() -> None:
    plain = {name: found.range_value for name, found in ranges().items()}
    expected = quantizer().quantize_model().SerializeToString(deterministic=True)
    for found in (plain, dict(ranges().items())):
        made = quantizer(found=found).quantize_model()
        assert made.SerializeToString(deterministic=True) == expected


def test_the_older_call_with_a_mode_is_understood() -> None:
    expected = quantizer().quantize_model().SerializeToString(deterministic=True)
    older = quantizer(ort.QuantizationMode.QLinearOps, True)
    assert older.quantize_model().SerializeToString(deterministic=True) == expected


def test_an_excluded_node_stays_float() -> None:
    made = quantizer(exclude=["c2"]).quantize_model()
    by_name = {n.name: n for n in made.graph.node}
    assert "w2" in by_name["c2"].input
    assert "w1" not in by_name["c1"].input
    assert op_types(made).count("Conv") == 2


def test_without_ranges_it_says_so() -> None:
    with pytest.raises(UsageError, match="compute_data"):
        quantizer(found=3)
    with pytest.raises(UsageError, match="unknown"):
        quantizer(SmoothQant=1).quantize_model()
