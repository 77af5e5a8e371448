"""The graph that is pruned: what can be removed from it, in which order, and the graph without that."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.products import Product
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.shapes import infer
from quantkit.pipeline.prepared import FloatModel, float_copy, with_opset
from quantkit.quantize.rewrite.simplify import select, simplify
from quantkit.reduce.prune.blocks import ResidualBlock, find_blocks, joined, replace_by_maps
from quantkit.reduce.prune.couple import LEAST_OPSET, couple
from quantkit.reduce.prune.cut import cut
from quantkit.reduce.prune.groups import ChannelGroup, channel_groups
from quantkit.reduce.prune.importance import Ranking, Reading, made_up, rank_units
from quantkit.reduce.prune.labels import Labels
from quantkit.reduce.prune.widths import Widths

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedInput:
    """What was seen of the input of a linear operator.

    Attributes:
        product: The operator.
        bias: The constant that is added to its output; "" if there is none that it alone has.
        moments: Of its input, (K, K): about the mean where there is a bias to take that up.
        mean: Of its input, (K,).
    """

    product: Product
    bias: str
    moments: NDArray[np.float64]
    mean: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneGraph:
    """A float model, and what can be removed from it.

    Attributes:
        ready: The float model.
        labels: Of all channels.
        groups: Channels, neurons and heads that can be removed.
        blocks: Parts that an affine map can replace.
        inputs: What was seen of the operators that consume groups, by name.
        maps: The weight and the bias of each block's map.
        rankings: The order in which the units of each group are removed.
    """

    ready: FloatModel
    labels: Labels
    groups: tuple[ChannelGroup, ...]
    blocks: tuple[ResidualBlock, ...]
    inputs: Mapping[str, ObservedInput] = field(default_factory=dict)
    maps: Mapping[str, Array] = field(default_factory=dict)
    rankings: tuple[Ranking, ...] = ()

    def array(self, name: str) -> Array:
        """Return a weight of the float model."""
        return np.asarray(self.ready.tensors[name].numpy())

    def removed(self, widths: Widths) -> dict[str, tuple[int, ...]]:
        """Return which units of each group are removed, by its name."""
        return {
            group.name: ranking.removed(group.size - widths.kept[group.name])
            for group, ranking in zip(self.groups, self.rankings, strict=True)
            if group.name in widths.kept
        }

    def kept_inputs(self, widths: Widths) -> dict[str, NDArray[np.bool_]]:
        """Return which inputs are left of each linear operator that loses some, by its name."""
        removed, found = self.removed(widths), dict[str, NDArray[np.bool_]]()
        for group in self.groups:
            for reader in group.readers if group.name in removed else ():
                product = reader.product
                kept = found.setdefault(product.node, np.ones(product.layout.inputs, bool))
                kept[reader.columns[list(removed[group.name])].reshape(-1)] = False
        return found

    def filled(self, widths: Widths) -> dict[str, Array]:
        """Return the weights that make up for what is removed, each as if the others were as in float, zero for what is gone."""
        found: dict[str, Array] = {}
        for node, kept in self.kept_inputs(widths).items():
            seen = self.inputs[node]
            layout, name = seen.product.layout, seen.product.weight
            array = self.array(name)
            rows = layout.rows(array)[0].astype(np.float64)
            best = made_up(rows, seen.moments, kept)
            found[name] = np.ascontiguousarray(layout.shaped(best[np.newaxis]).astype(array.dtype))
            if seen.bias:
                bias = self.array(seen.bias)
                shift = (rows - best) @ seen.mean
                found[seen.bias] = (bias + shift.reshape(bias.shape)).astype(bias.dtype)
        for block in self.blocks:
            if block.name in widths.mapped:
                found |= {name: self.maps[name] for name in block.map[:2]}
        return found

    def pruned(self, widths: Widths, tensors: Mapping[str, Array]) -> ir.Model:
        """Return the model without what is removed.

        Args:
            widths: What is left.
            tensors: Weights in the place of the float model's, in the shapes that they have there; and those of maps.
        """
        model = copy_of(self.ready.model)
        labels = self.labels.on(model)
        for name, value in model.graph.initializers.items():
            if name in tensors:
                value.const_value = ir.Tensor(tensors[name], name=name)
        removed = self.removed(widths)
        gone = [int(g.units[u]) for g in self.groups for u in removed.get(g.name, ())]
        replace_by_maps(model, self.maps_of(widths), tensors)
        cut(model, labels, gone)
        return model

    def maps_of(self, widths: Widths) -> tuple[ResidualBlock, ...]:
        """Return the blocks that become maps, those in a row as one."""
        return joined(block for block in self.blocks if block.name in widths.mapped)

    def ranking(self, group: ChannelGroup) -> Ranking:
        """Order the units of a group by what their removal costs its consumers."""
        readings = [
            Reading(
                weight=self.inputs[reader.product.node]
                .product.layout.rows(self.array(reader.product.weight))[0]
                .astype(np.float64),
                moments=self.inputs[reader.product.node].moments,
                columns=reader.columns,
            )
            for reader in group.readers
        ]
        return rank_units(readings, leave=group.levels[-1], at_once=min(8, group.step))


def find_removable(source: ir.Model, exclude: Collection[str]) -> PruneGraph:
    """Simplify a copy of a model, and return its groups and blocks; nothing of them was observed yet.

    Args:
        source: The float model; it stays as it is.
        exclude: Patterns of names; nothing that these nodes compute or consume is removed.
    """
    model, notes, _ = float_copy(source, keep_inputs=False)
    model, raised = with_opset(model, LEAST_OPSET)
    simplify(model, select(exclude=("global_pool",)))  # onnxruntime fuses ReduceMean
    infer(model)
    ready = FloatModel.of(model, notes=(*notes, *raised))
    labels = couple(model)
    groups = channel_groups(model, labels, ready.products, exclude)
    return PruneGraph(
        ready=ready,
        labels=labels,
        groups=tuple(group for group in groups if group.levels),
        blocks=find_blocks(model, ready.products, exclude),
    )
