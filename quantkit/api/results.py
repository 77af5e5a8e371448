"""The types of what calls return, down to their parts: for code that shows it."""

from quantkit.calibration import Calibration, CalibratorOf
from quantkit.data import Description
from quantkit.deploy.export.prove import Proof
from quantkit.evaluate.diff import ModelDiff, ResultDiff
from quantkit.evaluate.diff.figures import Unit
from quantkit.evaluate.diff.nodes import Change, NodeChange, NodeRef
from quantkit.evaluate.diff.results import CandidateDiff, FigureChange
from quantkit.evaluate.diff.weights import WeightChange
from quantkit.pipeline.export import ExportResult
from quantkit.pipeline.inspect import Inspection, Port
from quantkit.pipeline.optimize import OptimizeResult
from quantkit.pipeline.package import Packaged
from quantkit.pipeline.result import QuantizeResult
from quantkit.pipeline.tune import Candidate, Tuned
from quantkit.pipeline.verify_file import Attestation
from quantkit.quantize.plan import Plan, WeightPlan
from quantkit.quantize.rewrite.simplify import SimplifyReport
from quantkit.runtime.check_result import Verification
from quantkit.runtime.kernels import Fusion

__all__ = [
    "Attestation",
    "Calibration",
    "CalibratorOf",
    "Candidate",
    "CandidateDiff",
    "Change",
    "Description",
    "ExportResult",
    "FigureChange",
    "Fusion",
    "Inspection",
    "ModelDiff",
    "NodeChange",
    "NodeRef",
    "OptimizeResult",
    "Packaged",
    "Plan",
    "Port",
    "Proof",
    "QuantizeResult",
    "ResultDiff",
    "SimplifyReport",
    "Tuned",
    "Unit",
    "Verification",
    "WeightChange",
    "WeightPlan",
]
