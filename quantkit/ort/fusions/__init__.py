"""onnxruntime.quantization.fusions: sequences of nodes become one operator, in an `ONNXModel`."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from quantkit.graph.messages import to_ir, to_proto
from quantkit.graph.normalize import normalize
from quantkit.graph.shapes import infer_types
from quantkit.ort.missing import missing
from quantkit.ort.onnx_model import ONNXModel
from quantkit.rewrite.fuse import gelu, layer_normalization, lp_normalization

__all__ = ["Fusion", "FusionGelu", "FusionLayerNormalization", "FusionLpNormalization"]


class Fusion:
    """Fuses the sequences of one kind.

    Args:
        model: Is changed in place by `apply`.
    """

    run: Callable[[ir.Model], int]

    def __init__(self, model: ONNXModel) -> None:
        self.model = model

    def apply(self) -> bool:
        """Fuse what there is; say whether there was something."""
        model = to_ir(self.model.model)
        normalize(model)
        infer_types(model)
        if not type(self).run(model):
            return False
        self.model.model.CopyFrom(to_proto(model))
        return True


class FusionGelu(Fusion):
    """Gelu by Erf."""

    run = staticmethod(gelu)


class FusionLayerNormalization(Fusion):
    """LayerNormalization by ReduceMean."""

    run = staticmethod(layer_normalization)


class FusionLpNormalization(Fusion):
    """LpNormalization by ReduceL2."""

    def __init__(self, model: ONNXModel, epsilon: float = 1e-12) -> None:  # noqa: ARG002 - onnxruntime's signature
        super().__init__(model)

    run = staticmethod(lp_normalization)


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
