"""Is the data good enough? What the audit says of data whose flaws are known."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, weight

import quantkit
from quantkit.calibration import Calibration, CalibratorOf, MomentsOf, Request
from quantkit.calibration.collect import CalibrateOptions
from quantkit.errors import DataError
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.settings import DataSettings

K = 16


def product() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))


def roots() -> onnx.ModelProto:
    """Its tensor s is NaN where x is negative."""
    nodes = [node("Sqrt", ["x"], ["s"]), node("MatMul", ["s", "w"], ["y"])]
    return model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))


def calibrated(rows: Array, proto: onnx.ModelProto | None = None, **given: Any) -> Calibration:
    settings = DataSettings(shuffle=False)
    return quantkit.calibrate(proto or product(), {"x": rows}, settings=settings, **given)


def noise(samples: int, seed: int = 0) -> Array:
    return rng(seed).uniform(-1, 1, (samples, K)).astype(np.float32)


def test_copies_are_found_and_named() -> None:
    rows = noise(40)
    rows[[7, 30]] = rows[3]
    rows[21] = rows[20]
    found = calibrated(rows)
    assert found.header["audit"]["duplicates"] == ((3, 7, 30), (20, 21))
    assert found.header["names"].keys() >= {"3", "7", "30", "20", "21"}
    assert any("3 of 40 samples are copies" in w for w in found.header["warnings"])


def test_samples_that_differ_are_no_copies() -> None:
    rows = np.zeros((32, K), np.float32)
    rows[:, 0] = np.arange(32)
    assert calibrated(rows).header["audit"]["duplicates"] == ()


def test_a_range_that_grows_is_still_moving() -> None:
    rows = noise(256) * np.linspace(0.1, 10, 256, dtype=np.float32)[:, None]
    audit = calibrated(rows, method="minmax").header["audit"]
    assert audit["enough"] is None
    assert audit["verdict"].startswith("not converged")
    assert "Add data" in audit["verdict"]
    assert all(t["moved"][-1] > 0.05 for t in audit["tensors"])


def test_of_stationary_data_fewer_would_have_been_enough() -> None:
    audit = calibrated(noise(512), method="percentile", percentile=99.0).header["audit"]
    assert audit["samples"] == 512
    assert audit["prefixes"] == (64, 128, 256)
    assert audit["enough"] in {64, 128, 256}
    assert f"{audit['enough']} of your 512 samples would have been enough" in audit["verdict"]
    assert all(t["split_half"] < 0.2 for t in audit["tensors"])


@pytest.mark.parametrize("samples", [1, 2, 5, 31])
def test_few_samples_are_said_to_be_few(samples: int) -> None:
    audit = calibrated(noise(samples)).header["audit"]
    assert audit["enough"] is None
    assert f"{samples} samples are too few" in audit["verdict"]


def test_nan_and_infinity_are_counted_and_left_out_of_ranges() -> None:
    rows = np.abs(noise(40)) + 0.01
    rows[5, :3] = -1
    rows[9, 0] = np.inf
    found = calibrated(rows, roots(), method="minmax")
    by_tensor = {t["tensor"]: t for t in found.header["audit"]["tensors"]}
    assert (by_tensor["s"]["nan"], by_tensor["s"]["inf"]) == (3, 1)
    assert np.isfinite(list(found.ranges().values())).all()
    assert found.ranges()["s"][1] == np.sqrt(rows[rows < 2].max())
    (warning,) = [w for w in found.header["warnings"] if "NaN or infinity" in w]
    assert warning.startswith("2 tensors")


def all_nan() -> Array:
    return np.full((8, K), -1, np.float32)


def test_activations_that_are_all_nan_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'s' held no finite value in any of 8 samples"):
        calibrated(all_nan(), roots(), output=tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_activations_that_are_all_nan_are_refused_by_a_moving_average_too() -> None:
    with pytest.raises(DataError, match="no finite value"):
        calibrated(all_nan(), roots(), method="moving_average")


def test_activations_that_are_all_nan_are_refused_with_further_requests_too() -> None:
    with pytest.raises(DataError, match="no finite value"):
        calibrated(all_nan(), roots(), requests=[Request(tensor="s", statistic=MomentsOf(axis=1))])


def test_infinity_is_reported_also_where_only_minima_and_maxima_are_taken() -> None:
    rows = np.abs(noise(40))
    rows[9, 0] = np.inf
    options = CalibrateOptions(minmax_only=True, method=CalibratorOf(name="minmax"))
    found = calibrate_model(roots(), {"x": rows}, None, options, DataSettings())
    assert any("infinity" in w for w in found.header["warnings"])


def test_shares_clipped_are_those_of_the_values() -> None:
    rows = noise(64)
    found = calibrated(rows)
    (x,) = [t for t in found.header["audit"]["tensors"] if t["tensor"] == "x"]
    assert x["clipped"]["minmax"] == 0
    assert x["ranges"]["mse"] == found.ranges()["x"]
    for method, (low, high) in x["ranges"].items():
        outside = float(((rows < low) | (rows > high)).mean())
        assert x["clipped"][method] == pytest.approx(outside, abs=0.02)
    assert set(x["clipped"]) == {"minmax", "percentile", "entropy", "mse"}
    assert (x["low"], x["high"]) == (rows.min(), rows.max())
    assert (x["seen"], x["counted"]) == (rows.size, rows.size)
    assert x["mean"] == pytest.approx(rows.mean(), abs=1e-4)
    assert x["std"] == pytest.approx(rows.std(), rel=1e-3)


def test_the_percentile_that_was_chosen_is_the_one_audited() -> None:
    found = calibrated(noise(64), method="percentile", percentile=90.0)
    (x,) = [t for t in found.header["audit"]["tensors"] if t["tensor"] == "x"]
    assert x["ranges"]["percentile"] == found.ranges()["x"]
    assert x["clipped"]["percentile"] == pytest.approx(0.1, abs=0.03)


def test_a_method_that_clips_hard_is_named() -> None:
    rows = noise(64)
    rows[::7] *= 100
    found = calibrated(rows, method="percentile", percentile=80.0)
    assert any("percentile clips" in w and "hard" in w for w in found.header["warnings"])


def test_the_sample_that_sets_the_extremes_is_named() -> None:
    rows = noise(64)
    rows[40] *= 50
    found = calibrated(rows)
    assert found.header["audit"]["outliers"][0][0] == 40
    assert found.header["names"]["40"]


def test_minima_and_maxima_alone_do_not_make_many_samples_few() -> None:
    options = CalibrateOptions(minmax_only=True, method=CalibratorOf(name="minmax"))
    found = calibrate_model(product(), {"x": noise(100)}, None, options, DataSettings())
    assert "too few" not in found.header["audit"]["verdict"]
