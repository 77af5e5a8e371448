"""The line of `quantkit tune`: `line` reads from top to bottom, the other modules are its steps."""

from quantkit.pipeline.tune.folder import Candidate
from quantkit.pipeline.tune.line import Tuned, TuneJob, tune
from quantkit.pipeline.tune.samples import Split

__all__ = ["Candidate", "Split", "TuneJob", "Tuned", "tune"]
