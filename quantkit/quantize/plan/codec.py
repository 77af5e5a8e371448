"""Plans as plain data: one codec, by the declared fields of the dataclasses that a plan is made of.

A field with `quantkit.spec.LEFT_OUT` in its metadata is newer than the first files, or says nothing as a rule: it is not
written where it has its default. A `Reason` is written as sentence, code and facts, an integer type by its name, and what
shares a scale with a tag (``{"per": "axis", "axis": 1}``).
"""

from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from quantkit.errors import UsageError
from quantkit.numerics.dtypes import IntType
from quantkit.reasons import Reason
from quantkit.settings import QdqSettings
from quantkit.spec import Granularity, named_int_type

_T = TypeVar("_T")
_SHARES = get_args(Granularity)
_REASON: list[Any] = [("why", str), ("code", str, "other"), ("facts", dict[str, Any], {})]


def to_plain(value: Any) -> Any:
    """Return what JSON can hold of a part of a plan; `from_plain` is its inverse."""
    match value:
        case IntType():
            return value.name
        case Enum():
            return value.value
        case tuple():
            return [to_plain(one) for one in value]
        case _ if is_dataclass(value):
            return _written(value)
    return value


def _written(record: Any) -> dict[str, Any]:
    plain = {"per": _tag(type(record))} if isinstance(record, _SHARES) else {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Reason):
            plain |= value.to_json()
        elif not field.metadata.get("left_out") or value != _default(field):
            plain[_name(field)] = to_plain(value)
    return plain


def from_plain(kind: type[_T], plain: Any) -> _T:
    """Read what `to_plain` wrote.

    Raises:
        UsageError: It is none of this kind; says where.
    """
    try:
        shape: Any = kind
        found: _T = _built(kind, msgspec.convert(plain, _schema(shape)))
    except msgspec.ValidationError as e:
        raise UsageError(f"{e}.") from e
    return found


def _built(kind: Any, read: msgspec.Struct) -> Any:
    """Return a record of what the file says, whose shape is right."""
    given: dict[str, Any] = {}
    hints = _hints(kind)
    for field in fields(kind):
        if hints[field.name] is Reason:
            given[field.name] = Reason.from_json(**{n: getattr(read, n) for n, *_ in _REASON})
        else:
            given[field.name] = _value(hints[field.name], getattr(read, _name(field)))
    return kind(**given)


def _value(hint: Any, value: Any) -> Any:
    if hint is IntType:
        return named_int_type(value)
    if hint is QdqSettings:
        return _qdq_settings(value)
    if isinstance(value, msgspec.Struct):
        kinds: list[Any] = [k for k in (hint, *get_args(hint)) if is_dataclass(k)]
        return _built(next(kind for kind in kinds if type(value) is _schema(kind)), value)
    if isinstance(value, tuple):
        return tuple(_value(get_args(hint)[0], one) for one in value)
    return value


def _qdq_settings(plain: dict[str, Any]) -> QdqSettings:
    """Read settings, which check their values themselves; JSON made lists of tuples."""
    known = {field.name for field in fields(QdqSettings)}
    if strange := sorted(plain.keys() - known):
        raise UsageError(f"qdq has no '{strange[0]}': known are {', '.join(sorted(known))}.")
    axes = tuple((str(op_type), axis) for op_type, axis in plain.get("channel_axes", ()))
    outputs = tuple(plain.get("float_outputs", ()))
    return QdqSettings(**{**plain, "channel_axes": axes, "float_outputs": outputs})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields; evaluating them takes longer than reading a record."""
    return get_type_hints(kind)


@cache
def _schema(kind: Any) -> type[msgspec.Struct]:
    """Return what the file must hold of a dataclass."""
    members: list[Any] = []
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, default = hints[field.name], _default(field)
        if hint is Reason:
            members += _REASON
            continue
        given = () if default is MISSING else ({} if hint is QdqSettings else default,)
        members.append((_name(field), _file_type(hint), *given))
    tag = _tag(kind) if kind in _SHARES else None
    return msgspec.defstruct(
        kind.__name__,
        members,
        kw_only=True,
        forbid_unknown_fields=True,
        tag=tag,
        tag_field=tag and "per",
    )


def _file_type(hint: Any) -> Any:
    """Return the type of a field as the file has it."""
    if hint is IntType:
        return str
    if hint is QdqSettings:
        return dict[str, Any]
    if is_dataclass(hint):
        return _schema(hint)  # type: ignore[arg-type]  # it is a type
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        return tuple[tuple(_file_type(one) if one is not ... else ... for one in inner)]  # type: ignore[misc]
    if origin in {Union, UnionType}:
        return Union[tuple(_file_type(one) for one in inner)]  # noqa: UP007 - made of a list
    return hint


def _default(field: Field[Any]) -> Any:
    """Return the default of a field; MISSING if it must be given."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _name(field: Field[Any]) -> str:
    """Return what files call a field."""
    name: str = field.metadata.get("name", field.name)
    return name


def _tag(kind: type) -> str:
    return kind.__name__.removeprefix("Per").lower()
