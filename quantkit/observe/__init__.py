"""Runs the float model on real data, once, and keeps what all later stages ask for.

points -> requests -> job -> shards -> observations -> calibration
"""

from quantkit.observe.calibration import Calibration, onnxruntime_table
from quantkit.observe.requests import (
    CalibratorAsk,
    ChannelsAsk,
    MomentsAsk,
    ProductsAsk,
    Request,
    SketchAsk,
    SpanAsk,
)

__all__ = [
    "Calibration",
    "CalibratorAsk",
    "ChannelsAsk",
    "MomentsAsk",
    "ProductsAsk",
    "Request",
    "SketchAsk",
    "SpanAsk",
    "onnxruntime_table",
]
