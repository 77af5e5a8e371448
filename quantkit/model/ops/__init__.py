"""What operators are, each fact once: float ones, and a row per quantized one. Knows neither onnx nor onnxruntime."""

from quantkit.model.ops.integer_ops import MICROSOFT
from quantkit.model.ops.weighted_ops import FACTS, Kernel, OpFact, channel_axis, fact_of

__all__ = ["FACTS", "MICROSOFT", "Kernel", "OpFact", "channel_axis", "fact_of"]
