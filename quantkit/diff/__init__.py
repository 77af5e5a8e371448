"""What differs between two models, or two results.

matching -> nodes, stored -> weights, scales, header, tensor_errors -> models; figures, caveats -> results.
"""

from quantkit.diff.kinds import Kind, kind_of, located
from quantkit.diff.models import ModelDiff, diff_models
from quantkit.diff.results import ResultDiff, diff_results
from quantkit.diff.samples import read_samples

__all__ = ["Kind", "ModelDiff", "ResultDiff", "diff_models", "diff_results", "kind_of", "located"]
__all__ += ["read_samples"]
