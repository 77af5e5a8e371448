"""onnxruntime.quantization.execution_providers.qnn: models and configurations for Qualcomm's accelerators."""

from typing import Any

from quantkit.ort.execution_providers.qnn.preprocess import qnn_preprocess_model
from quantkit.ort.execution_providers.qnn.quant_config import get_qnn_qdq_config
from quantkit.ort.missing import missing

__all__ = ["get_qnn_qdq_config", "qnn_preprocess_model"]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
