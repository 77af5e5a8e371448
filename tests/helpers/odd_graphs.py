"""Models as exporters and people really write them: rare forms of operators, odd names, shapes, types, versions and interfaces."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from builders import Array, graph, node, weight
from onnx import TensorProto, helper, numpy_helper, version_converter
from random_graphs import OPERATORS, PRODUCTS, Grower, Steps

SHAPE = (1, 8, 6, 6)
# As in `random_graphs`: what is made has the shape of "a".
PIECES: dict[str, Steps] = {
    "ConvTransposeGroups": [("ConvTranspose", "a w:8,4,3,3", {"group": 2, "pads": [1] * 4})],
    "ConvTransposeDepthwise": [("ConvTranspose", "a w:8,1,3,3 w:8", {"group": 8, "pads": [1] * 4})],
    "Conv3D": [
        ("Reshape", "a volume", {}),
        ("Conv", ".1 w:2,2,3,3,3 w:2", {"pads": [1] * 6}),
        ("Relu", ".2", {}),
        ("Reshape", ".3 image", {}),
    ],
    "ConvWithoutBias": [("Conv", "a w:8,8,1,1 _", {})],
    "ConvOfZeros": [("Conv", "a zeros w:8", {})],
    "ConvOfComputedWeight": [("Mul", "tied half", {}), ("Conv", "a .1", {})],
    "ConvOfStrangeBias": [("Neg", "spread", {}), ("Conv", "a w:8,8,1,1 .1", {})],
    "GemmTransposed": [
        ("Reshape", "a column", {}),
        ("Gemm", ".1 w:288,288 w:288", {"transA": 1, "alpha": 0.5, "beta": 2.0}),
        ("Reshape", ".2 image", {}),
    ],
    "GemmOfMatrixBias": [
        ("Flatten", "a", {}),
        ("Gemm", ".1 w:288,288 w:1,288", {"transB": 1, "alpha": 1.5}),
        ("Reshape", ".2 image", {}),
    ],
    "GemmOfNegativeFactor": [
        ("Flatten", "a", {}),
        ("Gemm", ".1 w:288,288 half", {"alpha": -0.5, "beta": 0.0}),
        ("Reshape", ".2 image", {}),
    ],
    "GemmWithoutBias": [
        ("Flatten", "a", {}),
        ("Gemm", ".1 w:288,288 _", {}),
        ("Reshape", ".2 image", {}),
    ],
    "MatMulOfConstant": [("MatMul", "w:6,6 a", {})],
    "MatMulOfStack": [("MatMul", "a w:8,6,6", {})],
    "MatMulOfVector": [("MatMul", "a w:6", {}), ("Unsqueeze", ".1 last", {}), ("Add", "a .2", {})],
    "ClipAbove": [("Clip", "a _ one", {})],
    "ClipAtNothing": [("Clip", "a", {})],
    "ClipAtConstant": [("Clip", "a half half", {})],
    "Double": [
        ("Cast", "a", {"to": TensorProto.DOUBLE}),
        ("MatMul", ".1 double", {}),
        ("Cast", ".2", {"to": 1}),
    ],
    "Half": [
        ("Cast", "a", {"to": TensorProto.FLOAT16}),
        ("MatMul", ".1 half_matrix", {}),
        ("Cast", ".2", {"to": 1}),
    ],
    "Brain": [("Cast", "a", {"to": TensorProto.BFLOAT16}), ("Cast", ".1", {"to": 1})],
    "Short": [
        ("Mul", "a thousand", {}),
        ("Cast", ".1", {"to": TensorProto.INT16}),
        ("Cast", ".2", {"to": 1}),
        ("Div", ".3 thousand", {}),
    ],
    "Empty": [("Slice", "a first first axes", {}), ("Concat", "a .1", {"axis": 1})],
    "EmptyConv": [
        ("Slice", "a first first first", {}),
        ("Conv", ".1 w:8,8,1,1", {}),
        ("Concat", "a .2", {"axis": 0}),
    ],
    "Scalar": [("ReduceMean", "a", {"keepdims": 0}), ("Mul", "a .1", {}), ("Add", "a .2", {})],
    "Nothing": [("Mul", "a zero", {}), ("Conv", ".1 w:8,8,1,1 w:8", {})],
    "Masked": [("Where", "flags a infinite", {}), ("Softmax", ".1", {"axis": -1})],
    "Huge": [("Mul", "a million", {}), ("Conv", ".1 w:8,8,1,1", {}), ("Div", ".2 million", {})],
    "Tiny": [("Div", "a million", {}), ("Conv", ".1 w:8,8,1,1", {}), ("Mul", ".2 million", {})],
    "Sequence": [
        ("SplitToSequence", "a halves", {"axis": 1}),
        ("ConcatFromSequence", ".1", {"axis": 1}),
    ],
    "Optional": [("Optional", "a", {}), ("OptionalGetElement", ".1", {})],
    "Shapes": [("Shape", "a", {}), ("Relu", "a", {}), ("Reshape", ".2 .1", {})],
    "MaxPoolIndices": [("MaxPool>2", "a", {"kernel_shape": [3, 3], "pads": [1] * 4})],
    "Twice": [
        ("Add", "a a", {}),
        ("Conv", ".1 w:8,8,1,1", {}),
        ("Mul", ".2 .2", {}),
        ("Tanh", ".3", {}),
    ],
}
CONSTANTS: dict[str, Array] = {
    "volume": np.array([1, 2, 4, 6, 6]),
    "column": np.array([288, 1]),
    "last": np.array([-1]),
    "zeros": np.zeros((8, 8, 1, 1), np.float32),
    "double": weight(6, 6).astype(np.float64),
    "half_matrix": weight(6, 6).astype(np.float16),
    "thousand": np.array(1000, np.float32),
    "million": np.array(1e6, np.float32),
    "infinite": np.array(-np.inf, np.float32),
}
# Operators of which other opsets have other forms are left out where one is drawn.
STABLE = ["Relu", "Sigmoid", "Transpose", "Conv", "depthwise", "ConvTranspose", "MatMul", "scale"]
STABLE += ["shift", "Add", "Mul", "Concat", "Neg", "Tanh", "Sum", "PRelu", "ConvGroup", "Identity"]
OLDEST, NEWEST = 7, 24

Change = Callable[[onnx.ModelProto, random.Random], None]


class OddGrower(Grower):
    """Also grows what stands in subgraphs and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weights |= CONSTANTS
        self.functions: list[onnx.FunctionProto] = []

    def grow(self, op: str, first: int, second: int) -> None:
        if op not in PIECES:
            self.add(op, first, second)
            return
        a = self.values[-1 - first % min(3, len(self.values))]
        name = f"n{len(self.nodes)}"
        self._piece(PIECES[op], a, self.values[second % len(self.values)], name)
        self.values.append(name)

    def _branches(self, _op: str, a: str, b: str, name: str) -> None:
        """Two branches whose values have the same names; each sample takes one."""

        def branch(which: str, read: str) -> onnx.GraphProto:
            w = weight(8, 8, 3, 3, seed=len(self.nodes) + len(which), scale=0.1)
            inner = [
                node("Conv", [read, "own"], ["c"], "conv", pads=[1] * 4),
                node("Relu", ["c"], ["r"]),
                node("Conv", ["r", "own"], ["out"], pads=[1] * 4),
            ]
            return graph(inner, {}, {"out": None}, {"own": w}, name=which)

        self._put("ReduceMean", [a], f"{name}_mean", keepdims=0)
        self._put("Greater", [f"{name}_mean", "zero"], f"{name}_is")
        both = {"then_branch": branch("then", a), "else_branch": branch("else", b)}
        self._put("If", [f"{name}_is"], name, **both)

    def _turns(self, _op: str, a: str, _: str, name: str) -> None:
        """A Loop over its own result."""
        types = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "on": TensorProto.BOOL}
        w = weight(6, 6, seed=len(self.nodes), scale=0.3)
        inner = [
            node("MatMul", ["state", "own"], ["m"], "matmul"),
            node("Tanh", ["m"], ["next"], "tanh"),
            node("Identity", ["go"], ["on"], "on"),
        ]
        given: dict[str, Any] = {"i": [], "go": [], "state": SHAPE}
        body = graph(inner, given, {"on": [], "next": SHAPE}, {"own": w}, types=types)
        self.weights["three"] = np.array(3)
        self._put("Loop", ["three", "", a], name, body=body)

    def _function(self, _op: str, a: str, _: str, name: str) -> None:
        inner = [node("Conv", ["u", "v"], ["c"], pads=[1] * 4), node("Relu", ["c"], ["o"])]
        imports = [helper.make_opsetid("", 17)]
        made = helper.make_function("local", f"F{name}", ["u", "v"], ["o"], inner, imports)
        self.functions.append(made)
        self.nodes.append(
            node(f"F{name}", [a, self._weight(name, 8, 8, 3, 3)], [name], domain="local")
        )

    def _gelu(self, _op: str, a: str, _: str, name: str) -> None:
        self.nodes.append(node("Gelu", [a], [name], domain="com.microsoft"))

    def model(self) -> onnx.ModelProto:
        proto = super().model()
        proto.functions.extend(self.functions)
        for domain in ("local", "com.microsoft"):
            proto.opset_import.append(helper.make_opsetid(domain, 1))
        return proto


OWN = ["Branches", "Turns", "Function", "Gelu"]


def odd_graph(seed: int) -> onnx.ModelProto:
    """A model with some of these; of as many seeds as there are pieces, each has another one."""
    source = random.Random(seed)  # noqa: S311 - the same graphs every time
    grower = OddGrower()
    odd = [*PIECES, *OWN]
    if source.random() < 0.25:  # of a single form that all opsets have
        wanted = [source.choice([*STABLE, "Conv"]) for _ in range(source.randint(2, 8))]
        version = source.randint(OLDEST, NEWEST)
    else:
        kinds = (PRODUCTS, odd, [o for o in OPERATORS if o != "Dropout"])
        wanted = [source.choice(source.choice(kinds)) for _ in range(source.randint(1, 8))]
        wanted.insert(source.randint(0, len(wanted)), odd[seed % len(odd)])
        version = 17
    for op in wanted:
        grower.grow(op, source.randint(0, 99), source.randint(0, 99))
    proto = grower.model()
    proto.opset_import[0].version = version
    if version == 17 and not proto.functions and source.random() < 0.2:
        proto = version_converter.convert_version(proto, source.randint(18, NEWEST))
    for change in source.sample(CHANGES, source.choice((0, 1, 1, 2, 3))):
        change(proto, source)
    return proto


def weights_in_constants(proto: onnx.ModelProto, source: random.Random) -> None:
    listed = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    for tensor in list(proto.graph.initializer):
        if tensor.name not in listed and source.random() < 0.7:
            made = node("Constant", [], [tensor.name], value=tensor)
            proto.graph.initializer.remove(tensor)
            proto.graph.node.insert(0, made)


def odd_names(proto: onnx.ModelProto, source: random.Random) -> None:
    """Rename what the main graph makes and holds; subgraphs read it by the new names."""
    held = [t.name for t in proto.graph.initializer]
    made = [name for n in proto.graph.node for name in n.output if name]
    forms = ("a b{}", "/layer/{}/", "ä中文{}", "{}", "w_quantized_{}", "{}:0", "'{}'", "x{}_scale")
    new = {n: source.choice(forms).format(i) for i, n in enumerate(dict.fromkeys([*held, *made]))}
    renamed = {out.name: out.name for out in proto.graph.output}
    new |= renamed
    for named in (*proto.graph.initializer, *proto.graph.input):
        named.name = new.get(named.name, named.name)
    _rename(proto.graph, new)
    for i, one in enumerate(proto.graph.node):
        one.name = source.choice(
            ("", one.name, f"conv {i}", f"/a/b/{i}", new.get(one.output[0], ""))
        )


def _rename(part: onnx.GraphProto, new: dict[str, str]) -> None:
    own = {name for n in part.node for name in n.output} if part.name in {"then", "else"} else set()
    for one in part.node:
        for names in (one.input, one.output):
            for i, name in enumerate(names):
                names[i] = name if name in own else new.get(name, name)
        for attribute in one.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, new)


def dynamic_extents(proto: onnx.ModelProto, source: random.Random) -> None:
    for value in (proto.graph.input[0], *proto.graph.output):
        for i, extent in enumerate(value.type.tensor_type.shape.dim):
            if source.random() < 0.5:
                extent.dim_param = f"d{i}"


def negative_extents(proto: onnx.ModelProto, source: random.Random) -> None:
    for value in (proto.graph.input[0], *proto.graph.output):
        for extent in value.type.tensor_type.shape.dim:
            if source.random() < 0.5:
                extent.dim_value = -1


def listed_initializers(proto: onnx.ModelProto, source: random.Random) -> None:
    for tensor in proto.graph.initializer:
        described = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        proto.graph.input.append(described)
    proto.ir_version = source.choice((3, 4, 8)) if proto.opset_import[0].version < 9 else 8


def unused_things(proto: onnx.ModelProto, source: random.Random) -> None:  # noqa: ARG001 - all alike
    proto.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.INT16, [3]))
    proto.graph.initializer.append(numpy_helper.from_array(weight(30, 30), "nobody reads it"))
    proto.graph.node.append(node("Relu", ["x"], ["read by nobody"], "dead end"))


def odd_outputs(proto: onnx.ModelProto, source: random.Random) -> None:
    """What is held or already put out in another form is put out as well."""
    if proto.graph.initializer and source.random() < 0.7:
        tensor = source.choice(proto.graph.initializer)
        described = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        proto.graph.output.append(described)
    made = [name for n in proto.graph.node for name in n.output if name and n.op_type == "Conv"]
    listed = {o.name for o in proto.graph.output}
    for name in made[:1]:
        if name not in listed:
            proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))


def no_shapes(proto: onnx.ModelProto, source: random.Random) -> None:  # noqa: ARG001 - all alike
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]


CHANGES: tuple[Change, ...] = (
    *(weights_in_constants, odd_names, dynamic_extents, negative_extents, listed_initializers),
    *(unused_things, odd_outputs, no_shapes),
)
