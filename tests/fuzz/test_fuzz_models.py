"""Hostile models, through every command that reads one: a result, or one clear error."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, weight
from fuzzing import chance, check, mutated, seeds
from onnx import AttributeProto, ModelProto, TensorProto, helper

COMMANDS = ("inspect", "optimize", "dynamic", "static", "calibrate")
EXTENTS = (-1, 0, 1, 7, -(2**31), 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)
# Names that a file may hold: of nothing, of another tensor, of quantkit's own, for a terminal, for a file system.
NAMES: tuple[str, ...] = (
    "",
    "x",
    "y",
    "w0",
    "c",
    "quantkit:tensor",
    "quantkit/Cast/c",
    "w0_quantized",
    "a\0b",
)
NAMES += ("\x1b[31mred\x1b[0m", "a\r\nb", "n" * 300, "\u202e", "[bold]", "%s%n", "../x", "'", "/")


def convolution() -> ModelProto:
    """Conv, Relu, MaxPool, Reshape, Gemm, Softmax: small, with something for every stage."""
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w1"], ["d"], "conv2", kernel_shape=[4, 4]),
        node("Reshape", ["d", "to"], ["f"], "flat"),
        node("Gemm", ["f", "w2", "b2"], ["g"], "gemm"),
        node("Softmax", ["g"], ["y"], "softmax", axis=-1),
    ]
    weights = {
        "w0": weight(16, 3, 3, 3),
        "b0": weight(16),
        "w1": weight(16, 16, 4, 4),
        "to": np.array([-1, 16]),
        "w2": weight(16, 20),
        "b2": weight(20),
    }
    proto = model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 20]}, weights))
    return onnx.shape_inference.infer_shapes(proto)


def branches() -> ModelProto:
    """A MatMul large enough for dynamic integers, a Constant, an If with a weight inside, two outputs."""
    then = graph(
        [node("MatMul", ["m", "wi"], ["t"], "inner")], {}, {"t": None}, {"wi": weight(192, 192)}
    )
    other = graph([node("Neg", ["m"], ["e"], "neg")], {}, {"e": None})
    nodes = [
        node(
            "Constant",
            [],
            ["k"],
            "constant",
            value=onnx.numpy_helper.from_array(weight(300, seed=3), "kk"),
        ),
        node("ReduceSum", ["k"], ["s"], "sum", keepdims=0),
        node("MatMul", ["x", "w0"], ["m"], "mm"),
        node("Greater", ["s", "zero"], ["q"], "greater"),
        node("If", ["q"], ["c"], "if", then_branch=then, else_branch=other),
        node("Add", ["c", "b0"], ["y"], "add"),
        node("ArgMax", ["y"], ["z"], "argmax", axis=-1),
    ]
    weights = {"w0": weight(192, 192), "b0": weight(192), "zero": np.zeros((), np.float32)}
    shape: list[int | str | None] = ["N", 192]
    proto = graph(
        nodes, {"x": shape}, {"y": shape, "z": ["N", 1]}, weights, types={"z": TensorProto.INT64}
    )
    return model(proto)


def write_data(path: Path) -> Path:
    """Four samples for `convolution`; other models find them wanting."""
    np.savez(path, x=np.random.default_rng(0).random((4, 3, 8, 8), dtype=np.float32))
    return path


def check_model(command: str, path: Path, folder: Path, *, cold: bool = False) -> None:
    """Run one command on a model file and assert the contract."""
    data = write_data(folder / "data.npz")
    lines: dict[str, list[str | Path]] = {
        "inspect": ["inspect", path],
        "optimize": ["optimize", path, "out.onnx"],
        "dynamic": ["quantize", "dynamic", path, "out.onnx"],
        "static": ["quantize", "static", path, "out.onnx", "--data", data],
        "calibrate": ["calibrate", path, "--data", data, "-o", "out.calibration"],
    }
    writes = ["out.onnx", "out.onnx.data", "out.calibration"]
    check(*lines[command], folder=folder, writes=writes, cold=cold)


Change = Callable[[ModelProto, random.Random], None]


def values_of(proto: ModelProto) -> list[onnx.ValueInfoProto]:
    return [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]


def tensors_of(proto: ModelProto) -> list[TensorProto]:
    inner = [a.t for n in proto.graph.node for a in n.attribute if a.HasField("t")]
    return [*proto.graph.initializer, *inner]


def an_extent(proto: ModelProto, source: random.Random) -> None:
    value = source.choice(values_of(proto)).type.tensor_type.shape
    if value.dim:
        source.choice(value.dim).dim_value = source.choice(EXTENTS)


def a_rank(proto: ModelProto, source: random.Random) -> None:
    value = source.choice(values_of(proto)).type.tensor_type
    if source.random() < 0.5:
        value.ClearField("shape")
    else:
        value.shape.dim.add(dim_value=source.choice(EXTENTS))


def a_declared_type(proto: ModelProto, source: random.Random) -> None:
    value = source.choice(values_of(proto))
    kind = source.choice(("elem", "sequence", "map", "optional", "none", "opaque"))
    if kind == "elem":
        value.type.tensor_type.elem_type = source.choice(
            (0, 2, 7, 8, 10, 11, 16, 22, 99, 2**31 - 1)
        )
    elif kind == "none":
        value.ClearField("type")
    elif kind == "map":
        value.type.map_type.key_type = TensorProto.INT64
        value.type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    elif kind == "sequence":
        value.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    elif kind == "optional":
        value.type.optional_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    else:
        value.type.sparse_tensor_type.elem_type = TensorProto.FLOAT


def a_tensors_shape(proto: ModelProto, source: random.Random) -> None:
    tensor = source.choice(tensors_of(proto))
    if tensor.dims and source.random() < 0.7:
        tensor.dims[source.randrange(len(tensor.dims))] = source.choice(EXTENTS)
    else:
        tensor.dims.append(source.choice(EXTENTS))


def a_tensors_type(proto: ModelProto, source: random.Random) -> None:
    source.choice(tensors_of(proto)).data_type = source.choice(
        (0, 1, 2, 6, 7, 8, 10, 11, 14, 16, 22, 23, 99)
    )


def a_tensors_bytes(proto: ModelProto, source: random.Random) -> None:
    tensor = source.choice(tensors_of(proto))
    change = source.choice(("none", "short", "long", "field", "both", "nan"))
    if change == "none":
        tensor.ClearField("raw_data")
    elif change == "short":
        tensor.raw_data = tensor.raw_data[: -source.randint(1, 9)]
    elif change == "long":
        tensor.raw_data += b"\0" * source.randint(1, 9)
    elif change == "field":
        tensor.ClearField("raw_data")
        tensor.float_data.extend([1.0] * source.randint(0, 9))
    elif change == "both":
        tensor.int64_data.extend([1] * source.randint(1, 9))
    else:
        tensor.raw_data = b"\xff" * len(tensor.raw_data)


def external_data(proto: ModelProto, source: random.Random) -> None:
    tensor = source.choice(tensors_of(proto))
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    places = (
        "data.npz",
        "in.onnx",
        "nowhere",
        ".",
        "",
        "/etc/hostname",
        "../x",
        "quantkit:tensor",
        "a\0b",
    )
    offsets = ("0", "8", "-8", "1e3", "", "x", "99999999999999999999", str(2**62), " 4", "0x10")
    for key, choices in (
        ("location", (*places, "n" * 300, "\x1b[31m")),
        ("offset", offsets),
        ("length", offsets),
        ("checksum", offsets),
    ):
        if source.random() < 0.8:
            tensor.external_data.add(key=key, value=source.choice(choices))


def a_name(proto: ModelProto, source: random.Random) -> None:
    new = source.choice(NAMES)
    kind = source.choice(
        ("node", "operator", "domain", "input", "output", "value", "tensor", "extent")
    )
    one = source.choice(proto.graph.node)
    if kind == "node":
        one.name = new
    elif kind == "operator":
        one.op_type = source.choice((new, "Loop", "Cast", "NoSuchOperator", "QLinearConv"))
    elif kind == "domain":
        one.domain = source.choice((new, "ai.onnx", "com.microsoft", "custom"))
    elif kind == "input" and one.input:
        one.input[source.randrange(len(one.input))] = new
    elif kind == "output":
        one.output[0] = new
    elif kind == "value":
        source.choice(values_of(proto)).name = new
    elif kind == "tensor":
        source.choice(proto.graph.initializer).name = new
    else:
        values_of(proto)[0].type.tensor_type.shape.dim.add(dim_param=new)


def a_rename_everywhere(proto: ModelProto, source: random.Random) -> None:
    old, new = source.choice(("w0", "c", "x", "y")), source.choice(NAMES)
    for one in proto.graph.node:
        for names in (one.input, one.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
    for named in (*values_of(proto), *proto.graph.initializer):
        if named.name == old:
            named.name = new


def the_nodes(proto: ModelProto, source: random.Random) -> None:
    nodes = list(proto.graph.node)
    change = source.choice(("shuffle", "double", "drop", "cycle", "self", "all"))
    if change == "shuffle":
        source.shuffle(nodes)
    elif change == "double":
        nodes.append(source.choice(nodes))
    elif change == "drop":
        nodes.remove(source.choice(nodes))
    elif change == "all":
        nodes = []
    elif change == "cycle" and nodes[0].input:
        nodes[0].input[0] = nodes[-1].output[0]
    elif change == "self" and nodes[-1].input:
        nodes[-1].input[0] = nodes[-1].output[0]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def the_inputs_of_a_node(proto: ModelProto, source: random.Random) -> None:
    one = source.choice(proto.graph.node)
    if source.random() < 0.5:
        one.input.append(source.choice(("", "x", "w0", "nowhere")))
    elif one.input:
        one.input.pop()
    if source.random() < 0.3:
        one.output.append(source.choice(("", "extra", "y")))


def an_attribute(proto: ModelProto, source: random.Random) -> None:
    nodes = [n for n in proto.graph.node if n.attribute]
    if not nodes:
        return
    attribute = source.choice(source.choice(nodes).attribute)
    change = source.choice(("type", "value", "absent", "name", "huge", "ref"))
    if change == "type":
        attribute.type = source.choice(AttributeProto.AttributeType.values())
    elif change == "value":
        attribute.CopyFrom(
            helper.make_attribute(attribute.name, source.choice((1.5, "text", [1, 2], -(2**63))))
        )
    elif change == "absent":
        attribute.Clear()
    elif change == "name":
        attribute.name = source.choice(NAMES)
    elif change == "huge" and attribute.ints:
        attribute.ints[0] = source.choice(EXTENTS)
    else:
        attribute.ref_attr_name = "outer"


def the_header(proto: ModelProto, source: random.Random) -> None:
    change = source.choice(
        ("ir", "opset", "no opset", "two opsets", "no graph", "metadata", "function")
    )
    if change == "ir":
        proto.ir_version = source.choice((0, 1, 3, 4, 99, -1, 2**62))
    elif change == "opset":
        proto.opset_import[0].version = source.choice((0, 1, 6, 7, 12, 99, -1, 2**62))
    elif change == "no opset":
        del proto.opset_import[:]
    elif change == "two opsets":
        proto.opset_import.add(domain=source.choice(("", "ai.onnx", "custom")), version=12)
    elif change == "no graph":
        proto.ClearField("graph")
    elif change == "metadata":
        proto.metadata_props.add(
            key=source.choice(("quantkit", "quantkit.evened", "")), value="\x1b[2J{"
        )
    else:
        function = proto.functions.add(name="Relu", domain=source.choice(("", "f")))
        function.output.append("o")


def the_interface(proto: ModelProto, source: random.Random) -> None:
    listed = source.choice((proto.graph.input, proto.graph.output))
    change = source.choice(("none", "double", "initializer", "unknown"))
    if change == "none":
        del listed[:]
    elif change == "double" and listed:
        listed.append(listed[0])
    elif change == "initializer":
        tensor = source.choice(proto.graph.initializer)
        listed.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    else:
        listed.append(helper.make_tensor_value_info("nowhere", TensorProto.FLOAT, [1]))


CHANGES: tuple[Change, ...] = (
    *(an_extent, a_rank, a_declared_type, a_tensors_shape, a_tensors_type, a_tensors_bytes),
    *(external_data, a_name, a_rename_everywhere, the_nodes, the_inputs_of_a_node, an_attribute),
    *(the_header, the_interface),
)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_changed_model_is_a_result_or_one_error(seed: int, tmp_path: Path) -> None:
    source = chance(seed)
    proto = source.choice((convolution, convolution, branches))()
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        if proto.graph.node and proto.graph.initializer:
            source.choice(CHANGES)(proto, source)
    (tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    check_model(source.choice(COMMANDS), tmp_path / "in.onnx", tmp_path, cold=seed % 100 == 0)


@pytest.mark.parametrize("seed", seeds(15))
def test_changed_bytes_of_a_model_are_a_result_or_one_error(seed: int, tmp_path: Path) -> None:
    source = chance(seed)
    proto = source.choice((convolution, branches))()
    for tensor in proto.graph.initializer:  # so that most changes hit the structure
        if source.random() < 0.9 and len(tensor.dims) > 1:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(weight(*(1 for _ in tensor.dims)), tensor.name)
            )
    (tmp_path / "in.onnx").write_bytes(mutated(proto.SerializeToString(), source, changes=6))
    check_model(source.choice(COMMANDS), tmp_path / "in.onnx", tmp_path)


@pytest.mark.parametrize(
    "name", [b"n" * 250 + b".onnx", b"\xff\xfe.onnx", b"a\x1b[31m.onnx", b"-x.onnx"]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_odd_file_names_are_a_result_or_one_error(
    command: str, name: bytes, tmp_path: Path
) -> None:
    path = tmp_path / name.decode("utf-8", "surrogateescape")
    path.write_bytes(convolution().SerializeToString())
    check_model(command, path, tmp_path)
