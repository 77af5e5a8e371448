"""onnxruntime's loss debugging on models of quantkit, and tables for TensorRT."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime.quantization as peer
import onnxruntime.quantization.qdq_loss_debug as debug
import pytest
from builders import conv_model, rng, save

from quantkit import ort
from quantkit.ort.quant_utils import write_calibration_table

SAMPLES = 4


class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.rest = iter(rng(3).standard_normal((SAMPLES, 1, 3, 8, 8)).astype(np.float32))

    def get_next(self) -> dict[str, Any] | None:
        found = next(self.rest, None)
        return None if found is None else {"x": found}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(conv_model(), tmp_path_factory.mktemp("float") / "in.onnx")


def activations(path: Path, folder: Path, library: Any = debug) -> dict[str, list[Any]]:
    augmented = folder / f"{path.stem}_augmented.onnx"
    library.modify_model_output_intermediate_tensors(str(path), str(augmented))
    found: dict[str, list[Any]] = library.collect_activations(str(augmented), Reader())
    return found


def quantized(library: Any, source: Path, folder: Path, **more: Any) -> Path:
    """Quantize by quantkit or onnxruntime, with the same words."""
    path = folder / f"{library.__name__}.onnx"
    library.quantize_static(
        str(source),
        str(path),
        Reader(),
        quant_format=library.QuantFormat.QDQ,
        activation_type=library.QuantType.QUInt8,
        weight_type=library.QuantType.QInt8,
        **more,
    )
    return path


@pytest.mark.filterwarnings("ignore")  # onnxruntime's own
@pytest.mark.parametrize("library", [peer, ort], ids=["onnxruntime", "quantkit"])
def test_tensors_and_weights_are_matched_in_models_of_either(
    library: Any, source: Path, tmp_path: Path
) -> None:
    path = quantized(library, source, tmp_path, per_channel=True)
    matched = debug.create_activation_matching(
        activations(path, tmp_path), activations(source, tmp_path)
    )
    assert {"x", "a", "y"} <= set(matched)
    errors = debug.compute_activation_error(matched)
    for tensor in ("x", "a", "y"):
        # The Relu in front of 'a' is part of its quantization, which cuts what it would.
        assert errors[tensor]["qdq_err"] > (25 if tensor != "a" else 0)
        assert errors[tensor]["xmodel_err"] > 20
    weights = debug.create_weight_matching(source, path)
    assert set(weights) >= {"w1", "w2", "b1"}
    for name, db in debug.compute_weight_error(weights).items():
        assert weights[name]["float"].shape == weights[name]["dequantized"].shape
        assert db > 15, name


def test_weights_of_channels_that_were_equalized_are_as_before(
    source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "gain.onnx"
    ort.quantize_static(source, path, Reader())
    weights = debug.create_weight_matching(str(source), str(path))
    errors = debug.compute_weight_error(weights)
    assert set(weights) >= {"w1", "w2"}
    assert min(errors["w1"], errors["w2"]) > 20


# --- tables for TensorRT ---


def test_tables_are_read_by_onnxruntimes_reader(tmp_path: Path) -> None:
    flat = pytest.importorskip("flatbuffers")
    assert flat is not None
    from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable

    ends = {"conv/output_0": (-2.5, 1.0), "a": (0.0, 3.0), "\N{GREEK SMALL LETTER BETA}": (0, 0)}
    arrays = {name: tuple(map(np.float32, pair)) for name, pair in ends.items()}
    table = ort.TensorsData(ort.CalibrationMethod.MinMax, arrays)
    write_calibration_table(table, tmp_path / "new")
    expected = {"conv/output_0": 2.5, "a": 3.0, "\N{GREEK SMALL LETTER BETA}": 0.0}

    read = TrtTable.GetRootAsTrtTable(
        (tmp_path / "new" / "calibration.flatbuffers").read_bytes(), 0
    )
    entries = [read.Dict(i) for i in range(read.DictLength())]
    assert {e.Key().decode(): float(e.Value()) for e in entries} == expected

    lines = (tmp_path / "new" / "calibration.cache").read_text(encoding="utf-8").splitlines()
    assert {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines)} == expected
    assert set(ort.load_tensors_data(tmp_path / "new" / "calibration.json")) == set(ends)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_a_table_of_any_length_is_read(count: int, tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable

    ends = {"t" * (i + 1): (-float(i), 0.5) for i in range(count)}
    write_calibration_table(ends, str(tmp_path))  # as older versions of onnxruntime gave ranges
    read = TrtTable.GetRootAs((tmp_path / "calibration.flatbuffers").read_bytes())
    found = {read.Dict(i).Key().decode(): float(read.Dict(i).Value()) for i in range(count)}
    assert read.DictLength() == count
    assert found == {name: max(-low, high) for name, (low, high) in ends.items()}
    assert json.loads((tmp_path / "calibration.json").read_text()).keys() == ends.keys()
