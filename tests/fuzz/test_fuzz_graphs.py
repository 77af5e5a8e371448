"""Odd but valid models: a result that loads, runs and is near float or says that it is not, or one clear error."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders import Array, save
from fuzzing import seeds
from odd_graphs import SHAPE, odd_graph

import quantkit
from quantkit import QuantizeResult
from quantkit.errors import QuantkitError

LEAST = 20.0  # dB
HOW = ("gain", "all", "dynamic")
Outputs = dict[str, Any]


def outputs(path: Path, feeds: dict[str, Array], *, optimize: bool) -> Outputs:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, {n: feeds[n] for n in wanted}), strict=True))


def is_valid(path: Path) -> bool:
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError:
        return False  # of outputs without a shape, which runtimes take
    return True


def decibel(expected: Array, actual: Array) -> float:
    """Signal over noise; of what does not vary or is not finite, whether it is the same."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(expected)
        signal = float(np.square(expected[finite], dtype=np.float64).sum())
        noise = float(np.square((expected - actual)[finite], dtype=np.float64).sum())
    if not noise <= 1e-12 * max(signal, 1e-6):
        return 10 * float(np.log10(max(signal, 1e-30) / noise))
    return float("inf")


def assert_same(expected: Outputs, actual: Outputs, result: QuantizeResult, what: str) -> None:
    assert expected.keys() == actual.keys()
    said = " ".join(result.warnings)
    for name, array in expected.items():
        assert array.shape == actual[name].shape
        assert array.dtype == actual[name].dtype
        if array.dtype.kind == "f" and "dB" not in said:
            assert decibel(array, actual[name]) > LEAST, f"{what}: {name}"


def samples(seed: int, count: int = 6) -> list[dict[str, Array]]:
    draw = np.random.default_rng(seed)
    return [
        {"x": draw.standard_normal(SHAPE).astype(np.float32), "unused": np.zeros(3, np.int16)}
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.slow
def test_an_odd_model_is_quantized_right_or_refused_in_a_line(seed: int, tmp_path: Path) -> None:
    proto, feeds = odd_graph(seed), samples(seed)
    path, out = save(proto, tmp_path / "in.onnx"), tmp_path / "out.onnx"
    names = {i.name for i in proto.graph.input}
    data = [{n: a for n, a in sample.items() if n in names} for sample in feeds]
    try:
        expected = outputs(path, data[0], optimize=False)
    except Exception as e:  # noqa: BLE001 - onnxruntime's errors have no common base
        pytest.skip(f"onnxruntime does not run it: {e}")
    for how in HOW if seed % 3 == 0 else HOW[seed % 3 :: 2]:
        try:
            if how == "dynamic":
                result = quantkit.quantize_dynamic(path, out, sample=data[0])
            else:
                result = quantkit.quantize_static(path, out, data, coverage=how)
        except QuantkitError as e:
            refused = str(e)
            assert "\n" not in refused
            assert not out.exists()
            continue
        for optimize in (True, False):
            actual = outputs(out, data[0], optimize=optimize)
            assert_same(expected, actual, result, f"{how}, optimized: {optimize}")
        assert is_valid(out) or not is_valid(path)
        out.unlink()
