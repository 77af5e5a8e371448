"""Calibrators and range methods by name: the built-in ones, and plug-ins.

A plug-in is an entry point of the group "quantkit.calibrators" that names a class, or any callable, which takes its
settings as keywords and makes a `Method` (which reads a sketch) or a `Calibrator` (which collects what it
likes). It is imported only when asked for by name. `calibrators.testing` checks it.
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any, cast

from calibrators.calibrator import SketchCalibrator
from calibrators.methods import Entropy, MeanSquaredError, MinMax, Percentile
from calibrators.moving_average import MovingAverage
from calibrators.plugins import Plugins
from calibrators.protocol import Calibrator, Method

__all__ = ["GROUP", "create", "method", "names"]

GROUP = "quantkit.calibrators"

Setting = bool | int | float
Factory = Callable[..., Method | Calibrator]

_BUILT_IN: dict[str, Factory] = {
    "minmax": MinMax,
    "percentile": Percentile,
    "entropy": Entropy,
    "mse": MeanSquaredError,
    "moving_average": MovingAverage,
}
_PLUGINS = Plugins(group=GROUP, kind="calibrator", built_in=_BUILT_IN)


def names() -> tuple[str, ...]:
    """Return every name that `create` knows, the built-in ones first.

    Raises:
        ValueError: A plug-in takes a name that is already in use.
    """
    return _PLUGINS.names()


def method(name: str, **settings: Setting) -> Method:
    """Return a range method by its name.

    Raises:
        ValueError: No such method, no such setting, or a calibrator that reads no sketch.
    """
    found = _make(name, settings)
    if hasattr(found, "observe"):
        raise ValueError(
            f"'{name}' is a calibrator that collects its own statistics, not a method that reads a "
            "sketch; create it before the data is run."
        )
    return found


def create(
    name: str, *, axis: int | None = None, most: int | None = None, **settings: Setting
) -> Calibrator:
    """Return a new calibrator by its name, ready to observe.

    `axis` and `most` are the sketch's; a calibrator that reads no sketch gets them as settings if they are given.

    Args:
        name: A calibrator's, built in or of a plug-in.
        axis: That of the channels; None: one range for the whole tensor.
        most: Values that are counted per batch; None: all.
        **settings: The calibrator's own.

    Raises:
        ValueError: No such calibrator, or no such setting.
    """
    factory = _factory(name)
    if not hasattr(factory, "observe"):
        found = _call(name, factory, settings)
        if not hasattr(found, "observe"):
            return SketchCalibrator(found, axis=axis, most=most)
    given = {key: value for key, value in {"axis": axis, "most": most}.items() if value is not None}
    return cast("Calibrator", _call(name, factory, {**settings, **given}))


def _make(name: str, settings: dict[str, Setting]) -> Method | Calibrator:
    return _call(name, _factory(name), settings)


def _factory(name: str) -> Factory:
    """Return what makes a calibrator. Built-in names never look for plug-ins, which takes milliseconds."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    known = names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise ValueError(f"No calibrator is called '{name}'; there are {', '.join(known)}.{hint}")
    return cast("Factory", _PLUGINS.load(name))


def _call(name: str, factory: Factory, settings: dict[str, Any]) -> Method | Calibrator:
    accepted = inspect.signature(factory)
    try:
        accepted.bind(**settings)
    except TypeError as error:
        takes = ", ".join(accepted.parameters) or "none"
        raise ValueError(f"'{name}' takes other settings ({takes}): {error}.") from error
    return factory(**settings)
