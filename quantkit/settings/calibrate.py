"""The table [calibrate]: how ranges are estimated."""

from dataclasses import dataclass
from pathlib import Path

from quantkit.errors import UsageError
from quantkit.settings.checks import check_at_least
from quantkit.settings.values import Values, number, path, text, whole

__all__ = ["CalibrateSettings"]

_MOST_WORKERS = 256  # processes on one machine

CALIBRATE_VALUES: Values = {
    "method": text,
    "percentile": number,
    "output": path,
    "workers": whole,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateSettings:
    """How ranges are estimated. Which methods there are is known to `calibrators`, not here.

    Attributes:
        method: The calibrator's name; None: the caller's default.
        percentile: For the method "percentile": the share of values kept, in percent.
        output: The calibration file to write; None: beside the model.
        workers: Processes that run the model.
    """

    method: str | None = None
    percentile: float | None = None
    output: Path | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        check_at_least("workers", self.workers, 1, _MOST_WORKERS)
        if self.percentile is not None and not 50 < self.percentile <= 100:  # noqa: PLR2004
            raise UsageError(
                f"percentile '{self.percentile}' is out of range: use more than 50, at most 100."
            )
