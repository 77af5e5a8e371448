"""onnxruntime's module of the same name."""

from typing import Any

from quantkit.ort.fusions import FusionLpNormalization
from quantkit.ort.missing import missing

__all__ = ["FusionLpNormalization"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
