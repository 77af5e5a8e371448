"""A plan as a JSON file that people read, edit and compare."""

import json
from pathlib import Path
from typing import Any, NoReturn

from quantkit.errors import UsageError, as_os_error
from quantkit.files import replace_text
from quantkit.quantize.plan.model import Plan

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
