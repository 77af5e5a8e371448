"""Range methods: each reads a sketch and chooses what part of the values the integers should cover."""

from calibrators.methods.entropy import Entropy
from calibrators.methods.minmax import MinMax
from calibrators.methods.mse import MeanSquaredError
from calibrators.methods.percentile import Percentile

__all__ = ["Entropy", "MeanSquaredError", "MinMax", "Percentile"]
