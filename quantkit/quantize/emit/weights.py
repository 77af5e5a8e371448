"""Quantized weights in the graph: integers computed while the file is written, scales at once.

Some scales are too fine for their bias. A bias is int32 in the scale ``x_scale * w_scale`` of the sums that it is added to. A channel of weights close to zero
(BatchNormalization folds dead channels to that) has a scale so fine that its bias would not fit:

    w_scale >= |b| / (x_scale * 2^30)

Where that is broken the channel's scale is widened, and its weights rounded again.

Other integers are turned back into float, weights at load, looked-up rows when they are read:

    w = (Cast(q) - z) * s

Written with Cast, Sub and Mul rather than DequantizeLinear on purpose: onnxruntime folds these
three on a constant into a float weight when the session is made, so that the node that reads it is
fused and runs as in the float model. It does not fold DequantizeLinear (2.0 to 2.8 times slower
than float on CNNs: ``benchmarks/conv_storage.py``).

Weights of fewer than 8 bits are put together by nodes that are folded likewise (`quantkit.quantize.emit.packed`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import Canvas, own_name, owner_of
from quantkit.model.graph.mapping import lazy
from quantkit.numerics.blocks import BlockCodes, as_rows, fit_blocks
from quantkit.numerics.weights import fit, quantize_weight
from quantkit.quantize.emit._operands import array_of, graph_of, shape_of, tensor_of
from quantkit.quantize.emit.packed import Packed, Packer
from quantkit.quantize.plan.model import Plan, WeightPlan
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.spec import PerAxis, QParams


@dataclass(frozen=True, slots=True)
class EmittedWeight:
    """A weight that is now integers.

    Attributes:
        plan: What was decided.
        qparams: Its numbers; axes count in the float tensor's layout.
        graph: The graph that owns it.
        shape: Shape of the float tensor.
        values: The integer initializer; its last two axes are swapped if the plan says transposed.
    """

    plan: WeightPlan
    qparams: QParams
    graph: ir.Graph
    shape: tuple[int, ...]
    values: ir.Value

    @property
    def tensor(self) -> str:
        """Name of the float tensor."""
        return self.plan.tensor

    def broadcastable(self, parameter: NDArray[Any]) -> NDArray[Any]:
        """Shape a scale or zero point so that it broadcasts against the float tensor."""
        if not isinstance(self.plan.spec.granularity, PerAxis):
            return parameter
        axis = self.plan.spec.granularity.axis % len(self.shape)
        return parameter.reshape([-1 if i == axis else 1 for i in range(len(self.shape))])


@dataclass(slots=True)
class Weights:
    """Turns planned weights into initializers, each once, however many nodes read it."""

    canvas: Canvas
    plan: Plan
    solved: SolvedIntegers = field(default_factory=SolvedIntegers)
    packer: Packer = field(init=False)
    _emitted: dict[ir.Value, EmittedWeight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.packer = Packer(self.canvas)

    def behind(self, value: ir.Value | None) -> ir.Value | None:
        """Return the planned float initializer behind `value`, looking through a Transpose."""
        if value is None:
            return None
        producer = value.producer()
        if producer is not None and producer.op_type == "Transpose":
            value = producer.inputs[0]
        if value is None or not value.is_initializer() or value.name not in self.plan.weight:
            return None
        return value

    def source(self, value: ir.Value | None) -> ir.Value:
        """Return what `behind` finds, where the plan says that there is one."""
        found = self.behind(value)
        assert found is not None  # noqa: S101 - the planner found it
        return found

    def emit(self, value: ir.Value, least: NDArray[np.float32] | None = None) -> EmittedWeight:
        """Return the integers of a planned initializer, made on first use.

        Args:
            value: The float weight.
            least: Of one that has few bits, the least scale of each row (`needed_scale`); None: any.
        """
        if value not in self._emitted:
            self._emitted[value] = self._make(value, least)
        return self._emitted[value]

    def is_packed(self, value: ir.Value) -> bool:
        """Say whether a planned initializer has few bits in the file."""
        return self.plan.weight[own_name(value)].blocks is not None

    def _make(self, value: ir.Value, least: NDArray[np.float32] | None) -> EmittedWeight:
        tensor, graph, plan = tensor_of(value), graph_of(value), self.plan.weight[own_name(value)]
        if plan.blocks is not None:
            return self._make_packed(value, plan, least)
        shape = shape_of(tensor)
        found = self.solved.weights.get(plan.tensor)
        qparams = found.qparams if found else fit(tensor.numpy(), plan.spec)

        def read() -> NDArray[Any]:
            return found.integers if found else quantize_weight(tensor.numpy(), qparams)

        integers = _integers(read, plan, shape, f"{plan.tensor}_quantized")
        values = self.canvas.initializer(graph, integers, own_name(integers))
        return EmittedWeight(plan, qparams, graph, shape, values)

    def _make_packed(
        self, value: ir.Value, plan: WeightPlan, least: NDArray[np.float32] | None
    ) -> EmittedWeight:
        """Return the int8 of a weight of few bits, which runtimes make of its codes at load."""
        weight, axis, shape = self.packed(value), _row_axis(plan), shape_of(tensor_of(value))
        scale = (codes := weight.read()).scale
        if least is not None and (scale < least).any():
            wide = np.broadcast_to(least, scale.shape)
            wider = codes.widened(as_rows(array_of(value), axis), wide)
            weight, scale = replace(weight, read=lambda: wider), wider.scale
        values = self.packer.integers(weight, _rows_first(shape, axis))
        values = self._turned(values, plan, len(shape))
        qparams = QParams(
            spec=plan.spec, scale=scale, zero_point=np.zeros(scale.shape, plan.spec.dtype.storage)
        )
        return EmittedWeight(plan, qparams, weight.graph, shape, values)

    def packed(self, value: ir.Value) -> Packed:
        """Return a planned initializer of few bits, to be written as codes."""
        tensor, graph, plan = tensor_of(value), graph_of(value), self.plan.weight[own_name(value)]
        grid, axis = plan.blocks, _row_axis(plan)
        assert grid is not None  # noqa: S101 - it has few bits
        rows = shape_of(tensor)[axis]

        def read() -> BlockCodes:
            found = self.solved.blocks.get(plan.tensor)
            return found or fit_blocks(as_rows(tensor.numpy(), axis), grid)

        return Packed(
            tensor=plan.tensor,
            graph=graph,
            before=_first_reader(value, graph),
            grid=grid,
            rows=rows,
            inputs=tensor.size // rows,
            read=read,
        )

    def restored(self, value: ir.Value) -> ir.Value:
        """Return a planned initializer of few bits as floats, in its own layout."""
        weight, plan = self.packed(value), self.plan.weight[own_name(value)]
        shape = shape_of(tensor_of(value))
        floats = self.packer.floats(weight, _rows_first(shape, _row_axis(plan)))
        return self._turned(floats, replace(plan, transposed=False), len(shape))

    def _turned(self, rows: ir.Value, plan: WeightPlan, rank: int) -> ir.Value:
        """Return rows, whose first axis is that of the plan, in the layout of the weight, or with its last two axes swapped."""
        axis = _row_axis(plan)
        order = _rows_first(range(rank), axis)  # of the weight's axes, as they lie now
        wanted = [*range(rank)]
        if plan.transposed:
            wanted[-2:] = [rank - 1, rank - 2]
        perm = [order.index(i) for i in wanted]
        if perm == [*range(rank)]:
            return rows
        (turned,) = self.canvas.node(
            "Transpose",
            [rows],
            after=rows.producer(),
            attributes={"perm": ir.AttrInt64s("perm", perm)},
            outputs=[f"{plan.tensor}_turned"],
        )
        return turned


def _row_axis(plan: WeightPlan) -> int:
    """Return the axis along which a weight of few bits has its rows."""
    granularity = plan.spec.granularity
    assert isinstance(granularity, PerAxis)  # noqa: S101 - what is in blocks has rows
    return granularity.axis


def _rows_first(axes: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return axes, or their extents, with that of the rows first."""
    return (axes[axis], *axes[:axis], *axes[axis + 1 :])


def _integers(
    read: Callable[[], NDArray[Any]], plan: WeightPlan, shape: tuple[int, ...], name: str
) -> ir.LazyTensor:
    """Return what `read` gives of a weight of this shape, as the file holds it; it is read when the file is written."""

    def written() -> NDArray[Any]:
        return np.ascontiguousarray(read().swapaxes(-1, -2)) if plan.transposed else read()

    stored = (*shape[:-2], shape[-1], shape[-2]) if plan.transposed else shape
    dtype = plan.spec.dtype
    return lazy(written, ir.DataType[dtype.name.upper()], stored, name)


_ROOM = float(1 << 30)  # half of int32: the other half is for the products


def needed_scale(bias: NDArray[np.float32], input_scale: float) -> NDArray[np.float32]:
    """Return the least scale of each channel's weights with which its bias fits."""
    return np.asarray(np.abs(bias.astype(np.float64)) / (input_scale * _ROOM), np.float32)


def widen_scales_for_bias(
    weights: Weights, source: ir.Value, emitted: EmittedWeight, least: NDArray[np.float32]
) -> EmittedWeight:
    """Return the weight with scales of at least `least`; as it was if they are that already.

    Args:
        weights: Writes the model.
        source: The float weight.
        emitted: The weight as it is written so far.
        least: The least scale of each channel (`needed_scale`).
    """
    scale = emitted.qparams.scale
    least = np.broadcast_to(least, scale.shape) if scale.ndim else least.max()
    wide = scale < least
    if not wide.any():
        return emitted
    tensor, found = tensor_of(source), weights.solved.weights.get(emitted.tensor)
    fitted = fit(tensor.numpy(), emitted.plan.spec, at_least=np.asarray(least))
    safe = np.maximum(least, fitted.scale)
    qparams = replace(emitted.qparams, scale=np.where(wide, safe, scale).astype(np.float32))
    channels = emitted.broadcastable(wide)

    def read() -> NDArray[Any]:
        q = quantize_weight(tensor.numpy(), qparams)
        return q if found is None else np.where(channels, q, found.integers)

    integers = _integers(read, emitted.plan, emitted.shape, f"{emitted.tensor}_widened")
    values = weights.canvas.initializer(emitted.graph, integers, own_name(integers))
    return replace(emitted, qparams=qparams, values=values)


def emit_stored(weights: Weights, value: ir.Value) -> None:
    """Let every node that still reads the float weight read it scaled back from integers.

    Args:
        weights: Writes each weight once.
        value: The float weight.
    """
    name, graph, canvas = value.name or "weight", graph_of(value), weights.canvas
    weight = None if weights.is_packed(value) else weights.emit(value)
    floats = weights.restored(value) if weight is None else None
    graph.initializers.pop(name)
    value.name = canvas.name(f"{name}_replaced")
    if weight is not None:
        known = any(own_name(use.node) in weights.plan.node for use in value.uses())
        restore = _scaled_back if known else _dequantized
        floats = restore(canvas, weight, before=_first_reader(value, graph))
    assert floats is not None  # noqa: S101 - one of the two was made
    floats.name = name
    value.replace_all_uses_with(floats)


def _scaled_back(canvas: Canvas, weight: EmittedWeight, *, before: ir.Node) -> ir.Value:
    """Return a weight as onnxruntime folds it at load, so that who reads it is fused."""
    scale = weight.broadcastable(weight.qparams.scale)
    scales = canvas.constant(weight.graph, scale, f"{weight.tensor}_scale")
    zero = _zero(canvas, weight, weight.broadcastable(weight.qparams.zero_point))
    return _scale_back(canvas, weight.values, scales, zero, before=before)


def _dequantized(canvas: Canvas, weight: EmittedWeight, *, before: ir.Node) -> ir.Value:
    """Return a weight for readers that no plan knows, of which nothing can be fused: as a file says it in general."""
    qparams, granularity, rank = weight.qparams, weight.plan.spec.granularity, len(weight.shape)
    values = weight.values
    if weight.plan.transposed:
        values = canvas.swapped(values, rank, before=before)
    axis = granularity.axis % rank - rank if isinstance(granularity, PerAxis) else None
    (made,) = canvas.node(
        "DequantizeLinear",
        [values, *parameters(canvas, weight, qparams.scale, qparams.zero_point)],
        before=before,
        attributes=None if axis is None else {"axis": axis},
        outputs=[f"{weight.tensor}_dequantized"],
    )
    return made


def _first_reader(value: ir.Value, graph: ir.Graph) -> ir.Node:
    """Return the only reader, or the graph's first node if there are several or it is in a subgraph.

    Next to its reader is where a weight costs least: with thousands of them at the front, sessions take
    twice as long to make.
    """
    readers = [use.node for use in value.uses()]
    if len(readers) == 1 and readers[0].graph is graph:
        return readers[0]
    return next(iter(graph))


def parameters(
    canvas: Canvas, weight: EmittedWeight, scale: NDArray[Any], zero: NDArray[Any]
) -> tuple[ir.Value, ir.Value]:
    """Add scale and zero point of a weight, in the shape that its reader wants."""
    return (
        canvas.constant(weight.graph, scale, f"{weight.tensor}_scale"),
        canvas.constant(weight.graph, zero, f"{weight.tensor}_zero_point"),
    )


def emit_lookup(weights: Weights, node: ir.Node) -> None:
    """Replace a Gather of rows: look up integers, scale what was found."""
    canvas, weight = weights.canvas, weights.emit(weights.source(node.inputs[0]))
    graph, base = owner_of(node), node.outputs[0].name or "gathered"
    qparams = weight.qparams
    by_row = isinstance(weight.plan.spec.granularity, PerAxis) and (
        weight.plan.spec.granularity.axis % len(weight.shape) == 0
    )
    scale_array = qparams.scale[:, None] if by_row else qparams.scale
    zero_array = qparams.zero_point[:, None] if by_row else qparams.zero_point
    # What belongs to a table of an outer graph stands beside it, not in each branch that looks something up.
    name = f"{base}_table_scale" if graph is weight.graph else f"{weight.tensor}_scale"
    scale = canvas.constant(weight.graph, scale_array, name)
    zero = _zero(canvas, weight, zero_array)

    def rows(table: ir.Value, name: str) -> ir.Value:
        (found,) = canvas.node(
            "Gather",
            [table, node.inputs[1]],
            before=node,
            attributes={"axis": node.attributes.get_int("axis", 0)},
            outputs=[f"{base}_{name}"],
        )
        return found

    integers = rows(weight.values, "quantized")
    if by_row:
        scale = rows(scale, "scale")
        zero = rows(zero, "zero_point") if zero is not None else None
    canvas.replace(node, _scale_back(canvas, integers, scale, zero, before=node))


def _zero(canvas: Canvas, weight: EmittedWeight, zero: NDArray[Any]) -> ir.Value | None:
    if not zero.any():
        return None
    # One number serves all channels where they agree.
    if (zero == zero.flat[0]).all():
        zero = zero.reshape(-1)[:1].reshape(())
    return canvas.constant(weight.graph, zero.astype(np.float32), f"{weight.tensor}_zero_point")


def _scale_back(
    canvas: Canvas,
    integers: ir.Value,
    scale: ir.Value,
    zero: ir.Value | None,
    *,
    before: ir.Node,
) -> ir.Value:
    base = integers.name or "weight"
    (x,) = canvas.node(
        "Cast",
        [integers],
        before=before,
        attributes={"to": int(ir.DataType.FLOAT)},
        outputs=[f"{base}_float"],
    )
    if zero is not None:
        (x,) = canvas.node("Sub", [x, zero], before=before, outputs=[f"{base}_centred"])
    (x,) = canvas.node("Mul", [x, scale], before=before, outputs=[f"{base}_scaled"])
    return x
