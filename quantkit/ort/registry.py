"""onnxruntime's lists of operators, which scripts read to say what is to be quantized.

``list(QLinearOpsRegistry)`` is a list of names there and here. What stands behind a name is onnxruntime's own class
there, and nothing here: the plan decides.
"""

from typing import Any

from quantkit.ort.missing import missing

__all__ = ["CommonOpsRegistry", "IntegerOpsRegistry", "QDQRegistry", "QLinearOpsRegistry"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

_COMMON = ("Gather", "Transpose", "EmbedLayerNormalization")
_MOVED = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Resize", "Split", "Pad", "MaxPool")
_BOTH = ("Conv", "Gemm", "MatMul", "Relu", "Clip", "AveragePool", "Where", *_MOVED)

CommonOpsRegistry: dict[str, None] = dict.fromkeys(_COMMON)
IntegerOpsRegistry: dict[str, None] = dict.fromkeys(
    ("Conv", "MatMul", "Attention", "LSTM", *_COMMON)
)
QLinearOpsRegistry: dict[str, None] = dict.fromkeys(
    (
        *_BOTH,
        *("Add", "ArgMax", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax"),
        *_COMMON,
    )
)
QDQRegistry: dict[str, None] = dict.fromkeys(
    (
        *_BOTH,
        *("BatchNormalization", "ConvTranspose", "CumSum", "Gather", "GatherElements"),
        *("InstanceNormalization", "LayerNormalization", "Slice", "TopK", "Transpose"),
    )
)


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
