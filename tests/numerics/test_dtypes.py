import numpy as np
import pytest

from quantkit.numerics.dtypes import int_type

CASES = {
    "int2": (-2, 1, np.int8),
    "uint2": (0, 3, np.uint8),
    "int4": (-8, 7, np.int8),
    "uint4": (0, 15, np.uint8),
    "int8": (-128, 127, np.int8),
    "uint8": (0, 255, np.uint8),
    "int16": (-32768, 32767, np.int16),
    "uint16": (0, 65535, np.uint16),
    "int32": (-(2**31), 2**31 - 1, np.int32),
}


@pytest.mark.parametrize("name", CASES)
def test_limits_and_storage_of_each_type(name: str) -> None:
    dtype = int_type(name)
    assert (dtype.qmin, dtype.qmax, dtype.storage.type) == CASES[name]


@pytest.mark.parametrize("name", CASES)
def test_every_type_holds_zero_and_has_as_many_values_as_bits_allow(name: str) -> None:
    dtype = int_type(name)
    assert dtype.name == name
    assert dtype.signed == (dtype.qmin < 0)
    assert dtype.qmin <= 0 <= dtype.qmax
    assert dtype.qmax - dtype.qmin + 1 == 2**dtype.bits


@pytest.mark.parametrize("name", CASES)
def test_storage_holds_the_limits(name: str) -> None:
    dtype = int_type(name)
    limits = np.array([dtype.qmin, dtype.qmax]).astype(dtype.storage)
    assert limits.tolist() == [dtype.qmin, dtype.qmax]


@pytest.mark.parametrize("name", ["int3", "INT8", "float32", "uint3"])
def test_unknown_type_is_a_key_error(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        int_type(name)
