"""The table [evaluate]: how candidates are measured against the float model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.errors import UsageError
from quantkit.settings.checks import check_at_least, closest
from quantkit.settings.values import Values, flag, number, path, text, wholes

if TYPE_CHECKING:
    from calibrators.plugins import Plugins

__all__ = ["METRICS", "EvaluateSettings", "metric_plugins"]

METRICS = (
    "top-1",
    "top-5",
    "f1",
    "mse",
    "spearman",
    "map",
    "map-50",
    "iou",
    "wer",
    "cer",
    "perplexity",
)
"""The built-in metrics; any other is a plug-in's name, or a function of the user's, "module:function"."""

# More is a slip that would time for hours, or a batch that no memory holds.
_MOST_BATCH = 4096
_MOST_THREADS = 1024
_MOST_TIMED = 16

EVALUATE_VALUES: Values = {
    "metric": text,
    "pairs": flag,
    "answer": text,
    "confidence": number,
    "batches": wholes,
    "threads": wholes,
    "output": path,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSettings:
    """How candidates are measured.

    Attributes:
        metric: One of `METRICS`, a plug-in's name, or "module:function"; None: as the labels suggest.
        pairs: The two columns of `[data.text]` are embedded one by one, and the label is their likeness.
        answer: The output that is judged; None: the first that fits.
        confidence: Of all intervals.
        batches: Batch sizes that are timed.
        threads: Numbers of threads that are timed; 0 is onnxruntime's choice.
        output: The folder to write into; None: the caller's default.
    """

    metric: str | None = None
    pairs: bool = False
    answer: str | None = None
    confidence: float = 0.95
    batches: tuple[int, ...] = (1,)
    threads: tuple[int, ...] = (0,)
    output: Path | None = None

    def __post_init__(self) -> None:
        _check_metric(self.metric)
        if self.pairs and self.metric not in {None, "spearman"}:
            raise UsageError(
                f"pairs are judged by spearman, not by '{self.metric}': leave out one of the two."
            )
        if not 0.5 < self.confidence < 1:  # noqa: PLR2004
            raise UsageError(
                f"confidence '{self.confidence}' is out of range: use more than 0.5, below 1."
            )
        for batch in self.batches:
            check_at_least("batches", batch, 1, _MOST_BATCH)
        for count in self.threads:
            check_at_least("threads", count, 0, _MOST_THREADS)
        for key, values in (("batches", self.batches), ("threads", self.threads)):
            if not values:
                raise UsageError(f"{key} '[]' is empty: give at least one number.")
            if len(values) > _MOST_TIMED:
                raise UsageError(f"{key} has {len(values)} numbers: give at most {_MOST_TIMED}.")


def metric_plugins() -> "Plugins":
    """Return the metrics of other packages: entry points of the group "quantkit.metrics"."""
    from calibrators.plugins import Plugins  # brings numpy, which settings need not

    return Plugins(group="quantkit.metrics", kind="metric", built_in=METRICS, error=UsageError)


def _check_metric(name: str | None) -> None:
    """Refuse a name that is nobody's. Entry points are read for names that are not built in only."""
    if name is None or name in METRICS or ":" in name:
        return
    known = metric_plugins().names()
    if name not in known:
        raise UsageError(
            f"metric '{name}' is unknown{closest(name, known)}: use one of "
            f"{', '.join(known)}, or module:function."
        )
