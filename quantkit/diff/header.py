"""What two models say about themselves: versions, metadata, inputs and outputs."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir

from quantkit.diff.attributes import Change
from quantkit.diff.stored import dtype_name

__all__ = ["header_changes", "port_changes"]

_SHOWN = 70  # characters of a value
_DIGEST = 64  # hexadecimal digits of SHA-256
_DIGEST_SHOWN = 12
# What provenance says of the file that it stands in: any difference below differs here too.
_FOLLOWS = frozenset({"content", "seal"})


def header_changes(a: ir.Model, b: ir.Model) -> tuple[Change, ...]:
    """Return the versions and metadata that differ."""
    left, right = dict(_header(a)), dict(_header(b))
    return _changes(left, right)


def port_changes(a: ir.Model, b: ir.Model) -> tuple[Change, ...]:
    """Return the inputs and outputs that differ in type or shape, or are in one model only."""
    return _changes(dict(_ports(a)), dict(_ports(b)))


def _changes(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[Change, ...]:
    return tuple(
        Change(what=key, a=_short(left.get(key, "")), b=_short(right.get(key, "")))
        for key in {**left, **right}
        if left.get(key, "") != right.get(key, "")
    )


def _short(text: str) -> str:
    if len(text) == _DIGEST and set(text) <= set("0123456789abcdef"):
        return text[:_DIGEST_SHOWN]
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _header(model: ir.Model) -> Iterator[tuple[str, str]]:
    yield "IR version", str(model.ir_version or "")
    for domain, version in sorted(model.opset_imports.items()):
        yield f"opset {domain or 'ai.onnx'}", str(version)
    yield "producer", f"{model.producer_name or ''} {model.producer_version or ''}".strip()
    yield "domain", model.domain or ""
    yield "model version", str(model.model_version or "")
    yield "doc string", model.doc_string or ""
    for key, value in sorted(model.metadata_props.items()):
        yield from _entry(key, value)


def _entry(key: str, value: str) -> Iterator[tuple[str, str]]:
    """Yield a metadata entry; one that is a JSON object, as provenance is, leaf by leaf."""
    try:
        plain = json.loads(value) if value.startswith("{") else None
    except (ValueError, RecursionError):
        plain = None
    if isinstance(plain, dict):
        yield from _leaves(key, plain)
    else:
        yield key, value


def _leaves(path: str, plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in sorted(plain.items()):
        if isinstance(value, dict):
            yield from _leaves(f"{path}.{key}", value)
        elif value not in (None, "", []) and key not in _FOLLOWS:
            yield f"{path}.{key}", value if isinstance(value, str) else json.dumps(value)


def _ports(model: ir.Model) -> Iterator[tuple[str, str]]:
    for value in model.graph.inputs:
        if not value.is_initializer():
            yield f"input {value.name}", _form(value)
    for value in model.graph.outputs:
        yield f"output {value.name}", _form(value)


def _form(value: ir.Value) -> str:
    """Return "float32[N, 3, 224, 224]"; a dimension without a name is a question mark."""
    dtype = dtype_name(value.dtype) if value.dtype is not None else "?"
    if value.shape is None:
        return dtype
    extents = (n if isinstance(n, int) else (n.value or "?") for n in value.shape.dims)
    return f"{dtype}[{', '.join(str(n) for n in extents)}]"
