"""The table [evaluate]: how candidates are measured against the float model."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.errors import UsageError
from quantkit.settings.declare import Settings, Share, Wholes, closest, setting

if TYPE_CHECKING:
    from calibrators.plugins import Plugins


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

_measured = partial(setting, panel="What is measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSettings(Settings):
    """How candidates are measured. Pairs are the two columns of [data.text]; 0 threads are onnxruntime's choice."""

    metric: str | None = _measured(
        f"{', '.join(METRICS)}, a plug-in, or module:function. Default: by the labels.", "NAME"
    )
    pairs: bool = _measured(
        "Embed both --column texts and score their similarity against the label.", default=False
    )
    answer: str | None = _measured("Which output to score. Default: the first that fits.", "OUTPUT")
    confidence: Share = _measured(
        "Confidence of all intervals. Default: 95%.", "C", default=0.95, gt=0.5, lt=1
    )
    batches: Wholes = _measured(
        "Batch size to time. May be repeated. Default: 1.",
        "N",
        default=(1,),
        flag="--time-batch",
        ge=1,
        le=_MOST_BATCH,
    )
    threads: Wholes = _measured(
        "Threads to time with. May be repeated.", "N", default=(0,), ge=0, le=_MOST_THREADS
    )
    output: Path | None = setting("Where to write. Default: evaluation.", "DIR", flag="--output -o")

    def _check(self) -> None:
        _check_metric(self.metric)
        if self.pairs and self.metric not in {None, "spearman"}:
            raise UsageError(
                f"pairs are judged by spearman, not by '{self.metric}': leave out one of the two."
            )
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
