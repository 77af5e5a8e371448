"""Random graphs of operators with and without kernels: what is emitted loads, and computes nearly the same."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from builders import Array, graph, model, node, run, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from static_cases import IMAGE, X, write

from quantkit.emit.static import Format
from quantkit.fusion import fusion_of
from quantkit.numerics.dtypes import INT8, UINT8
from quantkit.plan import Mode, StaticOptions

POOL: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}
# Each keeps the shape (1, 8, 6, 6), and values of about the same size.
ONE = ["Relu", "Sigmoid", "LeakyRelu", "MaxPool", "AveragePool", "Tanh", "Transpose", "Identity"]
ONE += ["Conv", "depthwise", "ConvTranspose", "Clip", "scale", "shift", "MatMul", "Slice"]
TWO = ["Add", "Mul", "Sub", "Concat", "Where", "Max"]

STEPS = st.lists(
    st.tuples(st.sampled_from(ONE + TWO), st.integers(0, 99), st.integers(0, 99)),
    min_size=3,
    max_size=14,
)
OPTIONS = st.builds(
    StaticOptions,
    activation=st.sampled_from([None, UINT8, INT8]),
    per_channel=st.booleans(),
    symmetric_activations=st.sampled_from([None, True]),
)


class Grower:
    """Adds nodes one by one; `values` can all be read."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {
            "zero": np.array(0, np.float32),
            "six": np.array(2, np.float32),
            "starts": np.array([0]),
            "ends": np.array([8]),
            "axes": np.array([1]),
            "flags": np.arange(36).reshape(1, 1, 6, 6) % 2 == 0,
        }
        self.values = ["x"]

    def add(self, op: str, first: int, second: int) -> None:
        a = self.values[-1 - first % min(3, len(self.values))]
        b = self.values[second % len(self.values)]
        name = f"n{len(self.nodes)}"
        made = getattr(self, f"_{op.lower()}", None)
        if made is not None:
            made(op, a, b, name)
        elif op in TWO:
            self._put(op, [a, b], name)
        else:
            self._put(op, [a], name)
        self.values.append(name)

    def _put(self, op: str, inputs: list[str], name: str, **attributes: Any) -> None:
        self.nodes.append(node(op, inputs, [name], f"{name}_{op}", **attributes))

    def _weight(self, name: str, *shape: int, scale: float = 0.1) -> str:
        self.weights[f"{name}_w"] = weight(*shape, seed=len(self.nodes), scale=scale)
        return f"{name}_w"

    def _conv(self, op: str, a: str, _: str, name: str) -> None:
        self.weights[f"{name}_b"] = weight(8, seed=len(name))
        self._put(op, [a, self._weight(name, 8, 8, 3, 3), f"{name}_b"], name, pads=[1] * 4)

    def _depthwise(self, _op: str, a: str, _: str, name: str) -> None:
        w = self._weight(name, 8, 1, 3, 3, scale=0.3)
        self._put("Conv", [a, w], name, pads=[1] * 4, group=8)

    def _convtranspose(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a, self._weight(name, 8, 8, 3, 3)], name, pads=[1] * 4)

    def _matmul(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a, self._weight(name, 6, 6, scale=0.4)], name)

    def _scale(self, _op: str, a: str, _: str, name: str) -> None:
        self._put("Mul", [self._weight(name, 1, 8, 1, 1, scale=1), a], name)

    def _shift(self, _op: str, a: str, _: str, name: str) -> None:
        self._put("Add", [a, self._weight(name, 8, 1, 1, scale=1)], name)

    def _clip(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a, "zero", "six"], name)

    def _maxpool(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a], name, **POOL)

    def _averagepool(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a], name, **POOL)

    def _transpose(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a], name, perm=[0, 1, 3, 2])

    def _slice(self, op: str, a: str, _: str, name: str) -> None:
        self._put(op, [a, "starts", "ends", "axes"], name)

    def _where(self, op: str, a: str, b: str, name: str) -> None:
        self._put(op, ["flags", a, b], name)

    def _concat(self, op: str, a: str, b: str, name: str) -> None:
        self._put(op, [a, b], f"{name}_all", axis=1)
        self._put("Conv", [f"{name}_all", self._weight(name, 8, 16, 1, 1, scale=0.2)], name)

    def _mul(self, _op: str, a: str, b: str, name: str) -> None:
        self._put("Tanh", [b], f"{name}_gate")
        self._put("Mul", [a, f"{name}_gate"], name)

    def model(self) -> onnx.ModelProto:
        read = {name for item in self.nodes for name in item.input}
        results = [v for v in self.values[1:] if v not in read] + self.values[1:2]
        known = {k: v for k, v in self.weights.items() if k in read}
        return model(graph(self.nodes, IMAGE, dict.fromkeys(dict.fromkeys(results)), known))


def noise(expected: Array, actual: Array) -> float:
    """The error, as a share of the largest value."""
    return float(np.abs(expected - actual).max() / max(float(np.abs(expected).max()), 1e-3))


@settings(max_examples=40, deadline=None)
@given(STEPS, OPTIONS)
def test_random_graphs(steps: list[tuple[str, int, int]], options: StaticOptions) -> None:
    grower = Grower()
    for op, first, second in steps:
        grower.add(op, first, second)
    proto = grower.model()
    expected = run(proto, {"x": X})
    with TemporaryDirectory() as folder:
        for output_format in Format:
            path = Path(folder) / f"{output_format}.onnx"
            written = write(proto, path, {"x": X}, output_format, options)
            for optimize in (True, False):
                actual = run(written.path, {"x": X}, optimize=optimize)
                for one, two in zip(expected, actual, strict=True):
                    assert noise(one, two) < 0.25


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(0, 9))
def test_what_is_planned_in_integers_runs_in_integers_and_nothing_else_does(
    steps: list[tuple[str, int, int]], left: int
) -> None:
    grower = Grower()
    for op, first, second in steps:
        grower.add(op, first, second)
    proto = grower.model()
    products = [n.name for n in proto.graph.node if n.op_type in {"Conv", "MatMul"}]
    exclude = tuple(products[left : left + 1])
    with TemporaryDirectory() as folder:
        for output_format in Format:
            path = Path(folder) / f"{output_format}.onnx"
            options = StaticOptions(exclude=exclude)
            written = write(proto, path, {"x": X}, output_format, options)
            static = {
                n.node
                for n in written.plan.nodes
                if n.mode is Mode.STATIC and n.op_type in {"Conv", "Gemm", "MatMul"}
            }
            fusion = fusion_of(path)
            assert fusion.integer_count == len(static), fusion
            assert not static & {*fusion.float_products}
