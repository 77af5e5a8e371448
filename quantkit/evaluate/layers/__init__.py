"""Which layers of a quantized model lose most: the error that each alone brings, and the accumulated one.

Needs only the two files and some samples. `quantkit.evaluate.match` matches tensors and cuts the candidate into layers at
them, `measure` runs each layer alone and in the whole, `trial` leaves some of them float.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from numpy.typing import NDArray

from quantkit.evaluate.layers.measure import Errors, Models, Seen, measure
from quantkit.evaluate.layers.trial import excluded_by, name_of, try_floats
from quantkit.evaluate.match import HELD, ModelPair
from quantkit.evaluate.match.correspondence import Quantizer
from quantkit.evaluate.match.noise import sqnr_of
from quantkit.evaluate.match.regions import Read, Region, find_layers
from quantkit.model.ops.integer_ops import INTEGER_OPS, Role
from quantkit.result import Advice, Layer, Layers
from quantkit.runtime.pieces import Structure, subgraphs

_MISTAKE = 8.0  # times what the data needs: more than any sample left out explains
_WIDE = 3.0  # times what the data needs: more than few samples and a careful method explain
_CLIPPED = 0.005  # share of values from which on clipping is no longer a choice of the method
_GAIN = 0.25  # by how much a layer's weights may be too large or too small before their scale is to blame


def _cause_of(models: Models, errors: Errors) -> str:
    """Say what a layer's error comes from, and what else than float would mend that."""
    read = errors.read.ratio if errors.read is not None else 0.0
    by_weights = errors.weights if errors.read is not None else errors.local
    if read < by_weights.ratio or not errors.seen:
        return _weights(models, errors, by_weights.gain)
    tensor, seen = max(errors.seen.items(), key=lambda item: _lost(*item))
    wide = _wide(tensor.meant, tensor.quantizer, seen)
    if wide:
        return wide
    if models.reference.nodes[errors.region.node].op_type == "BatchNormalization":
        return "Fold it into the layer before it, then quantize: quantkit optimize."
    return _activation(tensor, seen)


def _is_mistake(errors: Errors) -> bool:
    """Say whether a layer is wrong rather than hard: a scale is wrong, not merely coarse."""
    gain = (errors.weights if errors.read is not None else errors.local).gain
    ratios = [
        read.quantizer.scale / needed
        for read, seen in errors.seen.items()
        if read.quantizer.scale is not None
        and (needed := read.quantizer.needed(seen.low, seen.high)) > 0
    ]
    return abs(gain - 1) > _GAIN or max(ratios, default=0.0) > _MISTAKE


def _weights(models: Models, errors: Errors, gain: float) -> str:
    if abs(gain - 1) > _GAIN:
        times = f"{gain:.1f} times what it should be"
        return f"What its weights make is {times}: their scale is wrong; quantize again."
    made, rounds = errors.region.makes[0].tensor, errors.region.rounds
    wide = "" if rounds is None else _wide(made, rounds, errors.made)
    if wide:
        return wide
    if _is_per_tensor(models, errors):
        return (
            "One scale for all channels of its weights is too coarse: quantize weights per channel."
        )
    rounded = f" and the rounding of '{made}'" if rounds is not None else ""
    return f"Its weights{rounded} lose most."


def _wide(tensor: str, quantizer: Quantizer, seen: Seen) -> str:
    scale, needed = quantizer.scale, quantizer.needed(seen.low, seen.high)
    if scale is None or not needed or scale / needed < _WIDE:
        return ""
    times = f"{scale / needed:.1f} times what the data needs"
    return f"The scale of '{tensor}' is {times}: calibrate again."


def _activation(read: Read, seen: Seen) -> str:
    name = read.meant
    if read.quantizer.scale is not None and seen.clipped > _CLIPPED:
        share = f"{100 * seen.clipped:.1f} % of '{name}' is clipped"
        return f"{share}: calibrate with more samples, or with --method minmax."
    return f"'{name}' needs more than {read.quantizer.bits} bits."


def _lost(read: Read, seen: Seen) -> float:
    """Return how badly a tensor is quantized: its step over the spread of its values, or the share that is cut off."""
    scale = read.quantizer.scale
    if scale is None or seen.high <= seen.low:
        return 0.0
    return scale / (seen.high - seen.low) + seen.clipped


def _is_per_tensor(models: Models, errors: Errors) -> bool:
    """Say whether a matrix of weights in the layer has a single scale."""
    model, stops = models.candidate, set(errors.region.boundary)
    queue = [errors.region.makes[0].candidate]
    seen = set(queue)
    for name in queue:
        node = model.maker_of(name)
        if node is None:
            continue
        for values, by in _held(node.op_type):
            if max(values, by) < len(node.input):
                weight = model.initializers.get(node.input[values])
                scale = model.constant(node.input[by])
                if weight is not None and len(weight.dims) > 1 and scale is not None:
                    return scale.size == 1
        fresh = [n for n in node.input if n and n not in seen and n not in stops]
        seen.update(fresh)
        queue += fresh
    return False


def _held(op_type: str) -> Iterator[tuple[int, int]]:
    """Yield the input slots of integers that may be weights, and of their scales."""
    row = INTEGER_OPS.get(op_type)
    operands = () if row is None else row.reads if row.role is Role.CONVERTS else row.weights
    for operand in operands:
        if operand.scale is not None:
            yield operand.values, operand.scale


Feeds = Mapping[str, NDArray[Any]]
_COPIES = 4  # of each: float's, given, made, accumulated
_QUIET = 1e-4  # of the signal's power, 40 dB: so little that nothing needs fixing
_MATTERS = 0.05  # share of the noise from which on a layer is worth a fix; and not less than its even share


def layers_of(
    pair: ModelPair,
    samples: Sequence[Feeds],
    *,
    most: int = 200,
    progress: Callable[[str], None] = lambda _: None,
) -> Layers:
    """Rank the quantized layers of a candidate by the noise that each alone brings to the outputs.

    Args:
        pair: The float model and the quantized one, by whatever tool, as long as tensors keep their names.
        samples: Inputs of both.
        most: How many layers are looked at; with more, those that are locally worst on the first sample.
        progress: Told what is going on.

    Raises:
        ModelError: A file cannot be read.
    """
    progress("Looking for layers")
    note = pair.tensors.note
    if not samples or not pair.tensors.matches:
        return Layers(layers=(), samples=len(samples), note=note)
    found = find_layers(pair, samples[0])
    regions = found.regions
    models = Models(pair=pair, theirs=found.theirs, ours=found.ours)
    notes = [_unmatched(found.dropped), _hidden(pair.b.structure)]
    if len(regions) > most:
        progress(f"Looking at {len(regions)} layers")
        notes.append(
            f"{len(regions) - most} of {len(regions)} layers with less local error left out"
        )
        regions = _worst(models, regions, samples[0], most)
    measured: list[Errors] = []
    for group in _groups(models, regions):
        progress(f"Layers {len(measured) + 1} to {len(measured) + len(group)} of {len(regions)}")
        measured += measure(models, group, samples)
    if not models.outputs:
        notes.append("no output holds floats: ranked by what each layer makes")
    ranking = _Ranking(models, measured)
    progress("Trying layers in float")
    tried = try_floats(models, ranking.changeable, measured, samples)
    return Layers(
        layers=ranking.layers({advice.nodes[0]: advice for advice in tried.alone}),
        samples=len(samples),
        note="; ".join(note for note in notes if note),
        advice=tried.best,
    )


def _unmatched(dropped: int) -> str:
    return (
        f"{dropped} tensors have another shape or type than in the float model" if dropped else ""
    )


def _hidden(candidate: Structure) -> str:
    inside = sum(any(subgraphs(node)) for node in candidate.nodes)
    return f"layers inside {inside} If, Loop or Scan nodes are not looked at" if inside else ""


def _worst(
    models: Models, regions: Sequence[Region], feeds: Feeds, most: int
) -> tuple[Region, ...]:
    """Return the layers with the most local noise, in their order."""
    ratios: list[float] = []
    for group in _groups(models, regions):
        ratios += [e.local.ratio for e in measure(models, group, [feeds], alone=False)]
    order = sorted(range(len(regions)), key=lambda i: (-ratios[i], i))
    return tuple(regions[i] for i in sorted(order[:most]))


def _groups(models: Models, regions: Sequence[Region]) -> Iterator[list[Region]]:
    """Split layers so that the activations of a group fit into memory."""
    group: list[Region] = []
    held = 0
    for region in regions:
        tensors = {m.tensor for m in region.makes}
        tensors |= {models.matches[b].tensor for b in region.boundary}
        needed = _COPIES * sum(models.theirs.nbytes(t) for t in tensors)
        if group and held + needed > HELD:
            yield group
            group, held = [], 0
        group.append(region)
        held += needed
    if group:
        yield group


class _Ranking:
    """Layers by the noise that each brings, the noisiest first."""

    def __init__(self, models: Models, measured: Sequence[Errors]) -> None:
        self.models = models
        outputs = models.outputs
        noises = [e.noise(outputs) if outputs else e.local.ratio for e in measured]
        self._total = sum(noises) or 1.0
        order = sorted(range(len(measured)), key=lambda i: (-noises[i], i))
        self._ranked = [(measured[i], noises[i]) for i in order]
        self._matters = max(_QUIET, max(_MATTERS, 1 / max(len(measured), 1)) * self._total)

    @property
    def changeable(self) -> list[Errors]:
        """The layers that matter and are not in float already."""
        excluded = excluded_by(self.models.candidate.properties)
        return [
            errors
            for errors, noise in self._ranked
            if noise >= self._matters
            and not any(fnmatchcase(name_of(self.models, errors), rule) for rule in excluded)
        ]

    def layers(self, helps: Mapping[str, Advice]) -> tuple[Layer, ...]:
        """Return the ranking; `helps`: what leaving a node in float was found to bring."""
        return tuple(self._layer(errors, noise, helps) for errors, noise in self._ranked)

    def _fix(self, errors: Errors, noise: float, advice: Advice | None) -> str:
        """Say what helps: float, as far as that was tried; and to mend what is plainly wrong."""
        if advice is not None:
            return f"{_cause_of(self.models, errors)} In float: {advice.brings}."
        wrong = noise >= self._matters and _is_mistake(errors)
        return _cause_of(self.models, errors) if wrong else ""

    def _layer(self, errors: Errors, noise: float, helps: Mapping[str, Advice]) -> Layer:
        models, name = self.models, name_of(self.models, errors)
        weights = errors.weights if errors.read is not None else errors.local
        advice = helps.get(name)
        return Layer(
            node=name,
            op_type=models.reference.nodes[errors.region.node].op_type,
            tensor=errors.region.makes[0].tensor,
            alone_db=sqnr_of(noise) if models.outputs else None,
            share=noise / self._total,
            local_db=errors.local.db,
            accumulated_db=errors.accumulated.db,
            weight_db=weights.db,
            input_db=None if errors.read is None else errors.read.db,
            clipped=max((seen.clipped for seen in errors.seen.values()), default=0.0),
            fix=self._fix(errors, noise, advice),
        )
