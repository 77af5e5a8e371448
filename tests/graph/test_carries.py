"""Constants that Loop and Scan only hand on: read from outside, with the same results for any number of steps."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, run, save, sqnr, weight
from onnx import TensorProto, helper, numpy_helper

import quantkit
from quantkit.errors import NothingToQuantizeError
from quantkit.model.graph.load import load
from quantkit.model.graph.view import view_of

N = 160
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
STEP = [
    node("MatMul", ["h_in", "w_in"], ["m"], "product"),
    node("Tanh", ["m"], ["h_out"]),
    node("Identity", ["go"], ["go_out"]),
]


def body(*nodes: onnx.NodeProto, w_out: str = "w_out") -> onnx.GraphProto:
    inputs = {"i": [], "go": [], "h_in": [1, N], "w_in": [N, N]}
    outputs = {"go_out": [], "h_out": [1, N], w_out: [N, N]}
    types = {"i": INT64, "go": BOOL, "go_out": BOOL}
    return graph([*STEP, *nodes], inputs, outputs, types=types, name="body")


def looped(inner: onnx.GraphProto, *after: onnx.NodeProto, steps: int = 3) -> onnx.ModelProto:
    nodes = [node("Loop", ["n", "yes", "x", "W"], ["y", "w_last"], "loop", body=inner), *after]
    weights = {"n": np.asarray(steps), "yes": np.asarray(True), "W": weight(N, N, scale=0.1)}
    outputs = {"y": [1, N]} | {n.output[0]: None for n in after}
    return model(graph(nodes, {"x": [1, N]}, outputs, weights))


def x() -> dict[str, Any]:
    return {"x": rng(3).standard_normal((1, N)).astype(np.float32)}


def weights_of_products(proto: onnx.ModelProto) -> list[str]:
    view = view_of(load(proto).model)
    return [name for n in view.nodes if n.op_type == "MatMul" for name in n.weights.values()]


def nested() -> onnx.GraphProto:
    """A Loop in a Loop, both of which carry the weight."""
    inner = body(node("Identity", ["w_in"], ["w_out"]))
    for value in (*inner.input, *inner.output):
        value.name = f"inner_{value.name}"
    for one in inner.node:
        one.input[:] = [f"inner_{name}" for name in one.input]
        one.output[:] = [f"inner_{name}" for name in one.output]
    nodes = [
        node("Loop", ["two", "go", "h_in", "w_in"], ["h_out", "w_out"], "within", body=inner),
        node("Identity", ["go"], ["go_out"]),
    ]
    outer = body()
    del outer.node[:]
    outer.node.extend(nodes)
    outer.initializer.append(numpy_helper.from_array(np.asarray(2), "two"))
    return outer


def branches() -> onnx.GraphProto:
    """An If of which both branches give back the weight."""
    then, otherwise = (
        graph([node("Identity", ["w_in"], [name])], {}, {name: [N, N]}, name=name) for name in "ab"
    )
    return body(node("If", ["go"], ["w_out"], then_branch=then, else_branch=otherwise))


BODIES = {
    "identity": lambda: body(node("Identity", ["w_in"], ["w_out"])),
    "two identities": lambda: body(
        node("Identity", ["w_in"], ["w_mid"]), node("Identity", ["w_mid"], ["w_out"])
    ),
    "nested": nested,
    "if": branches,
}


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("kind", BODIES)
def test_a_weight_that_a_loop_hands_on_is_quantized(kind: str, steps: int, tmp_path: Path) -> None:
    proto = looped(BODIES[kind](), node("ReduceSum", ["w_last"], ["total"]), steps=steps)
    assert weights_of_products(proto) == ["W"]
    source = save(proto, tmp_path / "m.onnx")
    found = quantkit.optimize(source, tmp_path / "o.onnx")
    assert found is not None
    for have, want in zip(run(tmp_path / "o.onnx", x()), run(source, x()), strict=True):
        # A product whose weight is constant sums in another order.
        np.testing.assert_allclose(have, want, atol=1e-5)


@pytest.mark.parametrize("form", ["dynamic", "weights", "float16", "static"])
def test_every_form_finds_it(form: str, tmp_path: Path) -> None:
    source = save(looped(BODIES["identity"]()), tmp_path / "m.onnx")
    output = tmp_path / "q.onnx"
    result: Any
    if form == "static":
        data = [{"x": rng(i).standard_normal((1, N)).astype(np.float32)} for i in range(8)]
        result = quantkit.quantize_static(source, output, data)
    else:
        result = getattr(quantkit, f"quantize_{form}")(source, output)
    assert result.output_bytes < 0.6 * source.stat().st_size
    assert sqnr(run(source, x())[0], run(output, x())[0]) > 15


def test_scan_states_too(tmp_path: Path) -> None:
    inner = graph(
        [
            node("MatMul", ["row", "w_in"], ["m"]),
            node("Add", ["m", "s_in"], ["s_out"]),
            node("Identity", ["s_out"], ["each"]),
            node("Identity", ["w_in"], ["w_out"]),
        ],
        {"w_in": [N, N], "s_in": [1, N], "row": [1, N]},
        {"w_out": [N, N], "s_out": [1, N], "each": [1, N]},
        name="body",
    )
    scan = node("Scan", ["W", "zero", "x"], ["w_last", "s", "y"], body=inner, num_scan_inputs=1)
    weights = {"W": weight(N, N, scale=0.1), "zero": np.zeros((1, N), np.float32)}
    proto = model(graph([scan], {"x": [5, 1, N]}, {"y": [5, 1, N]}, weights))
    assert weights_of_products(proto) == ["W"]
    source = save(proto, tmp_path / "m.onnx")
    feeds = {"x": rng(1).standard_normal((5, 1, N)).astype(np.float32)}
    quantkit.optimize(source, tmp_path / "o.onnx")
    np.testing.assert_allclose(run(tmp_path / "o.onnx", feeds)[0], run(source, feeds)[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["changed", "swapped", "output", "if that differs"])
def test_what_is_changed_or_asked_for_stays(kind: str, tmp_path: Path) -> None:
    if kind == "changed":
        proto = looped(body(node("Neg", ["w_in"], ["w_out"])))
    elif kind == "if that differs":
        inner = branches()
        inner.node[-1].attribute[0].g.node[0].op_type = "Neg"
        proto = looped(inner)
    elif kind == "output":
        proto = looped(BODIES["identity"]())
        proto.graph.output.append(
            helper.make_tensor_value_info("w_last", TensorProto.FLOAT, [N, N])
        )
    else:  # two states change places
        inner = body(node("Identity", ["v_in"], ["w_out"]), node("Identity", ["w_in"], ["v_out"]))
        for name, values in (("v_in", inner.input), ("v_out", inner.output)):
            values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [N, N]))
        proto = looped(inner)
        loop = proto.graph.node[0]
        loop.input.append("V")
        loop.output.append("v_last")
        proto.graph.initializer.append(numpy_helper.from_array(weight(N, N, seed=2), "V"))
    assert weights_of_products(proto) == []
    with pytest.raises(NothingToQuantizeError):
        quantkit.quantize_dynamic(save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx")
