"""A request: which model to quantize, with which data and settings, and where the result goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import onnx

from quantkit.calibration.collect import CalibrateOptions
from quantkit.quantize.plan import Kept, Mode
from quantkit.reasons import Why, because
from quantkit.settings import DataSettings

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[Options]):
    """What to quantize, and how; `Options` is the settings class of the form.

    Attributes:
        source: The float model.
        options: What the user chose.
        data: Samples, or a calibration; None: there are none.
        settings: How samples are prepared.
        calibrate: How samples are read, and ranges estimated.
        kept: Nodes that measuring left in float when the same file was written before; None: nothing was measured yet.
        bits: Likewise, the bits of each weight in the file.
    """

    source: str | Path | onnx.ModelProto
    options: Options
    data: object = None
    settings: DataSettings = field(default_factory=DataSettings)
    calibrate: CalibrateOptions = field(default_factory=CalibrateOptions)
    kept: Mapping[str, Kept] | None = None
    bits: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a result goes.

    Attributes:
        path: The file to write; None: none, only the result is wanted.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
    """

    path: Path | None
    verify: bool = True
    external_data: bool = False


def kept_record(kept: Mapping[str, Kept]) -> dict[str, Any]:
    """Return which nodes were left out of calibrated integers, by how they run instead; nothing if none was.

    Why is not part of it: figures differ from run to run, and the file must not.
    """
    if not kept:
        return {}
    modes: dict[str, list[str]] = {}
    for name, one in kept.items():
        modes.setdefault("any" if one.mode is None else one.mode.value, []).append(name)
    return {"kept": {mode: sorted(names) for mode, names in sorted(modes.items())}}


def kept_of(options: Mapping[str, Any]) -> dict[str, Kept]:
    """Read what `kept_record` wrote."""
    why = because(Why.MEASURED_BEFORE)
    return {
        name: Kept(why, None if mode == "any" else Mode(mode))
        for mode, names in options.get("kept", {}).items()
        for name in names
    }
