"""What loops hand out."""

from builders import graph, model, node, weight
from onnx import TensorProto

from quantkit.runtime.taps import hand_out


def test_a_weight_that_is_handed_from_turn_to_turn_is_not_sampled_in_each() -> None:
    types = {"turn": TensorProto.INT64, "more": TensorProto.BOOL, "again": TensorProto.BOOL}
    body = graph(
        [node("MatMul", ["state", "kernel"], ["next"]), node("Identity", ["more"], ["again"])],
        {"turn": [], "more": [], "state": [2, 4], "kernel": [4, 4]},
        {"again": [], "next": [2, 4], "kernel": [4, 4]},
        name="body",
        types=types,
    )
    loop = node("Loop", ["count", "", "x", "w"], ["y", "same"], "loop", body=body)
    weights = {"w": weight(4, 4)}
    proto = model(
        graph(
            [loop],
            {"count": [], "x": [2, 4]},
            {"y": None},
            weights,
            types={"count": TensorProto.INT64},
        )
    )
    assert set(hand_out(proto, {"state", "kernel", "next"})) == {"state", "next"}
