"""A model as it comes, before onnx-ir sees it: mended where onnxruntime takes what onnx-ir does not.

Works on the protobuf message, which is quantkit's own copy; one pass each, linear.
"""

import onnx

from quantkit.graph._proto import described_values

__all__ = ["mend"]


def mend(proto: onnx.ModelProto) -> None:
    """Bring a message into the form that all readers of it agree on, in place.

    1. A negative extent is a dynamic one, as it is for onnxruntime.
    """
    for value in described_values(proto):
        _free_negative_extents(value.type)


def _free_negative_extents(declared: onnx.TypeProto) -> None:
    kind = declared.WhichOneof("value")
    if kind in {"sequence_type", "optional_type"}:
        _free_negative_extents(getattr(declared, kind).elem_type)
    elif kind in {"tensor_type", "sparse_tensor_type"}:
        for extent in getattr(declared, kind).shape.dim:
            if extent.dim_value < 0:
                extent.Clear()
