"""Weights taken out of a protobuf and put back give the same model, whatever the model."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, weight
from google.protobuf.message import DecodeError
from graph.cases import BIG, MODELS, constant_nodes, nested_model, plain, tensors_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from quantkit.model.graph.mapping import LIMIT, MARK, Payload, join, split
from quantkit.protobuf import WireError


def notes(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def taken_out(structure: onnx.ModelProto) -> list[onnx.TensorProto]:
    return [t for t in tensors_of(structure) if notes(t).get("location") == MARK]


def there_and_back(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Split, number the tensors as `skeleton` does, and join."""
    whole = proto.SerializeToString()
    structure = onnx.ModelProto.FromString(split(whole))
    spans: list[tuple[int, int]] = []
    for tensor in taken_out(structure):
        note = {entry.key: entry for entry in tensor.external_data}
        spans.append((int(note["offset"].value), int(note["length"].value)))
        note["offset"].value = str(len(spans) - 1)
    out = bytearray()
    for piece in join(structure.SerializeToString()):
        if isinstance(piece, Payload):
            start, length = spans[piece.index]
            assert piece.nbytes == length
            out += whole[start : start + length]
        else:
            out += piece
    back = onnx.ModelProto()
    back.ParseFromString(bytes(out))
    return back


def listed_tensors() -> onnx.ModelProto:
    parts = [numpy_helper.from_array(weight(*BIG, seed=i)) for i in range(2)]
    nodes = [node("Foo", ["x"], ["y"], domain="my", parts=parts)]
    return model(graph(nodes, {"x": [1]}, {"y": [1]}), domains={"my": 1})


def with_tensor(tensor: onnx.TensorProto) -> onnx.ModelProto:
    proto = plain()
    proto.graph.initializer.append(tensor)
    return proto


def int4_raw() -> onnx.TensorProto:
    return numpy_helper.from_array(rng().integers(-8, 8, (64, 64)).astype(ml_dtypes.int4), "q")


def float_list() -> onnx.TensorProto:
    return helper.make_tensor("f", TensorProto.FLOAT, BIG, weight(*BIG).reshape(-1).tolist())


INLINE = {
    "int4-raw": int4_raw,
    "float-list": float_list,
    "bool-raw": lambda: numpy_helper.from_array(np.ones(2000, np.bool_), "t"),
    "strings": lambda: numpy_helper.from_array(np.array(["text"] * 400, dtype=object), "t"),
    "just-below-the-limit": lambda: numpy_helper.from_array(np.ones(LIMIT - 1, np.int8), "t"),
}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_join_undoes_split(build: Callable[[], onnx.ModelProto]) -> None:
    assert there_and_back(build()) == build()


@pytest.mark.parametrize("tensor", INLINE.values(), ids=INLINE)
def test_join_undoes_split_for_every_storage(tensor: Callable[[], onnx.TensorProto]) -> None:
    assert there_and_back(with_tensor(tensor())) == with_tensor(tensor())


@pytest.mark.parametrize(
    ("build", "count"),
    [(plain, 1), (constant_nodes, 1), (nested_model, 3)],
    ids=["initializers", "constant-nodes", "nested-if"],
)
def test_only_large_tensors_are_taken_out(build: Callable[[], onnx.ModelProto], count: int) -> None:
    proto = build()
    structure = onnx.ModelProto.FromString(split(proto.SerializeToString()))
    assert len(taken_out(structure)) == count
    assert structure.ByteSize() < proto.ByteSize() - count * 1400


@pytest.mark.parametrize("tensor", INLINE.values(), ids=INLINE)
def test_tensors_that_are_no_plain_bytes_stay_inline(
    tensor: Callable[[], onnx.TensorProto],
) -> None:
    proto = with_tensor(tensor())
    structure = onnx.ModelProto.FromString(split(proto.SerializeToString()))
    assert structure.graph.initializer[-1] == proto.graph.initializer[-1]


def test_lists_of_tensors_stay_inline() -> None:
    proto = listed_tensors()
    assert split(proto.SerializeToString()) == proto.SerializeToString()


def test_a_note_says_where_the_contents_are() -> None:
    whole = plain().SerializeToString()
    (tensor,) = taken_out(onnx.ModelProto.FromString(split(whole)))
    start, length = int(notes(tensor)["offset"]), int(notes(tensor)["length"])
    assert whole[start : start + length] == weight(*BIG).tobytes()


def test_a_tensor_at_exactly_the_limit_is_taken_out() -> None:
    tensor = numpy_helper.from_array(np.ones(LIMIT, np.int8), "t")
    structure = onnx.ModelProto.FromString(split(with_tensor(tensor).SerializeToString()))
    assert [t.name for t in taken_out(structure)] == ["w", "t"]


@pytest.mark.parametrize("where", ["weight", "doc string", "inline tensor"])
def test_the_mark_itself_may_occur_in_a_model(where: str) -> None:
    proto = plain()
    mark = MARK.encode()
    if where == "weight":
        proto.graph.initializer[0].raw_data = (mark * 200)[: 20 * 20 * 4]
    elif where == "doc string":
        proto.graph.node[0].doc_string = MARK
        proto.graph.doc_string = MARK
    else:
        proto.graph.initializer.append(numpy_helper.from_array(np.frombuffer(mark, np.uint8), "t"))
    assert there_and_back(proto) == proto


def test_external_data_of_others_is_left_alone() -> None:
    proto = plain()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="elsewhere.bin")
    assert there_and_back(proto) == proto


def test_fields_that_this_version_of_onnx_does_not_know_are_kept() -> None:
    whole = plain().SerializeToString() + b"\x82\x7d\x03abc"  # field 2000, three bytes
    assert split(whole).endswith(b"\x82\x7d\x03abc")


# Not valid ONNX, and need not be: only the nesting matters here.
SIZES = st.sampled_from([0, 1, 4, 100, 252, 255, 256, 257, 400, 1000])
NAMES = st.text("abc/:é", max_size=5)


def stored(array: Array, name: str, how: str) -> onnx.TensorProto:
    if how == "raw":
        return numpy_helper.from_array(array, name)
    return helper.make_tensor(name, TensorProto.FLOAT, array.shape, array.tolist())


TENSORS = st.builds(stored, SIZES.map(weight), NAMES, st.sampled_from(["raw", "list"])) | st.builds(
    lambda n, name: numpy_helper.from_array(np.zeros(n, ml_dtypes.int4), name), SIZES, NAMES
)


def nodes_with(graphs: st.SearchStrategy[onnx.GraphProto]) -> st.SearchStrategy[onnx.NodeProto]:
    constants = st.builds(lambda t, n: node("Constant", [], ["k"], n, value=t), TENSORS, NAMES)
    bodies = st.builds(lambda g, n: node("If", ["c"], ["k"], n, then_branch=g), graphs, NAMES)
    lists = st.builds(
        lambda gs, n: node("Foo", ["c"], ["k"], n, parts=gs),
        st.lists(graphs, min_size=1, max_size=2),
        NAMES,
    )
    return st.one_of(constants, bodies, lists)


def graphs_of(nodes: st.SearchStrategy[onnx.NodeProto]) -> st.SearchStrategy[onnx.GraphProto]:
    return st.builds(
        lambda ns, ts, name: onnx.GraphProto(node=ns, initializer=ts, name=name),
        st.lists(nodes, max_size=3),
        st.lists(TENSORS, max_size=3),
        NAMES,
    )


GRAPHS = st.recursive(
    graphs_of(st.builds(lambda n: node("Relu", ["x"], ["y"], n), NAMES)),
    lambda inner: graphs_of(nodes_with(inner)),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(part=GRAPHS, doc=NAMES)
def test_join_undoes_split_for_any_nesting(part: onnx.GraphProto, doc: str) -> None:
    proto = onnx.ModelProto(graph=part, doc_string=doc, ir_version=8)
    assert there_and_back(proto) == proto


def parse(contents: bytes) -> None:
    """Only these two errors may come out of bytes that are no model."""
    try:
        onnx.ModelProto.FromString(split(contents))
    except (WireError, DecodeError):
        return


@pytest.mark.parametrize(
    "build", [plain, nested_model, listed_tensors], ids=["plain", "nested-if", "lists"]
)
def test_truncated_models_are_wire_or_decode_errors(
    build: Callable[[], onnx.ModelProto],
) -> None:
    whole = build().SerializeToString()
    for end in range(0, len(whole), 3):
        parse(whole[:end])


def test_a_model_truncated_within_its_weights_is_a_wire_error() -> None:
    whole = plain().SerializeToString()
    with pytest.raises(WireError, match="too late"):
        split(whole[: whole.index(weight(*BIG).tobytes()) + 100])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=3000))
def test_random_bytes_are_wire_or_decode_errors(contents: bytes) -> None:
    parse(contents)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_are_wire_or_decode_errors(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(nested_model().SerializeToString())
    for position, value in changes:
        damaged[position % len(damaged)] = value
    parse(bytes(damaged))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"\xff" * 11, "does not end"),
        (b"\x3b", "wire type 3"),
        (b"\x3a\x80", "does not end"),
        (b"\x39\x00", "too late"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "too late"),
    ],
    ids=["endless-number", "group", "cut-length", "cut-fixed64", "length-of-2-to-the-63"],
)
def test_broken_fields_are_named(contents: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        split(contents)


def test_nesting_without_end_is_a_wire_error() -> None:
    def wrapped(contents: bytes, number: int) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(contents)) + contents

    def varint(value: int) -> bytes:
        return bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14])

    contents = b"\x42" + varint(3000) + b"x" * 3000
    for _ in range(400):
        contents = wrapped(wrapped(wrapped(contents, 6), 5), 1)
    with pytest.raises(WireError, match="nested"):
        split(wrapped(contents, 7))
