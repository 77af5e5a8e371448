"""What removing channels saves and loses, measured: times of nodes at several widths, and noise at the outputs of each group alone."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor
from quantkit.model.graph.view import view_of
from quantkit.pipeline.prune_model import PreparedPrune
from quantkit.quantize.solve.sensitivity import noise_of
from quantkit.reduce.prune.blocks import ResidualBlock
from quantkit.reduce.prune.groups import ChannelGroup
from quantkit.reduce.prune.widths import PruneCosts, Times, Widths, shares_of_nodes
from quantkit.runtime.pieces import Kind, Structure, part_of
from quantkit.runtime.profile import node_seconds, profile_models

Array = NDArray[Any]

_KEPT = (0.75, 0.5, 0.25)  # of all groups: the widths at which nodes are timed
_TRIED = 0.75  # of one group: the width at which its noise is measured
_SECONDS = 1.5  # for each profile
_PROBES = (
    (32 << 20, 32),
    (256 << 20, 16),
)  # samples that noise is measured on, by bytes of the model
_FEW = 8
_LEAST = 1e-6  # of an output's power: noise below is rounding


def measure_costs(prepared: PreparedPrune, monitor: Monitor) -> PruneCosts:
    """Measure what nodes take at several widths, and what each group and block by itself does to the outputs."""
    model, groups, blocks = prepared.ready.model, prepared.graph.groups, prepared.graph.blocks
    work, weights = shares_of_nodes(model, prepared.graph.labels, groups)
    monitor.stage("Timing layers at several widths")
    states = [Widths(), *(_uniform(groups, share) for share in _KEPT if groups)]
    files = [
        prepared.written(prepared.graph.pruned(w, {}), f"timed{n}") for n, w in enumerate(states)
    ]
    profiles = profile_models(files, [prepared.timed], prepared.lab, seconds=_SECONDS)
    by_node = [
        node_seconds(view_of(prepared.graph.pruned(widths, {})), profile)
        for widths, profile in zip(states, profiles, strict=True)
    ]
    kept = np.array([[w.kept.get(g.name, g.size) / g.size for g in groups] for w in states])
    seconds = np.array([[found.get(name, 0.0) for name in work.names] for found in by_node])
    times = Times.of(work.names, work.left(kept.reshape(len(states), len(groups))), seconds)
    inside = [np.array([n in b.nodes for b in blocks for n in work.names], bool)]
    inside += [_own_weights(model, blocks, weights.names).reshape(-1)]
    tensors = model.graph.initializers
    sizes = [t.nbytes if (t := tensors[n].const_value) is not None else 0 for n in weights.names]
    of_groups, of_blocks = _noises(prepared, monitor)
    return PruneCosts(
        groups=groups,
        blocks=blocks,
        work=work,
        times=times,
        weights=weights,
        nbytes=np.array(sizes, np.float64),
        inside=(
            inside[0].reshape(len(blocks), len(work.names)),
            inside[1].reshape(len(blocks), len(weights.names)),
        ),
        map_seconds=np.array([_map_seconds(prepared, block, by_node[0]) for block in blocks]),
        noise=(of_groups, of_blocks),
    )


def _uniform(groups: Sequence[ChannelGroup], share: float) -> Widths:
    """Return the widths at which every group keeps about the same share."""
    kept = {g.name: min((g.size, *g.levels), key=lambda n: abs(n - share * g.size)) for g in groups}
    return Widths(kept={g.name: kept[g.name] for g in groups if kept[g.name] < g.size})


def _own_weights(
    model: ir.Model, blocks: Sequence[ResidualBlock], names: Sequence[str]
) -> NDArray[np.bool_]:
    """Return which weights only nodes of a block read, (blocks, weights)."""
    values = model.graph.initializers
    readers = {name: {use.node.name for use in values[name].uses()} for name in names}
    found = [readers[n] <= b.nodes for b in blocks for n in names]
    return np.array(found, bool).reshape(len(blocks), len(names))


def _map_seconds(
    prepared: PreparedPrune, block: ResidualBlock, seconds: Mapping[str, float]
) -> float:
    """Return what the map of a block takes, by the time of its linear operator of the most similar size."""
    own = [p for p in prepared.ready.products if p.node in block.nodes]
    sizes = {p.node: float(np.prod(p.layout.shape)) for p in own}
    node = min(own, key=lambda p: abs(np.log(sizes[p.node] / block.width**2))).node
    return seconds.get(node, 0.0) * block.width**2 / sizes[node]


def _noises(
    prepared: PreparedPrune, monitor: Monitor
) -> tuple[tuple[NDArray[np.float64], ...], NDArray[np.float64]]:
    """Return the noise at the outputs by group and number of units removed, and that of each block as a map.

    A group is tried at one width, with weights that make up for what is removed; the error of its consumers says how noise grows from there.
    """
    trials = [
        Widths(kept={g.name: min(g.levels, key=lambda n: abs(n - _TRIED * g.size))})
        for g in prepared.graph.groups
    ]
    trials += [Widths(mapped=frozenset({block.name})) for block in prepared.graph.blocks]
    monitor.stage("Measuring what each group does to the outputs")
    found = output_noise(prepared, trials, monitor)
    of_groups = []
    for group, ranking, trial, noise in zip(
        prepared.graph.groups, prepared.graph.rankings, trials, found, strict=False
    ):
        curve = np.array(ranking.error)
        removed = group.size - trial.kept[group.name]
        of_groups.append(max(noise, _LEAST) * curve / max(float(curve[removed - 1]), 1e-30))
    return tuple(of_groups), np.maximum(found[len(prepared.graph.groups) :], _LEAST)


def output_noise(
    prepared: PreparedPrune, states: Sequence[Widths], monitor: Monitor
) -> NDArray[np.float64]:
    """Return the noise of the outputs, relative to their power, of each of some widths, on samples that nothing was fitted to."""
    structure = prepared.switched(prepared.graph.blocks, "switched")
    exact = _exact(prepared, structure)
    kinds = {name: Kind(ir.DataType.from_numpy(a.dtype), a.ndim) for name, a in exact.items()}
    part = part_of(structure, structure.outputs, kinds, level=99)
    assert prepared.split is not None  # noqa: S101 - widths are not decided yet
    nbytes = prepared.source.nbytes
    count = next((n for limit, n in _PROBES if nbytes < limit), _FEW)
    feeds = list(islice(prepared.feeds(prepared.split.choosing[:count]), count))
    expected = [part.run(feed, exact) for feed in feeds]
    monitor.start(len(states), "trials")
    found = []
    for widths in states:
        changed = prepared.graph.filled(widths)
        flags = {b.map[2]: np.array(True) for b in prepared.graph.blocks if b.name in widths.mapped}
        runs = (part.run(feed, exact, changed, flags) for feed in feeds)
        found.append(noise_of(expected, runs))
        monitor.tick(1)
    return np.array(found)


def _exact(prepared: PreparedPrune, structure: Structure) -> dict[str, Array]:
    """Return all weights that trials replace, as the float model has them; flags are off."""
    names = {s.product.weight for s in prepared.graph.inputs.values()}
    names |= {s.bias for s in prepared.graph.inputs.values() if s.bias}
    found = {name: prepared.graph.array(name) for name in sorted(names)}
    for block in prepared.graph.blocks:
        found |= {name: prepared.graph.maps[name] for name in block.map[:2]}
        found[block.map[2]] = np.array(False)
    return {name: array for name, array in found.items() if name in structure.initializers}
