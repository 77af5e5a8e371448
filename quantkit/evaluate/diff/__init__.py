"""What differs between two models, or two results.

nodes, weights (as `stored` reads them), tensor_errors -> models; figures -> results.
"""

from quantkit.evaluate.diff.kinds import Kind, kind_of, located, read_samples
from quantkit.evaluate.diff.models import ModelDiff, compare_models
from quantkit.evaluate.diff.results import ResultDiff, compare_results

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
