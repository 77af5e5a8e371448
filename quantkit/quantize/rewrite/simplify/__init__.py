"""Make a graph smaller without changing what it computes.

A pass is a function ``(model) -> changes``: in place, linear in the number of nodes, in all graphs. Passes rely
on `quantkit.model.graph.normalize`. Outputs keep their names, inputs are untouched.

Passes of other packages are entry points of the group "quantkit.passes" (`find_pass`). They run after the built-in ones,
and only when they are asked for: what is installed changes nothing by itself.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Protocol

import onnx_ir as ir

from calibrators.plugins import Plugins
from quantkit.errors import ModelError, UsageError, VerifyError
from quantkit.model.graph.messages import root_cause
from quantkit.model.graph.shapes import infer, shapes
from quantkit.quantize.rewrite.simplify.batchnorm import batchnorm, matmul_add, scale_shift
from quantkit.quantize.rewrite.simplify.constants import constants
from quantkit.quantize.rewrite.simplify.noops import identity, noops, transposes
from quantkit.quantize.rewrite.simplify.patterns import global_pool, hard_sigmoid
from quantkit.quantize.rewrite.simplify.subexpressions import initializers, subexpressions

__all__ = ["PASSES", "PLUGINS", "ModelPass", "SimplifyReport", "find_pass", "run_pass", "select"]
__all__ += ["simplify", "with_pass"]

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

PLUGINS = Plugins(group="quantkit.passes", kind="pass", built_in=PASSES, error=UsageError)
"""The passes of other packages."""


class ModelPass(Protocol):
    """A pass of somebody else's: every `onnx_ir.passes.PassBase` is one, in place or functional.

    The model that it returns computes the same outputs from the same inputs, under the same names.
    """

    def __call__(self, model: ir.Model, /) -> ir.passes.PassResult:
        """Return the model, the same object or a new one, and whether anything was modified."""


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
    before, total, notes = _count(model), Counter(dict.fromkeys(chosen, 0)), dict[str, None]()
    rounds = 0
    while rounds < _ROUNDS:
        rounds += 1
        changes = _round(model, chosen, notes)
        total.update(changes)
        if not any(count for name, count in changes.items() if name != "shapes"):
            break
    return SimplifyReport(
        before=before, after=_count(model), changes=dict(total), rounds=rounds, notes=tuple(notes)
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


def _count(model: ir.Model) -> dict[str, int]:
    counts = Counter(node.op_type for node in model.graph.all_nodes())
    return dict(sorted(counts.items()))


def find_pass(name: str) -> ModelPass:
    """Import a pass: the entry point of that name, or ``module:attribute``. A class is called without arguments.

    Raises:
        UsageError: There is none, it cannot be imported, or is no pass.
    """
    if ":" in name:
        found = PLUGINS.import_named(name, "pass")
    elif name in PASSES:
        raise UsageError(f"The pass '{name}' is built in, and runs unless it is skipped.")
    elif name not in (known := PLUGINS.names()[len(PASSES) :]):
        near = get_close_matches(name, known, 1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        listed = f"there are {', '.join(known)};" if known else "install its package,"
        raise UsageError(
            f"No pass '{name}' is installed{hint}: {listed} or write module:attribute."
        )
    else:
        found = PLUGINS.load(name)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as e:  # whatever a stranger's class raises
            raise UsageError(
                f"The pass '{name}' cannot be made without arguments: {type(e).__name__}: {e}"
            ) from e
    if not callable(found):
        raise UsageError(f"The pass '{name}' is none: it must be callable with an onnx_ir model.")
    made: ModelPass = found
    return made


def run_pass(name: str, run: ModelPass, model: ir.Model) -> ir.passes.PassResult:
    """Run a pass of somebody else's, and look at the form of what it returns; what that computes is the caller's to prove.

    Args:
        name: For messages.
        run: The pass.
        model: It may be changed in place.

    Raises:
        VerifyError: It fails, returns no result, or changes what the model takes and gives.
    """
    before = _signature(model)
    try:
        result = run(model)
    except Exception as e:  # whatever a stranger's code raises
        raise VerifyError(
            f"The pass '{name}' failed: {type(e).__name__}: {root_cause(e)}; nothing was written."
        ) from e
    if not isinstance(result, ir.passes.PassResult):
        raise VerifyError(
            f"The pass '{name}' returned {type(result).__name__}, not an onnx_ir.passes.PassResult; nothing was written."
        )
    after = _signature(result.model)
    if before != after:
        gone, new = (
            [n for n in some if n not in other]
            for some, other in ((before, after), (after, before))
        )
        named = ", ".join(f"'{text}'" for text in (*gone, *new)) or "their order"
        raise VerifyError(
            f"The pass '{name}' changed the model's inputs or outputs ({named}); nothing was written."
        )
    for key, value in model.meta.items():  # a new model knows nothing of what was found at load
        result.model.meta.setdefault(key, value)
    return result


def with_pass(report: SimplifyReport, name: str, result: ir.passes.PassResult) -> SimplifyReport:
    """Return the report with what one more pass has done."""
    changes = {**report.changes, name: int(result.modified)}
    return replace(report, after=_count(result.model), changes=changes)


def _signature(model: ir.Model) -> list[str]:
    """Return what a user of the model sees: names and types of inputs and outputs, in order."""
    ends = (("input", model.graph.inputs), ("output", model.graph.outputs))
    return [f"{kind} {value.name}: {value.dtype}" for kind, values in ends for value in values]
