"""What is to be quantized and how, and what is written into the result about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from quantkit.calibration import Calibration
from quantkit.calibration.origin import calibration_origin, data_origin
from quantkit.model.graph.load import LoadedModel
from quantkit.model.provenance import ModelOrigin, Provenance, model_digest
from quantkit.pipeline.calibrate import CalibrateOptions
from quantkit.quantize.plan import Format, Kept, Mode
from quantkit.reasons import Why, because
from quantkit.settings import (
    DataSettings,
    RecoverSettings,
    StaticSettings,
)
from quantkit.settings.record import settings_record, to_record

__all__ = ["StaticJob", "kept_of", "kept_record"]
__all__ += ["static_origin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticJob:
    """What to quantize statically, and how.

    Attributes:
        source: The float model.
        data: What activations are calibrated with, or a calibration that was made before.
        options: What is decided about nodes and tensors, and done to win back accuracy.
        calibrate: How ranges are estimated.
        settings: How samples are prepared.
        kept: What measuring decided when the same file was made before: nodes that stay out of calibrated integers; None:
            nobody has measured yet.
        bits: Likewise, how many bits weights have in the file.
    """

    source: str | Path | onnx.ModelProto
    data: object
    options: StaticSettings = field(default_factory=StaticSettings)
    calibrate: CalibrateOptions = field(default_factory=CalibrateOptions)
    settings: DataSettings = field(default_factory=DataSettings)
    kept: Mapping[str, Kept] | None = None
    bits: Mapping[str, int] | None = None

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
            **settings_record(job.options, job.settings),
            "calibrate": to_record(method),
            **how,
        },
    )


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
