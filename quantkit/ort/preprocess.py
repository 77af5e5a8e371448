"""onnxruntime's module of the same name, from which scripts take `quant_pre_process`."""

from typing import Any

from quantkit.ort.missing import missing
from quantkit.ort.shape_inference import quant_pre_process

__all__ = ["quant_pre_process"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
