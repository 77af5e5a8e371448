"""The plan of weight-only quantization: weights in blocks of 2 to 8 bits, activations in float.

For each node that holds weights, in this order:

1. excluded by the user, weight computed at run time, not finite, or too small to save a byte -> FLOAT;
2. a kernel that multiplies by blocks, or looks rows up in them, and is not slower than float here -> BLOCKS;
3. else -> STORED: as many bits in the file, turned back into float once, at load.

What onnxruntime's kernels take, and when they leave their fast path (20 to 40 times as slow, without a word), is known here:

- MatMulNBits: a constant matrix on the right, 2, 4 or 8 bits, blocks of 16 to 256 (2 bits: 32 to 128), zeros absent or uint8. At accuracy_level 4 activations
  are rounded to 8 bits per block; below it 4 bits have a float kernel, 2 and 8 bits none: the slow path.
- GatherBlockQuantized: rows of a matrix, in bytes; a small table only where Gather is named.
- A DequantizeLinear of blocks is fused with the MatMul or Gemm behind it if nobody else reads the weight, in 4 and 8 bits; it runs at level 4 then. Inside of a subgraph
  onnxruntime 1.31 looks for its constants there alone, and does not load the file if they are those of the main graph, where all weights are.

Weights with few inputs per row (depthwise Conv), whose codes cannot make up for each other, keep 8 bits: they are a few per cent of a file.

`with_bits` stores weights that kernels read as int8 in fewer bits on disk:

    q = (c - z) m        c of `bits` bits, z in the middle, m a small integer per block: what the file holds
    w' = q s             q an int8, s one scale per channel: what kernels see, as in any plan

Nothing else in the plan changes, so that the same kernels run. ``|q| <= 64``: no pair of neighbours can saturate x86 without VNNI (`quantkit.numerics.pairs`), whatever they are.

Where everybody gets the same number of bits, weights with few inputs per channel (depthwise Conv) and the first layer keep 8: they are a few per cent of a file, and their
errors reach all others.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from types import MappingProxyType

from quantkit.model.ops import Kernel
from quantkit.model.ops.view import Node, View, Weight
from quantkit.numerics.blocks import BlockGrid
from quantkit.numerics.dtypes import INT8, UINT8
from quantkit.quantize.plan.dynamic import MIN_TABLE, take_back, unusable_weights
from quantkit.quantize.plan.model import (
    BlockFormat,
    Kept,
    Mode,
    NodePlan,
    Plan,
    WeightPlan,
    kernel_bits,
)
from quantkit.quantize.plan.selection import Selection, check_op_types
from quantkit.reasons import Reason, Why, because
from quantkit.settings import WeightsSettings
from quantkit.spec import PerAxis, QuantSpec

_MATRIX, _LOOK_UP = 2, "Gather"
_INTEGER_LEVEL = 4
_TWO_BITS, _TWO_BIT_BLOCKS = 2, (32, 64, 128)
_PLAIN_BITS = (4, 8)  # types that DequantizeLinear has from opset 21 on
_PACKED_OPSET, _PLAIN_OPSET = 11, 21
_FEW_INPUTS = 32  # of a row
_SAFE_BITS = 8
_ASYMMETRIC = 4  # bits up to which zeros are worth their place
_FINE_STEPS, _STEPS = 255, 15
_WASTED = 8  # a last block that is filled up by more than one eighth of the row is too large
_NODES = 2500  # bytes that the nodes of one packed weight add to a file
_SCALE, _FLOAT = 4, 4  # bytes

PACKED_OPSET = 11  # BitShift
PACKED_NODES = 1500  # bytes that the nodes of one packed weight add to a file, about
_WHOLE = 8  # bits that are written as they are
_SAFE = 64  # |q| with which no pair of neighbours saturates
_BLOCK = 16
_MOST_STEPS = 16
_FEW_CHANNELS = 4  # of a picture
_KERNELS = frozenset({Kernel.MATMUL, Kernel.LOOKUP, Kernel.LSTM, Kernel.NONE, Kernel.STATIC})


def slow_path(bits: int, block: int, level: int) -> Reason | None:
    """Return why MatMulNBits would make the whole weight float in every run; None if it would not.

    Args:
        bits: In which the kernel reads the weight: 2, 4 or 8.
        block: Size of its blocks.
        level: accuracy_level.
    """
    if bits != _ASYMMETRIC and level != _INTEGER_LEVEL:
        return because(Why.SLOW_LEVEL, bits=bits, level=level)
    if bits == _TWO_BITS and block not in _TWO_BIT_BLOCKS:
        return because(Why.SLOW_TWO_BITS, block=block)
    return None


def grid_of(options: WeightsSettings, bits: int, inputs: int, *, kernel: bool) -> BlockGrid:
    """Return how a weight of so many bits and inputs per row stands in the file.

    Args:
        options: What the user chose.
        bits: Of its codes.
        inputs: K.
        kernel: A kernel reads the blocks; else rows may be one block.
    """
    symmetric = bits > _ASYMMETRIC if options.symmetric is None else options.symmetric
    if inputs <= _FEW_INPUTS and not kernel:
        return BlockGrid(bits=bits, size=0, symmetric=symmetric, largest=1)
    largest = _FINE_STEPS if bits <= _ASYMMETRIC else _STEPS
    return BlockGrid(
        bits=bits, size=_block(options, bits, inputs), symmetric=symmetric, largest=largest
    )


def _block(options: WeightsSettings, bits: int, inputs: int) -> int:
    if options.block is not None:
        return options.block
    wasted = -inputs % 32
    small = wasted * _WASTED > inputs and -inputs % 16 < wasted
    return 16 if small and kernel_bits(bits) != _TWO_BITS else 32


def packed_bytes(grid: BlockGrid, rows: int, inputs: int) -> int:
    """Return how many bytes a weight takes in a file: codes, zeros, multipliers and scales."""
    blocks = grid.count(inputs)
    per_block = 0 if grid.symmetric else grid.bits
    per_block += (grid.largest - 1).bit_length() if blocks > 1 else 0
    padded = blocks * (grid.size or inputs)
    return ceil(rows * (padded * grid.bits + blocks * per_block) / 8) + rows * _SCALE


def plan_blocks(
    view: View,
    options: WeightsSettings | None = None,
    *,
    bits: Mapping[str, int] = MappingProxyType({}),
    kept: Mapping[str, Kept] = MappingProxyType({}),
) -> Plan:
    """Decide how each node runs and how each weight is stored.

    Args:
        view: The graph.
        options: What the user chose; None: the defaults.
        bits: Of single weights, where they were chosen by what is measured.
        kept: Nodes whose kernel was measured to be slower than float.
    """
    options = options or WeightsSettings()
    chooser = _Chooser(view, options, bits, kept)
    nodes = {node.name: node for node in view.weighted}
    first = {name: chooser.first_choice(node) for name, node in nodes.items()}
    floats = frozenset(w.tensor for w in view.weights.values() if not _is_stored(w, first))
    chosen = take_back(view, first, floats)
    weights = []
    for weight in (w for name, w in view.weights.items() if name not in floats):
        planned, others = chooser.weight_plan(weight, nodes, chosen)
        weights.append(planned)
        chosen |= others
    plain = options.format == "onnx"
    return Plan(
        nodes=tuple(chosen[name] for name in nodes),
        weights=tuple(weights),
        min_opset=_PLAIN_OPSET if plain else _PACKED_OPSET,
        block_format=BlockFormat(options.format),
    )


def _is_stored(weight: Weight, chosen: Mapping[str, NodePlan]) -> bool:
    """Say whether every reader of a weight takes it as codes, or as floats made of them."""
    if weight.exposed or not weight.finite or not weight.uses:
        return False
    plans = [chosen[use.node] if use.known else None for use in weight.uses]
    return all(plan is not None and plan.mode is not Mode.FLOAT for plan in plans)


class _Chooser(Selection):
    """Decides one node at a time, knowing what the user asked for."""

    def __init__(
        self,
        view: View,
        options: WeightsSettings,
        bits: Mapping[str, int],
        kept: Mapping[str, Kept],
    ) -> None:
        self.view = view
        self.options = options
        self.bits = bits
        self.kept = kept
        least = 0 if _LOOK_UP in options.op_types else MIN_TABLE  # what is named is done
        self.tables = {
            name
            for node in view.weighted
            if node.kernel is Kernel.LOOKUP
            for name in node.weights.values()
            if view.weights[name].size >= least
        }
        super().__init__(
            view.names,
            op_types=check_op_types(options.op_types or None),
            include=options.include,
            exclude=options.exclude,
        )

    def first_choice(self, node: Node) -> NodePlan:
        """Return the mode this node would have if it shared no weight with others."""
        why = self.against(node.name, node.op_type) or self._why_weights_stay(node)
        if why:
            return NodePlan.of(node, Mode.FLOAT, why)
        against = self._against_kernel(node)
        if against:
            return NodePlan.of(node, Mode.STORED, because(Why.BLOCKS_BECOME_FLOAT, because=against))
        return self._in_blocks(node)

    def _in_blocks(self, node: Node) -> NodePlan:
        own = self.view.weights[next(iter(node.weights.values()))]
        grid = self._grid(own, node)
        size = {"bits": grid.bits, "block": grid.size}
        if node.kernel is Kernel.LOOKUP:
            return NodePlan.of(node, Mode.BLOCKS, because(Why.BLOCKS_LOOKED_UP, **size))
        if self.options.format == "onnx":
            return NodePlan.of(node, Mode.BLOCKS, because(Why.BLOCKS_DEQUANTIZED, **size))
        level, read = self.options.level, kernel_bits(grid.bits)
        slow = slow_path(read, grid.size, level)
        rounded = because(Why.ACTIVATIONS_ROUNDED) if level == _INTEGER_LEVEL else None
        why = because(Why.BLOCKS_FAST, **size, rounded=rounded)
        if slow:
            why = because(Why.BLOCKS_SLOW, **size, against=slow, rounded=rounded)
        return replace(NodePlan.of(node, Mode.BLOCKS, why), accuracy_level=level)

    def _against_kernel(self, node: Node) -> Reason | None:
        """Return why no kernel reads the blocks of a node's weight; None if one does."""
        if self.options.format == "onnx" and node.kernel is Kernel.LOOKUP:
            return because(Why.LOOKED_UP_IN_ONNX)
        match node.kernel:
            case Kernel.LOOKUP:
                return self._against_lookup(node)
            case Kernel.MATMUL:
                return self._against_product(node)
            case _:
                return because(Why.NO_BLOCK_KERNEL)

    def _against_lookup(self, node: Node) -> Reason | None:
        weight = self.view.weights[node.weights[0]]
        if node.attributes.get("axis", 0) != 0 or len(weight.shape) != _MATRIX:
            return because(Why.ROWS_IN_BLOCKS)
        if node.transposes(0):
            return because(Why.TABLE_TRANSPOSED)
        return None if weight.tensor in self.tables else because(Why.TABLE_SMALL)

    def _against_product(self, node: Node) -> Reason | None:
        if 1 not in node.weights or 0 in node.weights:
            return because(Why.LEFT_OPERAND)
        weight = self.view.weights[node.weights[1]]
        if len(weight.shape) != _MATRIX:
            return because(Why.WEIGHT_RANK, axes=len(weight.shape))
        if node.attributes.get("transA"):
            return because(Why.BLOCKS_TRANSPOSED_INPUT)
        if node.name in self.kept:
            return self.kept[node.name].reason
        return self._against_form(node, weight)

    def _against_form(self, node: Node, weight: Weight) -> Reason | None:
        grid = self._grid(weight, node)
        if self.options.format == "onnx":
            if grid.bits not in _PLAIN_BITS:
                return because(Why.NO_BLOCK_TYPE, bits=grid.bits)
            if node.in_subgraph:
                return because(Why.BLOCKS_IN_SUBGRAPH)
            return because(Why.BLOCKS_NOT_FUSED) if len(weight.uses) > 1 else None
        slow = slow_path(kernel_bits(grid.bits), grid.size, self.options.level)
        return None if self.options.force else slow

    def _why_weights_stay(self, node: Node) -> Reason | None:
        why = unusable_weights(node, self.view)
        if why is None and not any(self._saves_bytes(node, slot) for slot in node.weights):
            return because(Why.WEIGHT_TOO_SMALL_FOR_BLOCKS)
        return why

    def _saves_bytes(self, node: Node, slot: int) -> bool:
        weight = self.view.weights[node.weights[slot]]
        rows = weight.shape[node.channel_axis(slot, len(weight.shape))]
        grid = self._grid(weight, node)
        packed = packed_bytes(grid, rows, weight.size // rows)
        return _FLOAT * weight.size > packed + _NODES

    def _grid(self, weight: Weight, node: Node) -> BlockGrid:
        """Return how a weight is stored if this node decides it."""
        slot = next(s for s, name in node.weights.items() if name == weight.tensor)
        axis = _row_axis(node, slot, weight)
        inputs = weight.size // weight.shape[axis]
        kernel = node.kernel in {Kernel.MATMUL, Kernel.LOOKUP} and len(weight.shape) == _MATRIX
        return grid_of(self.options, self._bits(weight, inputs), inputs, kernel=kernel)

    def _bits(self, weight: Weight, inputs: int) -> int:
        options = self.options
        if weight.tensor in self.bits:
            return self.bits[weight.tensor]
        if weight.tensor in self.tables:
            return options.embedding_bits or _SAFE_BITS
        return max(options.bits, _SAFE_BITS) if inputs < _FEW_INPUTS else options.bits

    def weight_plan(
        self, weight: Weight, nodes: Mapping[str, Node], chosen: Mapping[str, NodePlan]
    ) -> tuple[WeightPlan, dict[str, NodePlan]]:
        """Return how a weight is stored, and nodes that cannot read it in blocks because others do not, or along another axis.

        The file has one form of a weight: blocks for all who read it, or what becomes float at load for all.
        """
        uses = [use for use in weight.uses if use.known]
        axes = {use.node: _row_axis(nodes[use.node], use.slot, weight) for use in uses}
        others = {name for name in axes if chosen[name].mode is not Mode.BLOCKS}
        first = nodes[next(iter(axes))]
        alike = not others and len(set(axes.values())) == 1
        grid = self._grid(weight, first)
        spec = QuantSpec(
            dtype=UINT8, granularity=PerAxis(axes[first.name]), symmetric=grid.symmetric
        )
        planned = WeightPlan(tensor=weight.tensor, spec=spec, blocks=grid)
        blocker = next(iter(others), first.name)
        why = because(Why.BLOCKS_SHARED, tensor=weight.tensor, node=blocker)
        taken = {
            name: replace(chosen[name], mode=Mode.STORED, reason=why, accuracy_level=0)
            for name in axes
            if not alike and chosen[name].mode is Mode.BLOCKS
        }
        return planned, taken


def _row_axis(node: Node, slot: int, weight: Weight) -> int:
    """Return the axis of a weight along which its rows run for a node: that of output channels, or of what is looked up."""
    if node.kernel is Kernel.LOOKUP:
        return 0
    return node.channel_axis(slot, len(weight.shape))


def int8_grid(bits: int, inputs: int) -> BlockGrid:
    """Return how a weight of so many bits and inputs per channel stands in a file, if kernels read it as int8.

    Blocks of 16 with a multiplier of a few bits are the best use of bytes at any number of bits (`benchmarks/results/grids.md`).
    """
    largest = max(1, min(_MOST_STEPS, _SAFE >> (bits - 1)))
    if largest == 1 or inputs <= _BLOCK:
        return BlockGrid(bits=bits, size=0, symmetric=True, largest=1)
    return BlockGrid(bits=bits, size=_BLOCK, symmetric=True, largest=largest)


def same_bits(bits: int, view: View) -> dict[str, int]:
    """Return how many bits each weight gets where all get the same."""
    nodes = {node.name: node for node in view.weighted}
    found = {}
    for name, weight in view.weights.items():
        readers = [nodes[use.node] for use in weight.uses if use.known]
        first = weight.shape[1] <= _FEW_CHANNELS and any(n.op_type == "Conv" for n in readers)
        few = weight.size // _rows(weight) < _FEW_INPUTS
        found[name] = _WHOLE if first or few else bits
    return found


def _rows(weight: Weight) -> int:
    """Return how many rows a weight has at most: of a matrix either axis may be that of its channels."""
    return weight.shape[0] if len(weight.shape) > 2 else max(weight.shape)


def with_bits(plan: Plan, view: View, bits: Mapping[str, int]) -> Plan:
    """Return a plan whose weights have fewer bits in the file.

    Args:
        plan: With weights of 8 bits.
        view: The graph.
        bits: Of each weight; 8, or none: it stays as it is.
    """
    nodes = {node.name: node for node in view.weighted}
    weights = tuple(
        _packed(w, view.weights[w.tensor], bits[w.tensor])
        if bits.get(w.tensor, _WHOLE) < _WHOLE and _is_packable(w, plan, view, nodes)
        else w
        for w in plan.weights
    )
    if all(w.blocks is None for w in weights):
        return plan
    return replace(plan, weights=weights, min_opset=max(plan.min_opset, PACKED_OPSET))


def _is_packable(planned: WeightPlan, plan: Plan, view: View, nodes: Mapping[str, Node]) -> bool:
    """Say whether a weight's integers may be made of fewer bits when the file is loaded."""
    spec = planned.spec
    weight = view.weights.get(planned.tensor)
    if weight is None or spec.pinned or spec.scales or not isinstance(spec.granularity, PerAxis):
        return False
    for use in weight.uses:
        decided = plan.node.get(use.node)
        if decided is None or not use.known:
            return False
        # ConvInteger wants uint8, and some operators of com.microsoft one scale for all.
        if decided.mode is Mode.INTEGER and nodes[use.node].kernel not in _KERNELS:
            return False
    return True


def _packed(planned: WeightPlan, weight: Weight, bits: int) -> WeightPlan:
    """Return a weight with so many bits in the file; as it was if that would not make the file smaller."""
    granularity = planned.spec.granularity
    assert isinstance(granularity, PerAxis)  # noqa: S101 - it can be packed
    rows = weight.shape[granularity.axis]
    inputs = weight.size // rows
    whole = packed_bytes(int8_grid(_WHOLE, inputs), rows, inputs)
    if packed_bytes(int8_grid(bits, inputs), rows, inputs) + PACKED_NODES >= whole:
        return planned
    spec = replace(
        planned.spec,
        dtype=INT8,
        symmetric=True,
        reduced=False,
        pair_axes=(),
        sum_axis=None,
        whole=False,
    )
    return replace(planned, spec=spec, blocks=int8_grid(bits, inputs))
