"""Plans with fewer integers for a result that is too noisy: found on the float model, before anything is emitted."""

from collections.abc import Mapping

from quantkit.pipeline.plan_prepared import planner_of
from quantkit.pipeline.prepared import Feeds, Prepared
from quantkit.quantize.plan import Format, Kept, Mode, Plan, SolvedIntegers
from quantkit.quantize.plan.measured import Costs, Losses, choose, predict
from quantkit.quantize.plan.selection import resolve_names
from quantkit.quantize.solve.losses import Meter
from quantkit.reasons import Why, because
from quantkit.runtime.check_result import FLOOR_DB
from quantkit.runtime.session import RUNTIME_ERRORS

SURE_DB = 0.5  # more than is wanted, of a result that may stay as it is
_LABELS = 0.1  # of the values of outputs without floats that may differ
_STEPS = 12  # plans that are tried to find how much noise is worth
_FINER = 4  # of them between one that is too noisy and one that is not
_PARTS = 32  # to which it is found how many nodes will do
_PUT_BACK = 12  # tries to put some of them back
_COARSE = 8.0  # by what noise is worth more from one to the next


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
        search = _Search(prepared, plan, costs or assumed_costs(prepared), kept, meter, aim)
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


class _Search(PlanSearch):
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
