"""A plan as a JSON file that people read, edit and compare."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import msgspec

from quantkit.errors import UsageError, as_os_error
from quantkit.files import replace_text
from quantkit.quantize.plan.model import BlockFormat, Format, Mode, Plan
from quantkit.settings import Coverage

__all__ = ["FORMAT", "diff_plans", "read_plan", "write_plan"]

FORMAT = "quantkit.plan.1"

_LARGEST = 3.4028234e38  # of float32
_Small = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


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
        msgspec.convert(plain, _PlanFile)
        return Plan.from_json(plain)
    except (msgspec.ValidationError, UsageError) as e:
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


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    """What a part of the file must look like; `Plan.from_json` reads it."""


class _NodeFile(_Strict):
    node: str
    op_type: str
    mode: Mode
    why: str
    code: str = "other"
    facts: dict[str, Any] = {}
    float_output: bool = False
    accuracy_level: Annotated[int, msgspec.Meta(ge=0, le=4)] = 0


class _ConversionFile(_Strict):
    dtype: str
    scale: Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
    zero_point: _Small
    readers: list[str] = []


class _ActivationFile(_Strict):
    tensor: str
    dtype: str
    scale: Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
    zero_point: _Small
    why: str
    code: str = "other"
    facts: dict[str, Any] = {}
    shares: str = ""
    converted: _ConversionFile | None = None


class _PerTensorFile(_Strict, tag_field="per", tag="tensor"):
    pass


class _PerAxisFile(_Strict, tag_field="per", tag="axis"):
    axis: _Small


class _PerBlockFile(_Strict, tag_field="per", tag="block"):
    axis: _Small
    size: _Small


class _SpecFile(_Strict):
    dtype: str
    granularity: _PerTensorFile | _PerAxisFile | _PerBlockFile
    symmetric: bool
    reduced: bool
    pair_axes: list[list[_Small]]
    sum_axis: _Small | None
    whole: bool = False
    least: float = 0.0
    scales: list[float] = []
    zero_points: list[_Small] = []
    pinned: bool = False


class _BlocksFile(_Strict):
    bits: Annotated[int, msgspec.Meta(ge=2, le=8)]
    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    symmetric: bool
    largest: Annotated[int, msgspec.Meta(ge=1, le=255)]


class _WeightFile(_Strict):
    tensor: str
    spec: _SpecFile
    transposed: bool
    blocks: _BlocksFile | None = None


class _HalfFile(_Strict):
    tensor: str
    dtype: Literal["float16", "bfloat16"]
    why: str
    code: str = "other"
    facts: dict[str, Any] = {}


class _PlanFile(_Strict):
    min_opset: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    nodes: list[_NodeFile]
    weights: list[_WeightFile]
    activations: list[_ActivationFile] = []
    integer_bias: bool = True
    evened: str = ""
    target: str | None = None
    output_format: Format | None = None
    block_format: BlockFormat | None = None
    coverage: Coverage = "gain"
    qdq: dict[str, Any] = {}
    halves: list[_HalfFile] = []


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
