"""Fewer bits on disk for weights that kernels read as int8: a plan for integers or stored weights, packed.

    q = (c - z) m        c of `bits` bits, z in the middle, m a small integer per block: what the file holds
    w' = q s             q an int8, s one scale per channel: what kernels see, as in any plan

Nothing else in the plan changes, so that the same kernels run. ``|q| <= 64``: no pair of neighbours can saturate x86 without VNNI (`quantkit.numerics.pairs`), whatever they are.

Where everybody gets the same number of bits, weights with few inputs per channel (depthwise Conv) and the first layer keep 8: they are a few per cent of a file, and their
errors reach all others.
"""

from collections.abc import Mapping
from dataclasses import replace

from quantkit.model.ops import Kernel
from quantkit.model.ops.view import Node, View, Weight
from quantkit.numerics.blocks import BlockGrid
from quantkit.numerics.dtypes import INT8
from quantkit.quantize.plan.blocks import packed_bytes
from quantkit.quantize.plan.model import Mode, Plan, WeightPlan
from quantkit.spec import PerAxis

PACKED_OPSET = 11  # BitShift
PACKED_NODES = 1500  # bytes that the nodes of one packed weight add to a file, about
_WHOLE = 8  # bits that are written as they are
_SAFE = 64  # |q| with which no pair of neighbours saturates
_BLOCK = 16
_MOST_STEPS = 16
_FEW_INPUTS = 32
_FEW_CHANNELS = 4  # of a picture
_KERNELS = frozenset({Kernel.MATMUL, Kernel.LOOKUP, Kernel.LSTM, Kernel.NONE, Kernel.STATIC})


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
