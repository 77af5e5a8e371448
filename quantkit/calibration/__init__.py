"""Runs the float model on real data, once, and keeps what all later stages ask for.

points -> requests -> job -> shards -> observations -> calibration
"""

from quantkit.calibration.calibration import Calibration, onnxruntime_table
from quantkit.calibration.requests import (
    CalibratorOf,
    ChannelSketchesOf,
    MinMaxOf,
    MomentsOf,
    Request,
    SecondMomentOf,
    SketchOf,
)

__all__ = [
    "Calibration",
    "CalibratorOf",
    "ChannelSketchesOf",
    "MinMaxOf",
    "MomentsOf",
    "Request",
    "SecondMomentOf",
    "SketchOf",
    "onnxruntime_table",
]
