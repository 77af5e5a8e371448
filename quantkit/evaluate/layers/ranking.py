"""Which layers of a quantized model lose most: the error that each alone brings, and the accumulated one.

Needs nothing but the two files and some samples. See `quantkit.match.correspondence` for how tensors are matched,
`quantkit.match.regions` for what a layer is, and `quantkit.evaluate.layers.measure` for what is run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantkit.evaluate.layers.fixes import cause_of, is_mistake
from quantkit.evaluate.layers.measure import Errors, Models, measure
from quantkit.evaluate.layers.trial import excluded_by, name_of, try_floats
from quantkit.match.correspondence import correspondence
from quantkit.match.noise import decibels
from quantkit.match.regions import Region
from quantkit.match.structure import Structure, read_structure, subgraphs
from quantkit.match.survey import find_layers
from quantkit.result import Advice, Layer, Layers

__all__ = ["layers_of"]

Feeds = Mapping[str, NDArray[Any]]
_MEMORY = 512 << 20  # bytes of activations held at a time
_COPIES = 4  # of each: float's, given, made, accumulated
_QUIET = 1e-4  # of the signal's power, 40 dB: so little that nothing needs fixing
_MATTERS = 0.05  # share of the noise from which on a layer is worth a fix; and not less than its even share


def layers_of(
    float_path: Path,
    candidate: Path,
    samples: Sequence[Feeds],
    *,
    most: int = 200,
    progress: Callable[[str], None] = lambda _: None,
) -> Layers:
    """Rank the quantized layers of a candidate by the noise that each alone brings to the outputs.

    Args:
        float_path: The float model.
        candidate: The quantized one, by whatever tool, as long as tensors keep their names.
        samples: Inputs of both.
        most: How many layers are looked at; with more, those that are locally worst on the first sample.
        progress: Told what is going on.

    Raises:
        ModelError: A file cannot be read.
    """
    progress("Looking for layers")
    reference, quantized = read_structure(float_path), read_structure(candidate)
    found = correspondence(reference, quantized)
    if not samples or not found.matches:
        return Layers(layers=(), samples=len(samples), note=found.note)
    regions, theirs, ours, dropped = find_layers(reference, quantized, found.matches, samples[0])
    models = Models(
        reference=reference, candidate=quantized, matches=found.matches, theirs=theirs, ours=ours
    )
    notes = [_unmatched(dropped), _hidden(quantized)]
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
        if group and held + needed > _MEMORY:
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
            return f"{cause_of(self.models, errors)} In float: {advice.brings}."
        wrong = noise >= self._matters and is_mistake(errors)
        return cause_of(self.models, errors) if wrong else ""

    def _layer(self, errors: Errors, noise: float, helps: Mapping[str, Advice]) -> Layer:
        models, name = self.models, name_of(self.models, errors)
        weights = errors.weights if errors.read is not None else errors.local
        advice = helps.get(name)
        return Layer(
            node=name,
            op_type=models.reference.nodes[errors.region.node].op_type,
            tensor=errors.region.makes[0].tensor,
            alone_db=decibels(noise) if models.outputs else None,
            share=noise / self._total,
            local_db=errors.local.db,
            accumulated_db=errors.accumulated.db,
            weight_db=weights.db,
            input_db=None if errors.read is None else errors.read.db,
            clipped=max((seen.clipped for seen in errors.seen.values()), default=0.0),
            fix=self._fix(errors, noise, advice),
        )
