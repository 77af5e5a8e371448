"""A plan as a JSON file that people read, edit and compare."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from quantkit.errors import UsageError, as_os_error
from quantkit.files import replace_text
from quantkit.quantize.plan.model import Plan

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
        plain = json.loads(
            Path(path).read_text(encoding="utf-8-sig"),  # some editors mark UTF-8
            object_pairs_hook=_unrepeated,
            parse_constant=_no_number,
        )
    except OSError as e:
        raise as_os_error(UsageError(f"Cannot read plan '{path}': {e.strerror or e}."), e) from e
    except UnicodeDecodeError as e:
        raise UsageError(f"'{path}' is no UTF-8 text: save the file as UTF-8.") from e
    except ValueError as e:
        raise UsageError(f"'{path}' is not JSON: {e}.") from e
    except RecursionError as e:
        raise UsageError(f"'{path}' is no plan: it is nested too deeply.") from e
    if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
        raise UsageError(f"'{path}' is not a plan that this quantkit reads ('{FORMAT}').")
    try:
        return Plan.from_json(plain)
    except UsageError as e:
        raise UsageError(f"Plan '{path}' is wrong: {str(e).rstrip('.')}.") from e


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice: which of the two is meant cannot be told."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key '{twice}' stands twice in one place")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


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
