"""What the tests of simplification share: run a pass, prove that nothing that can be seen has changed."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from builders import Array, graph, model, node, rng, run
from onnx import TensorProto

from quantkit.model.graph import save
from quantkit.model.graph.load import load
from quantkit.model.graph.save import skeleton
from quantkit.quantize.rewrite.simplify import SimplifyReport, simplify

OPSETS = (7, 9, 11, 13, 15, 18, 21)


def build(proto: onnx.GraphProto, opset: int = 17) -> onnx.ModelProto:
    return model(proto, opset=opset, ir_version=10 if opset > 18 else 8)


def serialized(built: ir.Model) -> onnx.ModelProto:
    """Serialize with the checks that writing makes."""
    save._check(skeleton(built)[0])
    return ir.serde.serialize_model(built)


def simplified(proto: onnx.ModelProto, *passes: str) -> tuple[onnx.ModelProto, SimplifyReport]:
    """Run passes; a second run finds nothing left to do."""
    built = load(proto).model
    report = simplify(built, passes)
    again = simplify(built, passes)
    assert not any(again.changes.values()), again.changes
    return serialized(built), report


def assert_kept(
    proto: onnx.ModelProto,
    *passes: str,
    feeds: Mapping[str, Array] | None = None,
    exact: bool = True,
) -> onnx.ModelProto:
    """Run passes; inputs, outputs and results are the same, with and without onnxruntime's optimization."""
    before = proto.SerializeToString()
    result, _ = simplified(proto, *passes)
    assert proto.SerializeToString() == before, "the caller's message was changed"
    assert list(result.graph.input) == list(proto.graph.input)
    assert [o.name for o in result.graph.output] == [o.name for o in proto.graph.output]
    feeds = made_up(proto) if feeds is None else feeds
    for optimize in (False, True):
        expected, actual = (
            run(proto, feeds, optimize=optimize),
            run(result, feeds, optimize=optimize),
        )
        for e, a in zip(expected, actual, strict=True):
            assert (e.dtype, e.shape) == (a.dtype, a.shape)
            if exact and not optimize:
                np.testing.assert_array_equal(e, a)
            else:
                np.testing.assert_allclose(e, a, rtol=1e-4, atol=1e-5)
    return result


def made_up(proto: onnx.ModelProto) -> dict[str, Array]:
    held = {t.name for t in proto.graph.initializer}
    feeds: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.name in held:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value or 2 for d in tensor.shape.dim]
        array = rng(len(feeds)).standard_normal(shape)
        kind = {
            TensorProto.FLOAT: np.float32,
            TensorProto.INT64: np.int64,
            TensorProto.BOOL: np.bool_,
        }
        feeds[value.name] = array.astype(kind[tensor.elem_type])
    return feeds


def if_graph(
    branch: Sequence[onnx.NodeProto],
    out: str,
    *,
    before: Sequence[onnx.NodeProto] = (),
    after: Sequence[onnx.NodeProto] = (),
    weights: Mapping[str, Array] | None = None,
    inner: Mapping[str, Array] | None = None,
    output: str = "y",
) -> onnx.GraphProto:
    """Return ``cond, x [2, 4] -> If(cond): branch else: Neg(x) -> y``; `out` is the branch's output."""
    chosen = graph(branch, {}, {out: None}, inner, name="then")
    other = graph([node("Neg", ["x"], ["else_out"])], {}, {"else_out": None}, name="else")
    nodes = [
        *before,
        node("If", ["cond"], ["y"], "if", then_branch=chosen, else_branch=other),
        *after,
    ]
    return graph(
        nodes,
        {"cond": [], "x": [2, 4]},
        {output: None},
        weights,
        types={"cond": TensorProto.BOOL},
    )


def both_ways(proto: onnx.ModelProto, *passes: str) -> onnx.ModelProto:
    """Prove an If model on both of its branches."""
    x = rng(3).standard_normal((2, 4)).astype(np.float32)
    for cond in (True, False):
        result = assert_kept(proto, *passes, feeds={"cond": np.array(cond), "x": x})
    return result
