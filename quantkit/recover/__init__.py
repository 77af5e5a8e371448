"""Accuracy won back without training: numpy and scipy only. Each step says what it must observe and what it changes.

equalize   float weights, before anything is observed
smooth     float weights and scales, from the extremes of each channel
rounding   integers of weights, from the moments of what products read
bias       biases, from the same moments
"""

from quantkit.recover.empirical import SAMPLES, correct_biases
from quantkit.recover.losses import lossy
from quantkit.recover.products import Product, in_groups, moment_requests, products_of
from quantkit.recover.rounding import Rounding
from quantkit.recover.solve import is_static, solve

__all__ = [
    "SAMPLES",
    "Product",
    "Rounding",
    "correct_biases",
    "in_groups",
    "is_static",
    "lossy",
    "moment_requests",
    "products_of",
    "solve",
]
