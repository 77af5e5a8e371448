"""What a form plans to write: a plan, and what measuring decided."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quantkit.pipeline.result import AnyPlan
from quantkit.quantize.plan import Kept, Mode, Plan
from quantkit.reasons import Why, because


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan, and what led to it. A form may add to it in a subclass.

    Attributes:
        plan: What to do.
        notes: What was done.
        warnings: What the user should know.
    """

    plan: AnyPlan
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDraft(Draft):
    """A plan for quantization, and what measuring decided.

    Attributes:
        kept: Nodes that measuring left in float.
        bits: Bits of weights in the file, where these are less than 8 or differ.
    """

    plan: Plan
    kept: Mapping[str, Kept] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)

    @property
    def decided(self) -> dict[str, Any]:
        """What timing and data decided, for the record of origin."""
        return {**kept_record(self.kept), **({"bits": dict(self.bits)} if self.bits else {})}


def kept_record(kept: Mapping[str, Kept]) -> dict[str, Any]:
    """Return which nodes were left out of calibrated integers, by how they run instead; nothing if none was.

    Why is not part of it: figures differ from run to run, and the file must not.
    """
    if not kept:
        return {}
    modes: dict[str, list[str]] = {}
    for name, one in kept.items():
        modes.setdefault("any" if one.mode is None else one.mode.value, []).append(name)
    return {"kept": {mode: sorted(names) for mode, names in sorted(modes.items())}}


def kept_of(options: Mapping[str, Any]) -> dict[str, Kept]:
    """Read what `kept_record` wrote."""
    why = because(Why.MEASURED_BEFORE)
    return {
        name: Kept(why, None if mode == "any" else Mode(mode))
        for mode, names in options.get("kept", {}).items()
        for name in names
    }
