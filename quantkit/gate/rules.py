"""Rules, from settings and from rules that stand elsewhere."""

from collections.abc import Sequence
from dataclasses import replace

from quantkit.recipe import GateSettings
from quantkit.result import Rule

__all__ = ["KEYS", "merged", "rules_of"]

KEYS = (
    "max_drop",
    "min_size_reduction",
    "max_latency_ratio",
    "min_int8_share",
    "max_flips",
    "min_sqnr_db",
)
"""All rules there are, in the order in which they are shown."""


def rules_of(settings: GateSettings) -> tuple[Rule, ...]:
    """Return the rules that the settings name."""
    limits = {key: getattr(settings, key) for key in KEYS}
    return tuple(
        Rule(key=key, limit=limit, confidence=settings.confidence)
        for key, limit in limits.items()
        if limit is not None
    )


def merged(
    base: Sequence[Rule], over: Sequence[Rule], confidence: float | None = None
) -> tuple[Rule, ...]:
    """Return the rules of `base` with those of `over` in place of rules of the same key.

    Args:
        base: The rules that hold unless said otherwise.
        over: Those that go before.
        confidence: Of all rules; None: each keeps its own, and one of `over` without one takes the base's.
    """
    usual = next((r.confidence for r in base), None)
    found = {r.key: r for r in base}
    found |= {r.key: replace(r, confidence=r.confidence or usual) for r in over}
    order = sorted(found, key=lambda key: KEYS.index(key) if key in KEYS else len(KEYS))
    return tuple(replace(found[k], confidence=confidence or found[k].confidence) for k in order)
