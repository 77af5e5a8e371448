"""The line of `quantkit tune`: `line` reads from top to bottom, the other modules are its steps."""

from quantkit.workflows.tune.folder import Candidate
from quantkit.workflows.tune.line import Tuned, TuneJob, tune
from quantkit.workflows.tune.samples import Split

__all__ = ["Candidate", "Split", "TuneJob", "Tuned", "tune"]
