"""Which samples calibrate, choose and judge in a search: no sample, and no copy of one, does two things.

The samples that calibrate are those that `quantize static` draws with the same limit and seed, so that a file can be made again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantkit.calibration.collect import MOST_SAMPLES
from quantkit.calibration.job import sample_digest
from quantkit.calibration.model_inputs import inputs_of, with_model_folder
from quantkit.calibration.monitor import Monitor
from quantkit.data import Sample, Samples, order
from quantkit.data.fingerprint import digest
from quantkit.errors import DataError, UsageError
from quantkit.evaluate.accuracy import AccuracyOptions
from quantkit.evaluate.accuracy.chunks import OutputSpec, single_rows
from quantkit.evaluate.accuracy.samples import SampleSource, open_source
from quantkit.model.graph.load import LoadedModel
from quantkit.runtime.runs import row_trial
from quantkit.runtime.session import make_session
from quantkit.settings import DataSettings

_MOST_CHOOSING = 2000
_POOL = 10_000  # samples, where nobody says how many
_FEWEST = 3  # samples: one for each part
_HELD_OUT = 16  # samples behind those of the calibration on which a file is verified while it is made: they are no judges


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which samples do what: no sample, and no copy of one, does two things.

    Attributes:
        calibration: Places of the samples that ranges and roundings are found with.
        choosing: Of those that candidates are compared on, in a random order.
        judging: Of those that only the last judgement sees.
        available: How many samples there are.
        copies: How many were left out because they are copies of samples that are calibrated with.
    """

    calibration: tuple[int, ...]
    choosing: tuple[int, ...]
    judging: tuple[int, ...]
    available: int
    copies: int = 0

    def __str__(self) -> str:
        parts = (
            f"{len(self.calibration):,} for calibration, {len(self.choosing):,} for selection, "
            f"{len(self.judging):,} for the final check"
        )
        copies = f"; {self.copies:,} copies of calibrated ones are left out" if self.copies else ""
        used = len(self.calibration) + len(self.choosing) + len(self.judging) + self.copies
        more = (
            ""
            if used == self.available
            else f" (of {self.available:,}; --limit uses more or fewer)"
        )
        return f"{used:,} samples{more}: {parts}{copies}"


def split(
    mixed: Sequence[int],
    digests: Mapping[int, object],
    available: int,
    seed: int,
    *,
    most: int = MOST_SAMPLES,
    share: float = 0.25,
) -> Split:
    """Divide samples into those that calibrate, choose and judge.

    Args:
        mixed: Places in the order in which calibration draws them: of a limit it takes the first.
        digests: What names the contents of a sample; places without one are like no other.
        available: How many samples there are.
        seed: Of the order of the choosing part.
        most: How many calibrate at most.
        share: Of all samples, that calibrates.

    Raises:
        DataError: There are too few.
    """
    total = len(mixed)
    if total < _FEWEST:
        raise DataError(
            f"There {'is 1 sample' if total == 1 else f'are {total} samples'}, and {_FEWEST} are needed at least: one to "
            "calibrate with, one to choose by, one to judge by."
        )
    first = min(most, max(1, int(total * share)))
    calibration = tuple(mixed[:first])
    used = {digests[place] for place in calibration if place in digests}
    rest = [place for place in mixed[first:] if digests.get(place, place) not in used]
    if len(rest) < _FEWEST - 1:
        raise DataError(
            f"{total - first - len(rest)} of {total} samples are copies of those that are calibrated with: none is left to "
            "choose or judge by; give more that differ."
        )
    wanted = min(
        _MOST_CHOOSING, max(min(_HELD_OUT, len(rest) // 2), 2 * len(rest) // 5), len(rest) - 1
    )
    part: dict[object, int] = {}  # copies stay together, where the first of them is
    parts: tuple[list[int], list[int]] = ([], [])
    for place in rest:
        name = digests.get(place, ("place", place))
        chosen = part.setdefault(name, 0 if len(parts[0]) < wanted else 1)
        parts[chosen].append(place)
    if not parts[1]:
        raise DataError(
            f"All {len(rest)} samples that are not calibrated with are copies of each other: give more that differ."
        )
    shuffled = np.random.default_rng(seed).permutation(len(parts[0]))
    return Split(
        calibration=calibration,
        choosing=tuple(parts[0][i] for i in shuffled),
        judging=tuple(parts[1]),
        available=available,
        copies=total - first - len(rest),
    )


def divide(
    loaded: LoadedModel,
    data: object,
    settings: DataSettings,
    accuracy: AccuracyOptions,
    monitor: Monitor,
    **parts: Any,
) -> tuple[Split, str]:
    """Read every sample that will be used, and divide them; return also what names their contents and labels.

    Args:
        loaded: The float model.
        data: A path, or a Python object that can be read more than once.
        settings: Which samples, and how they are prepared.
        accuracy: Whether samples are pairs of texts, and whether those that cannot be read are left out.
        monitor: Told what the data is, before it is read.
        parts: `most` and `share` of `split`.

    Raises:
        QuantkitError: The data cannot be read, can be read only once, or is too little.
    """
    settings = with_model_folder(settings, loaded)
    session = make_session(str(loaded.path))
    rows = single_rows(
        inputs_of(loaded),
        [
            OutputSpec(name=o.name, type=o.type, shape=_extents(o.shape))
            for o in session.get_outputs()
        ],
    )
    source = open_source(
        data,
        rows,
        settings,
        trial=row_trial(lambda: session),
        pairs=accuracy.pairs,
        skip_bad=accuracy.skip_bad,
    )
    found = [part for part in source.parts if isinstance(part, Samples)]
    if len(found) < len(source.parts):
        raise UsageError(
            "These samples can be read only once, and a search reads them often: give a path, or a list of them."
        )
    monitor.data_found(found[0].description)
    mixed = order(
        len(found[0]), limit=settings.limit or _POOL, shuffle=settings.shuffle, seed=settings.seed
    ).tolist()
    digests, named = dict[int, object](), [source.fingerprint()]
    for place, group in _each(source, mixed):
        digests[place] = tuple(sample_digest(sample.feeds) for sample in group)
        named.append(f"{digests[place]} {group[0].label}")
    return (
        split(list(digests), digests, len(found[0]), settings.seed, **parts),
        digest(named),
    )


def _each(source: SampleSource, places: Sequence[int]) -> Iterator[tuple[int, tuple[Sample, ...]]]:
    """Yield the samples that can be read, with their places."""
    for place in places:
        for group in replace(source, only=(place,)):
            strange = next((sample for sample in group if _has_nan(sample)), None)
            if strange is None:
                yield place, group
            elif not source.skip_bad:
                raise DataError(
                    f"'{strange.name}' holds NaN, of which nothing can be learned: mend it, or leave it out (--skip-bad)."
                )


def _has_nan(sample: Sample) -> bool:
    return any(a.dtype.kind == "f" and bool(np.isnan(a).any()) for a in sample.feeds.values())


def _extents(shape: Sequence[Any] | None) -> tuple[int | None, ...] | None:
    return (
        None
        if shape is None
        else tuple(n if isinstance(n, int) and n >= 0 else None for n in shape)
    )
