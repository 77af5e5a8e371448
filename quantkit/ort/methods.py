"""onnxruntime's calibration methods by quantkit's names."""

from typing import Any

from quantkit.errors import UsageError
from quantkit.observe import CalibratorOf

__all__ = ["method_of"]

_PERCENTILE = 99.999  # onnxruntime's default
_NAMES = {"MinMax": "minmax", "Entropy": "entropy", "Percentile": "percentile"}


def method_of(
    method: Any, momentum: float | None = None, percentile: float | None = None
) -> CalibratorOf | None:
    """Return the calibrator that is asked for; None if nothing is.

    Args:
        method: A `CalibrationMethod`, quantkit's or onnxruntime's own, or None.
        momentum: Of a moving average of minima and maxima.
        percentile: Per cent of the values kept.

    Raises:
        UsageError: There is no such method, or settings that do not belong to it.
    """
    name = None if method is None else str(getattr(method, "name", method))
    if name == "Distribution":
        raise UsageError(
            "CalibrationMethod.Distribution is for 8-bit floats, which quantkit does not write: use MinMax, "
            "Entropy or Percentile."
        )
    if name is not None and name not in _NAMES:
        raise UsageError(f"Unknown calibration method {method!r}: use one of {', '.join(_NAMES)}.")
    if momentum is not None and name in {None, "MinMax"}:
        return _asked("moving_average", momentum=momentum)
    if name == "Percentile" or (name is None and percentile is not None):
        return _asked("percentile", keep=_PERCENTILE if percentile is None else float(percentile))
    return None if name is None else _asked(_NAMES[name])


def _asked(name: str, **settings: float) -> CalibratorOf:
    ask = CalibratorOf(name=name, settings=tuple(settings.items()))
    try:
        ask.create(1)
    except ValueError as e:
        raise UsageError(str(e)) from e
    return ask
