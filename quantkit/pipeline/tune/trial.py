"""One candidate of a search: its file made, and run beside float until it is clear whether it loses too much."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.errors import DataError, QuantkitError
from quantkit.evaluate.accuracy import NamedModel, measure_outputs
from quantkit.evaluate.accuracy.measuring import Measuring
from quantkit.evaluate.accuracy.scorer import Mean
from quantkit.evaluate.drop import Lost, lost
from quantkit.evaluate.latency import measure_latency
from quantkit.files import replace_text
from quantkit.numerics.sequential import decide
from quantkit.pipeline.prepared import Feeds, Prepared
from quantkit.pipeline.saved import load_prepared
from quantkit.pipeline.tune.folder import CANDIDATE, MODEL, Candidate, TuneFolder
from quantkit.pipeline.tune.job import TuneJob
from quantkit.pipeline.tune.make import CandidateJob, make_file
from quantkit.result import Metric


def make_saved(job: CandidateJob) -> Candidate:
    """Make and run a candidate of a preparation that was saved: what workers do."""
    return make_candidate(job, partial(load_prepared, job.folder.prepared, job.source))


def make_candidate(
    job: CandidateJob, prepared: Callable[[], Prepared], monitor: Monitor | None = None
) -> Candidate:
    """Make a candidate, run it, and record it; one that cannot be made is recorded with the reason.

    Args:
        job: What is to be made.
        prepared: Returns the preparation of the float model; it stays as it is.
        monitor: Told what is done.

    Raises:
        QuantkitError: The samples cannot be run or compared: no candidate could be.
    """
    started, monitor = time.monotonic(), monitor or Silent()
    with job.folder.new_candidate(job.name) as place:
        try:
            made = make_file(job, prepared, place, monitor)
        except QuantkitError as e:
            # Without the data no candidate can be made; a form may find it too little.
            if isinstance(e, DataError) and job.form is None:
                raise
            made = Candidate(name=job.name, choice=job.choice, note=str(e))
        if made.path is not None:
            begun = time.monotonic()
            found = _run(job, made.path, monitor)
            made = replace(
                made,
                drop=found.lost.drop,
                drop_interval=found.lost.interval,
                samples=found.samples,
                verdict=found.verdict,
                sqnr_db=found.sqnr_db,
                running=round(time.monotonic() - begun, 3),
                path=Path(MODEL),
            )
        made = replace(made, seconds=round(time.monotonic() - started, 3))
        write_candidate(made, place)
    return made if made.path is None else replace(made, path=job.folder.place(made.name) / MODEL)


def write_candidate(candidate: Candidate, place: Path) -> None:
    """Write what is known of a candidate into its folder."""
    plain = msgspec.to_builtins(candidate, enc_hook=str)
    if candidate.path is not None:
        plain["path"] = MODEL
    replace_text(place / CANDIDATE, json.dumps(plain, indent=1) + "\n")


def timed(
    one: Candidate, path: Path, job: TuneJob, feeds: Feeds, folder: TuneFolder, monitor: Monitor
) -> Candidate:
    """Time a candidate beside float, and record it.

    Args:
        one: The candidate.
        path: Its file.
        job: Names the float model, and what time is measured with.
        feeds: Samples that are run; none: nothing is timed.
        folder: Where it is recorded.
        monitor: Told what is done.
    """
    if not feeds:
        return one
    begun, models = time.monotonic(), [("float", job.source), (one.name, path)]
    measured = measure_latency(models, feeds, progress=monitor.stage, lab=job.lab)
    found = next(iter(measured.latency.get(one.name, ())), None)
    if found is None:
        return one
    took = round(one.seconds + time.monotonic() - begun, 3)
    one = replace(one, latency=found.ratio, latency_interval=found.ratio_interval, seconds=took)
    write_candidate(one, folder.place(one.name))
    return one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """What came of running a candidate on the choosing samples."""

    lost: Lost
    samples: int
    verdict: str
    sqnr_db: float | None


def _run(job: CandidateJob, path: Path, monitor: Monitor) -> _Ran:
    """Run float and a candidate until it is clear whether it loses too much, at most on all choosing samples."""
    models = (
        NamedModel(name="float", path=job.source),
        NamedModel(name=job.name, path=path),
    )
    clear: list[str] = []

    def enough(measuring: Measuring) -> bool:
        verdict = _verdict_so_far(job, measuring)
        clear[:] = [verdict]
        return verdict != "open"

    samples = replace(job.samples, limit=None)
    answered = measure_outputs(models, job.data, samples, job.accuracy, monitor, enough)
    found = lost(answered, job.name, job.limit)
    verdict = clear[-1] if clear and clear[-1] != "open" else _within(found)
    drift = answered.drift[job.name]
    worst = min((output.db for output in drift.outputs), default=inf)
    sqnr = None if worst in {inf, -inf} else worst
    return _Ran(lost=found, samples=answered.data.samples, verdict=verdict, sqnr_db=sqnr)


def _within(found: Lost) -> str:
    # A drop of 0.912 - 0.902 is more than 0.01 in binary.
    return "in" if found.limit is None or found.drop <= found.limit + 1e-9 else "out"


def _verdict_so_far(job: CandidateJob, measuring: Measuring) -> str:
    """Return "in" or "out" as soon as the samples so far leave no doubt, at most so often in error as was asked."""
    values = sample_losses(measuring)
    if values is None or job.limit is None or job.accuracy.only is None:
        return "open"
    share = bool(values.min(initial=0) >= -1 and values.max(initial=0) <= 1)
    population = len(job.accuracy.only)
    if not share or len(values) > population:
        return "open"
    return decide(values, job.limit, alpha=job.alpha, population=population).verdict


def sample_losses(measuring: Measuring) -> NDArray[np.float64] | None:
    """Return what each sample loses; None where the figure is no mean of them, or where nobody knows how much one can lose."""
    if measuring.scorer is not None:
        name = measuring.scorer.main
        figure = next((f for f in measuring.scorer.figures() if f.name == name), None)
        if not isinstance(figure, Mean) or not _is_share(figure):
            return None
        return figure.contributions(1)
    if measuring.decisions is not None:
        differs = measuring.decisions.of(0) != measuring.decisions.of(1)
        return np.asarray(differs, np.float64)
    return None


def _is_share(figure: Mean) -> bool:
    # By its name: that no sample so far lost more than 1 of a squared error says nothing of the next.
    return Metric(name=figure.name, value=0.0).is_fraction
