"""The table [evaluate]: how candidates are measured against the float model."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from quantkit.errors import UsageError
from quantkit.settings.declare import Range, Setting, check, closest
from quantkit.settings.values import Share

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

_measured = partial(Setting, panel="What is measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSettings:
    """How candidates are measured. Pairs are the two columns of [data.text]; 0 threads are onnxruntime's choice."""

    metric: Annotated[
        str | None,
        _measured(
            f"{', '.join(METRICS)}, a plug-in, or module:function. Default: by the labels.", "NAME"
        ),
    ] = None
    pairs: Annotated[
        bool, _measured("Embed both --column texts and score their similarity against the label.")
    ] = False
    answer: Annotated[
        str | None,
        _measured("Which output to score. Default: the first that fits.", "OUTPUT"),
    ] = None
    confidence: Annotated[
        Share,
        _measured(
            "Confidence of all intervals. Default: 95%.",
            "C",
            range=Range(above=0.5, below=1, words="more than 0.5, below 1"),
        ),
    ] = 0.95
    batches: Annotated[
        tuple[int, ...],
        _measured(
            "Batch size to time. May be repeated. Default: 1.",
            "N",
            flag="--time-batch",
            least=1,
            most=_MOST_BATCH,
        ),
    ] = (1,)
    threads: Annotated[
        tuple[int, ...],
        _measured("Threads to time with. May be repeated.", "N", least=0, most=_MOST_THREADS),
    ] = (0,)
    output: Annotated[
        Path | None, Setting("Where to write. Default: evaluation.", "DIR", flag="--output -o")
    ] = None

    def __post_init__(self) -> None:
        check(self)
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
