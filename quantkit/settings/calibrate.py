"""The table [calibrate]: how ranges are estimated."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from quantkit.settings.declare import Range, Setting, check

__all__ = ["CalibrateSettings"]

_MOST_WORKERS = 256  # processes on one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateSettings:
    """How ranges are estimated. None: as the caller does without. Which methods there are is known to `calibrators`."""

    method: Annotated[
        str | None,
        Setting(
            "mse (default), minmax, percentile, entropy, moving_average, or a plug-in. All but the last two can be "
            "chosen again afterwards.",
            "NAME",
        ),
    ] = None
    percentile: Annotated[
        float | None,
        Setting(
            "Percentage of the values kept: 99.99.",
            "P",
            range=Range(above=50, most=100, words="more than 50, at most 100"),
        ),
    ] = None
    output: Annotated[
        Path | None,
        Setting("Result. Default: <model>.calibration here.", "FILE", flag="--output -o"),
    ] = None
    workers: Annotated[
        int | None,
        Setting(
            "Processes on this machine. Default: one per core.",
            "N",
            panel="Workers",
            least=1,
            most=_MOST_WORKERS,
        ),
    ] = None

    def __post_init__(self) -> None:
        check(self)
