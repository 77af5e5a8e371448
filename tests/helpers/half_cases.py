"""Models in float16 and bfloat16, for tests: whole, inside of float32 ends, and in the file alone."""

from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import onnx
from builders import Array, graph, model, node, rng, save, weight
from onnx import TensorProto

Kind = Literal["float32", "float16", "bfloat16"]
Form = Literal["whole", "inside", "stored"]
FORMS: tuple[tuple[Kind, Form], ...] = tuple(
    (kind, form) for kind in ("float16", "bfloat16") for form in ("whole", "inside", "stored")
)

_TYPES: dict[Kind, tuple[int, type]] = {
    "float32": (TensorProto.FLOAT, np.float32),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}


def network(kind: Kind, form: Form = "whole") -> onnx.ModelProto:
    """Conv, Relu, Conv, Gemm.

    "whole": inputs and outputs too are halves; "inside": between Casts; "stored": weights are halves, behind Casts.
    """
    number, numpy_kind = _TYPES[kind]
    weights = {
        "w0": weight(16, 3, 3, 3),
        "b0": weight(16, seed=1),
        "w1": weight(32, 16, 3, 3, seed=2),
        "w2": weight(128, 160, seed=3),
        "b2": weight(160, seed=4),
    }
    inside, stored = form == "inside", form == "stored"
    ends = ("xh", "yh") if inside else ("x", "y")
    read = {name: f"{name}_float" if stored else name for name in weights}
    nodes = [node("Cast", [n], [read[n]], f"{n}_cast", to=1) for n in weights if stored]
    nodes += [node("Cast", ["x"], ["xh"], "in", to=number)] if inside else []
    nodes += [
        node("Conv", [ends[0], read["w0"], read["b0"]], ["c"], "conv0", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("Conv", ["r", read["w1"]], ["d"], "conv1", strides=[4, 4]),
        node("Flatten", ["d"], ["f"], "flat"),
        node("Gemm", ["f", read["w2"], read["b2"]], [ends[1]], "gemm"),
    ]
    nodes += [node("Cast", ["yh"], ["y"], "out", to=TensorProto.FLOAT)] if inside else []
    types = dict.fromkeys(("x", "y"), number) if form == "whole" else {}
    made = graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 160]}, types=types)
    for name, array in weights.items():
        tensor = made.initializer.add(name=name, dims=array.shape, data_type=number)
        tensor.raw_data = array.astype(numpy_kind).tobytes()
    return model(made, opset=22, ir_version=10)  # Conv has bfloat16 from here on


def images(count: int = 24) -> Array:
    return rng().random((count, 3, 8, 8)).astype(np.float32)


def saved(folder: Path, kind: Kind, form: Form = "whole") -> tuple[Path, Path]:
    """Write a model and its data."""
    data = folder / "data.npz"
    np.savez(data, x=images(), label=np.arange(24) % 160)
    return save(network(kind, form), folder / f"{kind}_{form}.onnx"), data
