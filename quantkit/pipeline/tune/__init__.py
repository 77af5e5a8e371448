"""The search of `quantkit tune`: `run` reads from top to bottom, the other modules are its steps."""

from quantkit.pipeline.split import Split
from quantkit.pipeline.tune.folder import Candidate
from quantkit.pipeline.tune.job import TuneJob
from quantkit.pipeline.tune.judge import Tuned
from quantkit.pipeline.tune.run import tune

__all__ = ["Candidate", "Split", "TuneJob", "Tuned", "tune"]
