"""onnxruntime.quantization.execution_providers.qnn: a configuration for Qualcomm's accelerators."""

from typing import Any

from quantkit.ort.execution_providers.qnn.quant_config import get_qnn_qdq_config
from quantkit.ort.missing import missing

__all__ = ["get_qnn_qdq_config"]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
