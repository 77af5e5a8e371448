"""What linear operators that consume groups see, and both ends of blocks: observed in one pass over the samples."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from calibrators import PatchMoments
from quantkit.calibration.monitor import Monitor
from quantkit.pipeline.prune_graph import Array, ObservedInput
from quantkit.pipeline.prune_model import PreparedPrune
from quantkit.reduce.prune.blocks import ResidualBlock
from quantkit.reduce.prune.cross_moments import CrossMoments
from quantkit.reduce.prune.importance import shrunk_moments
from quantkit.reduce.prune.refit import POSITIONS, positions_of
from quantkit.reduce.prune.surroundings import bias_of, is_alone
from quantkit.runtime.pieces import part_of


def observed(prepared: PreparedPrune, monitor: Monitor) -> PreparedPrune:
    """Observe the inputs of what consumes groups, and both ends of blocks; order the units of each group."""
    products = {r.product.node: r.product for group in prepared.graph.groups for r in group.readers}
    moments = {(p.reads, p.window): PatchMoments(p.window, POSITIONS) for p in products.values()}
    pairs = {block.name: CrossMoments() for block in prepared.graph.blocks}
    ends = [name for block in prepared.graph.blocks for name in (block.before, block.after)]
    structure = prepared.switched((), "float")
    monitor.stage("Observing what consumes channels")
    monitor.start(len(prepared.fitting))
    names = dict.fromkeys([*(reads for reads, _ in moments), *ends])
    inner = [name for name in names if name not in structure.inputs]
    part = part_of(structure, inner, {}, level=99)
    for feed in prepared.feeds(prepared.fitting):
        found = {**feed, **part.run(feed)}
        for (reads, _), sums in moments.items():
            sums.observe(found[reads])
        for block in prepared.graph.blocks:
            before, after = (positions_of(found[name]) for name in (block.before, block.after))
            pairs[block.name].observe(after, before)
        monitor.tick(len(next(iter(feed.values()))))
    view, inputs = prepared.ready.view, dict[str, ObservedInput]()
    for product in products.values():
        sums = moments[product.reads, product.window]
        bias = bias_of(view, product) if is_alone(view, product) else ""
        own = (sums.covariance if bias else sums.second)[0]
        inputs[product.node] = ObservedInput(
            product=product, bias=bias, moments=shrunk_moments(own, sums.count), mean=sums.mean[0]
        )
    monitor.stage("Ranking channels")
    graph = replace(prepared.graph, inputs=inputs, maps=_maps(prepared.graph.blocks, pairs))
    rankings = tuple(graph.ranking(group) for group in graph.groups)
    return replace(prepared, graph=replace(graph, rankings=rankings))


def _maps(blocks: Iterable[ResidualBlock], pairs: Mapping[str, CrossMoments]) -> dict[str, Array]:
    """Return the affine map of each block by least squares."""
    found: dict[str, Array] = {}
    for block in blocks:
        weight, bias = pairs[block.name].mapped()
        found |= {block.map[0]: weight, block.map[1]: bias}
    return found
