"""Files whose subgraphs read what was dequantized outside of them: onnxruntime must not be made to abort the process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, op_types, run, sqnr
from onnx import TensorProto, helper
from static_cases import IMAGE, X, conv, conv_weights, write

from quantkit.quantize.plan.model import Format
from quantkit.settings import StaticSettings
from quantkit.targets import TARGETS, target

FEEDS = {"x": X}
# From c, the result of a Conv in integers, to m, which a subgraph reads. onnxruntime moves a DequantizeLinear behind the first
# six, and takes Pad, Identity and Relu away before it does.
MOVED: dict[str, list[onnx.NodeProto]] = {
    "MaxPool": [node("MaxPool", ["c"], ["m"], "m1", kernel_shape=[2, 2])],
    "Reshape": [node("Reshape", ["c", "shape"], ["m"], "m1")],
    "Transpose": [node("Transpose", ["c"], ["m"], "m1", perm=[0, 2, 3, 1])],
    "Squeeze": [node("Squeeze", ["c", "first"], ["m"], "m1")],
    "Unsqueeze": [node("Unsqueeze", ["c", "first"], ["m"], "m1")],
    "Slice": [node("Slice", ["c", "first", "four", "two"], ["m"], "m1")],
    "two of them": [
        node("Slice", ["c", "first", "four", "two"], ["i"], "m1"),
        node("Transpose", ["i"], ["m"], "m2", perm=[0, 2, 3, 1]),
    ],
    "behind a Pad": [
        node("Pad", ["c", "pads"], ["i"], "m1"),
        node("MaxPool", ["i"], ["m"], "m2", kernel_shape=[2, 2]),
    ],
    "behind a Relu": [
        node("Relu", ["c"], ["i"], "m1"),
        node("Reshape", ["i", "shape"], ["m"], "m2"),
    ],
    "before an Identity": [
        node("Reshape", ["c", "shape"], ["i"], "m1"),
        node("Identity", ["i"], ["m"], "m2"),
    ],
    "before a Split": [
        node("Reshape", ["c", "shape"], ["i"], "m1"),
        node("Split", ["i"], ["m", "half"], "m2", axis=2),
    ],
    "none": [node("Abs", ["c"], ["unread"], "m1"), node("Identity", ["c"], ["m"], "m2")],
}
HOLDERS = ("If", "Loop", "Scan", "If in If")


def info(name: str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None if kind == TensorProto.FLOAT else [])


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [info(nodes[-1].output[0])])


def holder(kind: str) -> onnx.NodeProto:
    """A node that makes r of m, which its subgraphs read."""
    if kind in {"If", "If in If"}:
        chosen = {
            "then_branch": branch("then", node("Abs", ["m"], ["t"], "then_n")),
            "else_branch": branch("else", node("Neg", ["m"], ["e"], "else_n")),
        }
        if kind == "If":
            return node("If", ["positive"], ["r"], "holder", **chosen)
        inner = node("If", ["positive"], ["n"], "inner", **chosen)
        outer = branch("outer", node("Exp", ["m"], ["u"], "outer_n"))
        nested = branch("nested", inner)
        return node("If", ["positive"], ["r"], "holder", then_branch=nested, else_branch=outer)
    if kind == "Loop":
        sums = [node("Add", ["s", "m"], ["sum"], "l1"), node("Identity", ["go"], ["on"], "l2")]
        inputs = [info("trip", TensorProto.INT64), info("go", TensorProto.BOOL), info("s")]
        outputs = [info("on", TensorProto.BOOL), info("sum")]
        body = helper.make_graph(sums, "body", inputs, outputs)
        return node("Loop", ["trips", "", "zero"], ["r"], "holder", body=body)
    sums = [
        node("ReduceMax", ["m"], ["most"], "s1", keepdims=0),
        node("Add", ["each", "most"], ["out"], "s2"),
        node("Identity", ["state"], ["kept"], "s3"),
    ]
    body = helper.make_graph(
        sums, "body", [info("state"), info("each")], [info("kept"), info("out")]
    )
    results = ["state_out", "r"]
    return node("Scan", ["zero", "zero"], results, "holder", body=body, num_scan_inputs=1)


def reading(moved: str, kind: str, *, elsewhere: bool) -> onnx.ModelProto:
    """Two Conv, `moved`, and a subgraph that reads the end of it; `elsewhere`: so does a node outside."""
    constants: dict[str, Array] = {
        "shape": np.array([1, 8, 36]),
        "first": np.array([0]),
        "two": np.array([2]),
        "four": np.array([4]),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "trips": np.array(2),
        "zero": np.zeros(1, np.float32),
    }
    nodes = [
        node("ReduceMean", ["x"], ["mean_x"], "mean", keepdims=0),
        node("Cast", ["mean_x"], ["positive"], "cast", to=TensorProto.BOOL),
        conv("x", "a", "c1"),
        conv("a", "c", "c2"),
        *MOVED[moved],
        holder(kind),
    ]
    nodes += [node("Tanh", ["m"], ["z"], "tanh")] if elsewhere else []
    outputs = dict.fromkeys(("r", *(["z"] if elsewhere else [])))
    return model(graph(nodes, IMAGE, outputs, {**conv_weights("c1", "c2"), **constants}))


LOADS = """
import sys
import numpy as np
import onnxruntime
onnxruntime.set_default_logger_severity(4)
for path in sys.argv[1:]:
    print(path, flush=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((1, 8, 6, 6), np.float32)})
"""


def loads_elsewhere(*paths: Path) -> None:
    """Load and run each in another process; the last name printed is that of the file that ended it."""
    command = [sys.executable, "-c", LOADS, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.slow
def test_a_subgraph_reads_what_was_moved_behind_integers(tmp_path: Path, kind: str) -> None:
    written = {}
    for moved in MOVED:
        for elsewhere in (False, True):
            proto = reading(moved, kind, elsewhere=elsewhere)
            path = tmp_path / f"{moved} {elsewhere}.onnx"
            written[path] = (write(proto, path, FEEDS), proto)
    loads_elsewhere(*written)
    for path, (_, proto) in written.items():
        assert "DequantizeLinear" in op_types(onnx.load(path))
        for optimize in (True, False):
            # onnxruntime itself makes one node of Pad with 0 and MaxPool, which does not pad with 0.
            expected = run(proto, FEEDS, optimize=optimize)
            for exact, found in zip(expected, run(path, FEEDS, optimize=optimize), strict=True):
                assert sqnr(exact, found) > 25, path.name


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.slow
def test_so_it_does_for_every_target_and_format(tmp_path: Path, name: str) -> None:
    options, paths = StaticSettings(target=name), []
    for output_format in Format:
        if output_format.value not in target(name).formats:
            continue
        for moved in ("MaxPool", "Reshape", "none"):
            paths.append(tmp_path / f"{moved} {output_format}.onnx")
            proto = reading(moved, "If", elsewhere=True)
            write(proto, paths[-1], FEEDS, output_format, options)
    loads_elsewhere(*paths)


def test_what_is_computed_in_between_needs_no_copy(tmp_path: Path) -> None:
    """The way from a DequantizeLinear ends at the Tanh."""
    proto = reading("Reshape", "If", elsewhere=True)
    for held in proto.graph.node:
        if held.op_type == "If":
            held.CopyFrom(onnx.parser.parse_node(onnx.printer.to_text(held).replace("(m)", "(z)")))
    nodes = sorted(proto.graph.node, key=lambda n: n.op_type == "If")
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    written = write(proto, tmp_path / "q.onnx", FEEDS)
    loads_elsewhere(written.path)
    assert "Max" not in op_types(onnx.load(written.path))
