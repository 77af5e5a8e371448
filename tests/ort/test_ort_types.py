"""A type, a format, a method and a configuration may be quantkit's, onnxruntime's own, or ONNX's number."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from builders import initializers, matmul_model, op_types, rng, save
from onnx import TensorProto

from quantkit import ort
from quantkit.errors import UsageError
from quantkit.ort.quant_utils import type_name

ROWS = 256
KNOWN = ("QInt8", "QUInt8", "QInt16", "QUInt16")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(matmul_model(ROWS, ROWS), tmp_path / "in.onnx")


class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.rest = iter(rng(3).standard_normal((8, 4, ROWS)).astype(np.float32))

    def get_next(self) -> dict[str, Any] | None:
        found = next(self.rest, None)
        return None if found is None else {"x": found}


def stored(path: Path) -> set[str]:
    """Return the types of the weights."""
    held = initializers(onnx.load(path)).values()
    return {str(array.dtype) for array in held if array.size >= ROWS**2}


@pytest.mark.parametrize("name", [member.name for member in peer.QuantType])
def test_a_type_has_onnxruntimes_number_and_onnxs(name: str) -> None:
    ours, theirs = ort.QuantType[name], peer.QuantType[name]
    assert (ours.value, ours.tensor_type) == (theirs.value, theirs.tensor_type)
    assert str(ours) == str(theirs)
    assert ort.QuantType.from_string(name) is ours


@pytest.mark.parametrize("name", KNOWN)
def test_all_spellings_of_a_type_are_one(name: str) -> None:
    ours = ort.QuantType[name]
    spelled = [ours, peer.QuantType[name], ours.tensor_type, np.int64(ours.tensor_type), name]
    assert {type_name(given) for given in spelled} == {name.lower().removeprefix("q")}


@pytest.mark.parametrize("given", [TensorProto.FLOAT, 0, 99, "int7", None])
def test_what_is_no_type_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="There is no type"):
        type_name(given)


@pytest.mark.parametrize(
    "given", [TensorProto.UINT8, peer.QuantType.QUInt8, ort.QuantType.QUInt8, "uint8"]
)
def test_calls_take_every_spelling(given: Any, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    ort.quantize_dynamic(source, target, weight_type=given)
    assert stored(target) == {"uint8"}
    ort.quantize_static(source, target, Reader(), activation_type=given, weight_type=given)
    assert stored(target) == {"uint8"}


def test_configurations_of_onnxruntimes_own_are_read(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    dynamic = peer.DynamicQuantConfig(weight_type=peer.QuantType.QUInt8)
    ort.quantize(source, target, dynamic)
    assert stored(target) == {"uint8"}
    static = peer.StaticQuantConfig(
        Reader(),
        calibrate_method=peer.CalibrationMethod.Percentile,
        quant_format=peer.QuantFormat.QOperator,
        activation_type=peer.QuantType.QUInt8,
    )
    ort.quantize(source, target, static)
    assert "DequantizeLinear" not in op_types(onnx.load(target))[:2]
    assert stored(target) == {"int8"}


def test_what_is_no_configuration_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not dict"):
        ort.quantize(source, tmp_path / "out.onnx", {"weight_type": "int8"})


@pytest.mark.parametrize(
    ("form", "activation", "weight"),
    [
        ("QDQ", "QInt8", "QUInt8"),
        ("QDQ", "QUInt8", "QFLOAT8E4M3FN"),
        ("QDQ", "QFLOAT8E4M3FN", "QInt8"),
        ("QOperator", "QUInt16", "QInt8"),
        ("QOperator", "QUInt8", "QInt16"),
    ],
)
def test_types_that_are_not_multiplied_are_refused_as_onnxruntime_refuses_them(
    form: str, activation: str, weight: str, source: Path, tmp_path: Path
) -> None:
    for library in (peer, ort):
        with pytest.raises(ValueError, match=r".+"):
            library.quantize_static(
                source,
                tmp_path / "out.onnx",
                Reader(),
                quant_format=library.QuantFormat[form],
                activation_type=library.QuantType[activation],
                weight_type=library.QuantType[weight],
            )
    assert not (tmp_path / "out.onnx").exists()
