"""Sequences of nodes that are one operator become one, and nothing else does."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, op_types, rng, run, save, sqnr, weight
from onnx import numpy_helper

from quantkit.graph.load import load
from quantkit.graph.messages import to_proto
from quantkit.graph.shapes import infer
from quantkit.rewrite.fuse import gelu, layer_normalization, lp_normalization, space_to_depth

SHAPE = [2, 3, 8]
NUMBERS = {
    "half": np.array(0.5, np.float32),
    "one": np.array([1], np.float32),
    "two": np.array(2, np.float32),
    "root": np.array(1.41421, np.float32),
    "inverse": np.array(0.70711, np.float32),
    "tiny": np.array(1e-12, np.float32),
    "small": np.array(1e-5, np.float32),
    "last": np.array([-1]),
    "third": np.array([2]),
    "middle": np.array([1]),
    "shape": np.array(SHAPE),
    "scale": 1 + weight(8, seed=1),
    "bias": weight(8, seed=2),
    "single": np.array([0.5], np.float32),
}

GELU = "Div x root d; Erf d e; Add e one a"
GELUS = {
    "half before": f"{GELU}; Mul x half h; Mul h a y",
    "half in the middle": f"{GELU}; Mul a half h; Mul x h y",
    "half last": f"{GELU}; Mul x a h; Mul half h y",
    "multiplied": "Mul inverse x d; Erf d e; Add one e a; Mul a x h; Mul h half y",
}
NORM = "ReduceMean x last m; Sub x m s; {square}; ReduceMean q third v; Add v small w; Sqrt w r; Div s r n"
LAYER = f"{NORM}; Mul n scale g; Add g bias y"
LAYERS = {
    "Pow": LAYER.format(square="Pow s two q"),
    "Mul": LAYER.format(square="Mul s s q"),
    "two Subs": LAYER.format(square="Sub x m t; Pow t two q"),
    "other order": f"{NORM}; Mul scale n g; Add bias g y".format(square="Mul s s q"),
}
LPS = {
    "Expand": "ReduceL2 x last l; Clip l tiny c; Expand c shape b; Div x b y",
    "broadcast": "ReduceL2 x third l; Clip l tiny c; Div x c y",
}


def built(text: str, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """Return a model of nodes 'Op input... output'; opset 18."""
    nodes = []
    for place, line in enumerate(text.split(";")):
        op_type, *inputs, output = line.split()
        nodes.append(node(op_type, inputs, [output], f"n{place}"))
    read = {name for made in nodes for name in made.input}
    held = {name: array for name, array in NUMBERS.items() if name in read}
    declared = {name: SHAPE if name == "y" else None for name in outputs}
    return model(graph(nodes, {"x": SHAPE}, declared, held), opset=18)


def fused(proto: onnx.ModelProto, run_pass: Callable[..., int]) -> tuple[int, onnx.ModelProto]:
    loaded = load(proto).model
    infer(loaded)
    count = run_pass(loaded)
    return count, to_proto(loaded)


CASES = [
    *((gelu, text, "Gelu") for text in GELUS.values()),
    *((layer_normalization, text, "LayerNormalization") for text in LAYERS.values()),
    *((lp_normalization, text, "LpNormalization") for text in LPS.values()),
]


@pytest.mark.parametrize(("run_pass", "text", "op_type"), CASES)
def test_a_sequence_becomes_one_operator_that_computes_the_same(
    run_pass: Callable[..., int], text: str, op_type: str
) -> None:
    proto = built(text)
    count, result = fused(proto, run_pass)
    assert (count, op_types(result)) == (1, [op_type])
    assert [value.name for value in result.graph.output] == ["y"]
    assert result.graph.node[0].name
    feeds = {"x": 3 * rng(5).standard_normal(SHAPE).astype(np.float32)}
    assert sqnr(run(proto, feeds)[0], run(result, feeds)[0]) > 80


@pytest.mark.parametrize(("run_pass", "text", "op_type"), CASES)
def test_what_somebody_else_reads_stays(
    run_pass: Callable[..., int], text: str, op_type: str
) -> None:
    del op_type
    inner = text.split(";")[1].rsplit(maxsplit=1)[-1]
    proto = built(f"{text}; Neg {inner} z", ("y", "z"))
    count, result = fused(proto, run_pass)
    assert (count, len(result.graph.node)) == (0, len(proto.graph.node))
    proto = built(text, ("y", inner))
    assert fused(proto, run_pass)[0] == 0


@pytest.mark.parametrize(
    ("run_pass", "text"),
    [
        (gelu, GELUS["half last"].replace("root", "two")),
        (gelu, GELUS["half last"].replace("one", "half")),
        (gelu, GELUS["half last"].replace("Mul half h y", "Mul two h y")),
        (gelu, GELUS["half last"].replace("Mul x a h", "Mul a a h")),
        (gelu, GELUS["half last"].replace("Div x root d", "Div root x d")),
        (layer_normalization, LAYERS["Pow"].replace("last", "middle")),
        (layer_normalization, LAYERS["Pow"].replace("third", "middle")),
        (layer_normalization, LAYERS["Pow"].replace("small", "one")),
        (layer_normalization, LAYERS["Pow"].replace("Pow s two", "Pow s half")),
        (layer_normalization, LAYERS["Pow"].replace("scale", "single")),
        (layer_normalization, LAYERS["Pow"].replace("Div s r n", "Div r s n")),
        (lp_normalization, LPS["broadcast"].replace("tiny", "small")),
        (lp_normalization, LPS["broadcast"].replace("third", "middle")),
        (lp_normalization, LPS["broadcast"].replace("Div x c y", "Div c x y")),
    ],
)
def test_what_is_almost_such_a_sequence_stays(run_pass: Callable[..., int], text: str) -> None:
    proto = built(text)
    count, result = fused(proto, run_pass)
    assert (count, op_types(result)) == (0, op_types(proto))


def test_two_in_a_row_have_names_of_their_own() -> None:
    twice = f"{GELUS['half before'].replace(' y', ' o')}; Div o root i; Erf i j; Add j one k; Mul o k l; Mul l half y"
    count, result = fused(built(twice), gelu)
    assert (count, op_types(result)) == (2, ["Gelu", "Gelu"])
    assert len({made.name for made in result.graph.node}) == 2
    assert {entry.domain for entry in result.opset_import} == {"", "com.microsoft"}


def test_an_opset_without_the_operator_keeps_the_sequence() -> None:
    proto = built(LAYERS["Pow"])
    for made in proto.graph.node:
        if made.op_type == "ReduceMean":
            made.attribute.add(name="axes", type=onnx.AttributeProto.INTS, ints=[-1])
            del made.input[1]
    held = [t for t in proto.graph.initializer if t.name not in {"last", "third"}]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(held)
    for opset, expected in ((16, 0), (17, 1)):
        proto.opset_import[0].version = opset
        assert fused(proto, layer_normalization)[0] == expected
    assert numpy_helper.to_array(held[0]).size


def moved(steps: list[list[int]], perms: list[list[int]]) -> onnx.ModelProto:
    """x [1, 3, 4, 6] -> Reshape, Transpose, ..., Reshape -> y [1, 12, 2, 3]."""
    nodes, last = [], "x"
    for place, perm in enumerate([*perms, []]):
        made = f"r{place}" if perm else "y"
        nodes.append(node("Reshape", [last, f"s{place}"], [made], f"reshape{place}"))
        if perm:
            nodes.append(node("Transpose", [made], [f"t{place}"], f"move{place}", perm=perm))
        last = f"t{place}"
    held = {f"s{place}": np.array(step) for place, step in enumerate(steps)}
    return model(graph(nodes, {"x": [1, 3, 4, 6]}, {"y": [1, 12, 2, 3]}, held), opset=18)


SPLIT, JOINED = [1, 3, 2, 2, 3, 2], [1, 12, 2, 3]


@pytest.mark.parametrize(
    ("steps", "perms", "count"),
    [
        ([SPLIT, JOINED], [[0, 3, 5, 1, 2, 4]], 1),
        (
            [SPLIT, [1, 3, 6, 4], [1, 3, 4, 2, 3], JOINED],
            [[0, 1, 2, 4, 3, 5], [0, 1, 3, 2], [0, 2, 1, 3, 4]],
            1,
        ),
        # Channels before the places in a block: an order that the operator does not have.
        ([SPLIT, JOINED], [[0, 1, 3, 5, 2, 4]], 0),
    ],
)
def test_blocks_become_channels(
    steps: list[list[int]], perms: list[list[int]], count: int, tmp_path: Path
) -> None:
    proto = moved(steps, perms)
    loaded = load(proto).model
    infer(loaded)
    assert space_to_depth(loaded) == count
    after = to_proto(loaded)
    assert ("SpaceToDepth" in op_types(after)) == bool(count)
    feeds = {"x": rng().random((1, 3, 4, 6)).astype(np.float32)}
    expected, found = (run(save(m, tmp_path / "m.onnx"), feeds)[0] for m in (proto, after))
    np.testing.assert_array_equal(found, expected)
