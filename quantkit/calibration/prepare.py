"""The inputs of a model, as data is opened for them."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from quantkit.data import InputSpec
from quantkit.errors import ModelError
from quantkit.model.graph.load import LoadedModel
from quantkit.settings import DataSettings

__all__ = ["inputs_of", "with_model_folder"]


def inputs_of(source: LoadedModel, *, open_shapes: bool = False) -> tuple[InputSpec, ...]:
    """Return what the model is to be fed; inputs that have a default are left to it.

    A shape that the model leaves open altogether is (), as onnxruntime says it, where `open_shapes` are taken.
    """
    found = []
    for value in source.model.graph.inputs:
        if value.is_initializer():
            continue
        if value.dtype is None or (value.shape is None and not open_shapes):
            raise ModelError(
                f"Input '{value.name}' of {source.name} has no type or no shape; export it with both."
            )
        shape = tuple(n if isinstance(n, int) else None for n in value.shape or ())
        strings = value.dtype is ir.DataType.STRING
        dtype = np.dtype(object if strings else value.dtype.numpy())
        first = value.shape[0] if value.shape else None
        axis = (first.value or "") if isinstance(first, ir.SymbolicDim) else ""
        found.append(InputSpec(name=value.name or "", dtype=dtype, shape=shape, axis=axis))
    return tuple(found)


def with_model_folder(settings: DataSettings, loaded: LoadedModel) -> DataSettings:
    """Let a tokenizer be found beside the model."""
    if loaded.path is None:
        return settings
    text = replace(settings.text, search=(*settings.text.search, loaded.path.parent))
    return replace(settings, text=text)
