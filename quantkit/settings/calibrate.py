"""The table [calibrate]: how ranges are estimated."""

from dataclasses import dataclass
from pathlib import Path

from quantkit.settings.declare import Settings, setting

__all__ = ["CalibrateSettings"]

_MOST_WORKERS = 256  # processes on one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateSettings(Settings):
    """How ranges are estimated. None: as the caller does without. Which methods there are is known to `calibrators`."""

    method: str | None = setting(
        "mse (default), minmax, percentile, entropy, moving_average, or a plug-in. All but the last two can be "
        "chosen again afterwards.",
        "NAME",
    )
    percentile: float | None = setting("Percentage of the values kept: 99.99.", "P", gt=50, le=100)
    output: Path | None = setting(
        "Result. Default: <model>.calibration here.", "FILE", flag="--output -o"
    )
    workers: int | None = setting(
        "Processes on this machine. Default: one per core.",
        "N",
        panel="Workers",
        ge=1,
        le=_MOST_WORKERS,
    )
