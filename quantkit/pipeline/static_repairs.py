"""Repairs of static quantization: fewer integers where a result is noisy, larger or slower than float."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

from quantkit.calibration.monitor import Monitor
from quantkit.numerics.decibels import decibels
from quantkit.pipeline.bits import (
    SMALL,
    small_weights,
)
from quantkit.pipeline.checks import TINY, noise
from quantkit.pipeline.form import Prepared, Repair
from quantkit.pipeline.measure import SLOWEST, ratio_to_float
from quantkit.pipeline.plan_prepared import plan_of
from quantkit.pipeline.plan_search import SURE_DB, quieter, trade_time_for_noise
from quantkit.pipeline.static_solving import StaticAttempt, StaticDraft
from quantkit.quantize.emit import Format
from quantkit.quantize.plan import Kept, Mode, Plan, SolvedIntegers
from quantkit.quantize.plan.measured import Costs, choose, predict
from quantkit.quantize.plan.selection import resolve_names
from quantkit.quantize.solve.weights import still_static
from quantkit.reasons import Why, because
from quantkit.runtime.check_result import FLOOR_DB, LARGE, MADE_UP, NOISE_DB, Verification
from quantkit.runtime.profile import load_text

_SHOWN = 3  # names in a message
_PROBES = 8  # samples on which single weights are tried
_LARGER = 100.0  # dB that a file that has grown counts as: better noisy than larger, never both
_NOISY_DB = 1.0  # that noise lacks at least, whatever its figure is


Change = Callable[[StaticAttempt], StaticDraft | StaticAttempt | None]


def short_of_floor(checked: Verification | None) -> float:
    """Return how many dB the worst output lacks; 0 if it has enough, or nothing is known of it.

    On made-up inputs only noise counts: what they show is not worth speed. Of outputs without floats too, as equality says
    little else; then any number of dB stands for the share that differs.

    Args:
        checked: What the comparison with float found; None: it was switched off.
    """
    if checked is None:
        return 0.0
    poor = checked.has_noise
    if checked.worst is None:
        return max(1 - a.share for a in checked.agreement.values()) if poor else 0.0
    enough = NOISE_DB if checked.on == MADE_UP else FLOOR_DB + SURE_DB
    return max(enough - checked.worst, _NOISY_DB if poor else 0.0, 0.0)


def _margin_db(samples: int) -> float:
    """Return how many dB more than are wanted a plan is to have: other samples are not quite like those it is judged on.

    Args:
        samples: On how many it is judged.
    """
    return 1.0 + 3.0 / sqrt(max(1, samples))


def faults(attempt: StaticAttempt) -> float:
    """Return by how much a result misses what is promised of it; 0: by nothing."""
    return short_of_floor(attempt.checked) + (_LARGER if _has_grown(attempt) else 0.0)


def _has_grown(attempt: StaticAttempt) -> bool:
    return attempt.nbytes >= attempt.prepared.source.nbytes >= TINY


def is_poor(attempt: StaticAttempt) -> bool:
    """Say whether noise comes out, or came out of an earlier draft."""
    return attempt.draft.noisy or (attempt.checked is not None and attempt.checked.has_noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRepairs:
    """Makes other drafts of one plan.

    Attributes:
        output_format: How plans are written down.
        costs: What each node takes; None: not known.
        monitor: Told what is done.
    """

    output_format: Format
    costs: Costs | None
    monitor: Monitor

    def settling(self) -> tuple[Repair[Prepared, StaticDraft], ...]:
        """Return the repairs of a plan of one's own, in order."""
        # What is expected of a plan may not come, so that the second time more is asked for. Weights that are stored
        # lose as well: the last step leaves the worst of them float.
        changes: Sequence[Change] = (
            partial(self._quieter, margins=1),
            partial(self._quieter, margins=2),
            self._smaller,
            partial(self._smaller, least=8 * SMALL),
            self._stored,
            partial(self._quieter, margins=1),
        )
        return (
            # What has to be repaired gets the margin of a repair instead.
            Repair(when=lambda best: not faults(best), change=self._traded),
            *(Repair(when=lambda best: faults(best) > 0, change=change) for change in changes),
            Repair(when=self._is_to_time, change=self._faster, always=True),
            Repair(when=self._is_to_time, change=self._all_in_float, always=True),
        )

    def _traded(self, attempt: StaticAttempt) -> StaticDraft | None:
        """Leave in float what is nearly free there."""
        draft = attempt.draft
        trade = trade_time_for_noise(
            attempt.prepared, draft.plan, draft.first, self.costs, draft.kept, self.monitor
        )
        if not trade.notes:
            return None
        left = self._left(attempt, trade.plan)
        return replace(draft, plan=trade.plan, kept=trade.kept, solved=left, notes=trade.notes)

    def _left(self, attempt: StaticAttempt, plan: Plan) -> SolvedIntegers:
        """Return the integers of what a plan still has in integers."""
        return still_static(attempt.prepared.ready.products, plan, attempt.draft.first)

    def _without(
        self, attempt: StaticAttempt, kept: Mapping[str, Kept], why: str = ""
    ) -> StaticDraft | None:
        """Return a draft that leaves these out of integers; None if that changes nothing.

        Args:
            attempt: The attempt that misses something.
            kept: What to leave out; what the user wants in integers stays there, whatever it loses.
            why: What was wrong, "{}" for the names; "": noise or size.
        """
        prepared, draft = attempt.prepared, attempt.draft
        forced = resolve_names(prepared.job.options.forced, prepared.ready.view.names)
        kept = {name: one for name, one in kept.items() if name not in forced}
        if kept == draft.kept:
            return None
        plan = plan_of(prepared, self.output_format, kept)
        if not plan.changes:
            return None
        self.monitor.stage("Trying again with fewer integers")
        named = _named(draft.kept, kept)
        said = why.format(named) if why else _given_up(attempt, named)
        return StaticDraft(
            plan=plan,
            kept=kept,
            solved=self._left(attempt, plan),
            first=draft.first,
            warnings=draft.warnings,
            given_up=(*draft.given_up, said),
            noisy=is_poor(attempt),
        )

    def _quieter(self, attempt: StaticAttempt, margins: int) -> StaticDraft | None:
        """Leave out what loses most, where too little is left of an output."""
        prepared, draft, reference = attempt.prepared, attempt.draft, attempt.reference
        if not short_of_floor(attempt.checked) or reference is None:
            return None
        if prepared.ready.nbytes > LARGE:
            return None
        self.monitor.stage("Measuring which layers lose most")
        margin = _margin_db(0 if attempt.checked is None else attempt.checked.samples)
        # What is measured lacks the noise of samples that do not set the ranges, which the result is judged with.
        aim = FLOOR_DB + margins * margin + decibels(reference.excess_ratio)
        kept = quieter(
            prepared,
            draft.plan,
            self._left(attempt, draft.plan),
            self.costs,
            kept=draft.kept,
            aim=aim,
            feeds=attempt.feeds,
        )
        return self._without(attempt, kept)

    def _smaller(self, attempt: StaticAttempt, least: int = SMALL) -> StaticDraft | None:
        """Leave weights float that are too small to gain, where the file has grown."""
        if not _has_grown(attempt):
            return None
        draft, why = attempt.draft, Kept(because(Why.WEIGHT_TOO_SMALL_FOR_FILE), Mode.FLOAT)
        quantized = {node.node for node in draft.plan.nodes if node.mode is not Mode.FLOAT}
        small = small_weights(attempt.prepared.ready.view, least)
        kept = dict.fromkeys((name for name in small if name in quantized), why)
        return self._without(attempt, {**kept, **draft.kept})

    def _stored(self, attempt: StaticAttempt) -> StaticDraft | None:
        """Compute everything in float."""
        why = Why.FILE_GROWS if _has_grown(attempt) else Why.MODEL_LOSES
        return self._without(attempt, {**_stored_only(attempt, why), **attempt.draft.kept})

    # --- time

    def _is_to_time(self, attempt: StaticAttempt) -> bool:
        """Say whether time counts, and a result with integers may be slower than float."""
        if self.costs is None or self.costs.source != "measured" or attempt.reference is None:
            return False
        draft = attempt.draft
        if draft.unstable or (draft.ratio is not None and draft.ratio <= SLOWEST):
            return False
        return any(n.mode in {Mode.STATIC, Mode.INTEGER} for n in draft.plan.nodes)

    def _faster(self, attempt: StaticAttempt) -> StaticDraft | StaticAttempt:
        """Leave out what takes longer than float, if the result does."""
        return self._timed(attempt, lambda ratio: self._slow(attempt, ratio))

    def _all_in_float(self, attempt: StaticAttempt) -> StaticDraft | StaticAttempt:
        """Compute all in float, if the result is slower even so."""
        return self._timed(attempt, lambda _: _stored_only(attempt, Why.SLOWER_THAN_FLOAT))

    def _timed(
        self, attempt: StaticAttempt, slower: Callable[[float], Mapping[str, Kept]]
    ) -> StaticDraft | StaticAttempt:
        """Time a result beside float; return the attempt with its ratio, or where it is slower a draft with less in integers.

        What is left out of integers makes nothing noisier, and nothing larger that was stored before.
        """
        self.monitor.stage("Timing it beside float")
        draft = attempt.draft
        ratio = ratio_to_float(attempt.prepared.source, attempt.path, attempt.feeds)
        if ratio is None:
            note = f"Not compared with float's time: timings are unstable ({load_text()})."
            draft = replace(draft, notes=(*draft.notes, note), unstable=True)
            return replace(attempt, draft=draft)
        if ratio > SLOWEST:
            why = f"The quantized model took {ratio:.2f}x float's time; kept in float: {{}}."
            fewer = self._without(attempt, {**slower(ratio), **draft.kept}, why)
            if fewer is not None:
                return fewer
        return replace(attempt, draft=replace(draft, ratio=ratio))

    def _slow(self, attempt: StaticAttempt, ratio: float) -> Mapping[str, Kept]:
        """Return what to leave out of integers where these took longer than was predicted of them.

        What they took more is shared out over all that is in integers.
        """
        costs, plan, view = self.costs, attempt.draft.plan, attempt.prepared.ready.view
        assert costs is not None  # noqa: S101 - see `_is_to_time`
        more = max(1.0, ratio * costs.total / max(predict(view, plan, costs), 1e-12))
        dearer = replace(
            costs,
            static={name: more * seconds for name, seconds in costs.static.items()},
            quantize={name: more * seconds for name, seconds in costs.quantize.items()},
            dequantize={name: more * seconds for name, seconds in costs.dequantize.items()},
            dynamic={name: more * seconds for name, seconds in costs.dynamic.items()},
        )
        return choose(view, plan, dearer)


def _stored_only(attempt: StaticAttempt, why: Why) -> dict[str, Kept]:
    """Return all linear operators, to compute in float with weights in 8 bits."""
    kept = Kept(because(why), Mode.STORED)
    return dict.fromkeys((p.node for p in attempt.prepared.ready.products), kept)


def _given_up(attempt: StaticAttempt, named: str) -> str:
    """Say what is wrong with an attempt, and what is left out of the next."""
    if not short_of_floor(attempt.checked):
        sizes = f"{attempt.prepared.source.nbytes} -> {attempt.nbytes} bytes"
        return (
            f"The quantized model was not smaller than float ({sizes}): float instead are {named}."
        )
    return f"{noise(attempt.checked)} Less runs in integers therefore, which costs time or size: {named}."


def _named(before: Mapping[str, Kept], kept: Mapping[str, Kept]) -> str:
    """Name what is left out beside what was before."""
    names = [f"'{name}'" for name in kept if kept[name] != before.get(name)]
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
