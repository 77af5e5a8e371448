"""Range estimators: what part of a tensor's values the integers should cover.

numpy only; they know arrays and nothing of graphs, so weights and activations use the same ones.

    ranges      ranges of one array at hand (weights)
    sketch      a mergeable summary of a stream of arrays (activations)
    methods     ranges from a sketch
    moments     extremes, means, variances and products of channels, for rounding, smoothing and bias correction
    registry    calibrators by name, plug-ins included
    plugins     what other packages add, read in one way for all kinds
    tails       ranges for inputs that calibration has not seen
    patches     moments of what a Conv or a matrix product reads, for rounding and bias correction
    testing     the laws, for anyone's calibrator
"""

from calibrators._tally import ExactSum
from calibrators.histogram import Histogram
from calibrators.methods import Entropy, MeanSquaredError, MinMax, Percentile
from calibrators.moments import ChannelExtremes, ChannelMoments, SecondMoment
from calibrators.moving_average import MovingAverage
from calibrators.patches import PatchMoments, Window
from calibrators.protocol import Calibrator, Method, State, Statistic
from calibrators.ranges import Range, RangeMethod, estimate, minmax, mse, percentile
from calibrators.registry import SketchCalibrator, create, method, names
from calibrators.sketch import Sketch
from calibrators.tails import Peaks, unseen_range

__all__ = [
    "Calibrator",
    "ChannelExtremes",
    "ChannelMoments",
    "Entropy",
    "ExactSum",
    "Histogram",
    "MeanSquaredError",
    "Method",
    "MinMax",
    "MovingAverage",
    "PatchMoments",
    "Peaks",
    "Percentile",
    "Range",
    "RangeMethod",
    "SecondMoment",
    "Sketch",
    "SketchCalibrator",
    "State",
    "Statistic",
    "Window",
    "create",
    "estimate",
    "method",
    "minmax",
    "mse",
    "names",
    "percentile",
    "unseen_range",
]
