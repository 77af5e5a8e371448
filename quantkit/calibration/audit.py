"""Is the data good enough? What each method would clip, how stable the ranges are, whether more data helps.

Pure: from what was seen to plain data. Differences of ranges are shares of the whole range's width:

    d(a, b) = max(|a.low - b.low|, |a.high - b.high|) / (b.high - b.low)

The refusals and warnings that follow from it, and from the data, are worded here too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from calibrators import Method, Range, Sketch, Statistic
from quantkit.calibration.forks import forked_map
from quantkit.calibration.requests import Observations, RunningMinMax, SketchOf
from quantkit.data import Description
from quantkit.errors import DataError

if TYPE_CHECKING:  # these import onnxruntime, which a reader of calibration files does not need
    from quantkit.calibration.job import Job
    from quantkit.calibration.points import Points

# A range has moved if an end did by more than this share of its width.
MOVED = 0.05
# Ranges have settled if no more than this share of them still moves.
_STILL = 0.05
# A range clips hard if clipping alone costs more than this share of the signal's energy: 20 dB.
CLIPPED_HARD = 0.01
_FEW = 32  # samples, below which nothing is said about stability
_NAMED = 5  # samples that are listed by name


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAudit:
    """One tensor.

    Attributes:
        ranges: Lower and upper end by method.
        clipped: Share of the values outside, by method.
        lost: Energy that the chosen method clips off, as a share of all: sum (x - clip(x))^2 / sum x^2.
        split_half: How far the ranges of the two halves of the data are apart.
        moved: How far the range of an eighth, a quarter, a half of the data is from that of all.
        low_sample: Place, in the order of the run, of the sample that holds the smallest value;
            `high_sample` the largest.
        seen: Values seen; `counted` of them are in the histogram.
        nan: NaNs seen; `inf` infinities.
    """

    tensor: str
    ranges: Mapping[str, tuple[float, float]]
    clipped: Mapping[str, float]
    lost: float
    split_half: float
    moved: tuple[float, ...]
    low: float
    high: float
    low_sample: int
    high_sample: int
    mean: float
    std: float
    seen: int
    counted: int
    nan: int
    inf: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All tensors, and what follows.

    Attributes:
        method: Its name, by which `split_half` and `moved` are judged.
        samples: How many were used; `prefixes` is how many each part of `moved` had.
        enough: The smallest number of samples whose ranges were as good; None if they still move.
        duplicates: Groups of samples with the same inputs.
        outliers: Samples that set the most extremes: number, and of how many tensors.
        verdict: One sentence.
    """

    method: str
    samples: int
    prefixes: tuple[int, ...]
    enough: int | None
    duplicates: tuple[tuple[int, ...], ...]
    outliers: tuple[tuple[int, int], ...]
    verdict: str
    tensors: tuple[TensorAudit, ...]


def audit_of(
    segments: Sequence[Observations],
    whole: Observations,
    method: Method,
    methods: Sequence[Method],
    *,
    workers: int,
    most: int | None = None,
) -> Audit:
    """Judge what a pass over the data gave, for a method; compare the others.

    `whole` is what all segments together showed. `most`: look at so many tensors, evenly spaced.

    Args:
        segments: What was seen up to an eighth of the data, from there to a quarter, to a half, and to the end.
        whole: What all segments together showed.
        method: That gives the ranges.
        methods: Those to compare it with.
        workers: Processes.
        most: Look at so many tensors, evenly spaced; None: at all.
    """
    study = _Study(segments, whole, method, methods)
    names = glanced_at([tensor for tensor, _ in _sketches(whole)], most)
    tensors = forked_map(study.tensor, names, workers)
    prefixes = tuple(accumulate(len(segment.samples) for segment in segments))[:-1]
    samples = len(whole.samples)
    enough = _enough(prefixes, tensors) if samples >= _FEW else None
    return Audit(
        method=method.name,
        samples=samples,
        prefixes=prefixes,
        enough=enough,
        duplicates=_duplicates(whole),
        outliers=_outliers(whole),
        verdict=_verdict(samples, prefixes, enough, tensors),
        tensors=tuple(tensors),
    )


def glanced_at(tensors: Sequence[str], most: int | None) -> Sequence[str]:
    """Return the tensors that an audit looks at: all, or so many, evenly spaced."""
    return tensors[:: -(-len(tensors) // most)] if most and tensors else tensors


@dataclass(frozen=True, slots=True)
class _Study:
    """What tensors are judged by."""

    segments: Sequence[Observations]
    whole: Observations
    method: Method
    methods: Sequence[Method]

    def tensor(self, tensor: str) -> TensorAudit:
        """Judge one tensor."""
        sketch = _sketch(self.whole, tensor)
        chosen = self.method(sketch)
        first = list(self._prefixes(tensor))
        last = _found(self.segments[-1], tensor)
        second = chosen if last is None else self.method(last)
        ranges = {m.name: chosen if m == self.method else m(sketch) for m in self.methods}
        extremes = self.whole.extremes[tensor]
        return TensorAudit(
            tensor=tensor,
            ranges={n: (float(r.low[0]), float(r.high[0])) for n, r in ranges.items()},
            clipped={n: float(sketch.share_outside(r)[0]) for n, r in ranges.items()},
            lost=_lost(sketch, chosen),
            split_half=_apart(first[-1], second, chosen) if first and first[-1] else 0.0,
            moved=tuple(1.0 if r is None else _apart(r, chosen, chosen) for r in first),
            low=float(sketch.low[0]),
            high=float(sketch.high[0]),
            low_sample=extremes.low_sample,
            high_sample=extremes.high_sample,
            mean=float(sketch.mean[0]),
            std=float(sketch.std[0]),
            seen=int(sketch.seen[0]),
            counted=int(sketch.count[0]),
            nan=int(sketch.nan[0]),
            inf=int(sketch.inf[0]),
        )

    def _prefixes(self, tensor: str) -> Iterator[Range | None]:
        """Yield the ranges that an eighth, a quarter and a half of the data give; None: the branch of an If was not taken yet."""
        so_far: Sketch | None = None
        for segment in self.segments[:-1]:
            found = _found(segment, tensor)
            if so_far is None:
                so_far = None if found is None else Sketch.from_state(found.state())
            elif found is not None:
                so_far.merge(found)
            yield None if so_far is None else self.method(so_far)


def _sketches(seen: Observations) -> Iterator[tuple[str, Sketch]]:
    for tensor, kinds in seen.answers.items():
        for kind, statistic in kinds.items():
            if isinstance(kind, SketchOf) and isinstance(statistic, Sketch):
                yield tensor, statistic


def _sketch(seen: Observations, tensor: str) -> Sketch:
    kinds = seen.answers[tensor].items()
    return next(s for w, s in kinds if isinstance(w, SketchOf) and isinstance(s, Sketch))


def _found(seen: Observations, tensor: str) -> Sketch | None:
    """Return what a part of the data showed of a tensor; None if it did not compute it."""
    return _sketch(seen, tensor) if tensor in seen.answers else None


def _lost(sketch: Sketch, found: Range) -> float:
    bins = sketch.histogram()
    inside = np.clip(bins.center, found.low[0], found.high[0])
    energy = float((bins.count * np.square(bins.center)).sum())
    return float((bins.count * np.square(bins.center - inside)).sum()) / energy if energy else 0.0


def _apart(a: Range, b: Range, whole: Range) -> float:
    width = float(whole.high[0] - whole.low[0])
    distance = max(abs(float(a.low[0] - b.low[0])), abs(float(a.high[0] - b.high[0])))
    return distance / width if width else 0.0


def _moving(tensors: Sequence[TensorAudit], part: int) -> int:
    return sum(t.moved[part] > MOVED for t in tensors)


def _enough(prefixes: Sequence[int], tensors: Sequence[TensorAudit]) -> int | None:
    """Return the smallest prefix from which on all have settled."""
    found = None
    for part in reversed(range(len(prefixes))):
        if prefixes[part] < _FEW // 2 or _moving(tensors, part) > _STILL * len(tensors):
            break
        found = prefixes[part]
    return found


def _verdict(
    samples: int, prefixes: Sequence[int], enough: int | None, tensors: Sequence[TensorAudit]
) -> str:
    if not tensors:
        return "only minima and maxima were taken, which say nothing about stability"
    if samples < _FEW or not prefixes:
        return f"{samples:,} samples are too few to say whether the ranges have settled: add data"
    if enough is not None:
        return f"{enough:,} of your {samples:,} samples would have been enough"
    moving = _moving(tensors, len(prefixes) - 1)
    return (
        f"not converged: going from {prefixes[-1]:,} to {samples:,} samples still moved {moving} of {len(tensors)} ranges by "
        f"more than {100 * MOVED:.0f} %. Add data."
    )


def _duplicates(seen: Observations) -> tuple[tuple[int, ...], ...]:
    places, digests = np.array(seen.samples, np.int64), np.array(seen.digests, np.uint64)
    _, group, count = np.unique(digests, return_inverse=True, return_counts=True)
    groups: dict[int, list[int]] = {}
    for at in np.flatnonzero(count[group] > 1).tolist():
        groups.setdefault(int(group[at]), []).append(int(places[at]))
    return tuple(sorted(tuple(sorted(g)) for g in groups.values()))


def _outliers(seen: Observations) -> tuple[tuple[int, int], ...]:
    """Return the samples that hold the extremes of most tensors.

    An end that many values share (the 0 of a Relu, the 6 of a Clip) is nobody's extreme.
    """
    holders: Counter[int] = Counter()
    for tensor, sketch in _sketches(seen):
        if sketch.empty:
            continue
        counts = sketch.histogram().count
        extremes = seen.extremes[tensor]
        ends = ((counts[0], extremes.low_sample), (counts[-1], extremes.high_sample))
        holders.update({s for shared, s in ends if s >= 0 and shared * 10 <= len(seen.samples)})
    return tuple(sorted(holders.items(), key=lambda pair: (-pair[1], pair[0]))[:_NAMED])


def without_unseen(seen: Observations) -> tuple[Observations, tuple[str, ...]]:
    """Return what was seen without the tensors that had no value in any sample, and the names of those."""
    never = tuple(t for t, kinds in seen.answers.items() if any(map(_saw_nothing, kinds.values())))
    return seen.select(lambda request: request.tensor not in never), never


def _saw_nothing(statistic: Statistic) -> bool:
    """Say whether no value at all came: the tensor was always empty, or stands in a branch that no sample takes."""
    match statistic:
        case Sketch():
            return bool(statistic.empty and not statistic.nan.any() and not statistic.inf.any())
        case RunningMinMax():
            return statistic.empty and not statistic.strange
        case _:
            return False


def require_values(seen: Observations) -> None:
    """Refuse ranges of nothing."""
    if not seen.samples:
        raise DataError("No sample could be read; there is nothing to learn ranges from.")
    for tensor, answers in seen.answers.items():
        if any(getattr(a, "empty", False) for a in answers.values()):
            raise DataError(
                f"Tensor '{tensor}' held no finite value in any of {len(seen.samples)} samples, only "
                "NaN or infinity: check the preprocessing, or the model itself."
            )


def names_of(job: "Job", audit: Audit) -> dict[str, str]:
    """Return what the samples are called that the audit mentions by their place."""
    if job.samples is None:
        return {}
    copies = [place for group in audit.duplicates[:3] for place in group[:3]]
    places = sorted({*copies, *(place for place, _ in audit.outliers)})
    order = job.order()
    return {str(place): job.samples[int(order[place])].name for place in places}


def warnings_of(
    points: "Points",
    seen: Observations,
    audit: Audit,
    found: Description,
    never: Sequence[str] = (),
) -> list[str]:
    """Say what may make the ranges worse than they need be.

    Args:
        points: What is observed, and what is not.
        seen: The answers.
        audit: What was made of them.
        found: The data, with warnings of its own.
        never: Tensors of which no sample had a value.
    """
    # Each warning is something that a range cannot show by itself: a tensor that nobody looked at, samples that are
    # not in it, values that are not in it, energy that the method cuts off on purpose, copies that make few samples
    # look like many.
    warnings = list(found.warnings)
    if points.hidden:
        warnings.append(
            f"{points.hidden} tensors in subgraphs of other operators than If, Loop and Scan are not observed; they "
            "stay float."
        )
    if never:
        warnings.append(
            f"{len(never)} tensors had no value in any sample (the first: '{never[0]}'): no sample takes their branch of "
            "an If, or they are always empty. What reads them is not calibrated; add samples that compute them."
        )
    if seen.bad:
        first = next(iter(sorted(seen.bad)))
        warnings.append(
            f"{len(seen.bad):,} of {len(seen.bad) + len(seen.samples):,} samples could not be read and were "
            f"left out; the first: "
            f"{seen.bad[first]}"
        )
    strange = [t for t in audit.tensors if t.nan or t.inf]
    if strange:
        worst = max(strange, key=lambda t: t.nan + t.inf)
        warnings.append(
            f"{len(strange)} tensors hold NaN or infinity, which ranges leave out; most in "
            f"'{worst.tensor}': {worst.nan} NaN, {worst.inf} infinite of {worst.seen}."
        )
    # Sketches count NaN and infinity apart, and the audit has them; what was reduced to minimum and maximum inside
    # the graph only knows that there was some (a count of arrays), so there is a second, poorer sentence for it.
    spans = [
        s
        for answers in seen.answers.values()
        for s in answers.values()
        if isinstance(s, RunningMinMax)
    ]
    if any(span.strange for span in spans):
        warnings.append(
            f"{sum(span.strange > 0 for span in spans)} tensors hold NaN or infinity, which ranges leave "
            "out."
        )
    hard = [t for t in audit.tensors if t.lost > CLIPPED_HARD]
    if hard:
        worst = max(hard, key=lambda t: t.lost)
        warnings.append(
            f"{audit.method} clips {len(hard)} tensors hard (over {CLIPPED_HARD:.0%} of their energy); "
            f"most '{worst.tensor}': {worst.lost:.1%}."
        )
    if audit.duplicates:
        copies = sum(len(group) - 1 for group in audit.duplicates)
        warnings.append(f"{copies:,} of {audit.samples:,} samples are copies of others.")
    return warnings
