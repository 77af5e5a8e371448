"""A plan as a JSON file that people read, edit and compare."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.errors import UsageError
from quantkit.files import replace_text
from quantkit.plan.model import Plan

__all__ = ["FORMAT", "diff_plans", "read_plan", "write_plan"]

FORMAT = "quantkit.plan.1"


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan.

    Raises:
        OutputError: It cannot be written.
    """
    text = json.dumps({"format": FORMAT, **plan.to_json()}, indent=1)
    replace_text(Path(path), f"{text}\n")


def read_plan(path: str | Path) -> Plan:
    """Read a plan.

    Raises:
        UsageError: There is no such file, it is not a plan, or an edit made it wrong; says where.
    """
    try:
        plain = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"Cannot read plan '{path}': {e.strerror or e}.") from e
    except ValueError as e:
        raise UsageError(f"'{path}' is not JSON: {e}.") from e
    if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
        raise UsageError(f"'{path}' is not a plan that this quantkit reads ('{FORMAT}').")
    try:
        return Plan.from_json(plain)
    except (KeyError, TypeError, ValueError) as e:
        raise UsageError(f"Plan '{path}' is damaged: {e!r}.") from e


def diff_plans(before: Plan, after: Plan) -> list[str]:
    """Return one line for each decision that differs, in the order of the plans."""
    old, new = before.to_json(), after.to_json()
    lines = [
        f"{key}: {old[key]} -> {new[key]}"
        for key in ("min_opset", "integer_bias", "evened")
        if old[key] != new[key]
    ]
    for key, name in (("nodes", "node"), ("activations", "tensor"), ("weights", "tensor")):
        was = {entry[name]: entry for entry in old[key]}
        now = {entry[name]: entry for entry in new[key]}
        for item in {**was, **now}:
            lines += _changes(f"{name} '{item}'", was.get(item), now.get(item))
    return lines


def _changes(what: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    if was is None or now is None:
        return [f"{what}: {'added' if was is None else 'removed'}"]
    return [
        f"{what}: {key} {was[key]} -> {now[key]}"
        for key in now
        if key != "why" and was.get(key) != now[key]
    ]
