"""A request: which model to quantize, with which data and settings, and where the result goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import onnx

from quantkit.calibration.collect import CalibrateOptions
from quantkit.quantize.plan import Kept
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
