"""What differs between two models, or two results.

nodes, weights (as `stored` reads them), tensor_errors -> models; figures -> results.
"""

from quantkit.diff.kinds import Kind, kind_of, located, read_samples
from quantkit.diff.models import ModelDiff, compare_models
from quantkit.diff.results import ResultDiff, compare_results

__all__ = [
    "Kind",
    "ModelDiff",
    "ResultDiff",
    "compare_models",
    "compare_results",
    "kind_of",
    "located",
]
__all__ += ["read_samples"]
