"""Which nodes the user wants touched: names, patterns, operator types. A rule that matches nothing is an error."""

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from quantkit.errors import UnknownNodeError, UsageError
from quantkit.ops import FACTS

__all__ = ["check_op_types", "resolve_names"]


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
            near = get_close_matches(rule, names, n=1, cutoff=0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise UnknownNodeError(
                f"The model has no node '{rule}'{hint} (`quantkit inspect` lists the nodes)."
            )
        found |= matches
    return frozenset(found)


def check_op_types(op_types: Iterable[str] | None) -> frozenset[str] | None:
    """Check operator types against those that hold weights; None means all of them."""
    if op_types is None:
        return None
    known = {op_type for _, op_type in FACTS}
    chosen = frozenset(op_types)
    unknown = sorted(chosen - known)
    if unknown:
        raise UsageError(
            f"Operator type '{unknown[0]}' cannot be quantized dynamically; "
            f"choose from {', '.join(sorted(known))}."
        )
    return chosen or None
