"""What the two calibrated formats share: scales, weights and biases of products."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import Canvas, optional, own_name, owner_of
from quantkit.model.ops.float_ops import (
    BIASED,
    FILL_SLOTS,
    NORMALIZES,
    PRODUCTS,
    activation_slots,
)
from quantkit.numerics.affine import Affine, bias_scale, quantize
from quantkit.numerics.dtypes import IntType
from quantkit.quantize.emit._operands import array_of, factor, tensor_of
from quantkit.quantize.emit.weights import (
    EmittedWeight,
    Weights,
    needed_scale,
    widen_scales_for_bias,
)
from quantkit.quantize.plan.model import ActivationPlan, Mode, NodePlan, Plan
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.spec import PerBlock, PerTensor
from quantkit.targets import target as target_named

_BIAS = 2  # input slot of Conv and Gemm
_INT32 = np.iinfo(np.int32)

Bias = tuple[ir.Value | None, ir.Value | None, ir.Value | None]
"""A bias with its scale and zero point; without a scale it is float."""


@dataclass(frozen=True, slots=True)
class ProductParts:
    """The constant operands of a product, in integers.

    `tensor` is the float weight; `axis` is that of its scales, None if there is one for all.
    """

    tensor: str
    weight: ir.Value
    scale: ir.Value
    zero_point: ir.Value
    axis: int | None
    bias: Bias
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class Sum:
    """A HardSigmoid, ``min(max(alpha x + beta, 0), 1)``, as the sum of two tensors in integers that its result's quantization clips.

    Attributes:
        scale: That of x, times alpha: the same integers stand for alpha x.
        constant: An integer that stands for beta.
        constant_scale: Its scale.
        constant_zero: Its zero point.
    """

    scale: ir.Value
    constant: ir.Value
    constant_scale: ir.Value
    constant_zero: ir.Value


@dataclass(slots=True)
class Parts:
    """Makes the constants of a plan, each once."""

    canvas: Canvas
    plan: Plan
    weights: Weights
    solved: SolvedIntegers
    _shared: dict[tuple[ir.Graph, str, float, str], ir.Value] = field(default_factory=dict)
    _products: dict[tuple[ir.Value, bool, float], tuple[ir.Value, ir.Value, ir.Value]] = field(
        default_factory=dict
    )

    def is_product(self, node: ir.Node) -> bool:
        """Say whether a node multiplies by a planned weight."""
        return node.op_type in PRODUCTS and self.weights.behind(optional(node, 1)) is not None

    @property
    def fuses(self) -> bool:
        """Whether onnxruntime's own optimizer looks at the file before what it is made for."""
        return self.plan.target is None or target_named(self.plan.target).needs_barriers

    def read_slots(self, node: ir.Node) -> list[int]:
        """Return the inputs that a static node reads as integers."""
        values = ((slot, optional(node, slot)) for slot in self._activation_slots(node))
        return [s for s, v in values if v is not None and v.name in self.plan.activation]

    def _activation_slots(self, node: ir.Node) -> Iterable[int]:
        """Return the inputs that an integer kernel reads, besides the weight and bias of a product."""
        return activation_slots(node.op_type, len(node.inputs), product=self.is_product(node))

    def parameters(
        self, graph: ir.Graph, plan: ActivationPlan, suffix: str = "", *, half: bool = False
    ) -> tuple[ir.Value, ir.Value]:
        """Return scale and zero point; equal ones are shared. Those of float16 tensors are float16."""
        base = plan.tensor if suffix else plan.shares or plan.tensor
        number = half_scale(np.asarray(plan.scale)) if half else np.float32(plan.scale)
        scale = self._number(graph, number, f"{base}_scale{suffix}")
        zero = typed(np.asarray(plan.zero_point), plan.dtype)
        return scale, self._number(graph, zero, f"{base}_zero_point{suffix}")

    def _number(self, graph: ir.Graph, number: Any, name: str) -> ir.Value:
        key = (graph, str(number.dtype), float(number), self._shared_as(name))
        if key not in self._shared:
            self._shared[key] = self._constant(graph, np.asarray(number), name)
        return self._shared[key]

    def _shared_as(self, name: str) -> str:  # noqa: ARG002 - others share by name
        """Return by what equal numbers are known to be one; "": by their value alone."""
        return ""

    def _constant(self, graph: ir.Graph, array: NDArray[Any], name: str) -> ir.Value:
        """Add a scale or zero point."""
        return self.canvas.constant(graph, array, name)

    def product(self, node: ir.Node, x: ActivationPlan) -> ProductParts:
        """Return the constant operands of a product whose input is quantized as `x` says.

        The factors alpha and beta of a Gemm go into scales and bias.
        """
        source, alpha = self.weights.source(node.inputs[1]), factor(node, "alpha")
        emitted = self._emitted(source, node, x.scale * alpha)
        transposed = node.inputs[1] is not source  # read through a Transpose
        values, scale, zero = self._weight(emitted, alpha, node, transposed=transposed)
        scales = (emitted.qparams.scale * np.float32(alpha)).astype(np.float32)
        granularity = emitted.plan.spec.granularity
        return ProductParts(
            tensor=emitted.tensor,
            weight=values,
            scale=scale,
            zero_point=zero,
            axis=_axis(emitted, transposed=transposed),
            bias=self._bias(node, x.scale, scales),
            block_size=granularity.size if isinstance(granularity, PerBlock) else None,
        )

    def _emitted(self, source: ir.Value, node: ir.Node, input_scale: float) -> EmittedWeight:
        """Return a weight's integers, in scales that leave room for the bias of `node`."""
        bias = self.float_bias(node)
        fitted = bias is not None and self.plan.integer_bias and self._own_bias(node) is None
        if fitted and bias is not None and self.weights.is_packed(source):
            return self.weights.emit(source, needed_scale(bias, input_scale))
        emitted = self.weights.emit(source)
        if bias is None or not fitted:
            return emitted
        if emitted.plan.spec.scales or not self.plan.qdq.adjust_weights:
            return emitted  # a bias that does not fit stays float
        if isinstance(emitted.plan.spec.granularity, PerBlock):
            return emitted
        return widen_scales_for_bias(self.weights, source, emitted, needed_scale(bias, input_scale))

    def _weight(
        self, emitted: EmittedWeight, alpha: float, node: ir.Node, *, transposed: bool
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        key = (emitted.values, transposed, alpha)
        if key not in self._products:
            values, base = emitted.values, emitted.tensor
            if transposed != emitted.plan.transposed:
                values = self.canvas.swapped(values, len(emitted.shape), before=node)
            scales = (emitted.qparams.scale * np.float32(alpha)).astype(np.float32)
            zero = emitted.qparams.zero_point
            self._products[key] = (
                values,
                self._constant(emitted.graph, scales, f"{base}_scale"),
                self._constant(
                    emitted.graph, typed(zero, emitted.plan.spec.dtype), f"{base}_zero_point"
                ),
            )
        return self._products[key]

    def float_bias(self, node: ir.Node) -> NDArray[np.float32] | None:
        """Return a product's bias as a vector, beta included; None if it has none, or another."""
        if own_name(node) in self.solved.biases:
            return self.solved.biases[own_name(node)]
        value = optional(node, _BIAS)
        if value is None or node.op_type not in BIASED | NORMALIZES:
            return None
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is None or any(n != 1 for n in tensor.shape.numpy()[:-1]):
            return None  # it stays as it is
        return (tensor.numpy().reshape(-1) * np.float32(factor(node, "beta"))).astype(np.float32)

    def _own_bias(self, node: ir.Node) -> ir.Value | None:
        """Return the bias of a node that is quantized by itself; None if it is in the scale of the sums."""
        value = optional(node, _BIAS)
        decided = None if value is None else self.plan.weight.get(own_name(value))
        # A weight of another product may be added here too: its scales are not along this one's channels.
        asked = decided is not None and decided.spec.pinned and factor(node, "beta") > 0
        vector = value is not None and value.shape is not None and len(value.shape) == 1
        return value if asked and vector else None

    def _bias(self, node: ir.Node, x_scale: float, scales: NDArray[np.float32]) -> Bias:
        """Return bias, scale and zero point; without a scale it stays float."""
        own = self._own_bias(node)
        if own is not None:
            emitted = self.weights.emit(own)
            return self._weight(emitted, factor(node, "beta"), node, transposed=False)
        bias = self.float_bias(node)
        if bias is None:
            return None, None, None
        graph, base = owner_of(node), self._bias_name(node)
        steps = bias_scale(x_scale, scales).reshape(-1)
        value = optional(node, _BIAS)
        half = value is not None and value.dtype is ir.DataType.FLOAT16
        if half:
            steps = half_scale(steps).astype(np.float32)
        integers = np.rint(bias.astype(np.float64) / steps) if scales.ndim <= 1 else bias
        # Of scales that must stay as they are, or that change along the sum, there may be none for it.
        fits = scales.ndim <= 1 and np.abs(integers).max(initial=0) <= _INT32.max
        if not self.plan.integer_bias or not fits:
            kept = bias.astype(np.float16) if half else bias
            return self.canvas.constant(graph, kept, base), None, None
        shape = np.broadcast_shapes(integers.shape, steps.shape)
        stored = np.broadcast_to(integers, shape).astype(np.int32)
        return self._integer_bias(graph, base, stored, half_scale(steps) if half else steps)

    def _integer_bias(
        self, graph: ir.Graph, base: str, stored: NDArray[np.int32], steps: NDArray[Any]
    ) -> Bias:
        """Add a bias in int32, in the scale of the sums."""
        scale = steps if steps.size > 1 else steps.reshape(())
        return (
            self.canvas.constant(graph, stored, f"{base}_quantized"),
            self.canvas.constant(graph, scale, f"{base}_scale"),
            None,
        )

    def added(self, node: ir.Node) -> Bias | None:  # noqa: ARG002 - others do
        """Return bias, scale and zero point of a node that multiplies no weight; None if it keeps its own."""
        return None

    def _bias_name(self, node: ir.Node) -> str:
        return f"{node.name}_bias"

    def sum_of(self, node: ir.Node, scale: ir.Value, zero: ir.Value) -> Sum:
        """Make the constants of a `Sum`.

        Args:
            node: The HardSigmoid.
            scale: That of what it reads.
            zero: The zero point of what it reads.
        """
        graph, dtype = owner_of(node), tensor_of(zero).dtype
        alpha = np.float32(node.attributes.get_float("alpha", 0.2))
        beta = np.float32(node.attributes.get_float("beta", 0.5))
        # beta = scale (constant - zero), with a difference of one step: exact.
        integers = [np.asarray(n, dtype.numpy()) for n in (int(beta > 0), int(beta < 0))]
        base, constant = node.name or "sum", self.canvas.constant
        return Sum(
            constant(graph, np.asarray(array_of(scale) * alpha, np.float32), f"{base}_scale"),
            constant(graph, integers[0], f"{base}_beta"),
            constant(graph, np.asarray(abs(beta) or 1.0, np.float32), f"{base}_beta_scale"),
            constant(graph, integers[1], f"{base}_beta_zero_point"),
        )


@dataclass(slots=True)
class Writer:
    """What the writers of both formats have at hand."""

    parts: Parts
    first: dict[ir.Graph, ir.Node] = field(init=False)  # what is read by all stands before it

    def __post_init__(self) -> None:
        graphs = self.canvas.model.graphs()
        self.first = {graph: next(iter(graph)) for graph in graphs if len(graph)}

    @property
    def canvas(self) -> Canvas:
        """The graph that is written."""
        return self.parts.canvas

    @property
    def plan(self) -> Plan:
        """What was decided."""
        return self.parts.plan

    def static_nodes(self) -> list[tuple[ir.Node, NodePlan]]:
        """Return the nodes that run in calibrated integers, in order."""
        return [
            (node, decided)
            for node in self.canvas.model.graph.all_nodes()
            if (decided := self.plan.node.get(own_name(node))) and decided.mode is Mode.STATIC
        ]


def typed(array: NDArray[Any], dtype: IntType) -> NDArray[Any]:
    """Return integers in the numpy type that ONNX's type of that name has."""
    if dtype.bits >= 8:
        return array.astype(dtype.storage)
    import ml_dtypes

    return array.astype(getattr(ml_dtypes, dtype.name))


def half_scale(scale: NDArray[Any]) -> NDArray[np.float16]:
    """Return scales in float16; what is too small for it becomes the smallest that is exact to all bits."""
    found: NDArray[np.float16] = np.maximum(scale, np.finfo(np.float16).tiny).astype(np.float16)
    return found


def _axis(weight: EmittedWeight, *, transposed: bool) -> int | None:
    """Return the axis of the scales in the layout that the node reads."""
    granularity = weight.plan.spec.granularity
    if isinstance(granularity, PerTensor):
        return None
    rank = len(weight.shape)
    axis = granularity.axis % rank
    return 2 * rank - 3 - axis if transposed and axis >= rank - 2 else axis


def moved_inputs(
    node: ir.Node, integers: Sequence[ir.Value], zero: ir.Value
) -> list[ir.Value | None]:
    """Return the inputs of data movement that works on integers.

    Args:
        node: What moves them.
        integers: What is moved: its first inputs.
        zero: Their zero point: what the 0 is among integers that a Pad fills in.
    """
    inputs = [*integers, *node.inputs[len(integers) :]]
    slot = FILL_SLOTS.get(node.op_type)
    if slot is not None:
        inputs += [None] * (slot + 1 - len(inputs))
        inputs[slot] = zero
    return inputs


def quantized_constant(tensor: ir.TensorProtocol, plan: ActivationPlan) -> NDArray[Any]:
    """Return the integers of a constant that stands beside activations."""
    array = tensor.numpy()
    one = (1,) * max(array.ndim, 1)
    affine = Affine(
        scale=np.full(one, plan.scale, np.float32),
        zero_point=np.full(one, plan.zero_point, np.float32),
    )
    integers = quantize(array, affine, plan.dtype, qmin=plan.dtype.qmin, qmax=plan.dtype.qmax)
    return typed(integers, plan.dtype)
