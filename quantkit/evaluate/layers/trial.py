"""Advice that was tried: what the candidate's outputs would be if some of its layers stayed float.

The candidate runs with a switch behind each layer that is looked at. To leave a layer float, what the candidate makes in front
of it is turned into float's units, the float model's nodes make the layer's result of that, and the switch puts it into the
candidate, whose rest goes on in integers:

    candidate ... -> x  ->  float layer  ->  y'  -> switch -> rest of the candidate

A layer behind another of the same group reads what the candidate makes once the first is float.
"""

import json
import shlex
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.evaluate.layers.measure import Errors, Models, Switched
from quantkit.evaluate.match.correspondence import Quantizer
from quantkit.evaluate.match.noise import Noise, sqnr_of
from quantkit.evaluate.match.regions import Region
from quantkit.model.ops.float_ops import CLIPS, MATRIX_PRODUCTS
from quantkit.model.provenance import KEY as PROVENANCE
from quantkit.numerics.decibels import decibels
from quantkit.result import Advice
from quantkit.runtime.pieces import Part, needed, part_of

Array = NDArray[Any]
Arrays = Mapping[str, Array]
_HELPS = 0.5  # dB; less is not worth a layer in float
_MORE = 1.0  # dB that a group must bring beyond the best layer of it
_TRIED = 6  # layers, the noisiest
_GROUP = 4  # layers that are left float together
_LARGEST = 1 << 30  # bytes of the files: beyond, two more sessions would not fit
_RUNS = 5  # timed, of each
_NOTHING = 1e-6  # of the noise: 60 dB better is as good as perfect


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What helps: single layers, the best first; and of them and of groups the best one or two."""

    alone: tuple[Advice, ...] = ()
    best: tuple[Advice, ...] = ()


def try_floats(
    models: Models, wanted: Sequence[Errors], measured: Sequence[Errors], samples: Sequence[Arrays]
) -> Tried:
    """Try to leave layers float, alone and together.

    Args:
        models: The two models.
        wanted: Layers that may be left float, the noisiest first.
        measured: All layers.
        samples: What to run.
    """
    size = models.reference.nbytes + models.candidate.nbytes
    if size > _LARGEST or not models.outputs or not wanted:
        return Tried()
    # Trying costs a run of all samples each, so 6 layers alone and 3 groups are tried instead of 2^6 sets. Groups are
    # the best two, three, four by their own gain: the noise of layers is taken to add up, so the best pair is taken
    # to be the two best. A larger group replaces a smaller one only if it brings a whole dB more, else the advice
    # would always be to leave everything float. Of `best` the first is the best single layer, if that helps at all,
    # and the last the best group.
    wanted = wanted[:_TRIED]
    everyone = [errors.region for errors in measured]
    trial = _Trial(models, [errors.region for errors in wanted], everyone, samples)
    now = trial.noise(())
    alone: list[tuple[float, tuple[int, ...]]] = sorted(
        (trial.noise([i]), (i,)) for i in range(len(wanted))
    )
    found = [(noise, group) for noise, group in alone if _gain(now, noise) >= _HELPS]
    best = found[:1]
    for count in range(2, min(_GROUP, len(alone)) + 1):
        group = tuple(sorted(i for _, single in alone[:count] for i in single))
        noise = trial.noise(group)
        if _gain(best[-1][0] if best else now, noise) >= _MORE:
            best = [*best[: len(found[:1])], (noise, group)]
    if not best:
        return Tried()
    costs = trial.costs(everyone)

    def advice(noise: float, group: tuple[int, ...]) -> Advice:
        nodes = tuple(name_of(models, wanted[i]) for i in group)
        return Advice(
            nodes=nodes,
            gain_db=round(_gain(now, noise), 2),
            after_db=sqnr_of(noise),
            slower=round(sum(costs[i][0] for i in group), 3),
            larger=round(sum(costs[i][1] for i in group), 3),
            option=_option(models, nodes),
        )

    return Tried(
        alone=tuple(advice(*each) for each in found), best=tuple(advice(*each) for each in best)
    )


def name_of(models: Models, errors: Errors) -> str:
    """Return what a layer's node is called in the float model."""
    node = models.reference.nodes[errors.region.node]
    named = models.reference.names.get(node.output[0]) or node.name
    return named or errors.region.makes[0].tensor


def excluded_by(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes, or patterns of them, that a candidate says were excluded when it was made."""
    try:
        options = json.loads(properties.get(PROVENANCE, "{}")).get("options", {})
        found = [part.get("exclude", ()) for part in options.values() if isinstance(part, dict)]
        return tuple(str(rule) for rules in (options.get("exclude", ()), *found) for rule in rules)
    except (ValueError, AttributeError, TypeError):
        return ()


def _option(models: Models, nodes: Sequence[str]) -> str:
    """Return what to add to the command that made the candidate; "" if it was not quantkit's."""
    if "quantkit" not in models.candidate.properties:
        return ""
    return " ".join(f"--exclude {shlex.quote(node)}" for node in nodes)


def _gain(before: float, after: float) -> float:
    """Return by how many dB the noise falls."""
    if before <= 0:
        return 0.0
    return decibels(before / max(after, before * _NOTHING))


class _Trial:
    """The candidate with a switch behind each of some layers."""

    def __init__(
        self,
        models: Models,
        regions: Sequence[Region],
        everyone: Sequence[Region],
        samples: Sequence[Arrays],
    ) -> None:
        self.models, self.samples = models, samples
        # In graph order: what is in front of a layer must be switched before it is run.
        order = sorted(
            range(len(regions)), key=lambda i: models.candidate.maker[_first(regions[i])]
        )
        self.order = {region: place for place, region in enumerate(order)}
        self.regions = regions
        layers = {i: tuple(m.candidate for m in region.makes) for i, region in enumerate(regions)}
        self.ends = [o for o in models.outputs if o in models.candidate.outputs]
        inside = [b for r in regions for b in r.boundary if b in models.candidate.maker]
        taps = list(dict.fromkeys([*self.ends, *inside]))
        self.whole = Switched(models.candidate, layers, models.ours.kinds, taps, {})
        self.rounded = self._shared_roundings(everyone)
        self.floats = [self._float(region) for region in regions]
        self.reference = models.pair.a.whole(models.outputs)
        self.expected = [self.reference.run(feeds) for feeds in samples]

    def _shared_roundings(self, regions: Sequence[Region]) -> dict[str, tuple[Quantizer, int]]:
        """Return tensors that an integer kernel makes for several layers, how, and how many read them.

        They stay rounded as long as one of these is in integers. A Gemm or MatMul hands on floats as well.
        """
        reads = [read for region in regions for read in region.reads]
        count = Counter(read.tensor for read in reads)
        return {
            read.tensor: (read.quantizer, count[read.tensor])
            for read in reads
            if count[read.tensor] > 1
            and self.models.matches[read.tensor].quantizer is None
            and self._is_made_in_integers(read.tensor)
        }

    def _is_made_in_integers(self, tensor: str) -> bool:
        model = self.models.candidate
        maker = model.maker_of(tensor)
        while maker is not None and maker.op_type in CLIPS:
            maker = model.maker_of(maker.input[0])
        if maker is None or maker.op_type in MATRIX_PRODUCTS:
            return False
        before = model.maker_of(maker.input[0]) if maker.input else None
        return before is not None and before.op_type == "DequantizeLinear"

    def _float(self, region: Region) -> Part:
        """Return the float layer, fed with what is in front of it."""
        models = self.models
        fed = {models.matches[b].tensor for b in region.boundary}
        kinds = {name: models.theirs.kinds[name] for name in fed}
        return part_of(models.reference, [m.tensor for m in region.makes], kinds, level=99)

    def noise(self, group: Collection[int]) -> float:
        """Return the noise power at the outputs, relative to their signal, if these layers are float."""
        found = {name: Noise() for name in self.ends}
        for feeds, expected in zip(self.samples, self.expected, strict=True):
            values = self._outputs(feeds, group)
            for name, noise in found.items():
                noise.add(expected[name], values[name].astype(expected[name].dtype))
        ratios = [noise.ratio for noise in found.values() if noise.comparable]
        return sum(ratios) / len(ratios) if ratios else 0.0

    def _outputs(self, feeds: Arrays, group: Collection[int]) -> dict[str, Array]:
        done: list[int] = []
        replaced: dict[str, Array] = {}
        values = self.whole.run(feeds)
        for i in sorted(group, key=self.order.__getitem__):
            replaced |= self._run_float_layer(i, {**feeds, **values}, group)
            done.append(i)
            values = self.whole.run(feeds, done, replaced)
        return values

    def _run_float_layer(
        self, layer: int, values: Arrays, group: Collection[int]
    ) -> dict[str, Array]:
        """Return what the float layer makes of the candidate's values, as the candidate would hold it."""
        made = self.floats[layer].run(values, self._layer_inputs(layer, values, group))
        kinds = self.models.ours.kinds
        return {
            m.candidate: m.given(made[m.tensor]).astype(kinds[m.candidate].dtype.numpy())
            for m in self.regions[layer].makes
        }

    def _layer_inputs(self, layer: int, values: Arrays, group: Collection[int]) -> dict[str, Array]:
        kinds, found = self.models.theirs.kinds, {}
        for name in self.regions[layer].boundary:
            match, value = self.models.matches[name], values[name]
            quantizer, others = self.rounded.get(name, (None, 0))
            if quantizer is not None and others > sum(
                name in self.regions[i].boundary for i in group
            ):
                value = quantizer.both(value)
            found[match.tensor] = match.restored(value).astype(kinds[match.tensor].dtype.numpy())
        return found

    def costs(self, regions: Sequence[Region]) -> list[tuple[float, float]]:
        """Return by which share a run becomes longer and the file larger if a layer is float.

        A layer in integers is taken to be as much faster than in float as the whole model is. A Conv that only this
        layer reads becomes float with it (`quantkit.quantize.plan.static`), and costs as well.
        """
        feeds = self.samples[0]
        candidate = self.models.candidate
        whole = self.models.pair.b.whole(candidate.outputs)
        now, then = _seconds(whole, feeds), _seconds(self.reference, feeds)
        saved = max(0.0, 1 - now / then)
        behind = [self._layers_read_only_by(i, regions) for i in range(len(self.regions))]
        inside = self._values([region for several in behind for region in several])
        found = []
        for i, several in enumerate(behind):
            parts = (self.floats[i], *map(self._float, several))
            # A part alone pays for its session: more than the whole it cannot take.
            taken = min(sum(_seconds(part, inside) for part in parts), then)
            found.append((taken * saved / now, self._weight(i) / max(candidate.nbytes, 1)))
        return found

    def _layers_read_only_by(self, layer: int, regions: Sequence[Region]) -> list[Region]:
        """Return the Conv layers that only this one reads."""
        wanted = self.regions[layer].boundary
        readers = Counter(name for region in regions for name in region.boundary)
        nodes = self.models.reference.nodes
        return [
            region
            for region in regions
            if nodes[region.node].op_type == "Conv"
            and any(m.candidate in wanted and readers[m.candidate] == 1 for m in region.makes)
        ]

    def _values(self, more: Sequence[Region]) -> dict[str, Array]:
        """Return float's values in front of all layers, on the first sample."""
        regions = (*self.regions, *more)
        names = {self.models.matches[b].tensor for region in regions for b in region.boundary}
        return {**self.samples[0], **self.models.pair.a.inner(names).run(self.samples[0])}

    def _weight(self, layer: int) -> float:
        """Return how many bytes more the layer's weights take in float than in 8 bits."""
        models, region = self.models, self.regions[layer]
        fed = {models.matches[b].tensor for b in region.boundary}
        _, read = needed(models.reference, [m.tensor for m in region.makes], fed)
        sizes = [
            np.prod(models.reference.initializers[n].dims)
            for n in read
            if n in models.reference.initializers
        ]
        return 3.0 * float(sum(sizes))


def _first(region: Region) -> str:
    return region.makes[0].candidate


def _seconds(part: Part, feeds: Arrays) -> float:
    """Return the median time of a run, after one that does not count."""
    part.run(feeds)
    times = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        part.run(feeds)
        times.append(time.perf_counter() - started)
    return median(times)
