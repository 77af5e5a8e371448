"""Which tensors share one scale, and the scales that all quantized tensors of a plan get."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from quantkit.quantize.groups import Groups
from quantkit.quantize.plan.model import ActivationPlan
from quantkit.quantize.plan.ranges import FEWEST_STEPS, KnownRange, Ranges
from quantkit.reasons import Reason, Why, because


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors that share one scale.

    Attributes:
        low: The lower end of the hull of their ranges.
        high: The upper end.
        first: The first tensor in it.
        several: Whether they come from more than one; else all have the range of the first.
        fixed: One whose range its formula gives, and the target wants so; "" if there is none.
        narrow: Width and name of the narrowest one that is also read by others than what moves it.
    """

    low: float
    high: float
    first: str
    several: bool = False
    fixed: str = ""
    narrow: tuple[float, str] = (inf, "")

    @property
    def range(self) -> KnownRange:
        """The hull, which all of them have."""
        return KnownRange(self.low, self.high, because(Why.JOINED))


class Sharing:
    """Which tensors share one scale, because integers are moved between them as they are.

    A scale that is shared costs nothing where only the result is read: its reader would have rounded to the same
    steps. It does cost where one of the parts is read by others, too.
    """

    __slots__ = ("_groups", "_known", "_ranges")

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._groups = Groups()
        self._known: dict[str, _Group] = {}

    def against(self, sources: Iterable[str]) -> Reason | None:
        """Return why these tensors, whose ranges are known, cannot share one scale; None if they can."""
        groups = self._groups_of(sources)
        if len(groups) == 1:
            return None
        whole = _merged(groups)
        for group in groups:
            if self._ranges.dtype(group.first) != self._ranges.dtype(whole.first):
                return because(Why.JOINS_TYPES, first=whole.first, tensor=group.first)
            if group.fixed and (group.low, group.high) != (whole.low, whole.high):
                return because(Why.JOINS_FIXED, tensor=group.fixed)
        width, name = whole.narrow
        shared = self._ranges.plan(whole.first, whole.range)
        if shared is not None and width < FEWEST_STEPS * shared.scale:
            return because(Why.JOINS_COARSE, tensor=name)
        return None

    def join(self, sources: Iterable[str], results: Iterable[str]) -> None:
        """Let what is moved, and what it is moved to, share one scale from now on."""
        groups = self._groups_of(sources)
        whole = _merged(groups)
        for tensor in (*(group.first for group in groups), *results):
            self._groups.join(whole.first, tensor)
        self._known[whole.first] = whole

    def plan(self, tensor: str) -> ActivationPlan | None:
        """Return the scale that a tensor shares with others of other ranges; None if there are none."""
        group = self._known.get(self._groups.root(tensor))
        if group is None or not group.several:
            return None
        plan = self._ranges.plan(group.first, group.range)
        return None if plan is None else replace(plan, tensor=tensor)

    def first(self, tensor: str) -> str:
        """Return the first of the tensors that a tensor shares its scale with; "" for itself."""
        root = self._groups.root(tensor)
        return "" if root == tensor else root

    def _groups_of(self, sources: Iterable[str]) -> list[_Group]:
        """Return the groups of what is moved, each once; a tensor that is in none begins one."""
        found: dict[str, _Group] = {}
        for source in sources:
            root = self._groups.root(source)
            known = self._known.get(root) or self._alone(root)
            group = self._known[root] = _with_reader(known, source, self._ranges)
            found[root] = group
        return list(found.values())

    def _alone(self, tensor: str) -> _Group:
        known, maker = self._ranges.of(tensor), self._ranges.view.maker(tensor)
        low, high = (known.low, known.high) if known is not None else (0.0, 0.0)
        fixed = maker is not None and maker.op_type in self._ranges.options.runs_on.fixed_outputs
        return _Group(low, high, tensor, fixed=tensor if fixed else "")


def _with_reader(group: _Group, tensor: str, ranges: Ranges) -> _Group:
    """Return the group of a tensor that is moved, knowing how narrow it is if something else reads it as well."""
    view, known = ranges.view, ranges.of(tensor)
    others = len(set(view.readers.get(tensor, ()))) > 1 or tensor in view.outputs
    if not others or known is None:
        return group
    return replace(group, narrow=min(group.narrow, (known.high - known.low, tensor)))


def _merged(groups: list[_Group]) -> _Group:
    return _Group(
        low=min(g.low for g in groups),
        high=max(g.high for g in groups),
        first=groups[0].first,
        several=len(groups) > 1 or groups[0].several,
        fixed=next((g.fixed for g in groups if g.fixed), ""),
        narrow=min(g.narrow for g in groups),
    )


def activation_plans(
    ranges: Ranges,
    quantized: Iterable[str],
    moved: Mapping[str, tuple[str, ...]],
    joined: Iterable[tuple[tuple[str, ...], tuple[str, ...]]] = (),
    constants: Collection[str] = (),
) -> dict[str, ActivationPlan]:
    """Return scale and zero point of each quantized tensor; what was moved or joined has those of the others.

    Args:
        ranges: What is known of each tensor.
        quantized: Tensors that need a scale, in graph order.
        moved: Tensors that have the numbers of others, which were moved into them.
        joined: What is put together with one scale for all: parts, and results.
        constants: Those that are quantized as weights are, with one scale.
    """
    # Anew: of what shared a scale while nodes were chosen, some may have been taken back.
    sharing, view = Sharing(ranges), ranges.view
    for result, sources in moved.items():
        sharing.join(sources, [result])
    for parts, results in joined:
        sharing.join(parts, results)
    plans: dict[str, ActivationPlan] = {}
    for tensor in quantized:
        source = moved.get(tensor, ("",))[0]
        plan = sharing.plan(tensor)
        if plan is None and source in plans:
            read = plans[source].read_by(view.nodes[view.producer[tensor]].name)
            plan = replace(read, tensor=tensor, reason=because(Why.SAME_AS, tensor=source))
        if plan is None and tensor in constants:
            plan = ranges.weight_plan(tensor)
        plan = plan or ranges.plan(tensor)
        assert plan is not None  # noqa: S101 - only known ranges are taken
        plans[tensor] = ranges.finished(plan, plans.get(first := sharing.first(tensor)), first)
    return plans
