"""Which layers gain by weights in blocks on this machine: one of each size is timed beside float, with one row and with many."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from quantkit.files import scratch
from quantkit.model.graph.save import Stage
from quantkit.model.ops.view import View
from quantkit.numerics.blocks import BlockCodes, BlockGrid
from quantkit.quantize.emit.blocks import emit_blocks
from quantkit.quantize.plan import Kept, Mode, NodePlan, Plan, SolvedIntegers, WeightPlan
from quantkit.reasons import Why, because
from quantkit.runtime.profile import is_plausible, time_models
from quantkit.runtime.session import RUNTIME_ERRORS
from quantkit.text import counted

_SECONDS = 0.08  # for each file and number of rows
_TRIES = 2  # to measure a ratio that is plausible
_SLOWER = 1.05  # of float's time
_LARGEST = 1 << 26  # values of a layer that is made up to be timed: 256 MB in float
_OPSET = 17


@dataclass(frozen=True, slots=True)
class _Size:
    """What a layer's time depends on."""

    inputs: int
    rows: int
    grid: BlockGrid
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """What layers of one size take in blocks, as shares of float's time, by rows of activations."""

    inputs: int
    outputs: int
    ratios: Mapping[int, float]

    @property
    def gains(self) -> bool:
        """Whether it is faster than float for some number of rows, and slower for none by much."""
        return min(self.ratios.values(), default=0.0) < _SLOWER

    @property
    def mean(self) -> float:
        """The mean ratio to float's time over all numbers of rows."""
        return sum(self.ratios.values()) / max(1, len(self.ratios))

    def __str__(self) -> str:
        found = (f"{ratio:.2f} at {counted(rows, 'row')}" for rows, ratio in self.ratios.items())
        return f"{self.inputs}x{self.outputs} in blocks takes {', '.join(found)} of float's time"


def times_in_blocks(plan: Plan, view: View, rows: Sequence[int]) -> dict[str, LayerTimes]:
    """Time every size of layer that a plan has in blocks; return the times by node.

    Args:
        plan: What was decided by rules.
        view: The graph.
        rows: Of activations, that layers are timed with.
    """
    sizes: dict[_Size, list[str]] = {}
    for node in view.weighted:
        decided = plan.node[node.name]
        if decided.mode is not Mode.BLOCKS or node.op_type == "Gather":
            continue
        weight = plan.weight[node.weights[1]]
        shape = view.weights[weight.tensor].shape
        own = shape[weight.spec.granularity.axis]  # type: ignore[union-attr]
        assert weight.blocks is not None  # noqa: S101 - it is in blocks
        size = _Size(shape[0] * shape[1] // own, own, weight.blocks, decided.accuracy_level)
        sizes.setdefault(size, []).append(node.name)
    times = time_layers(sizes, rows)
    return {name: times[size] for size, names in sizes.items() if size in times for name in names}


def kept_out_of_blocks(slow: Mapping[str, LayerTimes]) -> dict[str, Kept]:
    """Return nodes whose weights become float at load instead, with what they take in blocks."""
    return {
        name: Kept(because(Why.SLOWER_IN_BLOCKS, times=str(found)), Mode.STORED)
        for name, found in slow.items()
    }


def time_layers(sizes: Iterable[_Size], rows: Sequence[int]) -> dict[_Size, LayerTimes]:
    """Time a float layer and one in blocks of each size in turn, without those that do not run or whose times cannot be."""
    found = {}
    for size in sizes:
        if size.inputs * size.rows > _LARGEST:
            continue
        try:
            with scratch() as folder:
                files = [_layer(size, folder / name, blocks=blocks) for name, blocks in _FILES]
                ratios = {}
                for count in rows:
                    x = np.random.default_rng(count).standard_normal((count, size.inputs))
                    for _ in range(_TRIES):
                        own = time_models(files, [{"x": x.astype(np.float32)}], seconds=_SECONDS)
                        if is_plausible(own[1] / own[0]):
                            ratios[count] = own[1] / own[0]
                            break
        except RUNTIME_ERRORS:
            continue
        if not ratios:
            continue
        found[size] = LayerTimes(inputs=size.inputs, outputs=size.rows, ratios=ratios)
    return found


_FILES = (("float.onnx", False), ("blocks.onnx", True))


def _layer(size: _Size, path: Path, *, blocks: bool) -> Path:
    """Write a model of one MatMul, of random weights or codes."""
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((size.inputs, size.rows), np.float32)
    x = ir.Value(
        name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["rows", size.inputs])
    )
    w = ir.Value(
        name="w",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(weight.shape),
        const_value=ir.Tensor(weight),
    )
    node = ir.node("MatMul", [x, w], name="layer")
    out = node.outputs[0]
    out.name, out.type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(
        [x], [out], nodes=[node], initializers=[w], opset_imports={"": _OPSET}, name="layer"
    )
    model = ir.Model(graph, ir_version=8)
    if blocks:
        _in_blocks(model, size, draw)
    stage = Stage(path, path.parent)
    stage.write(model)
    return path


def _in_blocks(model: ir.Model, size: _Size, draw: np.random.Generator) -> None:
    from quantkit.numerics.dtypes import UINT8
    from quantkit.spec import PerAxis, QuantSpec

    grid, count = size.grid, size.grid.count(size.inputs)
    codes = BlockCodes(
        grid=grid,
        codes=draw.integers(0, grid.top, (size.rows, size.inputs), np.uint8, endpoint=True),
        zero=np.full((size.rows, count), grid.middle, np.uint8),
        multiplier=np.ones((size.rows, count), np.uint8),
        scale=np.full(size.rows, 0.01, np.float32),
    )
    spec = QuantSpec(dtype=UINT8, granularity=PerAxis(1), symmetric=grid.symmetric)
    plan = Plan(
        nodes=(
            NodePlan(
                node="layer",
                op_type="MatMul",
                mode=Mode.BLOCKS,
                reason=because(Why.TIMED),
                accuracy_level=size.level,
            ),
        ),
        weights=(WeightPlan(tensor="w", spec=spec, blocks=grid),),
        min_opset=_OPSET,
    )
    emit_blocks(model, plan, SolvedIntegers(blocks={"w": codes}))
