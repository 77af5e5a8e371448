"""``python -m quantkit.ort.static_quantize_runner``: onnxruntime's flags, and the test sets beside a model."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight
from onnx import numpy_helper

from quantkit.errors import DataError, UsageError
from quantkit.ort import static_quantize_runner as runner


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """x, z [2, 3, 8, 8] -> Add 'add' -> Conv 'c' -> Relu 'r' -> y, with two test sets beside it."""
    nodes = [
        node("Add", ["x", "z"], ["s"], "add"),
        node("Conv", ["s", "w", "b"], ["m"], "c"),
        node("Relu", ["m"], ["y"], "r"),
    ]
    held = {"w": weight(4, 3, 3, 3), "b": weight(4, seed=1)}
    shape = [2, 3, 8, 8]
    proto = model(graph(nodes, {"x": shape, "z": shape}, {"y": [2, 4, 6, 6]}, held))
    for index in range(2):
        folder = tmp_path / f"test_data_set_{index}"
        folder.mkdir()
        for place in range(2):
            array = rng(2 * index + place).standard_normal(shape).astype(np.float32)
            tensor = numpy_helper.from_array(array)
            (folder / f"input_{place}.pb").write_bytes(tensor.SerializeToString())
    (tmp_path / "notes.json").write_text("{}")  # other files may lie there
    return save(proto, tmp_path / "in.onnx")


def run(monkeypatch: pytest.MonkeyPatch, source: Path, *flags: str) -> onnx.ModelProto:
    target = source.with_name("out.onnx")
    words = ["runner", "-i", str(source), "-o", str(target), *flags]
    monkeypatch.setattr(sys, "argv", words)
    runner.main()
    return onnx.load(target)


def test_test_sets_beside_a_model_are_read_in_order_and_by_place(source: Path) -> None:
    reader = runner.OnnxModelCalibrationDataReader(source)
    assert len(reader) == 2
    for index in range(2):
        found = reader.get_next()
        assert found is not None
        expected = rng(2 * index + 1).standard_normal((2, 3, 8, 8)).astype(np.float32)
        np.testing.assert_array_equal(found["z"], expected)
    assert reader.get_next() is None


def test_a_model_without_test_sets_is_an_error(tmp_path: Path, source: Path) -> None:
    lonely = tmp_path / "elsewhere"
    lonely.mkdir()
    with pytest.raises(FileNotFoundError, match="test_data_set_0") as caught:
        runner.OnnxModelCalibrationDataReader(lonely / "in.onnx")
    assert isinstance(caught.value, DataError)
    assert source.exists()


def test_axes_are_whole_numbers(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="whole number"):
        run(monkeypatch, source, "--op_per_channel_axis", "MatMul", "last")


@pytest.mark.parametrize("text", ["[1, 2]", "{", ""])
def test_overrides_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "overrides.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"overrides\.json"):
        runner.get_tensor_quant_overrides(file)
    with pytest.raises(FileNotFoundError):
        runner.get_tensor_quant_overrides(tmp_path / "none.json")
    assert runner.get_tensor_quant_overrides(None) == {}


@pytest.mark.slow
def test_it_is_a_command(source: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        runner.__name__,
        "-i",
        str(tmp_path / "none.onnx"),
        "-o",
        "out.onnx",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=source.parent)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: ")
