"""The result of calibration: sketches and ranges of every tensor, audit and provenance, in one file.

The data is run once; which method turns a sketch into a range may be chosen again at any time.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrators import (
    Method,
    MinMax,
    Range,
    Sketch,
    SketchCalibrator,
    Statistic,
)
from calibrators import method as named_method
from quantkit.calibration import requests
from quantkit.calibration.audit import Audit
from quantkit.calibration.container import read_container, write_container
from quantkit.calibration.requests import (
    CalibratorOf,
    Observations,
    Request,
    RunningMinMax,
    stored_name,
)
from quantkit.data import Description
from quantkit.errors import DataError, UsageError

FORMAT = "quantkit.calibration.1"

_REASON = 200  # letters of it that are shown
_HEADER: dict[str, Any] = {
    "model": dict[str, str | int | None],
    "data": Description,
    "order": dict[str, int | bool | None],
    "software": dict[str, str],
    "cpu": str,
    "audit": Audit,
    "names": dict[str, str],
    "warnings": list[str],
    "bad": list[str],
    "requests": list[tuple[str, str, dict[str, Any]]],
}
_SHOWN = 3  # warnings, when printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What is known about a model's activations.

    Attributes:
        seen: The answers to all requests.
        method: The calibrator that gives the ranges, unless another method is asked for.
        header: Model, data, software, audit: plain data.
    """

    seen: Observations
    method: CalibratorOf
    header: Mapping[str, Any]
    # Found when they are first asked for, which every plan does.
    _ranges: dict[str, tuple[float, float]] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        audit = self.header.get("audit") or {}
        lines = [self._head(audit), audit.get("verdict", "")]
        lines += [f"note: {text}" for text in self.header.get("warnings", ())[:_SHOWN]]
        return "\n".join(line for line in lines if line)

    def __repr__(self) -> str:
        return f"<Calibration: {self._head(self.header.get('audit') or {})}>"

    def _head(self, audit: Mapping[str, Any]) -> str:
        seen = f" from {audit['samples']} samples" if "samples" in audit else ""
        return f"ranges of {len(self.tensors)} tensors by {self.method.name}{seen}"

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that have a range, in graph order."""
        ranged = (requests.SketchOf, requests.MinMaxOf, requests.CalibratorOf)
        answers = self.seen.answers.items()
        return tuple(t for t, kinds in answers if any(isinstance(w, ranged) for w in kinds))

    def answer(self, tensor: str, ask: type[Any]) -> Statistic | None:
        """Return a statistic of a tensor by its kind; None if it was not asked for.

        Raises:
            UsageError: There is no such tensor.
        """
        if tensor not in self.seen.answers:
            near = get_close_matches(tensor, self.tensors, 1)
            hint = f"; did you mean '{near[0]}'?" if near else "."
            raise UsageError(f"The calibration has no tensor '{tensor}'{hint}")
        answers = self.seen.answers[tensor].items()
        return next((s for kind, s in answers if isinstance(kind, ask)), None)

    def sketch(self, tensor: str) -> Sketch | None:
        """Return a tensor's distribution; None if only minimum and maximum were taken."""
        found = self.answer(tensor, requests.SketchOf)
        return found if isinstance(found, Sketch) else None

    def holders(self, tensors: Iterable[str]) -> list[int]:
        """Return the places of the samples that hold the smallest and the largest value of each tensor."""
        extremes = [self.seen.extremes[tensor] for tensor in tensors]
        return [s for e in extremes for s in (e.low_sample, e.high_sample) if s >= 0]

    def range(self, tensor: str, method: Method | str | None = None) -> Range:
        """Return a tensor's range: by another method or the name of one, or by the one that the calibration was made with.

        Raises:
            UsageError: There is no such tensor or method, or what the method reads was not collected.
        """
        method = _by_name(method) if isinstance(method, str) else method
        if method is not None and not callable(method):
            raise UsageError(
                f"{method!r} is no range method: give the name of one, such as 'percentile', or calibrators.Percentile(99.9)."
            )
        own = self.seen.answers.get(tensor, {}).get(self.method)
        if method is None and own is not None:
            return own.range()  # type: ignore[attr-defined, no-any-return]  # it is a calibrator
        sketch = self.sketch(tensor)
        if sketch is not None:
            return (method or sketch_method(self.method) or MinMax())(sketch)
        ends = self.answer(tensor, requests.MinMaxOf)
        if isinstance(ends, RunningMinMax) and (method is None or isinstance(method, MinMax)):
            return ends.range()
        raise UsageError(
            f"Of tensor '{tensor}' only minimum and maximum were taken: calibrate again without "
            "--minmax-only to use another method."
        )

    def by(self, method: CalibratorOf) -> "Calibration":
        """Return the same knowledge with another method's ranges.

        Raises:
            UsageError: The method needs what was not collected.
        """
        collected = {kind for kinds in self.seen.answers.values() for kind in kinds}
        if sketch_method(method) is None and method not in collected:
            raise UsageError(
                f"{method.name} collects its own statistics while the data is run, and did not: calibrate "
                f"again with --method {method.name}."
            )
        if method.name != "minmax" and not any(isinstance(w, requests.SketchOf) for w in collected):
            raise UsageError(
                "Only minima and maxima were taken: calibrate again without --minmax-only to use "
                f"{method.name}."
            )
        return replace(self, method=method)

    def ranges(self, method: Method | str | None = None) -> dict[str, tuple[float, float]]:
        """Return lower and upper end by tensor."""
        if method is None and self._ranges:
            return dict(self._ranges)
        found = {tensor: self.range(tensor, method) for tensor in self.tensors}
        ends = {t: (float(r.low[0]), float(r.high[0])) for t, r in found.items()}
        if method is None:
            self._ranges.update(ends)
        return ends

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        header = {
            "format": FORMAT,
            "method": asdict(self.method),
            "requests": [
                [r.tensor, stored_name(r.statistic), asdict(r.statistic)]
                for r in self.seen.requests
            ],
            "bad": self.seen.reasons(),
            **self.header,
        }
        write_container(Path(path), header, self.seen.to_arrays())

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read a file.

        Raises:
            DataError: It is not there, damaged, or written by a newer quantkit.
        """
        header, arrays = read_container(Path(path))
        if header.get("format") != FORMAT:
            raise DataError(
                f"'{path}' is not a calibration that this quantkit reads "
                f"('{header.get('format')}', not '{FORMAT}'); calibrate again."
            )
        try:
            _check_header(header)
            seen = Observations.from_arrays(arrays, _requests(header["requests"]), header["bad"])
            method = _restored(CalibratorOf, header["method"])
            method.create(1)
            _check_types(arrays, seen.to_arrays())
        except Exception as e:  # whatever restoring nonsense raises
            reason = f"{type(e).__name__}: {e}".partition("\n")[0][:_REASON]
            raise DataError(f"'{path}' is damaged ({reason}); calibrate again.") from e
        return cls(
            seen=seen,
            method=method,
            header={
                k: v for k, v in header.items() if k not in {"format", "method", "requests", "bad"}
            },
        )


def _check_header(header: Mapping[str, Any]) -> None:
    """Raise msgspec.ValidationError if a part is not what its readers take it for."""
    for key, kind in _HEADER.items():
        msgspec.convert(header[key], kind)
    for key in ("fingerprint", "preprocessing", "warnings"):
        msgspec.convert(header["data"][key], str if key == "fingerprint" else list[str])


def _check_types(arrays: Mapping[str, NDArray[Any]], again: Mapping[str, NDArray[Any]]) -> None:
    """Raise if what was restored would not be written as it was read: then it is something else."""
    read, written = (
        {name: (array.dtype.str, array.shape) for name, array in each.items()}
        for each in (arrays, again)
    )
    if read != written:
        raise ValueError("its arrays are not those of its requests")


def _requests(listed: Sequence[Any]) -> list[Request]:
    return [
        Request(
            tensor=msgspec.convert(t, str), statistic=_restored(requests.STORED_NAMES[name], fields)
        )
        for t, name, fields in listed
    ]


def _restored(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    """Restore a request's statistic; JSON has no tuples."""
    return msgspec.convert(fields, kind)


def sketch_method(ask: CalibratorOf) -> Method | None:
    """Return the method that reads a sketch; None if the calibrator collects its own."""
    found = ask.create(1)
    return found.method if isinstance(found, SketchCalibrator) else None


def _by_name(name: str) -> Method:
    try:
        return named_method(name)
    except ValueError as e:
        raise UsageError(str(e)) from e


def onnxruntime_table(calibration: Calibration) -> str:
    """Return the ranges as onnxruntime's JSON calibration table (`load_tensors_data` reads it)."""
    return json.dumps(table_of(calibration.ranges(), smooth_quant=False), indent=1)


def table_of(
    ranges: Mapping[str, tuple[float, float]], method: str = "CalibrationMethod.MinMax", **more: Any
) -> dict[str, Any]:
    """Return ranges as the plain data of onnxruntime's `save_tensors_data`.

    Args:
        ranges: Lower and upper end by tensor.
        method: The text of onnxruntime's enumeration, or the name of a method that onnxruntime does not have.
        **more: What else the table says.
    """

    def array(value: float) -> dict[str, Any]:
        return {"data": float(np.float32(value)), "dtype": "float32", "CLS": "numpy.array"}

    data = {
        tensor: {"lowest": array(low), "highest": array(high), "CLS": "TensorData"}
        for tensor, (low, high) in ranges.items()
    }
    theirs = method.startswith("CalibrationMethod.")
    known = {"CLS": "CalibrationMethod", "value": method} if theirs else method
    return {"CLS": "TensorsData", "data": data, "calibration_method": known, **more}
