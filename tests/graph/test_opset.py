"""Raising the opset never changes what a model computes, or is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import MS, Array, graph, matmul_model, model, node, run, save, weight
from graph.cases import BIG, anonymous_memory, branch, function_model, with_external_data, written
from onnx import TensorProto, helper, numpy_helper

from quantkit import quantize_dynamic
from quantkit.errors import ModelError
from quantkit.model.graph.load import load
from quantkit.model.graph.opset import opset_of, raise_opset

TARGETS = (11, 13, 21)


class Case(NamedTuple):
    """Nodes from x to y, as an opset between `first` and `last` writes them."""

    nodes: list[onnx.NodeProto]
    shape: tuple[int, ...]
    weights: dict[str, Array]
    first: int
    last: int


def case(
    *nodes: onnx.NodeProto,
    shape: Sequence[int] = (2, 3, 4, 5),
    first: int = 9,
    last: int = 12,
    **weights: Array,
) -> Case:
    return Case(list(nodes), tuple(shape), weights, first, last)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def op(name: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return node(name, ["x", *inputs], ["y"], **attributes)


IMAGE = (1, 8, 7, 10)
CASES = {
    "reduce-mean": case(op("ReduceMean", axes=[2, 3])),
    "reduce-max-flat": case(op("ReduceMax", axes=[-1], keepdims=0)),
    "reduce-sum": case(op("ReduceSum", axes=[1])),
    "squeeze": case(op("Squeeze", axes=[1]), shape=(2, 1, 4)),
    "unsqueeze": case(op("Unsqueeze", axes=[0, 2]), shape=(2, 3)),
    "softmax-of-several-axes": case(op("Softmax", axis=1)),
    "softmax-default-axis": case(op("Softmax"), shape=(2, 3, 4)),
    "softmax-last-axis": case(op("Softmax", axis=3)),
    "log-softmax": case(op("LogSoftmax", axis=1)),
    "clip": case(op("Clip", min=-0.1, max=0.2), last=10),
    "clip-one-side": case(op("Clip", min=0.0), last=10),
    "pad": case(op("Pad", pads=[0, 0, 1, 1, 0, 0, 2, 2], value=1.5), last=10),
    "pad-reflect": case(op("Pad", pads=[0, 0, 1, 1, 0, 0, 2, 2], mode="reflect"), last=10),
    "slice-9": case(op("Slice", starts=[0, 1], ends=[2, 99], axes=[0, 2]), last=9),
    "slice-10": case(op("Slice", "s", "e", "a"), first=10, s=ints(1), e=ints(3), a=ints(2)),
    "upsample-nearest": case(op("Upsample", "s"), last=9, s=floats(1, 1, 2, 3)),
    "upsample-linear": case(op("Upsample", "s", mode="linear"), last=9, s=floats(1, 1, 2, 2)),
    "resize-nearest-up": case(
        op("Resize", "s"), shape=IMAGE, first=10, last=10, s=floats(1, 1, 1.5, 2.25)
    ),
    "resize-nearest-down": case(
        op("Resize", "s"), shape=IMAGE, first=10, last=10, s=floats(1, 1, 0.75, 0.5)
    ),
    "resize-linear": case(
        op("Resize", "s", mode="linear"),
        shape=IMAGE,
        first=10,
        last=10,
        s=floats(1, 1, 1.5, 0.75),
    ),
    "resize-11": case(
        op("Resize", "roi", "s", mode="linear"),
        shape=IMAGE,
        first=11,
        roi=floats(),
        s=floats(1, 1, 2, 2),
    ),
    "dropout": case(op("Dropout", ratio=0.4), last=11),
    "dropout-mask": case(node("Dropout", ["x"], ["y", "mask"], ratio=0.4), last=11),
    "batch-norm": case(
        op("BatchNormalization", "g", "b", "m", "v"),
        last=13,
        g=weight(3),
        b=weight(3, seed=1),
        m=weight(3, seed=2),
        v=np.abs(weight(3, seed=3)) + 1,
    ),
    "split": case(
        node("Split", ["x"], ["p", "q"], axis=1, split=[1, 2]),
        node("Concat", ["q", "p"], ["y"], axis=1),
    ),
    "top-k-9": case(node("TopK", ["x"], ["y", "i"], k=2), last=9),
    "top-k-10": case(node("TopK", ["x", "k"], ["y", "i"]), first=10, last=10, k=ints(2)),
    "arg-max": case(node("ArgMax", ["x"], ["i"], axis=1), node("Cast", ["i"], ["y"], to=1)),
    "matmul": case(op("MatMul", "w"), shape=(3, 40), w=weight(40, 64)),
    "gemm": case(op("Gemm", "w", "b", transB=1), shape=(3, 40), w=weight(64, 40), b=weight(64)),
    "conv": case(op("Conv", "w", pads=[1, 1, 1, 1]), shape=IMAGE, w=weight(16, 8, 3, 3)),
    "max-pool": case(op("MaxPool", kernel_shape=[2, 2]), shape=IMAGE),
    "lstm-optional-inputs": case(
        node("LSTM", ["x", "w", "r", "", "", "h"], ["", "y"], hidden_size=16),
        shape=(5, 1, 8),
        w=weight(1, 64, 8),
        r=weight(1, 64, 16),
        h=weight(1, 1, 16),
    ),
    "gru": case(
        op("GRU", "w", "r", hidden_size=16),
        shape=(5, 1, 8),
        w=weight(1, 48, 8),
        r=weight(1, 48, 16),
    ),
    "constant": case(
        node("Constant", [], ["k"], value=numpy_helper.from_array(weight(5))), op("Add", "k")
    ),
    "scatter": case(
        op("Scatter", "i", "u", axis=0), shape=(5, 2), last=10, i=np.array([[0, 2]]), u=weight(1, 2)
    ),
    "depth-to-space": case(op("DepthToSpace", blocksize=2), shape=IMAGE, last=10),
    "one-hot": case(
        node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        node("OneHot", ["i", "d", "v"], ["y"]),
        shape=(2, 3),
        d=ints(3),
        v=floats(0, 1),
    ),
}
RAISES = [
    pytest.param(name, before, after, id=f"{name}-{before}-to-{after}")
    for name, found in CASES.items()
    for before in range(found.first, found.last + 1)
    for after in TARGETS
    if before < after
]
RAISES_OF_BRANCHES = [
    pytest.param(name, found.last, after, id=f"{name}-{found.last}-to-{after}")
    for name, found in CASES.items()
    for after in TARGETS
    if found.last < after
]


def of(name: str, opset: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    found = CASES[name]
    proto = model(
        graph(found.nodes, {"x": found.shape}, {"y": None}, found.weights),
        opset=opset,
        ir_version=4,
    )
    return proto, {"x": weight(*found.shape, seed=9, scale=1.0)}


def in_a_branch(name: str, opset: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The case in both branches of an If."""
    found = CASES[name]

    def part(prefix: str) -> onnx.GraphProto:
        def renamed(names: Sequence[str]) -> list[str]:
            return [n if n in {"", "x"} else prefix + n for n in names]

        nodes = []
        for item in found.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(item)
            copy.input[:], copy.output[:] = renamed(item.input), renamed(item.output)
            nodes.append(copy)
        weights = {prefix + k: v for k, v in found.weights.items()}
        return graph(nodes, {}, {f"{prefix}y": None}, weights, name=prefix)

    nodes = [node("If", ["c"], ["y"], then_branch=part("t_"), else_branch=part("e_"))]
    types = {"c": TensorProto.BOOL}
    proto = model(
        graph(nodes, {"x": found.shape, "c": []}, {"y": None}, types=types),
        opset=opset,
        ir_version=4,
    )
    return proto, {"x": weight(*found.shape, seed=9, scale=1.0), "c": np.array(False)}


def assert_raised(
    proto: onnx.ModelProto, feeds: dict[str, Array], after: int, folder: Path
) -> ir.Model:
    raised = raise_opset(load(save(proto, folder / "in.onnx")).model, after)
    assert opset_of(raised) == after
    path = written(raised, folder / "out.onnx")
    expected, actual = run(proto, feeds, optimize=False), run(path, feeds, optimize=False)
    for e, a in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(e, a)
    return raised


@pytest.mark.parametrize(("name", "before", "after"), RAISES)
def test_outputs_stay_equal(name: str, before: int, after: int, tmp_path: Path) -> None:
    proto, feeds = of(name, before)
    assert_raised(proto, feeds, after, tmp_path)


@pytest.mark.parametrize(("name", "before", "after"), RAISES_OF_BRANCHES)
def test_outputs_of_branches_stay_equal(name: str, before: int, after: int, tmp_path: Path) -> None:
    proto, feeds = in_a_branch(name, before)
    assert_raised(proto, feeds, after, tmp_path)


def test_a_model_that_is_there_already_is_returned_as_it_is() -> None:
    loaded = load(matmul_model(opset=17)).model
    assert raise_opset(loaded, 13) is loaded


@pytest.mark.parametrize("after", [13, 21])
def test_hardmax_is_refused_where_its_meaning_changes(after: int) -> None:
    nodes = [node("Hardmax", ["x"], ["y"], "hard", axis=1)]
    proto = model(graph(nodes, {"x": [2, 3, 4]}, {"y": None}), opset=11)
    with pytest.raises(ModelError, match="Hardmax 'hard'"):
        raise_opset(load(proto).model, after)


def resized(scales: list[float] | None) -> onnx.ModelProto:
    """Resize, opset 10, then a product; the scales are computed if there are none."""
    nodes = [
        node("Resize", ["x", "s"], ["r"], "resize"),
        node("Reshape", ["r", "flat"], ["f"]),
        node("MatMul", ["f", "w"], ["y"], "mm"),
    ]
    weights: dict[str, Array] = {"flat": ints(-1, 128), "w": weight(128, 192)}
    if scales is None:
        nodes.insert(0, node("Add", ["half", "half"], ["s"]))
        weights["half"] = floats(0.5, 0.5, 1, 1)
    else:
        weights["s"] = floats(*scales)
    part = graph(nodes, {"x": [1, 2, 16, 16]}, {"y": None}, weights)
    return model(part, opset=10, ir_version=5)


@pytest.mark.parametrize(
    "scales", [None, [1.0, 1.0, 0.5, 2.0]], ids=["computed-scales", "up-and-down"]
)
def test_a_resize_that_cannot_be_kept_is_refused(scales: list[float] | None) -> None:
    with pytest.raises(ModelError, match="Resize 'resize'"):
        raise_opset(load(resized(scales)).model, 11)


@pytest.mark.parametrize(
    "scales", [None, [1.0, 1.0, 0.5, 2.0]], ids=["computed-scales", "up-and-down"]
)
def test_what_cannot_be_raised_is_stored_only_and_said_so(
    scales: list[float] | None, tmp_path: Path
) -> None:
    result = quantize_dynamic(resized(scales), tmp_path / "q.onnx")
    assert any("only their weights are quantized" in warning for warning in result.warnings)
    assert result.output_bytes < result.input_bytes / 3
    assert onnx.load(tmp_path / "q.onnx").opset_import[0].version == 10


def test_a_model_with_a_resize_is_raised_and_right(tmp_path: Path) -> None:
    result = quantize_dynamic(resized([1.0, 1.0, 2.0, 2.0]), tmp_path / "q.onnx")
    assert any("raised from 10 to 11" in warning for warning in result.warnings)
    assert result.verification is not None
    assert result.verification.compared["y"] > 30


def test_what_the_converter_does_not_know_is_refused_in_one_line() -> None:
    nodes = [node("Nonsense", ["x"], ["y"])]
    proto = model(graph(nodes, {"x": [2]}, {"y": [2]}), opset=9)
    with pytest.raises(ModelError, match="from opset 9 to 13") as caught:
        raise_opset(load(proto).model, 13)
    assert "\n" not in str(caught.value)


def test_functions_are_raised_with_the_model(tmp_path: Path) -> None:
    body = [node("Squeeze", ["a"], ["s"], axes=[1]), node("MatMul", ["s", "w"], ["b"])]
    imports = [helper.make_opsetid("", 11)]
    function = helper.make_function("local", "F", ["a", "w"], ["b"], body, imports)
    unused = helper.make_function("local", "G", ["a"], ["b"], [node("Neg", ["a"], ["b"])], imports)
    proto = model(
        graph(
            [node("F", ["x", "w"], ["y"], domain="local")],
            {"x": [2, 1, 20]},
            {"y": None},
            {"w": weight(*BIG)},
        ),
        opset=11,
        domains={"local": 1},
        functions=[function, unused],
    )
    raised = assert_raised(proto, {"x": weight(2, 1, 20, seed=9)}, 21, tmp_path)
    assert not raised.functions


def test_functions_with_weights_are_raised(tmp_path: Path) -> None:
    proto = function_model()
    assert_raised(proto, {"x": weight(3, 20, seed=9)}, 21, tmp_path)


def test_weights_of_branches_survive(tmp_path: Path) -> None:
    def part(name: str, seed: int) -> onnx.GraphProto:
        made = branch(f"{name}m", seed)
        made.node.append(node("Squeeze", [f"{name}m"], [name], axes=[1]))
        made.output[0].name = name
        return made

    nodes = [node("If", ["c"], ["y"], then_branch=part("t", 1), else_branch=part("e", 2))]
    types = {"c": TensorProto.BOOL}
    inputs: dict[str, Sequence[int | str | None] | None] = {"x": [2, 1, 20], "c": []}
    proto = model(graph(nodes, inputs, {"y": [2, 20]}, types=types), opset=9, ir_version=4)
    for taken in (True, False):
        feeds = {"x": weight(2, 1, 20, seed=9), "c": np.array(taken)}
        assert_raised(proto, feeds, 13, tmp_path)


@pytest.mark.parametrize("domain", [MS, "my.own"])
def test_other_domains_survive(domain: str) -> None:
    nodes = [
        node("FusedMatMul", ["x", "w"], ["h"], domain=domain, transB=1),
        node("Squeeze", ["h"], ["y"], axes=[1]),
    ]
    part = graph(nodes, {"x": ["N", 1, 20]}, {"y": None}, {"w": weight(*BIG)})
    raised = raise_opset(load(model(part, opset=9, domains={domain: 1})).model, 13)
    assert dict(raised.opset_imports) == {"": 13, domain: 1}
    (first,) = (item for item in raised.graph if item.op_type == "FusedMatMul")
    assert first.domain == domain
    assert first.attributes.get_int("transB") == 1


def test_what_describes_a_model_survives(tmp_path: Path) -> None:
    proto = matmul_model(40, 40, opset=9)
    proto.producer_name, proto.producer_version, proto.domain = "maker", "1.2", "org.test"
    proto.model_version, proto.doc_string, proto.graph.name = 7, "words", "main"
    proto.metadata_props.add(key="author", value="me")
    raise_to = raise_opset(load(proto).model, 13)
    back = onnx.load(written(raise_to, tmp_path / "out.onnx"))
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(back, field) == getattr(proto, field)
    assert back.graph.name == "main"
    assert [(p.key, p.value) for p in back.metadata_props] == [("author", "me")]
    assert [item.name for item in back.graph.node] == ["mm", "add"]


def test_initializers_that_are_inputs_stay_inputs(tmp_path: Path) -> None:
    proto = matmul_model(40, 40, opset=9)
    for name, shape in (("w", [40, 40]), ("b", [40])):
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    raised = assert_raised(proto, {"x": weight(3, 40, seed=9)}, 13, tmp_path)
    assert [value.name for value in raised.graph.inputs] == ["x", "w", "b"]


@pytest.mark.parametrize(("opset", "ir_version"), [(11, 6), (13, 7), (21, 10), (23, 11)])
def test_the_ir_version_can_carry_the_opset(opset: int, ir_version: int) -> None:
    proto = matmul_model(opset=9)
    proto.ir_version = 4
    assert raise_opset(load(proto).model, opset).ir_version == ir_version


def test_the_default_domain_may_be_written_out(tmp_path: Path) -> None:
    proto = matmul_model(opset=9)
    proto.opset_import[0].domain = "ai.onnx"
    result = quantize_dynamic(save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx")
    assert result.warnings == ("Opset raised from 9 to 11.",)


@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
def test_weights_do_not_go_through_the_converter(
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    proto = matmul_model(4096, 2048, opset=9, bias=False)  # 32 MB
    loaded = load((with_external_data if external else save)(proto, tmp_path / "m.onnx"))
    del proto
    before = anonymous_memory()
    raised = raise_opset(loaded.model, 13)
    assert anonymous_memory() - before < 8 << 20
    tensor = raised.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.LazyTensor)
    np.testing.assert_array_equal(tensor.numpy()[:5], weight(4096, 2048)[:5])
