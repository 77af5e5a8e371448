"""Plans of a prepared model with fewer integers, found on the float model with switches (`quantkit.quantize.solve.losses`).

`quieter` is for a result that is too noisy. `trade_time_for_noise` keeps in float what is nearly free there, for less noise:

1. Small weights of nodes that compute in float anyway stay float in the file as well. That costs bytes and no time.
2. The loudest roundings are left out. The cheapest way to do so is a minimum cut (`quantkit.quantize.plan.measured`); plans that are
   predicted to take little more time are timed next to the one that they would replace.

Such a plan is taken only if it is quieter on samples that did not choose it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from quantkit.calibration.monitor import Monitor
from quantkit.files import scratch
from quantkit.numerics.decibels import decibels
from quantkit.pipeline.measure import time_ratios, write_draft
from quantkit.pipeline.plan_prepared import planner_of
from quantkit.pipeline.prepared import Feeds, Prepared
from quantkit.quantize.plan import Format, Kept, Mode, Plan, SolvedIntegers
from quantkit.quantize.plan.measured import Costs, Losses, choose, predict
from quantkit.quantize.plan.selection import resolve_names
from quantkit.quantize.solve.losses import Meter
from quantkit.quantize.solve.weights import still_static
from quantkit.reasons import Why, because
from quantkit.runtime.check_result import FLOOR_DB
from quantkit.runtime.session import RUNTIME_ERRORS
from quantkit.text import counted

SURE_DB = 0.5  # more than is wanted, of a result that may stay as it is
_LABELS = 0.1  # of the values of outputs without floats that may differ
_STEPS = 12  # plans that are tried to find how much noise is worth
_FINER = 4  # of them between one that is too noisy and one that is not
_PARTS = 32  # to which it is found how many nodes will do
_PUT_BACK = 12  # tries to put some of them back
_COARSE = 8.0  # by what noise is worth more from one to the next

# Of a trade.
_MORE_TIME, _FOR_DB = 0.02, 0.5  # at most this share of the time, for at least so many dB
_MORE_BYTES, _FOR_FREE_DB = 0.01, 0.05  # the same of the bytes of all weights
_UNSURE = 0.03  # a ratio whose interval reaches further above `_MORE_TIME` is not known well enough
_SAMPLES = 32  # of which every fourth chooses, and the others judge: single samples differ by more than a dB
_FEWEST = 4
_CHOOSE = 2  # samples on which single roundings are measured
_SECONDS, _RUNS = 1.5, (16, 48)  # for that, about; and in how many runs
_FEWER = 8  # samples, of a model of which a run takes longer than a thirtieth of a second
_LOUDEST = 16  # roundings that are tried
_QUIET = 1 / 64  # of the noise: what adds less is not worth a try
_TIMED = (1, 2)  # predictions are rough: plans of up to twice the allowed time are timed
_PRICE = 10.0  # of the model's time, for a rounding that is to go: no plan that has it costs less
_SAVED = 3  # bytes of a value that 8 bits save
_WHY = because(Why.NEARLY_FREE)


def quieter(  # noqa: PLR0913 - one parameter per question
    prepared: Prepared,
    plan: Plan,
    solved: SolvedIntegers,
    costs: Costs | None,
    *,
    kept: Mapping[str, Kept],
    aim: float,
    feeds: Feeds,
) -> Mapping[str, Kept]:
    """Return what to leave out of integers so that every output has so many dB, and the model stays as fast as it can.

    Where no plan has that, it is the one that loses least.

    What one unit of noise is worth in seconds is not known: it is raised until the plan that costs least is quiet enough.
    The noise of each plan is measured, not added up: roundings of one signal may add up to more than their powers.

    Args:
        prepared: The model.
        plan: The plan that is too noisy.
        solved: Its integers.
        costs: What each node takes; None: not known.
        kept: What the plan leaves out already.
        aim: SQNR in dB that every output is to have.
        feeds: Samples to measure with.
    """
    ready = prepared.ready
    try:
        meter = Meter(ready.model, ready.view, plan, solved, feeds)
        search = _QuietSearch(prepared, plan, costs or assumed_costs(prepared), kept, meter, aim)
        return search.best()
    except RUNTIME_ERRORS:  # a model that does not run with switches in it
        return kept


class PlanSearch:
    """Plans of a prepared model with less in integers than one has, by the noise of single roundings."""

    def __init__(self, prepared: Prepared, plan: Plan, costs: Costs, losses: Losses) -> None:
        self.view = prepared.ready.view
        self.plan, self.costs, self.losses = plan, costs, losses
        self.nodes = {node.name: node for node in self.view.nodes}
        self.forced = resolve_names(prepared.job.options.forced, self.view.names)
        self._planner = planner_of(prepared, plan.output_format or Format.QDQ)
        self._plans: dict[frozenset[tuple[str, Kept]], Plan] = {}

    def planned(self, kept: Mapping[str, Kept]) -> Plan:
        """Return the plan that leaves these out; made once."""
        key = frozenset(kept.items())
        if key not in self._plans:
            self._plans[key] = self._planner(kept)
        return self._plans[key]

    def left_out(self, losses: Losses, weight: float) -> dict[str, Kept]:
        """Return what is left out where one unit of noise is worth so many seconds; never what the user wants in integers."""
        left = choose(self.view, self.plan, self.costs, losses, weight)
        return {name: one for name, one in left.items() if name not in self.forced}


class _QuietSearch(PlanSearch):
    """Plans by what noise is worth."""

    def __init__(
        self,
        prepared: Prepared,
        plan: Plan,
        costs: Costs,
        kept: Mapping[str, Kept],
        meter: Meter,
        aim: float,
    ) -> None:
        self.meter = meter
        self.allowed = _LABELS if meter.by_labels else 10 ** (-aim / 10)
        super().__init__(prepared, plan, costs, meter.losses(self.allowed))
        # Weights that are stored lose too, and no other choice about integers changes that.
        stored = meter.noise_of(plan, static=False)
        floor = 10 ** (-(FLOOR_DB + SURE_DB) / 10)
        lost = max(stored.values(), default=0.0) > floor
        self.kept = {**kept, **(_float_weights(plan, self.losses, floor) if lost else {})}
        self.tried: dict[frozenset[str], float] = {}

    def best(self) -> Mapping[str, Kept]:
        """Return what the fastest quiet plan leaves out; where none is quiet, what the least noisy one does."""
        loud = sum(self.costs.floats.values()) * self.allowed
        quiet = loud * _COARSE
        for _ in range(_STEPS):
            if self._is_quiet(self._at(quiet)):
                break
            loud, quiet = quiet, quiet * _COARSE
        else:  # what single places lose says too little of what they lose together
            found = self._at(quiet)
            static = [n.node for n in self.plan.nodes if n.mode is Mode.STATIC]
            rest = Kept(because(Why.TOGETHER_NOISY), Mode.STORED)
            left = dict.fromkeys((name for name in static if name not in self.forced), rest)
            return self._put_back(self._fewer(found, {**left, **found}))
        for _ in range(_FINER):
            middle = (loud * quiet) ** 0.5
            loud, quiet = (loud, middle) if self._is_quiet(self._at(middle)) else (middle, quiet)
        # A cut may take many nodes at once: fewer of them may do, the worst first.
        found = self._at(quiet)
        fewer = (found, self._fewer(self._at(loud), found), self._fewer(self.kept, found))
        return self._put_back(min(fewer, key=self._seconds))

    def _fewer(self, loud: Mapping[str, Kept], quiet: Mapping[str, Kept]) -> Mapping[str, Kept]:
        """Return what is left out by one that is too noisy, with as little as will do of what one that is quiet leaves out."""
        more = sorted((n for n in quiet if n not in loud), key=self._lost_by, reverse=True)
        low, high = 0, len(more)
        while high - low > max(1, len(more) // _PARTS):
            middle = (low + high) // 2
            kept = {**loud, **{name: quiet[name] for name in more[:middle]}}
            low, high = (low, middle) if self._is_quiet(kept) else (middle, high)
        return {**loud, **{name: quiet[name] for name in more[:high]}}

    def _put_back(self, kept: Mapping[str, Kept]) -> Mapping[str, Kept]:
        """Put into integers again what was left out with the one that lost most, the quietest first, in parts."""
        if not self._is_quiet(kept):
            return kept
        tries = 0
        size = (len(kept) - len(self.kept)) // 2
        while size and tries < _PUT_BACK:
            left = sorted((n for n in kept if n not in self.kept), key=self._lost_by)
            for start in range(0, len(left), size):
                part = set(left[start : start + size])
                without = {name: one for name, one in kept.items() if name not in part}
                tries += 1
                if self._seconds(without) < self._seconds(kept) and self._is_quiet(without):
                    kept = without
            size //= 2
        return kept

    def _lost_by(self, name: str) -> float:
        """Return what a node's weight and what it reads and makes lose at the output that loses most."""
        node = self.nodes[name]
        found = [self.losses.tensors.get(t, ()) for t in (*node.inputs, *node.outputs)]
        return max(max(f, default=0.0) for f in (*found, self.losses.nodes.get(name, ())))

    def _seconds(self, kept: Mapping[str, Kept]) -> float:
        return predict(self.view, self.planned(kept), self.costs)

    def _at(self, weight: float) -> dict[str, Kept]:
        return self.left_out(self.losses, weight) | dict(self.kept)

    def _is_quiet(self, kept: Mapping[str, Kept]) -> bool:
        """Say whether every output has enough with these left out; measured."""
        key = frozenset(kept)
        if key not in self.tried:
            noise = self.meter.noise_of(self.planned(kept), enough=self.allowed)
            self.tried[key] = max(noise.values(), default=0.0)
        return self.tried[key] <= self.allowed


def _float_weights(plan: Plan, losses: Losses, allowed: float) -> dict[str, Kept]:
    """Return the nodes whose weights lose too much in 8 bits although they compute in float, the worst first."""
    stored = [
        (max(losses.nodes[node.node], default=0.0), node.node)
        for node in plan.nodes
        if node.mode in {Mode.STORED, Mode.INTEGER} and node.node in losses.nodes
    ]
    found, left = dict[str, Kept](), sum(lost for lost, _ in stored)
    for lost, name in sorted(stored, reverse=True):
        if left <= allowed:
            break
        found[name] = Kept(losses.of_weight(name), Mode.FLOAT)
        left -= lost
    return found


def assumed_costs(prepared: Prepared) -> Costs:
    """Return costs where nothing was measured: integers halve what a product takes, and a conversion is a tenth of one."""
    view = prepared.ready.view
    products = {product.node for product in prepared.ready.products}
    floats = {node.name: 1.0 if node.name in products else 0.1 for node in view.nodes}
    converted = dict.fromkeys(view.tensors, 0.1)
    return Costs(
        floats=floats,
        static={name: seconds / 2 for name, seconds in floats.items()},
        quantize=converted,
        dequantize=converted,
        source="assumed",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """A plan that keeps more in float, and notes about its gain and cost."""

    plan: Plan
    kept: Mapping[str, Kept]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A plan with its predicted seconds and the sum of its known noises."""

    plan: Plan
    kept: Mapping[str, Kept]
    seconds: float
    noise: float


def trade_time_for_noise(
    prepared: Prepared,
    plan: Plan,
    solved: SolvedIntegers,
    costs: Costs | None,
    kept: Mapping[str, Kept],
    monitor: Monitor,
) -> Trade:
    """Return a plan that is quieter than one that was measured, and at most 2 % slower; without notes it is the same plan.

    Args:
        prepared: The model.
        plan: The plan to improve.
        solved: Its integers.
        costs: Measured times; None: nothing was measured, and nothing is traded.
        kept: What the plan keeps out of integers already.
        monitor: Told what is done.
    """
    same = Trade(plan=plan, kept=kept, notes=())
    if costs is None or costs.source != "measured" or costs.noise >= 1 or prepared.data is None:
        return same
    # Samples that verify the result neither choose nor judge here.
    count = _SAMPLES if costs.total < 1 / _SAMPLES else _FEWER
    samples, _ = replace(prepared.data, unseen=()).judged(prepared.source, count)
    if len(samples) < _FEWEST:
        return same
    monitor.stage("Looking for what is nearly free in float")
    try:
        others = samples[::4]
        meter = Meter(prepared.ready.model, prepared.ready.view, plan, solved, others)
        if meter.by_labels:
            return same
        runs = min(_RUNS[1], max(_RUNS[0], int(_SECONDS / (_CHOOSE * max(costs.total, 1e-6)))))
        losses = meter.losses(_worst(meter, plan), _CHOOSE, runs)
        search = _TradeSearch(prepared, plan, costs, kept, losses)
        return _traded(
            search, _Judge(prepared, solved, [s for i, s in enumerate(samples) if i % 4])
        )
    except RUNTIME_ERRORS:  # a model that does not run with switches in it
        return same


def _traded(search: "_TradeSearch", judge: "_Judge") -> Trade:
    """Spend bytes, then time, each if it brings enough."""
    best, notes = search.start, list[str]()
    free = search.with_small_weights(best)
    if free.kept != best.kept and (gain := judge.gain(best.plan, free.plan)) >= _FOR_FREE_DB:
        notes.append(_weights_note(best, free, gain))
        best = free
    found = search.quieter(best)
    ratios = _time_ratios(judge.prepared, best.plan, found, judge.samples[:2])
    for one, ratio in sorted(ratios, key=lambda pair: pair[0].noise):
        if (gain := judge.gain(best.plan, one.plan)) >= _FOR_DB:
            notes.append(_time_note(best.plan, one.plan, gain, ratio))
            best = one
            break
    return Trade(plan=best.plan, kept=best.kept, notes=tuple(notes))


class _Judge:
    """Measures whole plans on samples that did not choose them, with the weights that each of them has."""

    def __init__(self, prepared: Prepared, solved: SolvedIntegers, samples: Feeds) -> None:
        self.prepared, self.solved, self.samples = prepared, solved, samples
        self.known: dict[int, float] = {}

    def gain(self, before: Plan, after: Plan) -> float:
        """Return by how many dB a plan is quieter than another."""
        was, now = (max(self._noise_of(plan), 1e-30) for plan in (before, after))
        return decibels(was / now)

    def _noise_of(self, plan: Plan) -> float:
        if id(plan) not in self.known:
            ready = self.prepared.ready
            solved = still_static(ready.products, plan, self.solved)
            feeds = self.samples
            meter = Meter(ready.model, ready.view, plan, solved, feeds, most=len(feeds))
            self.known[id(plan)] = _worst(meter, plan)
        return self.known[id(plan)]


def _worst(meter: Meter, plan: Plan) -> float:
    return max(meter.noise_of(plan).values(), default=0.0)


class _TradeSearch(PlanSearch):
    """Plans with more in float, by the noise of single roundings and by predicted times."""

    def __init__(
        self,
        prepared: Prepared,
        plan: Plan,
        costs: Costs,
        kept: Mapping[str, Kept],
        losses: Losses,
    ) -> None:
        super().__init__(prepared, plan, costs, losses)
        self.single = {**losses.tensors, **losses.nodes}
        self.price = _PRICE * (sum(costs.floats.values()) + sum(costs.static.values()))
        self.start = self._candidate(plan, kept)

    def with_small_weights(self, one: _Candidate) -> _Candidate:
        """Return a plan with more weights in float, of nodes that compute in float: the loudest for their bytes first."""
        stored = [n.node for n in one.plan.nodes if n.mode is Mode.STORED and self._bytes(n.node)]
        left = _MORE_BYTES * sum(self.view.weights[w.tensor].size for w in one.plan.weights)
        more = dict[str, Kept]()
        for name in sorted(stored, key=lambda n: self._loss(n) / self._bytes(n), reverse=True):
            if self._loss(name) > 0 and self._bytes(name) <= left:
                left -= self._bytes(name)
                why = one.kept[name].reason if name in one.kept else _WHY
                more[name] = Kept(why, Mode.FLOAT)
        kept = {**one.kept, **more}
        return self._candidate(self.planned(kept), kept) if more else one

    def _bytes(self, name: str) -> int:
        """Return the bytes that 8 bits save of a node's weights; 0 if it shares one."""
        weights = [self.view.weights[w] for w in self.nodes[name].weights.values()]
        return 0 if any(len(w.uses) > 1 for w in weights) else _SAVED * sum(w.size for w in weights)

    def quieter(self, start: _Candidate) -> list[_Candidate]:
        """Return the quietest plan that is predicted to keep to the allowed time, and one that may turn out to."""
        most = [(1 + multiple * _MORE_TIME) * start.seconds for multiple in _TIMED]
        path = self._path(start, most[-1])
        fitting = [[one for one in path if one.seconds <= seconds] for seconds in most]
        best = [min(found, key=lambda one: one.noise) for found in fitting if found]
        return list({frozenset(one.kept): one for one in best}.values())

    def _path(self, start: _Candidate, most: float) -> list[_Candidate]:
        """Return plans of at most so many seconds, each without one rounding more than the one before."""
        loud = sorted(self.single, key=self._loss, reverse=True)[:_LOUDEST]
        loud = [name for name in loud if self._loss(name) > _QUIET * start.noise]
        alone = {name: self._without([name], start) for name in loud}
        cheap = [name for name in loud if start.seconds <= alone[name].seconds <= most]

        def noise_per_second(name: str) -> float:  # a microsecond is as good as nothing
            one = alone[name]
            return (start.noise - one.noise) / max(one.seconds - start.seconds, 1e-6)

        found, gone = list[_Candidate](), list[str]()
        for name in sorted(cheap, key=noise_per_second, reverse=True):
            one = self._without([*gone, name], start)
            if one.seconds <= most and one.noise < start.noise:
                gone.append(name)
                found.append(one)
        return found

    def _loss(self, name: str) -> float:
        return max(self.single.get(name, ()), default=0.0)

    def _without(self, names: Collection[str], start: _Candidate) -> _Candidate:
        """Return the fastest plan without these roundings, as far as the user's own choices allow that."""
        priced = Losses(
            outputs=("",),
            nodes={n: (1.0,) for n in names if n in self.losses.nodes},
            tensors={t: (1.0,) for t in names if t in self.losses.tensors},
        )
        left = self.left_out(priced, self.price)
        more = {n: replace(one, reason=_WHY) for n, one in left.items()}
        kept = {**more, **start.kept}
        return self._candidate(self.planned(kept), kept)

    def _candidate(self, plan: Plan, kept: Mapping[str, Kept]) -> _Candidate:
        rounded = [t for t in self.losses.tensors if t in plan.activation]
        weights = [n for n in self.losses.nodes if plan.node[n].mode is self.plan.node[n].mode]
        return _Candidate(
            plan=plan,
            kept=kept,
            seconds=predict(self.view, plan, self.costs),
            noise=sum(map(self._loss, (*rounded, *weights))),
        )


def _time_ratios(
    prepared: Prepared, plan: Plan, found: Sequence[_Candidate], feeds: Feeds
) -> list[tuple[_Candidate, float]]:
    """Return the candidates that take little more time than a plan, with the ratio; measured in turns."""
    if not found:
        return []
    with scratch() as folder:
        plans = [plan, *(one.plan for one in found)]
        paths = [write_draft(prepared, p, folder / f"{n}.onnx") for n, p in enumerate(plans)]
        ratios = time_ratios(paths, feeds, width=_MORE_TIME / 4)
    return [
        (one, ratio)
        for one, (ratio, interval) in zip(found, ratios, strict=True)
        if interval is not None
        and ratio <= 1 + _MORE_TIME
        and interval.high <= 1 + _MORE_TIME + _UNSURE
    ]


def _weights_note(before: _Candidate, after: _Candidate, gain: float) -> str:
    """Return what more the file holds in float, and what that gains and costs."""
    count = len({w.tensor for w in before.plan.weights} - {w.tensor for w in after.plan.weights})
    return f"Kept {counted(count, 'small weight')} in float: +{gain:.1f} dB, no more time."


def _time_note(before: Plan, after: Plan, gain: float, ratio: float) -> str:
    """Return what more runs in float, and what that gains and costs."""
    tensors = sum(a.tensor not in after.activation for a in before.activations)
    nodes = sum(
        n.mode is Mode.STATIC and after.node[n.node].mode is not Mode.STATIC for n in before.nodes
    )
    what = counted(tensors, "tensor") if tensors else counted(nodes, "node")
    more = f"for {100 * (ratio - 1):.1f} % more time" if ratio > 1 else "for no more time"
    return f"Kept {what} in float: +{gain:.1f} dB {more}."
