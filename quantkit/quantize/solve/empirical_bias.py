"""Bias correction by what comes out: the quantized model is run, and each channel's mean is brought back.

    b_i  <-  b_i - (E[y'_i] - E[y_i])          y float, y' quantized, over the same samples

The analytic correction (`quantkit.quantize.solve.weights`) knows only the error of the layer's own weights. This one also sees
what rounding and clipping of activations add up to on the way. An error of an earlier layer reaches all later ones, so
layers are corrected one after the other, each in a model in which those before it are right already: as many runs
over the samples as there are layers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import own_name
from quantkit.model.ops.float_ops import CLIPS
from quantkit.quantize.emit import emit_static
from quantkit.quantize.plan import Plan
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.runtime.taps import read_tensors

SAMPLES = 32  # that a mean is taken over

Feeds = Sequence[Mapping[str, NDArray[Any]]]
Means = dict[str, NDArray[np.float64]]


def correct_biases(
    model: ir.Model,
    plan: Plan,
    solved: SolvedIntegers,
    feeds: Feeds,
    progress: Callable[[str], None] = lambda _: None,
) -> SolvedIntegers:
    """Return the same integers with biases that keep each channel's mean.

    `model` is the float model of the plan; it is left as it is. Only biases that `solved` holds are moved.

    Args:
        model: The float model of the plan; it is left as it is.
        plan: What was decided.
        solved: Integers, and the biases that may be moved.
        feeds: The samples whose means are kept.
        progress: Is told what is being done.
    """
    results = _results(model, solved)
    if not results or not feeds:
        return solved
    target = _means(model, tuple(results.values()), feeds)
    for done, (node, tensor) in enumerate(results.items()):
        progress(f"Correcting biases, {done + 1} of {len(results)}")
        candidate = model.clone()
        emit_static(candidate, plan, solved)
        shift = _means(candidate, (tensor,), feeds)[tensor] - target[tensor]
        moved = np.asarray(solved.biases[node] - shift, np.float32)
        solved = replace(solved, biases={**solved.biases, node: moved})
    return solved


def _results(model: ir.Model, solved: SolvedIntegers) -> dict[str, str]:
    """Return the tensor that each corrected product hands on, after the Relu or Clip behind it."""
    found = {}
    for node in model.graph:
        if own_name(node) not in solved.biases:
            continue
        value = node.outputs[0]
        uses = tuple(value.uses())
        if len(uses) == 1 and uses[0].node.op_type in CLIPS:
            value = uses[0].node.outputs[0]
        found[own_name(node)] = own_name(value)
    return found


def _means(model: ir.Model, tensors: Sequence[str], feeds: Feeds) -> Means:
    """Run a model; return the mean of each channel of these tensors, as whoever reads them sees them."""
    values = {o.name: o for node in model.graph for o in node.outputs}
    read = {name: _as_read(values[name]).name or "" for name in tensors}
    totals: Means = {}
    for found in read_tensors(model, read.values(), feeds):
        for tensor, name in read.items():
            array = found[name]
            axis = 1 if array.ndim > 2 else array.ndim - 1  # images or rows
            others = tuple(i for i in range(array.ndim) if i != axis)
            mean = array.mean(axis=others, dtype=np.float64) / len(feeds)
            totals[tensor] = totals[tensor] + mean if tensor in totals else mean
    return totals


def _as_read(value: ir.Value) -> ir.Value:
    """Return what comes out of a value's quantization, where it has one."""
    for use in value.uses():
        if use.node.op_type == "QuantizeLinear":
            integers = use.node.outputs[0]
            for reader in integers.uses():
                if reader.node.op_type == "DequantizeLinear":
                    return reader.node.outputs[0]
    return value
