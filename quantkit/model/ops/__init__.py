"""What operators are, each fact once: float ones, and a row per quantized one. Knows neither onnx nor onnxruntime."""

from quantkit.model.ops.float_ops import FACTS, Kernel, OpFact, channel_axis, fact_of
from quantkit.model.ops.integer_ops import MICROSOFT

__all__ = ["FACTS", "MICROSOFT", "Kernel", "OpFact", "channel_axis", "fact_of"]
