"""Ranges of activations for inputs that calibration has not seen, and how much more noise such inputs have.

Ranges are fitted by their measured effect on the outputs (`quantkit.quantize.solve.ranges`). Then the calibration samples are left out in
turn: ranges are fitted to the others, and a sample is judged with ranges that it did not help to set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from calibrators import MeanSquaredError
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.monitor import Monitor
from quantkit.calibration.points import moved_from
from quantkit.pipeline.plan_prepared import plan_of
from quantkit.pipeline.prepared import Feeds, Prepared, Turns
from quantkit.quantize.plan import Plan, SolvedIntegers
from quantkit.quantize.solve.folds import numbers_without, observe_parts
from quantkit.quantize.solve.losses import Meter
from quantkit.quantize.solve.ranges import (
    Observed,
    clip_weights,
    fit_ranges,
    is_open,
    loudest_samples,
)
from quantkit.runtime.check_result import HELD_OUT, IN_TURNS, LARGE, Excess, Tally
from quantkit.runtime.session import RUNTIME_ERRORS
from quantkit.runtime.taps import TensorReader

_CHECKED_ON = 16  # samples that check fitted ranges
_FEWEST = 4  # samples that ranges are fitted to
# Of small models the meter is kept for the samples that judge the result: its sessions serve both.
_KEPT_BYTES = 64 << 20
_METERS: WeakKeyDictionary[ir.Model, Meter] = WeakKeyDictionary()
_LOUDER = 1.5  # times the noise of plain ranges at most: few samples show little of what room gains


def with_fitted_ranges(prepared: Prepared, monitor: Monitor) -> Prepared:
    """Return a preparation whose activation ranges have the least expected noise on inputs that were not seen.

    A range whose method the user chose stays as it is.
    """
    job, ready, data = prepared.job, prepared.ready, prepared.data
    wanted = job.options.recover.activation_ranges is not False and not job.options.covers_all
    by_default = job.calibrate.method == CalibrateOptions().method and not job.calibrate.minmax_only
    if not (wanted and by_default) or data is None or ready.nbytes >= LARGE:
        return prepared
    if job.options.activation.bits != 8:
        return prepared
    plan = plan_of(prepared)
    # What a Flatten or Transpose hands on was observed where it was computed.
    source = {t: moved_from(t, ready.view) for t in plan.activation if is_open(t, ready.view, plan)}
    observed = {t: found for t, name in source.items() if (found := prepared.observed(name))}
    holders = prepared.seen.holders(source[tensor] for tensor in observed)
    loudest = data.at(prepared.source, loudest_samples(holders))
    if not loudest:
        return prepared
    monitor.stage("Fitting ranges")
    try:
        meter = _meter(prepared, plan, loudest)
        if meter.by_labels:
            return prepared
        reader = TensorReader(ready.model, observed)
        weights = clip_weights(meter, reader, plan, observed, loudest)
        meter.rest()
        if ready.nbytes < _KEPT_BYTES:
            _METERS[ready.model] = meter
        ranges = fit_ranges(observed, weights)
        fitted = replace(prepared, fitted={source[t]: ends for t, ends in ranges.items()})
        seen = {t: observed[t] for t in ranges}
        return _checked((prepared, plan), fitted, seen, weights, (meter, reader))
    except RUNTIME_ERRORS:  # a model that does not run with more outputs than its own
        return prepared


def _meter(prepared: Prepared, plan: Plan, feeds: Feeds) -> Meter:
    """Return a meter of the roundings of activations; the noise of weights is another matter."""
    ready, floats = prepared.ready, replace(plan, weights=())
    return Meter(ready.model, ready.view, floats, SolvedIntegers(), feeds, most=len(feeds))


def _checked(
    before: tuple[Prepared, Plan],
    fitted: Prepared,
    observed: Observed,
    weights: Mapping[str, float],
    sessions: tuple[Meter, TensorReader],
) -> Prepared:
    """Return the fitted ranges unless they are noisier on samples that did not set them; these samples judge the result, too.

    Args:
        before: With the ranges of the default method, and its plan.
        fitted: With fitted ranges.
        observed: The tensors whose ranges were fitted.
        weights: Their clip weights.
        sessions: The meter of the plan with plain ranges, which serves both, and what reads the observed tensors.
    """
    (plain, planned), (meter, reader) = before, sessions
    data = plain.data
    assert data is not None  # noqa: S101 - ranges were fitted to it
    held = plain.judged if plain.on == HELD_OUT else ()
    most = data.most_judged(plain.source)
    enough = 2 * len(held) >= most
    wanted = _CHECKED_ON if enough else most - len(held)
    places = np.linspace(0, data.used, min(data.used, wanted), endpoint=False).astype(int)
    samples = data.at(plain.source, places.tolist())  # some of all: data may be sorted
    if len(samples) < _FEWEST or not observed:
        return fitted
    parts = observe_parts(reader, observed, samples)
    folds = range(len(next(iter(parts.values()))))
    tried = []
    for one, plan, fit in (
        (plain, planned, _plain_ranges),
        (fitted, plan_of(fitted), partial(fit_ranges, weights=weights)),
    ):
        numbers = [numbers_without(part, plan, fit, observed, parts) for part in folds]
        turns = Turns(first=len(held), numbers=tuple(numbers))
        judges = samples[:_CHECKED_ON]
        judge = meter.again(plan, judges) or _meter(one, plan, judges)
        tried.append((_worst(_tallies_in_turn(judge, turns)), replace(one, turns=turns)))
    (noise_of_plain, plain), (noise_of_fitted, fitted) = tried
    better = plain if noise_of_fitted > _LOUDER * noise_of_plain else fitted
    return (
        replace(better, turns=None)
        if enough
        else replace(better, judged=(*held, *samples), on=IN_TURNS)
    )


def _plain_ranges(observed: Observed) -> dict[str, tuple[float, float]]:
    method = MeanSquaredError()
    found = {tensor: method(sketch) for tensor, (sketch, _) in observed.items()}
    return {tensor: (float(one.low[0]), float(one.high[0])) for tensor, one in found.items()}


def _tallies_in_turn(meter: Meter, turns: Turns) -> list[dict[str, Tally]]:
    """Return signal and noise of each output on each sample of a meter, with ranges that the sample did not help to set."""
    numbers = [
        {tensor: own for tensor, own in fold.items() if tensor in meter.adjustable}
        for fold in turns.numbers
    ]
    samples = range(meter.samples)
    return list(meter.at_once(lambda n: meter.tallies_with(numbers[n % len(numbers)], n), samples))


def _worst(samples: Sequence[Mapping[str, Tally]]) -> float:
    """Return the noise over signal of the worst output."""
    outputs = {name: Tally.sum([own[name] for own in samples]) for name in samples[0]}
    return max((tally.lost for tally in outputs.values()), default=0.0)


def excess_of(prepared: Prepared, plan: Plan) -> tuple[Mapping[str, Excess], ...]:
    """Return by judged sample and output the noise that a sample has if it helps to set the ranges, and if it does not.

    Args:
        prepared: The model and its samples.
        plan: A plan with its ranges.
    """
    turns = prepared.turns
    if turns is None:
        return ()
    try:
        judged = prepared.judged[turns.first :]
        kept = _METERS.get(prepared.ready.model)
        meter = (kept and kept.again(plan, judged)) or _meter(prepared, plan, judged)
        outside = _tallies_in_turn(meter, turns)
        inside = list(meter.at_once(partial(meter.tallies_with, {}), range(meter.samples)))
    except RUNTIME_ERRORS:  # a model that does not run with switches in it
        return ()
    found = [
        {name: Excess(before[name].noise, after[name].noise) for name in before}
        for before, after in zip(inside, outside, strict=True)
    ]
    return (*({} for _ in prepared.judged[: turns.first]), *found)
