"""Range estimators: what part of a tensor's values the integers should cover.

numpy only; they know arrays and nothing of graphs, so weights and activations use the same ones.
"""

from calibrators.ranges import Range, RangeMethod, estimate, minmax, mse, percentile

__all__ = ["Range", "RangeMethod", "estimate", "minmax", "mse", "percentile"]
