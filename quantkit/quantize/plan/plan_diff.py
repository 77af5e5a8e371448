"""What differs between two plans."""

from collections.abc import Mapping
from typing import Any

from quantkit.quantize.plan.model import Plan

# What a plan lists, and what an entry is known by.
_LISTED = {"nodes": "node", "activations": "tensor", "weights": "tensor", "halves": "tensor"}


def diff_plans(before: Plan, after: Plan) -> list[str]:
    """Return one line for each decision that differs, in the order of the plans."""
    old, new = before.to_json(), after.to_json()
    lines = [
        f"{key}: {old.get(key, 'not known')} -> {new.get(key, 'not known')}"
        for key in (
            "target",
            "output_format",
            "block_format",
            "min_opset",
            "integer_bias",
            "evened",
        )
        if old.get(key) != new.get(key)
    ]
    lines += [
        f"{key}: {getattr(before, key)} -> {getattr(after, key)}"
        for key in ("coverage", "qdq")
        if getattr(before, key) != getattr(after, key)
    ]
    for key, name in _LISTED.items():
        was = {entry[name]: entry for entry in old.get(key, ())}
        now = {entry[name]: entry for entry in new.get(key, ())}
        for item in {**was, **now}:
            lines += _changes(f"{name} '{item}'", was.get(item), now.get(item))
    return lines


def _changes(what: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    if was is None or now is None:
        return [f"{what}: {'added' if was is None else 'removed'}"]
    return [
        f"{what}: {key} {was.get(key)} -> {now.get(key)}"
        for key in {**was, **now}
        if key not in {"why", "code", "facts"} and was.get(key) != now.get(key)
    ]
