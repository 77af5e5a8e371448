"""A second model on live requests: compared after the answer went out, or trusted with a share of them.

**Shadow**: the second model is the reference (float). **Canary**: it is the candidate, answers its share, and the model that
was there before is the reference; when a rule is broken for sure it is sent back, and the old one answers everything.

Rules are asked after every request. Their level is shared by all rules and holds for all looks together, so that a candidate
that keeps its rules is sent back with at most that chance, however long it runs. For flips that is exact; for SQNR and latency
in the limit of many requests.

One thread compares; it takes what it has time for, and the rest is counted as dropped. (With a lower priority it would keep
Python's lock for as long as others take its core, and answers would wait for it.)
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import exp, log
from queue import Empty, Full, Queue
from threading import Lock, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from quantkit.deploy.serve.batch import Answer
from quantkit.deploy.serve.engine import RUN_ERRORS, Engine
from quantkit.deploy.serve.protocol import Array
from quantkit.evaluate.gate.judge import judge_live
from quantkit.numerics.rates import evidence, lower_bound
from quantkit.result import Rule
from quantkit.result.live import Live, LiveOutput, Pairs, merged

if TYPE_CHECKING:
    from quantkit.deploy.serve.service import Metrics

_ENOUGH = 100  # rows, for what holds in the limit of many


def alarms(live: Live, rules: Sequence[Rule], alpha: float = 0.05) -> Mapping[str, str]:
    """Return the rules that are broken for sure, by key, with the reason; to be asked after every request.

    Args:
        live: What was seen so far.
        rules: What the candidate must keep.
        alpha: The chance of an alarm that is none, over all looks and all rules.
    """
    found: dict[str, str] = {}
    share = alpha / max(1, len(rules))
    for rule in rules:
        if (
            rule.key == "max_flips"
            and evidence(live.flips, live.decisions, rule.limit) >= 1 / share
        ):
            found[rule.key] = (
                f"{live.flips} of {live.decisions} decisions differ (limit: {100 * rule.limit:g} %)"
            )
        elif rule.key == "min_sqnr_db" and (said := _noisy(live, rule.limit, share)):
            found[rule.key] = said
        elif rule.key == "max_latency_ratio" and _above(
            live.ratios, (1, 0), log(rule.limit), share
        ):
            ratio = exp(live.ratios.mean(1, 0))
            found[rule.key] = f"runs take {ratio:.2f} of the time before (limit: {rule.limit:g})"
    return found


def _noisy(live: Live, limit: float, alpha: float) -> str:
    worst = live.worst
    if worst is None:
        return ""
    if worst.not_finite:
        return f"{worst.not_finite} values of '{worst.output}' are not finite"
    # The rule is broken where the mean of (error * 10^(limit/10) - signal) is above 0.
    if not _above(worst.energies, (-1, 10 ** (limit / 10)), 0.0, alpha):
        return ""
    return f"SQNR of '{worst.output}' is {worst.db:.1f} dB (required: {limit:g} dB)"


def _above(pairs: Pairs, weights: tuple[float, float], limit: float, alpha: float) -> bool:
    """Say whether the mean of a weighted pair is above a limit for sure."""
    if pairs.n < _ENOUGH:
        return False
    return lower_bound(pairs.mean(*weights), pairs.variance(*weights), pairs.n, alpha) > limit


_ROOM = 4  # requests that wait to be compared
_LEVEL = 0.05  # chance that a candidate which keeps its rules is sent back
_SCORES = 2
_CALLED = ("logit", "prob", "class", "score", "label")

Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A request to compare: its inputs, what was answered, and the seconds of the run per row."""

    feeds: Mapping[str, Array]
    outputs: Outputs
    seconds: float
    current: Engine


class Comparison:
    """Two models on live requests."""

    def __init__(
        self,
        second: Engine,
        rules: Sequence[Rule],
        metrics: "Metrics",
        *,
        share: float,
        canary: bool,
    ) -> None:
        """Start to compare.

        Args:
            second: The second model.
            rules: What the candidate must keep.
            metrics: Where it is counted.
            share: Of the requests.
            canary: The second model answers its share; else it is the reference.
        """
        self.second = second
        self.rules = tuple(rules)
        self.share = share
        self.canary = canary
        self.returned = ""  # why the candidate was sent back
        self.on_return: Callable[[str], None] = lambda _: None
        self._metrics = metrics
        metrics.canary.set(1 if canary else 0)
        self._live: Live | None = None
        self._lock = Lock()
        self._queue: Queue[Compared | None] = Queue(_ROOM)
        self._thread = Thread(target=self._work, name="shadow", daemon=True)
        self._thread.start()

    def pick(self, current: Engine) -> Engine:
        """Return who answers a request."""
        trusted = self.canary and not self.returned
        return self.second if trusted and random.random() < self.share else current  # noqa: S311 - a lot is drawn

    def chosen(self, engine: Engine) -> bool:
        """Say whether a request that an engine answered is to be compared."""
        if self.canary:
            return engine is self.second
        return random.random() < self.share  # noqa: S311 - a lot is drawn

    def offer(self, feeds: Mapping[str, Array], found: Answer, current: Engine) -> None:
        """Compare an answered request when there is time; never waits.

        Args:
            feeds: Its inputs.
            found: What was answered.
            current: The model that is served.
        """
        assert found.outputs is not None  # noqa: S101 - it was answered
        seconds = found.ran / found.rows
        one = Compared(feeds=feeds, outputs=found.outputs, seconds=seconds, current=current)
        try:
            self._queue.put_nowait(one)
        except Full:
            self._metrics.dropped.inc()
            self._add(replace(self._empty(current), dropped=1))

    def failed(self, current: Engine, reason: str) -> None:
        """Note that a request could not be compared, and send the candidate back.

        Args:
            current: The model that is served.
            reason: What is wrong with the candidate.
        """
        self._add(replace(self._empty(current), failed=1))
        self.send_back(reason)

    def send_back(self, reason: str) -> None:
        """Let the model that was there before answer everything."""
        if self.canary and not self.returned:
            self.returned = reason
            self._metrics.canary.set(0)
            self.on_return(reason)

    def plain(self, current: Engine) -> dict[str, Any]:
        """Return what /drift says; `current`: the model that is served."""
        with self._lock:
            live = self._live or self._empty(current)
        verdict = judge_live(live, self.rules) if self.rules else None
        worst, seconds = live.worst, live.seconds
        return {
            "mode": "canary" if self.canary else "shadow",
            "share": self.share,
            "active": not self.returned,
            "returned": self.returned or None,
            "sqnr_db": worst.db if worst is not None else None,
            "flip_rate": live.flips / live.decisions if live.decisions else None,
            "reference_ms": 1000 * seconds.a / seconds.n if seconds.n else None,
            "candidate_ms": 1000 * seconds.b / seconds.n if seconds.n else None,
            "verdict": verdict,
            "live": live,
        }

    def close(self) -> None:
        """End the thread; what waits is not compared."""
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(None)
        self._thread.join()

    def _empty(self, current: Engine) -> Live:
        ends = (current.digest, self.second.digest)
        reference, candidate = ends if self.canary else ends[::-1]
        return Live(reference=reference, candidate=candidate)

    def _add(self, part: Live) -> Live:
        """Add up; with another model counting begins anew."""
        with self._lock:
            old = self._live
            same = old is not None and (old.reference, old.candidate) == (
                part.reference,
                part.candidate,
            )
            self._live = merged([old, part]) if old is not None and same else part
            return self._live

    def _work(self) -> None:
        while (one := self._queue.get()) is not None:
            try:
                self._compare(one)
            except Exception as e:  # noqa: BLE001 - the thread goes on, and a candidate nobody can compare does not
                self.failed(one.current, f"it cannot be compared, {e!r}")

    def _compare(self, one: Compared) -> None:
        other = one.current if self.canary else self.second
        start = perf_counter()
        try:
            outputs = other.run(one.feeds)
        except RUN_ERRORS:
            return  # the second model takes less than the first: there is nothing to compare
        seconds = (perf_counter() - start) / _rows(outputs)
        mine = (outputs, seconds)
        theirs = (one.outputs, one.seconds)
        part = compared(mine, theirs, self._empty(one.current))
        live = self._add(part)
        self._count(part)
        if self.canary and not self.returned:
            broken = alarms(live, self.rules, _LEVEL)
            if broken:
                self.send_back("; ".join(f"{key}: {why}" for key, why in broken.items()))

    def _count(self, part: Live) -> None:
        metrics = self._metrics
        metrics.compared.inc(part.decisions or 1)
        metrics.flips.inc(part.flips)
        for one in part.outputs:
            metrics.signal.inc(one.energies.a)
            metrics.error.inc(one.energies.b)


def _rows(outputs: Outputs) -> int:
    return max((len(array) for array in outputs.values() if array.ndim), default=1) or 1


def compared(reference: tuple[Outputs, float], candidate: tuple[Outputs, float], of: Live) -> Live:
    """Return what one request tells: outputs of both models, and their seconds per row.

    Args:
        reference: Of the model that is right by definition.
        candidate: Of the other.
        of: An empty `Live` of the two.
    """
    name = _decider(reference[0])
    decisions = flips = 0
    if name:
        before, now = _decisions(reference[0][name]), _decisions(candidate[0][name])
        decided = (
            before >= 0 if reference[0][name].dtype.kind == "f" else np.ones(len(before), bool)
        )
        decisions = flips = int(decided.sum())
        if before.shape == now.shape:
            flips = int(np.count_nonzero((before != now)[decided]))
    ratio = log(max(candidate[1], 1e-9) / max(reference[1], 1e-9))
    return replace(
        of,
        requests=1,
        decisions=decisions,
        flips=flips,
        decider=name,
        outputs=tuple(
            _energies(output, array, candidate[0][output])
            for output, array in reference[0].items()
            if array.dtype.kind == "f"
        ),
        seconds=_pair(reference[1], candidate[1]),
        ratios=_pair(ratio, 0.0),
    )


def _pair(a: float, b: float) -> Pairs:
    return Pairs(n=1, a=a, b=b, aa=a * a, bb=b * b, ab=a * b)


def _decider(outputs: Outputs) -> str:
    """Return the output that decides, by the rule of evaluations: scores of classes, else one integer per row; "": none."""
    scores = [
        name
        for name, array in outputs.items()
        if array.dtype.kind == "f" and array.ndim == _SCORES and array.shape[1] > 1
    ]
    called = [name for name in scores if any(word in name.lower() for word in _CALLED)]
    whole = [
        name
        for name, array in outputs.items()
        if array.dtype.kind in "iub" and array.ndim in {1, _SCORES} and array.size == len(array)
    ]
    return next(iter((*called, *scores, *whole)), "")


def _decisions(array: Array) -> Array:
    """Return a decision per row; -1 where a score is NaN."""
    if array.dtype.kind != "f":
        return array.reshape(-1)
    if array.ndim != _SCORES or not array.shape[1]:
        return np.empty(0, np.int64)
    found: Array = array.argmax(axis=1)
    found[np.isnan(array).any(axis=1)] = -1
    return found


def _energies(name: str, reference: Array, candidate: Array) -> LiveOutput:
    if reference.shape != candidate.shape:
        return LiveOutput(output=name, not_finite=reference.size)
    count = len(reference) if reference.ndim else 1
    before = reference.reshape(count, -1).astype(np.float64)
    now = candidate.reshape(count, -1).astype(np.float64)
    good = np.isfinite(before)
    told = int(good.any(axis=1).sum())  # a row of which the reference says nothing is no evidence
    lost = good & ~np.isfinite(now)
    good &= ~lost
    a = np.square(before, where=good, out=np.zeros_like(before)).sum(axis=1)
    differences = np.subtract(now, before, where=good, out=np.zeros_like(before))
    b = np.square(differences).sum(axis=1)
    pairs = Pairs(
        n=told,
        a=float(a.sum()),
        b=float(b.sum()),
        aa=float(a @ a),
        bb=float(b @ b),
        ab=float(a @ b),
    )
    return LiveOutput(output=name, energies=pairs, not_finite=int(lost.sum()))
