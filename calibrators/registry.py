"""Calibrators and range methods by name: the built-in ones, and plug-ins.

A plug-in is an entry point of the group "quantkit.calibrators" that names a class, or any callable, which takes its
settings as keywords and makes a `Method` (which reads a sketch) or a `Calibrator` (which collects what it
likes). It is imported only when asked for by name. `calibrators.testing` checks it.
A method becomes a calibrator beside the sketch that it reads (`SketchCalibrator`).
"""

import difflib
import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from calibrators.methods import Entropy, MeanSquaredError, MinMax, Percentile
from calibrators.moving_average import MovingAverage
from calibrators.plugins import Plugins
from calibrators.protocol import Calibrator, Method, State
from calibrators.ranges import Range
from calibrators.sketch import Sketch


class SketchCalibrator:
    """Collects a sketch, and chooses the range by a method.

    The state has the method's name and settings, as the bytes of a JSON text; `from_state` finds it
    again by `calibrators.registry`, so only methods with a registered name come back.
    """

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    __slots__ = ("method", "sketch")

    def __init__(self, method: Method, *, axis: int | None = None, most: int | None = None) -> None:
        self.method = method
        self.sketch = Sketch(axis=axis, most=most)

    def observe(self, array: NDArray[Any]) -> None:
        """Take in one array."""
        self.sketch.observe(array)

    def merge(self, other: Self) -> None:
        """Take in what `other` saw.

        Raises:
            ValueError: The methods or the sketches' settings differ.
        """
        if self.method != other.method:
            raise ValueError(f"Cannot merge what {other.method} reads into {self.method}.")
        self.sketch.merge(other.sketch)

    def range(self) -> Range:
        """Return the range that the method chooses."""
        return self.method(self.sketch)

    def state(self) -> State:
        """Return what is known."""
        return {"method": _encode(self.method), **self.sketch.state()}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the calibrator that had this state.

        Raises:
            ValueError: The method has no registered name.
        """
        written: dict[str, Any] = json.loads(state["method"].tobytes())
        found = cls(method(written.pop("name"), **written))
        found.sketch = Sketch.from_state(state)
        return found


def _encode(method: Method) -> NDArray[np.uint8]:
    chosen: dict[str, Any] = asdict(method) if is_dataclass(method) else {}
    text = json.dumps({**chosen, "name": method.name}, sort_keys=True)
    return np.frombuffer(text.encode(), np.uint8).copy()


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
