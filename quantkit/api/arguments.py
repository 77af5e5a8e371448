"""How the calls of the API read their arguments: paths, names, results, settings of samples, methods by name."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit.errors import UsageError
from quantkit.result import Result, load_result, result_file
from quantkit.settings import DataSettings, parse_memory

if TYPE_CHECKING:
    from quantkit.observe import CalibratorOf

__all__ = ["as_path", "check_output", "checked_names", "range_method", "read_result"]
__all__ += ["sample_settings"]


def check_output(model_output: object) -> None:
    """Refuse what is no path."""
    if not isinstance(model_output, str | Path) or not str(model_output):
        raise UsageError(f"model_output is the path to write to, not {model_output!r}.")


def checked_names(names: Sequence[str] | None, parameter: str) -> tuple[str, ...]:
    """Return a list of names as a tuple; a single string or something else is an error."""
    if isinstance(names, str):
        raise UsageError(f"{parameter} is a list of names; write [{names!r}] for one.")
    chosen = tuple(names or ())
    strange = next((name for name in chosen if not isinstance(name, str)), None)
    if strange is not None:
        raise UsageError(f"{parameter} is a list of names, and {strange!r} is none.")
    return chosen


def as_path(given: object, parameter: str) -> Path:
    """Return what is a path as one; anything else is an error."""
    if not isinstance(given, str | Path) or not str(given):
        shown = repr(given) if isinstance(given, str) else type(given).__name__  # a model is long
        raise UsageError(f"{parameter} is a path, not {shown}.")
    return Path(given)


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
    given: dict[str, Any] = {"limit": limit, "batch": batch}
    given["memory"] = None if memory is None else parse_memory(memory)
    return replace(settings or DataSettings(), **{k: v for k, v in given.items() if v is not None})


def range_method(method: str | None, percentile: float | None = None) -> "CalibratorOf":
    """Return the calibrator of that name; without one, the percentile if that is given, else MSE.

    Raises:
        UsageError: There is none, or its setting makes no sense.
    """
    from quantkit.observe import (
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
