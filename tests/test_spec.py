import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization import QuantType as OrtQuantType

from quantkit.errors import UsageError
from quantkit.numerics.dtypes import INT2, INT4, INT8, INT16, UINT4, UINT8, UINT16, IntType
from quantkit.quantize.plan.model import from_plain, to_plain
from quantkit.spec import (
    Granularity,
    PerAxis,
    PerBlock,
    PerTensor,
    QInt8,
    QuantSpec,
    QuantType,
    QUInt8,
    weight_int_type,
)

GRANULARITIES = [
    pytest.param(PerTensor(), {"per": "tensor"}, id="tensor"),
    pytest.param(PerAxis(1), {"per": "axis", "axis": 1}, id="axis"),
    pytest.param(PerAxis(-1), {"per": "axis", "axis": -1}, id="negative-axis"),
    pytest.param(PerBlock(0, 32), {"per": "block", "axis": 0, "size": 32}, id="block"),
]
AXES = st.integers(-4, 3)
SPECS = st.builds(
    QuantSpec,
    dtype=st.sampled_from([INT2, INT4, UINT4, INT8, UINT8, INT16, UINT16]),
    granularity=st.one_of(
        st.builds(PerTensor),
        st.builds(PerAxis, AXES),
        st.builds(PerBlock, AXES, st.integers(1, 256)),
    ),
    symmetric=st.booleans(),
    reduced=st.booleans(),
    pair_axes=st.lists(st.lists(AXES, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    sum_axis=st.none() | AXES,
)


def spec(**changes: Any) -> QuantSpec:
    values: dict[str, Any] = {
        "dtype": INT8,
        "granularity": PerTensor(),
        "symmetric": True,
    } | changes
    return QuantSpec(**values)


class TestWeightType:
    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            pytest.param(QUInt8, UINT8, id="QUInt8"),
            pytest.param(QInt8, INT8, id="QInt8"),
            pytest.param(QuantType.QUInt8, UINT8, id="QuantType.QUInt8"),
            pytest.param("uint8", UINT8, id="'uint8'"),
            pytest.param("int8", INT8, id="'int8'"),
            pytest.param("QUInt8", UINT8, id="'QUInt8'"),
            pytest.param("QInt8", INT8, id="'QInt8'"),
            pytest.param(OrtQuantType.QUInt8, UINT8, id="onnxruntime-QUInt8"),
            pytest.param(OrtQuantType.QInt8, INT8, id="onnxruntime-QInt8"),
            pytest.param(UINT8, UINT8, id="IntType"),
        ],
    )
    def test_every_spelling_is_understood(self, written: Any, expected: IntType) -> None:
        assert weight_int_type(written) is expected

    @pytest.mark.parametrize(
        ("written", "named"),
        [
            pytest.param("int4", "'int4'", id="string"),
            pytest.param("UINT8", "'UINT8'", id="wrong-case"),
            pytest.param("", "''", id="empty"),
            pytest.param(OrtQuantType.QInt16, "'QInt16'", id="onnxruntime-QInt16"),
            pytest.param(OrtQuantType.QFLOAT8E4M3FN, "'QFLOAT8E4M3FN'", id="onnxruntime-float8"),
            pytest.param(None, "None", id="None"),
            pytest.param(8, "8", id="number"),
            pytest.param(["int8"], r"\['int8'\]", id="list"),
        ],
    )
    def test_an_unknown_type_is_named_in_the_error(self, written: Any, named: str) -> None:
        with pytest.raises(UsageError, match=rf"Unknown weight type {named}; .*QUInt8.*QInt8"):
            weight_int_type(written)


class TestGranularity:
    @pytest.mark.parametrize("size", [0, -1, -32])
    def test_a_block_has_at_least_one_value(self, size: int) -> None:
        with pytest.raises(UsageError, match=f"Block size {size} is not positive"):
            PerBlock(0, size)

    def test_a_block_of_one_is_allowed(self) -> None:
        assert PerBlock(0, 1).size == 1

    @pytest.mark.parametrize(("granularity", "_plain"), GRANULARITIES)
    def test_values_are_frozen_and_comparable(
        self, granularity: Granularity, _plain: dict[str, Any]
    ) -> None:
        assert dataclasses.replace(granularity) == granularity
        assert len({granularity, dataclasses.replace(granularity)}) == 1

    def test_kinds_differ(self) -> None:
        assert len({PerTensor(), PerAxis(0), PerAxis(1), PerBlock(0, 4), PerBlock(0, 8)}) == 5


class TestRange:
    @pytest.mark.parametrize(
        ("dtype", "full", "reduced"),
        [
            pytest.param(INT8, (-128, 127), (-64, 63), id="int8"),
            pytest.param(UINT8, (0, 255), (0, 127), id="uint8"),
            pytest.param(INT4, (-8, 7), (-4, 3), id="int4"),
            pytest.param(UINT4, (0, 15), (0, 7), id="uint4"),
        ],
    )
    def test_a_reduced_range_has_one_bit_less(
        self, dtype: IntType, full: tuple[int, int], reduced: tuple[int, int]
    ) -> None:
        whole, half = spec(dtype=dtype), spec(dtype=dtype, reduced=True)
        assert (whole.qmin, whole.qmax) == full
        assert (half.qmin, half.qmax) == reduced
        assert half.qmax - half.qmin + 1 == 2 ** (dtype.bits - 1)

    def test_nothing_special_is_the_default(self) -> None:
        plain = spec()
        assert not plain.reduced
        assert plain.pair_axes == ()
        assert plain.sum_axis is None

    def test_a_spec_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            spec().symmetric = False  # type: ignore[misc]


class TestJson:
    @settings(max_examples=50, deadline=None)
    @given(original=SPECS)
    def test_reading_back_gives_the_same_spec(self, original: QuantSpec) -> None:
        text = json.dumps(to_plain(original))
        back = from_plain(QuantSpec, json.loads(text))
        assert back == original
        assert back.dtype is original.dtype

    @pytest.mark.parametrize(("granularity", "plain"), GRANULARITIES)
    def test_plain_form(self, granularity: Granularity, plain: dict[str, Any]) -> None:
        written = to_plain(spec(granularity=granularity, pair_axes=((2, 3, 1),), sum_axis=0))
        assert written == {
            "dtype": "int8",
            "granularity": plain,
            "symmetric": True,
            "reduced": False,
            "pair_axes": [[2, 3, 1]],
            "sum_axis": 0,
        }

    def test_every_field_is_written(self) -> None:
        said = {"whole": True, "least": 0.5, "scales": (1.0,), "zero_points": (0,), "pinned": True}
        full = dataclasses.replace(spec(), **said)  # type: ignore[arg-type]
        assert set(to_plain(full)) == {field.name for field in dataclasses.fields(QuantSpec)}
        assert from_plain(QuantSpec, to_plain(full)) == full
        assert set(to_plain(full)) - set(to_plain(spec())) == set(said)  # older files lack them

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"scales": (1.0,)}, "as many zero points"),
            ({"scales": (0.0,), "zero_points": (0,)}, "positive"),
            ({"scales": (1.0,), "zero_points": (999,)}, "999 is none of"),
        ],
    )
    def test_numbers_that_are_none_of_the_type_are_refused(
        self, given: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(UsageError, match=said):
            dataclasses.replace(spec(), **given)

    def test_an_unknown_granularity_is_named(self) -> None:
        plain = to_plain(spec()) | {"granularity": {"per": "row"}}
        with pytest.raises(UsageError, match="Invalid value 'row'"):
            from_plain(QuantSpec, plain)

    def test_a_block_read_back_is_checked_too(self) -> None:
        plain = to_plain(spec()) | {"granularity": {"per": "block", "axis": 0, "size": 0}}
        with pytest.raises(UsageError, match="Block size 0"):
            from_plain(QuantSpec, plain)
