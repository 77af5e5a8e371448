"""A model in segments computes what it does as a whole, also when the first segments are not run."""

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, weight
from onnx import TensorProto

from quantkit.runtime.pieces import Segments
from quantkit.runtime.session import make_session

K = 8
X = rng().standard_normal((2, K)).astype(np.float32)


def layers(count: int = 6, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """x -> MatMul -> Relu -> ...; the Relu of the third layer is an output, too, and read by the last one again."""
    nodes, last = [], "x"
    for i in range(count):
        nodes += [
            node("MatMul", [last, f"w{i}"], [f"m{i}"], f"mm{i}"),
            node("Relu", [f"m{i}"], [f"r{i}"], f"relu{i}"),
        ]
        last = f"r{i}"
    nodes.append(node("Add", [last, "r2"], ["y"], "add"))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    weights = {f"w{i}": weight(K, K, seed=i, scale=0.6).astype(dtype) for i in range(count)}
    types = {"x": kind, "unused": kind, "y": kind, "r2": kind}
    inputs: dict[str, list[int | str | None] | None] = {"x": ["N", K], "unused": [1]}
    return model(graph(nodes, inputs, {"y": ["N", K], "r2": ["N", K]}, weights, types=types))


def relus(proto: onnx.ModelProto) -> list[int]:
    return [i for i, one in enumerate(proto.graph.node) if one.op_type == "Relu"]


def whole(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    found: list[Array] = make_session(proto.SerializeToString()).run(["y", "r2"], feeds)
    return found


def test_a_run_may_start_behind_any_segment() -> None:
    proto, feeds = layers(), {"x": X, "unused": np.zeros(1, np.float32)}
    segments = Segments(proto, relus(proto), 3)
    assert len(segments.starts) == 3
    expected = whole(proto, feeds)
    states = segments.states(feeds, 1 << 20)
    assert list(states) == [2, 1]
    for start, known in ((0, {}), *states.items()):
        found = segments.run(["y", "r2"], feeds, start, known)
        np.testing.assert_array_equal(found, expected)


def test_what_is_known_is_not_computed_again() -> None:
    proto, feeds = layers(), {"x": X, "unused": np.zeros(1, np.float32)}
    segments = Segments(proto, relus(proto), 3)
    start, known = next(iter(segments.states(feeds, 1 << 20).items()))
    other = {**feeds, "x": 2 * X}
    found = segments.run(["y"], other, start, known)
    np.testing.assert_array_equal(found[0], whole(proto, feeds)[0])
    assert not np.array_equal(segments.run(["y"], other)[0], found[0])


def test_only_so_many_bytes_are_kept_the_last_segments_first() -> None:
    proto, feeds = layers(), {"x": X, "unused": np.zeros(1, np.float32)}
    segments = Segments(proto, relus(proto), 3)
    assert list(segments.states(feeds, 2 * X.nbytes)) == [2]
    assert not segments.states(feeds, 0)


def test_a_cut_separates_no_nodes_that_may_be_fused() -> None:
    proto = layers()
    # The third Relu is read at the end: behind it, it crosses every cut.
    without = [i for i in relus(proto) if proto.graph.node[i].name != "relu2"]
    for start in Segments(proto, without, 6).starts[1:]:
        assert start <= 6


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_model_in_halves_is_not_cut(kind: int) -> None:
    proto = layers(kind=kind)
    assert Segments(proto, relus(proto), 3).starts == [0]


def test_a_model_that_returns_an_input_is_not_cut() -> None:
    proto = layers()
    proto.graph.output.append(proto.graph.input[0])
    segments = Segments(proto, relus(proto), 3)
    assert segments.starts == [0]
    np.testing.assert_array_equal(
        segments.run(["x"], {"x": X, "unused": np.zeros(1, np.float32)})[0], X
    )
