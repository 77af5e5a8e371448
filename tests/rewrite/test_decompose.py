"""Operators written as others: outputs stay, and between layers in integers they run in integers, in both formats."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, fused_ops, graph, model, node, op_types, rng, run, sqnr, weight
from hypothesis import given
from hypothesis import strategies as st
from static_cases import write

from quantkit.model.graph.load import load
from quantkit.model.graph.shapes import infer
from quantkit.quantize.emit.static import Format
from quantkit.quantize.plan import Mode
from quantkit.quantize.rewrite.decompose import decompose
from quantkit.targets import TARGETS

SHAPE = (1, 8, 12, 12)
X = rng(3).standard_normal(SHAPE).astype(np.float32)
FEEDS = {"x": X}
DECOMPOSED = TARGETS["cpu"].decomposed
SLOPES: dict[str, Array] = {
    "below one": rng(1).uniform(-0.8, 0.9, (8, 1, 1)),
    "above one": rng(1).uniform(1, 1.5, (1, 8, 1, 1)),
    "on both sides": rng(1).uniform(0, 1.5, (8, 1, 1)),
    "one": np.full((8, 1, 1), 0.25),
    "a number": np.array([0.1]),
}


def island(op_type: str, slopes: Array | None = None, **attributes: Any) -> onnx.ModelProto:
    """x -> Conv 'c0' -> m -> the operator 'op' -> a -> Conv 'c1' -> y."""
    held = {"w0": weight(8, 8, 1, 1), "w1": weight(8, 8, 1, 1, seed=1), "b": weight(8, seed=2)}
    more = [] if slopes is None else ["slopes"]
    nodes = [
        node("Conv", ["x", "w0", "b"], ["m"], "c0"),
        node(op_type, ["m", *more], ["a"], "op", **attributes),
        node("Conv", ["a", "w1"], ["y"], "c1"),
    ]
    if slopes is not None:
        held["slopes"] = slopes.astype(np.float32)
    return model(graph(nodes, {"x": list(SHAPE)}, {"y": None}, held))


def decomposed(proto: onnx.ModelProto) -> onnx.ModelProto:
    loaded = load(proto).model
    infer(loaded)
    decompose(loaded, DECOMPOSED)
    made: onnx.ModelProto = ir.serde.serialize_model(loaded)
    return made


@pytest.mark.parametrize("kind", SLOPES)
def test_a_prelu_is_gone_and_the_outputs_stay(kind: str) -> None:
    proto = island("PRelu", SLOPES[kind])
    made = decomposed(proto)
    assert "PRelu" not in op_types(made)
    assert "op" in {n.name for n in made.graph.node}
    np.testing.assert_allclose(run(made, FEEDS)[0], run(proto, FEEDS)[0], rtol=1e-5, atol=1e-5)


@given(st.lists(st.floats(-2, 3, width=32), min_size=8, max_size=8))
def test_slopes_of_any_size_give_the_same_outputs(slopes: list[float]) -> None:
    proto = island("PRelu", np.asarray(slopes, np.float32).reshape(8, 1, 1))
    made = decomposed(proto)
    np.testing.assert_allclose(run(made, FEEDS)[0], run(proto, FEEDS)[0], rtol=1e-4, atol=1e-5)


def test_a_hard_swish_is_gone_and_the_outputs_stay() -> None:
    proto = island("HardSwish")
    made = decomposed(proto)
    assert "HardSwish" not in op_types(made)
    np.testing.assert_allclose(run(made, FEEDS)[0], run(proto, FEEDS)[0], rtol=1e-5, atol=1e-5)


def test_what_is_small_or_computed_or_not_finite_stays() -> None:
    rows = graph(
        [node("PRelu", ["x", "slopes"], ["y"], "op")],
        {"x": [1, 64]},
        {"y": None},
        {"slopes": weight(64)},
    )
    assert op_types(decomposed(model(rows))) == ["PRelu"]
    fed = graph(
        [node("PRelu", ["x", "slopes"], ["y"], "op")],
        {"x": list(SHAPE), "slopes": [8, 1, 1]},
        {"y": None},
    )
    assert op_types(decomposed(model(fed))) == ["PRelu"]
    endless = np.full((8, 1, 1), np.inf)
    endless[0] = 0
    assert "PRelu" in op_types(decomposed(island("PRelu", endless)))


@pytest.mark.parametrize("output_format", [Format.QDQ, Format.QOPERATOR])
@pytest.mark.parametrize(
    "proto",
    [
        island("PRelu", SLOPES["below one"]),
        island("PRelu", SLOPES["above one"]),
        island("PRelu", SLOPES["on both sides"]),
        island("PRelu", SLOPES["one"]),
        island("HardSwish"),
        island("HardSigmoid", alpha=1 / 6, beta=0.5),
        island("HardSigmoid", alpha=0.3, beta=0.0),
        island("HardSigmoid", alpha=0.3, beta=-0.1),
    ],
    ids=["max", "min", "sum", "leaky", "hard swish", "hard sigmoid", "no beta", "negative beta"],
)
def test_between_integers_nothing_is_converted(
    proto: onnx.ModelProto, output_format: Format, tmp_path: Path
) -> None:
    made = write(decomposed(proto), tmp_path / "q.onnx", FEEDS, output_format)
    assert set(made.modes().values()) <= {Mode.STATIC, Mode.ABSORBED}
    kernels = fused_ops(made.path, tmp_path)
    assert kernels.count("QuantizeLinear") == 1
    assert kernels.count("DequantizeLinear") == 1
    (expected,) = run(proto, FEEDS)
    fast, plain = (run(made.path, FEEDS, optimize=on)[0] for on in (True, False))
    assert sqnr(expected, fast) > 25
    assert sqnr(expected, plain) > 25
    assert sqnr(plain, fast) > 35  # roundings of ties
