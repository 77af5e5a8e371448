"""Make a graph smaller without changing what it computes.

A pass is a function ``(model) -> changes``: in place, linear in the number of nodes, in all graphs. Passes rely
on `quantkit.model.graph.normalize`. Outputs keep their names, inputs are untouched.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from quantkit.errors import ModelError, UsageError
from quantkit.model.graph.shapes import infer, shapes
from quantkit.quantize.rewrite.simplify.batchnorm import batchnorm, scale_shift
from quantkit.quantize.rewrite.simplify.constants import constants
from quantkit.quantize.rewrite.simplify.initializers import initializers
from quantkit.quantize.rewrite.simplify.matmul_add import matmul_add
from quantkit.quantize.rewrite.simplify.noops import identity, noops
from quantkit.quantize.rewrite.simplify.patterns import global_pool, hard_sigmoid
from quantkit.quantize.rewrite.simplify.subexpressions import subexpressions
from quantkit.quantize.rewrite.simplify.transposes import transposes

__all__ = ["PASSES", "SimplifyReport", "count_operators", "select", "simplify"]

Pass = Callable[[ir.Model], int]

# In the order in which they run: what is inferred helps to fold, what is folded uncovers nodes that do
# nothing, and without those in between other nodes meet.
PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        "shapes": shapes,
        "identity": identity,
        "constants": constants,
        "noops": noops,
        "transposes": transposes,
        "batchnorm": batchnorm,
        "scale_shift": scale_shift,
        "matmul_add": matmul_add,
        "hard_sigmoid": hard_sigmoid,
        "global_pool": global_pool,
        "subexpressions": subexpressions,
        "initializers": initializers,
    }
)
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimplifyReport:
    """What was done.

    Attributes:
        before: Nodes of each operator type, subgraphs included.
        after: The same, afterwards.
        changes: What each pass that ran changed, in all rounds.
        rounds: How often the passes ran.
        notes: What could not be done, and why.
    """

    before: Mapping[str, int]
    after: Mapping[str, int]
    changes: Mapping[str, int]
    rounds: int
    notes: tuple[str, ...] = ()

    @property
    def nodes_before(self) -> int:
        """The number of nodes before."""
        return sum(self.before.values())

    @property
    def nodes_after(self) -> int:
        """The number of nodes now."""
        return sum(self.after.values())

    @property
    def changed(self) -> bool:
        """Whether anything that runs has changed; shapes only describe."""
        return any(count for name, count in self.changes.items() if name != "shapes")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "before": dict(self.before),
            "after": dict(self.after),
            "changes": dict(self.changes),
            "rounds": self.rounds,
            "notes": list(self.notes),
        }


def simplify(model: ir.Model, passes: Iterable[str] = PASSES) -> SimplifyReport:
    """Run passes in place until nothing changes, at most three times.

    Raises:
        UsageError: There is no pass of that name.
    """
    chosen = select(passes)
    before, total, notes = (
        count_operators(model),
        Counter(dict.fromkeys(chosen, 0)),
        dict[str, None](),
    )
    rounds = 0
    while rounds < _ROUNDS:
        rounds += 1
        changes = _round(model, chosen, notes)
        total.update(changes)
        if not any(count for name, count in changes.items() if name != "shapes"):
            break
    return SimplifyReport(
        before=before,
        after=count_operators(model),
        changes=dict(total),
        rounds=rounds,
        notes=tuple(notes),
    )


def select(passes: Iterable[str] | None = None, exclude: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of passes to run, in their order; all if `passes` is None.

    Raises:
        UsageError: There is no pass of that name.
    """
    wanted, unwanted = set(PASSES if passes is None else passes), set(exclude)
    for name in sorted(wanted | unwanted):
        if name not in PASSES:
            near = get_close_matches(name, PASSES, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(PASSES)}."
            raise UsageError(f"There is no pass '{name}'; {hint}")
    return tuple(name for name in PASSES if name in wanted - unwanted)


def _round(model: ir.Model, chosen: tuple[str, ...], notes: dict[str, None]) -> dict[str, int]:
    """Run the passes once. Shapes are always inferred: other passes rely on them."""
    changes = {}
    for name in chosen if "shapes" in chosen else ("", *chosen):
        try:
            if name:
                changes[name] = PASSES[name](model)
            else:
                infer(model)
        except ModelError as e:
            notes[str(e)] = None
    return changes


def count_operators(model: ir.Model) -> dict[str, int]:
    """Return how many nodes of each operator there are, subgraphs included."""
    counts = Counter(node.op_type for node in model.graph.all_nodes())
    return dict(sorted(counts.items()))
