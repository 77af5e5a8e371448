"""Laws of the protocol: what is sent comes back, and whatever else is sent is refused with a sentence."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quantkit.deploy.serve.protocol import DTYPES, Port, RequestError, Wanted, decoded, encoded

NUMBERS = [name for name in DTYPES if name != "BYTES"]
SHAPES = arrays.array_shapes(max_dims=3, max_side=4)


def port(datatype: str = "FP32", shape: tuple[int | None, ...] = (None, 2)) -> Port:
    return Port(name="x", datatype=datatype, shape=shape)


def request(array: Any, datatype: str, *, binary: bool, **more: Any) -> tuple[bytes, int | None]:
    """Return a request with one tensor, and the length of its JSON."""
    tensor: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": array.shape}
    tail = b""
    if binary:
        tail, _ = _tail(array)
        tensor["parameters"] = {"binary_data_size": len(tail)}
    else:
        tensor["data"] = array.tolist()
    head = msgspec.json.encode({"inputs": [tensor], **more})
    return head + tail, len(head) if binary else None


def _tail(array: Any) -> tuple[bytes, int]:
    content, length = encoded({}, [Wanted(name="x", binary=True)], {"x": array})
    assert length is not None
    return content[length:], length


@given(data=st.data(), datatype=st.sampled_from(NUMBERS), binary=st.booleans())
def test_numbers_arrive_as_they_were_sent(data: Any, datatype: str, *, binary: bool) -> None:
    array = data.draw(
        arrays.arrays(
            DTYPES[datatype], SHAPES, elements={"allow_nan": False, "allow_infinity": False}
        )
        if DTYPES[datatype].kind == "f"
        else arrays.arrays(DTYPES[datatype], SHAPES)
    )
    body, header = request(array, datatype, binary=binary)
    takes = [port(datatype, (None,) * array.ndim)]
    found = decoded(body, header, takes, [port()]).feeds["x"]
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


@given(array=arrays.arrays(object, SHAPES, elements=st.text(max_size=5)), binary=st.booleans())
def test_texts_arrive_as_they_were_sent(array: Any, *, binary: bool) -> None:
    body, header = request(array, "BYTES", binary=binary)
    found = decoded(body, header, [port("BYTES", (None,) * array.ndim)], [port()]).feeds["x"]
    assert np.array_equal(found, array)


@given(st.binary(max_size=300), st.one_of(st.none(), st.integers(-5, 400)))
def test_any_bytes_are_read_or_refused(body: bytes, header: int | None) -> None:
    with pytest.raises(RequestError) as refused:
        decoded(body, header, [port()], [port()])
    assert refused.value.status == 400
    assert "\n" not in str(refused.value)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inputs", "name", "datatype", "shape", "data", "parameters", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(
    st.fixed_dictionaries(
        {
            "name": st.just("x") | JSON,
            "datatype": st.sampled_from(list(DTYPES)) | JSON,
            "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
        },
        optional={"data": JSON, "parameters": st.fixed_dictionaries({"binary_data_size": JSON})},
    ),
    st.binary(max_size=40),
    st.sampled_from(list(DTYPES)),
)
def test_any_tensor_is_read_or_refused(tensor: Any, tail: bytes, datatype: str) -> None:
    head = msgspec.json.encode({"inputs": [tensor]})
    takes = port(datatype, (None, None))
    try:
        found = decoded(head + tail, len(head), [takes], [port()]).feeds["x"]
    except RequestError as e:
        assert e.status == 400  # noqa: PT017 - either is right
    else:
        assert found.dtype == DTYPES[datatype]
        assert found.ndim == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "y"}, "no input 'y'"),
        ({"datatype": "INT8"}, "is FP32, not 'INT8'"),
        ({"shape": [1, 3]}, "has 2 values and its shape"),
        ({"shape": [2]}, "does not fit the input"),
        ({"shape": [0, 2], "data": []}, "extent below 1"),
        ({"shape": [10**300]}, "above 1099511627776"),
        ({"shape": [10**300] * 32}, "above 1099511627776"),
        ({"shape": [1] * 9000}, "more than 16384 bytes"),
        ({"parameters": {"x": [0] * 9000}}, "more than 16384 bytes"),
        ({"data": [[1, 2], [3]]}, "not all of one length"),
        ({"data": [[1], [2, 3]]}, "not all of one length"),
        ({"data": [[], [1]]}, "not all of one length|must be a list"),
        ({"data": [[1], [[2]]]}, "not all of one length"),
        ({"data": [[[1, 2]], [3, 4]]}, "not all of one length"),
        ({"shape": [3, 2], "data": [[1, 2, 3], [4, 5, 6]]}, r"is nested as \[2, 3\]"),
        ({"data": ["a", "b"]}, "must be a list of numbers"),
        ({"data": [[1], 2]}, "not all of one length"),
        ({"data": [1e300, 1]}, "out of the range"),
        ({"data": None}, "must be a list of numbers"),
        ({"parameters": {"binary_data_size": -1}}, "no number of bytes"),
        ({"parameters": {"binary_data_size": 99}}, "99 bytes by its binary_data_size, and 0"),
        ({"parameters": {"shared_memory_region": "r"}}, "Shared memory"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]} | change
    with pytest.raises(RequestError, match=said):
        decoded(msgspec.json.encode({"inputs": [tensor]}), None, [port()], [port()])


@pytest.mark.parametrize("shape", [(40_000,), (2, 20_000), (20_000, 2), (20_000, 1, 2)])
def test_long_lists_are_read_piece_by_piece(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    body, _ = request(array, "FP32", binary=False)
    takes = [port(shape=(None,) * len(shape))]
    assert np.array_equal(decoded(body, None, takes, [port()]).feeds["x"], array)
    for damaged in (body.replace(b"]", b",]", 1), body.replace(b",", b",,", 9)):
        with pytest.raises(RequestError):
            decoded(damaged, None, takes, [port()])
    content, _ = encoded({}, [Wanted(name="x", binary=False)], {"x": array})
    assert msgspec.json.decode(content)["outputs"][0]["data"] == array.ravel().tolist()


@pytest.mark.parametrize("binary", [True, False])
def test_texts_are_bounded(*, binary: bool) -> None:
    body, header = request(np.full(70_000, "", object), "BYTES", binary=binary)
    with pytest.raises(RequestError, match="70000 texts; up to 65536") as refused:
        decoded(body, header, [port("BYTES", (None,))], [port()])
    assert refused.value.status == 413


@pytest.mark.parametrize("data", [[["a"], ["b", "c"]], [["a"], "b"], [["a"], []]])
def test_texts_in_lists_of_different_lengths_are_refused(data: Any) -> None:
    body = request(np.full(3, "", object), "BYTES", binary=False)[0]
    body = body.replace(b'["","",""]', msgspec.json.encode(data))
    with pytest.raises(RequestError, match=r"not all of one length|must be a list of texts"):
        decoded(body, None, [port("BYTES", (None,))], [port()])


def test_nesting_without_end_is_refused() -> None:
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":'
    for body in (b"[" * 100_000, head + b"[" * 100_000):
        with pytest.raises(RequestError):
            decoded(body, None, [port()], [port()])


def test_outputs_are_those_that_were_asked_for() -> None:
    x = np.ones((1, 2), np.float32)
    given = [port(), Port(name="z", datatype="INT64", shape=(None,))]
    body, _ = request(x, "FP32", binary=False, id="7", outputs=[{"name": "z"}])
    asked = decoded(body, None, [port()], given)
    assert asked.id == "7"
    assert asked.outputs == (Wanted(name="z", binary=False),)
    content, length = encoded({"id": "7"}, asked.outputs, {"x": x, "z": np.array([3])})
    assert length is None
    plain = msgspec.json.decode(content)
    assert plain["outputs"] == [{"name": "z", "datatype": "INT64", "shape": [1], "data": [3]}]
    for wrong in ([{"name": "w"}], [{"name": "z"}, {"name": "z"}]):
        body, _ = request(x, "FP32", binary=False, outputs=wrong)
        with pytest.raises(RequestError):
            decoded(body, None, [port()], given)


@given(st.sampled_from(NUMBERS), SHAPES, st.data())
def test_answers_say_their_own_type(datatype: str, shape: tuple[int, ...], data: Any) -> None:
    array = data.draw(arrays.arrays(DTYPES[datatype], shape))
    content, length = encoded({}, [Wanted(name="y", binary=True)], {"y": array})
    assert length is not None
    (said,) = msgspec.json.decode(content[:length])["outputs"]
    assert (said["datatype"], tuple(said["shape"])) == (datatype, shape)
    found = np.frombuffer(content[length:], DTYPES[datatype]).reshape(shape)
    assert found.tobytes() == array.tobytes()


def test_what_may_be_left_out_may_be_null() -> None:
    """As clients send it that write all of their fields."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], "parameters": None}
    whole = {"inputs": [tensor], "id": None, "outputs": None, "parameters": None}
    found = decoded(msgspec.json.encode(whole), None, [port()], [port()])
    assert (found.id, found.feeds["x"].tolist()) == ("", [[1, 2]])
    whole |= {"outputs": [{"name": "x", "parameters": None}]}
    found = decoded(msgspec.json.encode(whole), None, [port()], [port()])
    assert found.outputs == (Wanted(name="x", binary=False),)


def test_an_input_without_axes_takes_any() -> None:
    """onnxruntime says the same of a single number and of a shape that the model leaves open."""
    for array in (np.float32(1), np.ones((2, 3), np.float32)):
        body, _ = request(array, "FP32", binary=False)
        if not array.shape:
            body = body.replace(b"1.0", b"[1.0]")
        assert decoded(body, None, [port(shape=())], [port()]).feeds["x"].shape == array.shape
