"""Rules of a release, and what came of them.

A rule bounds one figure of a candidate. The bad end of the figure's interval must keep the bound to pass; it fails if
even the estimate breaks the bound; between the two it is undecided: the sample is too small to tell. What was not
measured is undecided too. Without a confidence the estimate alone is judged: kept or broken.

Figures that mean nothing are not judged: an objection (`quantkit.evaluate.gate.judge`) makes the verdict invalid.

Reads a `quantkit.result.Result` and nothing else; knows no model and no file.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from quantkit.errors import UsageError
from quantkit.evaluate.gate.badge import badge
from quantkit.evaluate.gate.figures import KEYS, unit_of
from quantkit.evaluate.gate.judge import (
    bound_text,
    figure_text,
    judge,
    overall,
    room_text,
    with_verdicts,
)
from quantkit.evaluate.gate.junit import junit_xml
from quantkit.result import Rule
from quantkit.settings import GateSettings, Percent, closest


def rules_of(settings: GateSettings) -> tuple[Rule, ...]:
    """Return the rules that the settings name, judged at the bad end unless they ask for the estimate."""
    limits = {key: getattr(settings, key) for key in KEYS}
    return tuple(
        Rule(
            key=key,
            limit=float(limit),
            confidence=settings.judged_at,
            relative=key == "max_drop" and isinstance(limit, Percent),
        )
        for key, limit in limits.items()
        if limit is not None
    )


def rules_for(
    stored: Sequence[Rule], recipe: GateSettings, flags: GateSettings, without: Collection[str] = ()
) -> tuple[Rule, ...]:
    """Return the rules that hold: flags over the recipe, the recipe over rules that a result holds.

    Args:
        stored: Of the result.
        recipe: The table [gate].
        flags: What the command line says.
        without: Keys of rules that are left out.

    Raises:
        UsageError: A rule is to be left out that there is not.
    """
    # A recipe with any rule replaces the stored rules as a whole, since a rule that was deleted from it must not live
    # on in an old result; flags are added one by one. How surely rules are judged is one choice for all of them:
    # flags, then recipe, then what the stored rules were judged at, so that a flag that adds a rule to a result does
    # not silently judge the new rule more mildly than the others. Unknown keys sort last, and are refused when they
    # are judged.
    base = {r.key: r for r in rules_of(recipe) or stored}
    said = next((s for s in (flags, recipe) if s.estimate or s.confidence is not None), None)
    usual = next((r.confidence for r in base.values()), flags.judged_at)
    usual = usual if said is None else said.judged_at
    found = base | {r.key: replace(r, confidence=usual) for r in rules_of(flags)}
    for key in without:
        if key not in found:
            known = f"there are {', '.join(found)}" if found else "there is none"
            raise UsageError(
                f"There is no rule '{key}' to leave out{closest(key, found)}: {known}."
            )
        del found[key]
    order = sorted(found, key=lambda key: KEYS.index(key) if key in KEYS else len(KEYS))
    return tuple(found[k] if said is None else replace(found[k], confidence=usual) for k in order)


__all__ = ["KEYS", "badge", "bound_text", "figure_text", "judge", "junit_xml", "with_verdicts"]
__all__ += ["overall", "room_text", "rules_for", "rules_of", "unit_of"]
