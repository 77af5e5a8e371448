"""What an operator between two Conv in int8 costs: in float between conversions, and in integers.

Each operator stands between two Conv of 1x1, on feature maps as models have them. Three files are timed in turn: float, int8 with
the operator excluded by name (then the Conv that only it reads is float too), and int8 as quantkit plans it by its rules: operators
without a kernel (Tanh, Gelu, Elu, Exp, Softplus, Mish, Resize linear) are float between conversions there. Writes ``results/operators.json`` and ``results/operators.md``.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import RESULTS, Timing, describe, latency, machine, session, table, write_results
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import quantkit

SHAPES = ((1, 64, 56, 56), (1, 128, 14, 14), (1, 40, 24, 48), (1, 512, 7, 7))
Array = NDArray[Any]


@dataclass(slots=True)
class Net:
    """A graph that grows, one node after the other."""

    channels: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, op_type: str, *inputs: str | Array, **attributes: Any) -> str:
        """Add a node and return what it makes; arrays become constants."""
        made = f"v{len(self.nodes)}"
        names = [self._name(value) for value in inputs]
        self.nodes.append(helper.make_node(op_type, names, [made], name=made, **attributes))
        return made

    def conv(self, x: str, kernel: int = 1, groups: int = 1) -> str:
        """Add a Conv that keeps the shape."""
        shape = (self.channels, self.channels // groups, kernel, kernel)
        draw = np.random.default_rng(len(self.nodes)).standard_normal
        weight = (draw(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        bias = draw(self.channels).astype(np.float32)
        return self.node("Conv", x, weight, bias, pads=[kernel // 2] * 4, group=groups)

    def _name(self, value: str | Array) -> str:
        if isinstance(value, str):
            return value
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _number(value: float) -> Array:
    return np.asarray(value, np.float32)


def _slopes(net: Net) -> Array:
    draw = np.random.default_rng(0)
    return draw.uniform(0.1, 0.4, (net.channels, 1, 1)).astype(np.float32)


def _hard_swish(net: Net, x: str) -> str:
    clipped = net.node("Clip", net.node("Add", x, _number(3)), _number(0), _number(6))
    return net.node("Div", net.node("Mul", x, clipped), _number(6))


def _gelu(net: Net, x: str) -> str:
    error = net.node("Add", net.node("Erf", net.node("Div", x, _number(2**0.5))), _number(1))
    return net.node("Mul", net.node("Mul", x, error), _number(0.5))


def _mish(net: Net, x: str) -> str:
    return net.node("Mul", x, net.node("Tanh", net.node("Softplus", x)))


def _excite(net: Net, x: str) -> str:
    gate = net.conv(net.node("Relu", net.conv(net.node("GlobalAveragePool", x))))
    return net.node("Mul", x, net.node("HardSigmoid", gate))


def _resize(mode: str) -> Callable[[Net, str], str]:
    scales = np.asarray([1, 1, 2, 2], np.float32)
    return lambda net, x: net.node("Resize", x, "", scales, mode=mode)


OPERATORS: Mapping[str, Callable[[Net, str], str]] = {
    "nothing": lambda _, x: x,
    "Relu": lambda net, x: net.node("Relu", x),
    "PRelu": lambda net, x: net.node("PRelu", x, _slopes(net)),
    "LeakyRelu": lambda net, x: net.node("LeakyRelu", x, alpha=0.1),
    "Sigmoid": lambda net, x: net.node("Sigmoid", x),
    "x Sigmoid(x)": lambda net, x: net.node("Mul", x, net.node("Sigmoid", x)),
    "HardSigmoid": lambda net, x: net.node("HardSigmoid", x, alpha=1 / 6),
    "HardSwish": lambda net, x: net.node("HardSwish", x),
    "HardSwish in parts": _hard_swish,
    "squeeze and excite": _excite,
    "Tanh": lambda net, x: net.node("Tanh", x),
    "Gelu": _gelu,
    "Elu": lambda net, x: net.node("Elu", x),
    "Exp": lambda net, x: net.node("Exp", x),
    "Softplus": lambda net, x: net.node("Softplus", x),
    "Mish": _mish,
    "Add of a number a channel": lambda net, x: net.node("Add", x, _slopes(net)),
    "Max of two": lambda net, x: net.node("Max", x, net.conv("x")),
    "MaxPool": lambda net, x: net.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4),
    "AveragePool": lambda net, x: net.node("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4),
    "Resize nearest": _resize("nearest"),
    "Resize linear": _resize("linear"),
    "Conv 3x3 in groups of 4": lambda net, x: net.conv(x, 3, net.channels // 4),
    "Conv 3x3 in groups of 8": lambda net, x: net.conv(x, 3, net.channels // 8),
}


def island(name: str, shape: tuple[int, ...]) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return Conv, the operator, Conv; and the names of the nodes between."""
    net = Net(shape[1])
    first = net.conv("x")
    before = len(net.nodes)
    between = OPERATORS[name](net, first)
    inside = tuple(node.name for node in net.nodes[before:])
    result = net.conv(between)
    graph = helper.make_graph(
        net.nodes,
        "island",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
        net.constants,
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8), inside


def measure(name: str, shape: tuple[int, ...], timing: Timing) -> dict[str, Any]:
    """Return the times of the three files, in milliseconds."""
    proto, inside = island(name, shape)
    draw = np.random.default_rng(1).standard_normal
    data = [{"x": draw(shape).astype(np.float32)} for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {key: Path(folder) / f"{key}.onnx" for key in ("float", "borders", "integers")}
        onnx.save(proto, paths["float"])
        for key, excluded in (("borders", inside), ("integers", ())):
            quantkit.quantize_static(
                paths["float"], paths[key], data, nodes_to_exclude=list(excluded), measure=False
            )
        sessions = {key: session(path, threads=1) for key, path in paths.items()}
        timed = latency(sessions, data[0], timing)
    return {key: row["median_ms"] for key, row in timed.items()}


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = [
        "# An operator between two Conv in int8",
        "",
        describe(data["machine"]),
        "",
        (
            "Conv 1x1, the operator, Conv 1x1; one thread; milliseconds, median of files that take turns. *Float*: all in float. *Borders*: "
            "the operator is excluded by name: it is float between conversions, and where only it reads the first Conv, that is float too. *Integers*: as planned by the rules, nothing measured."
        ),
    ]
    header = ["operator", "float", "borders", "integers", "integers / borders"]
    for shape, rows in data["shapes"].items():
        shown = [
            [
                name,
                *(f"{row[key]:.3f}" for key in ("float", "borders", "integers")),
                f"{row['integers'] / row['borders']:.2f}",
            ]
            for name, row in rows.items()
        ]
        lines += ["", f"## {shape}", "", *table(header, shown)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", nargs="*", default=list(OPERATORS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    timing = Timing(rounds=given.rounds, budget=5.0)
    found = {
        "x".join(map(str, shape)): {
            name: measure(name, shape, timing) for name in OPERATORS if name in given.only
        }
        for shape in SHAPES
    }
    data = {"machine": machine(), "settings": asdict(timing), "shapes": found}
    write_results(given.results, "operators", data, markdown(data))


if __name__ == "__main__":
    main()
