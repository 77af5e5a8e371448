"""How the calls of the API read their arguments: paths, names, results, settings of samples, methods by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from quantkit.errors import UsageError
from quantkit.result import Result, load_result, result_file
from quantkit.settings import DataSettings
from quantkit.settings.declare import declared, short_repr

if TYPE_CHECKING:
    from quantkit.calibration import CalibratorOf


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def _plain_number(value: Any) -> Any:
    """Return a number of numpy as one of Python: records and files know no others. Arrays are data, and stay."""
    of_numpy = type(value).__module__ == "numpy" and hasattr(value, "item")
    return value.item() if of_numpy and not hasattr(value, "__len__") else value


# What an annotation takes, and how a message says it. None, 0 and 1 answer a question; of lists any order of elements will do.
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("True or False", lambda v: v is None or (isinstance(v, Integral) and v in {0, 1})),
    int: ("a whole number", lambda v: isinstance(v, Integral) and not isinstance(v, bool)),
    float: ("a number", lambda v: isinstance(v, Real) and not isinstance(v, bool)),
    str: ("a text", lambda v: isinstance(v, str)),
    Path: ("a path", lambda v: isinstance(v, str | Path)),
    Mapping: ("a dictionary", lambda v: isinstance(v, Mapping)),
    Callable: ("a function", callable),
    type(None): ("", lambda v: v is None),
    Any: ("", lambda _: True),
    object: ("", lambda _: True),
}


def checked_kinds(function: Callable[P, R]) -> Callable[P, R]:
    """Let a call fail in one line if an argument is none of what its annotation takes.

    What is inside of dictionaries, and whether a number makes sense, is checked where it is used. So are the
    models and results that a call cannot do without: what opens them knows more to say.
    """
    parameters = signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = hints_of(function)
        bound = signature(function).bind(*args, **kwargs)
        for name, given in bound.arguments.items():
            kinds, value = _union(hints[name]), _plain_number(given)
            opened = Path in kinds and parameters[name].default is Parameter.empty
            # Types of weights and formats may also be onnxruntime's own: they are read by their names.
            named = any(isinstance(kind, type) and issubclass(kind, Enum) for kind in kinds)
            if not (opened or named or any(_fits(value, kind) for kind in kinds)):
                # A path may be given as text, and None need not be given.
                words = [_words(k) for k in kinds if not (k is str and Path in kinds)]
                raise UsageError(
                    f"{name} is {' or '.join(filter(None, words))}, not {short_repr(value)}."
                )
            bound.arguments[name] = value
        return function(*bound.args, **bound.kwargs)

    return call


def _union(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def _fits(value: object, kind: Any) -> bool:
    origin = get_origin(kind) or kind
    if origin is not Sequence:
        return _KINDS[origin][1](value) if origin in _KINDS else isinstance(value, origin)
    inner = _union(get_args(kind)[0])
    # Names are looked at by `checked_names`.
    listed = value if isinstance(value, list | tuple | bytes) and str not in inner else ()
    return isinstance(value, Iterable) and all(any(_fits(v, k) for k in inner) for v in listed)


def _words(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin is Sequence:
        inner = " or ".join(map(_words, _union(get_args(kind)[0])))
        return f"a list, each of it {inner}" if inner else "a list"
    return _KINDS[origin][0] if origin in _KINDS else str(origin.__name__)


def check_output(model_output: object) -> None:
    """Refuse what is no path."""
    if not isinstance(model_output, str | Path) or not str(model_output):
        raise UsageError(f"model_output is the path to write to, not {model_output!r}.")


def checked_names(names: Sequence[str] | None, parameter: str) -> tuple[str, ...]:
    """Return a list of names as a tuple; a single string or something else is an error."""
    if isinstance(names, str):
        raise UsageError(f"{parameter} is a list of names; write [{names!r}] for one.")
    chosen = () if names is None else tuple(names)
    strange = next((name for name in chosen if not isinstance(name, str)), None)
    if strange is not None:
        raise UsageError(f"{parameter} is a list of names, and {strange!r} is none.")
    return tuple(map(str, chosen))  # numpy has texts of its own


def as_path(given: object, parameter: str) -> Path:
    """Return what is a path as one; anything else is an error."""
    if not isinstance(given, str | Path) or not str(given):
        shown = repr(given) if isinstance(given, str) else type(given).__name__  # a model is long
        raise UsageError(f"{parameter} is a path, not {shown}.")
    return Path(given)


def optional_path(given: object, parameter: str) -> Path | None:
    """Return what is a path as one, and None as it is."""
    return None if given is None else as_path(given, parameter)


def read_result(given: object) -> tuple[Result, Path | None]:
    """Return a result and its file; what was measured just now has none.

    Raises:
        UsageError: It is neither a result nor the path of one, or cannot be read.
    """
    if isinstance(given, Result):
        return given, None
    path = result_file(as_path(given, "result"))
    return load_result(path), path


def sample_settings(
    settings: DataSettings | None,
    *,
    limit: int | None = None,
    batch: int | None = None,
    memory: int | str | None = None,
) -> DataSettings:
    """Return the settings of samples with the arguments that were given in their place.

    Args:
        settings: What was given as a whole; None: the defaults.
        limit: Samples at most; None: as the settings say.
        batch: Samples per run; None: as the settings say.
        memory: Bytes, or a text such as "2 GB"; None: as the settings say.
    """
    given: dict[str, Any] = {"limit": limit, "batch": batch, "memory": memory}
    return replace(settings or DataSettings(), **{k: v for k, v in given.items() if v is not None})


def settings_from(kind: type[S], arguments: Mapping[str, Any], **more: Any) -> S:
    """Return settings of a class, made of the arguments of a call that are called as its settings are.

    Args:
        kind: The class; it reads and checks every value.
        arguments: All arguments of the call by name: its `locals()`, before it defines anything.
        more: Settings that the call names differently.
    """
    named = {name: arguments[name] for name in declared(kind) if name in arguments}
    return kind(**{**named, **more})


def range_method(method: str | None, percentile: float | None = None) -> "CalibratorOf":
    """Return the calibrator of that name; without one, the percentile if that is given, else MSE.

    Raises:
        UsageError: There is none, or its setting makes no sense.
    """
    from quantkit.calibration import (
        CalibratorOf,  # numpy and more, which judging a result does not need
    )

    if percentile is not None and method not in {None, "percentile"}:
        raise UsageError(f"percentile is for the method 'percentile', not '{method}'.")
    keep: Any = (("keep", percentile),) if percentile is not None else ()
    try:
        ask = CalibratorOf(name=method or ("percentile" if keep else "mse"), settings=keep)
        ask.create(1)
    except ValueError as e:
        raise UsageError(str(e)) from e
    return ask
