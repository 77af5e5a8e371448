"""What is to be quantized and how, and what is written into the result about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from quantkit.graph.load import LoadedModel
from quantkit.observe import Calibration
from quantkit.observe.origin import calibration_origin, data_origin
from quantkit.plan import Format
from quantkit.provenance import ModelOrigin, Provenance, model_digest
from quantkit.settings import DataSettings, DynamicSettings, RecoverSettings, StaticSettings
from quantkit.settings.record import dynamic_record, static_record, to_record
from quantkit.workflows.calibrate import CalibrateOptions

__all__ = ["StaticJob", "dynamic_origin", "static_origin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticJob:
    """What to quantize statically, and how.

    Attributes:
        source: The float model.
        data: What activations are calibrated with, or a calibration that was made before.
        options: What is decided about nodes and tensors, and done to win back accuracy.
        calibrate: How ranges are estimated.
        settings: How samples are prepared.
    """

    source: str | Path | onnx.ModelProto
    data: object
    options: StaticSettings = field(default_factory=StaticSettings)
    calibrate: CalibrateOptions = field(default_factory=CalibrateOptions)
    settings: DataSettings = field(default_factory=DataSettings)

    @property
    def output_format(self) -> Format | None:
        """How it is to be written down; None: as the plan says, else QDQ."""
        return None if self.options.format is None else Format(self.options.format)

    @property
    def recover(self) -> RecoverSettings:
        """What is done to win back accuracy."""
        return self.options.recover

    @property
    def methods(self) -> Mapping[str, str]:
        """Other range methods for single tensors, by name or pattern."""
        return self.options.methods


def dynamic_origin(
    loaded: LoadedModel, options: DynamicSettings, how: Mapping[str, Any]
) -> Provenance:
    """Say what came in and what was decided.

    Args:
        loaded: The float model.
        options: What the user chose.
        how: What else decides about the bytes, by name.
    """
    return Provenance(
        kind="dynamic",
        float=ModelOrigin(**model_digest(loaded)),
        options={**dynamic_record(options), **how},
    )


def static_origin(
    loaded: LoadedModel, job: StaticJob, seen: Calibration, how: Mapping[str, Any]
) -> Provenance:
    """Say what came in and what was decided; not how many processes ran, which changes nothing.

    Args:
        loaded: The float model.
        job: What was asked for.
        seen: The calibration.
        how: What else decides about the bytes, by name.
    """
    method = {"method": seen.method, "minmax_only": job.calibrate.minmax_only}
    method |= {"every_value": job.calibrate.every_value, "skip_bad": job.calibrate.skip_bad}
    return Provenance(
        kind="static",
        float=ModelOrigin(**model_digest(loaded)),
        data=data_origin(seen, [value.name or "" for value in loaded.model.graph.inputs]),
        calibration=calibration_origin(seen) if isinstance(job.data, Calibration) else None,
        options={
            **static_record(job.options, job.settings),
            "calibrate": to_record(method),
            **how,
        },
    )
