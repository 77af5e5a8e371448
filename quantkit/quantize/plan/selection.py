"""Which nodes the user wants touched: names, patterns, operator types. A rule that matches nothing is an error."""

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from quantkit.errors import UnknownNodeError, UsageError
from quantkit.model.ops import FACTS
from quantkit.reasons import Reason, Why, because

AS_CHOSEN = frozenset({Why.EXCLUDED, Why.NOT_CHOSEN})  # of nodes that the user himself leaves out


def resolve_names(rules: Iterable[str], names: frozenset[str]) -> frozenset[str]:
    """Return the nodes that `rules` name; a rule is a node's name or a pattern such as ``*/attn/*``.

    Raises:
        UnknownNodeError: A rule matches no node.
    """
    found: set[str] = set()
    for rule in rules:
        if rule in names:
            found.add(rule)
            continue
        matches = {name for name in names if fnmatchcase(name, rule)}
        if not matches:
            raise UnknownNodeError(
                f"The model has no node '{rule}'{near(rule, names)} "
                "(`quantkit inspect MODEL --nodes` lists the nodes)."
            )
        found |= matches
    return frozenset(found)


def resolve_tensors(rule: str, names: frozenset[str]) -> frozenset[str]:
    """Return the tensors that a rule names.

    Raises:
        UsageError: It matches none.
    """
    if rule in names:
        return frozenset({rule})
    found = frozenset(name for name in names if fnmatchcase(name, rule))
    if not found:
        raise UsageError(f"The model has no tensor '{rule}'{near(rule, names)}.")
    return found


def check_op_types(
    op_types: Iterable[str] | None, more: Iterable[str] = ()
) -> frozenset[str] | None:
    """Check operator types against those that hold weights, and `more`; None means all of them."""
    if op_types is None:
        return None
    known = {op_type for _, op_type in FACTS} | set(more)
    chosen = frozenset(op_type.strip() for op_type in op_types)
    unknown = sorted(chosen - known)
    if unknown:
        raise UsageError(
            f"Operator type '{unknown[0]}' is not one that can be quantized"
            f"{near(unknown[0], known)} (choose from {', '.join(sorted(known))})."
        )
    return chosen or None


def near(wrong: str, known: Iterable[str]) -> str:
    """Return a question about the nearest name, whatever its case; "" if none is near."""
    by_lower = {name.lower(): name for name in sorted(known)}
    near = get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean '{by_lower[near[0]]}'?" if near else ""


class Selection:
    """The nodes that the user's rules select; a rule that matches nothing is an error."""

    def __init__(
        self,
        names: frozenset[str],
        *,
        op_types: frozenset[str] | None,
        include: Iterable[str],
        exclude: Iterable[str],
    ) -> None:
        self.op_types = op_types
        self.include = resolve_names(include, names)
        self.exclude = resolve_names(exclude, names)

    def against(self, name: str, op_type: str) -> Reason | None:
        """Return why the rules leave a node alone; None if they do not."""
        if name in self.exclude:
            return because(Why.EXCLUDED)
        if self.include and name not in self.include:
            return because(Why.NOT_CHOSEN)
        if self.op_types is not None and op_type not in self.op_types:
            return because(Why.OP_TYPE_NOT_CHOSEN, op_type=op_type)
        return None
