"""The inputs of a model: their types, and the batch that they take."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from quantkit.data import InputSpec, Sample
from quantkit.errors import DataError, ModelError
from quantkit.model.graph.edit import own_name
from quantkit.model.graph.load import LoadedModel
from quantkit.settings import DataSettings


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
        found.append(InputSpec(name=own_name(value), dtype=dtype, shape=shape, axis=axis))
    return tuple(found)


def with_model_folder(settings: DataSettings, loaded: LoadedModel) -> DataSettings:
    """Let a tokenizer be found beside the model."""
    if loaded.path is None:
        return settings
    text = replace(settings.text, search=(*settings.text.search, loaded.path.parent))
    return replace(settings, text=text)


def fixed_batch(inputs: Sequence[InputSpec]) -> int | None:
    """Return the batch that the model is built for; None if it takes any.

    That is the leading extent that all inputs with a leading axis share. Where they differ (a
    state of [2, batch, 128] beside a signal), one run takes one sample: 1.
    """
    extents = {spec.shape[0] for spec in inputs if spec.shape}
    if extents <= {None}:
        return None
    if len(extents) == 1:
        return extents.pop()
    return 1


def batch_for(inputs: Sequence[InputSpec], sample: Sample, wanted: int) -> int:
    """Return how many samples make a batch: as many as asked, or as the model is built for.

    Args:
        inputs: What the model takes.
        sample: The first.
        wanted: As the user asked.

    Raises:
        DataError: The model's batch is not a multiple of the sample's.
    """
    fixed = fixed_batch(inputs)
    if fixed is None:
        return wanted
    if sample.whole:
        return 1
    rows = min((a.shape[0] for a in sample.feeds.values() if a.ndim), default=1) or 1
    if fixed % rows:
        raise DataError(
            f"The model takes batches of {fixed}, which samples of {rows} rows ('{sample.name}') do "
            "not fill."
        )
    return fixed // rows
