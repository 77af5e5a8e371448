"""onnxruntime's tools to find where a quantized model goes astray: inner tensors and weights, side by side.

`quantkit diff` and `quantkit.evaluate_models` do more. Names of tensors are those of either tool, and weights are found
in whatever form they are stored; channels that quantkit equalized are as before (`quantkit.diff.stored`).
"""

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.diff.stored import Factors, Stored, stored_constants
from quantkit.errors import DataError, UsageError
from quantkit.match.nodes import base_name, pair_nodes
from quantkit.ort.calibrate import CalibraterBase, CalibrationDataReader, provided
from quantkit.ort.missing import missing
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, load_model, make_session

__all__ = [
    "DEQUANT_OUTPUT_SUFFIX",
    "QUANT_INPUT_SUFFIX",
    "TENSOR_NAME_QUANT_SUFFIX",
    "collect_activations",
    "compute_activation_error",
    "compute_signal_to_quantization_noice_ratio",
    "compute_weight_error",
    "create_activation_matching",
    "create_weight_matching",
    "modify_model_output_intermediate_tensors",
]

__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
TENSOR_NAME_QUANT_SUFFIX = "_quantized"

Array = NDArray[Any]
_LOG = logging.getLogger(__name__)
_SAVED = "_ReshapedSavedOutput"
# What a tensor is called behind its pair; the pair of a graph's output has that output's name instead.
_BEHIND = re.compile(rf"(?P<tensor>.+?)({DEQUANT_OUTPUT_SUFFIX}|_dequantized)(_\d+)?")
_BEFORE = re.compile(rf"(?P<tensor>.+)({QUANT_INPUT_SUFFIX}|_float)")


class _Saver(CalibraterBase):
    """Puts out every tensor as a row."""

    def augment_graph(self) -> None:
        graph, tensors = self.model.graph, self.ordered_tensors()
        taken = self.names_taken()
        if any(f"{tensor}{_SAVED}" in taken for tensor in tensors):
            raise UsageError("The model puts out its inner tensors already; give the original.")
        row = self.hold([-1], "saved_row", taken)
        _, infos = self.select_tensors_to_calibrate(self.model)
        for tensor in tensors:
            name = f"{tensor}{_SAVED}"
            graph.node.add(op_type="Reshape", name=name, input=[tensor, row], output=[name])
            kind = graph.output.add(name=name).type.tensor_type
            kind.elem_type = infos[tensor].type.tensor_type.elem_type
            kind.shape.dim.add()
        self.write_augmented()


def modify_model_output_intermediate_tensors(
    input_model_path: str | Path,
    output_model_path: str | Path,
    op_types_for_saving: Sequence[str] | None = None,
    save_as_external_data: bool = False,  # noqa: FBT001 - onnxruntime's signature
) -> None:
    """Write a model that puts out the tensors inside it, each as one row.

    Args:
        input_model_path: The model, float or quantized.
        output_model_path: Where to write.
        op_types_for_saving: Only what these operators read and make; None or empty: every float tensor.
        save_as_external_data: Write weights to a file of their own.
    """
    _Saver(
        input_model_path,
        op_types_for_saving,
        output_model_path,
        use_external_data_format=save_as_external_data,
    ).augment_graph()


def collect_activations(
    augmented_model: str | Path,
    input_reader: CalibrationDataReader,
    session_options: Any = None,
    execution_providers: Sequence[str] | None = None,
) -> dict[str, list[Array]]:
    """Run what `modify_model_output_intermediate_tensors` wrote; return the values of each tensor, run by run.

    Args:
        augmented_model: The model.
        input_reader: What to feed.
        session_options: onnxruntime's; None: nothing is optimized.
        execution_providers: Who runs it; None: the CPU.

    Raises:
        DataError: There is no data, or the model does not run on it.
    """
    providers = provided(execution_providers or ())
    session = make_session(
        str(augmented_model), level=0, providers=providers, options=session_options
    )
    names = [v.name for v in session.get_outputs() if v.name.endswith(_SAVED)]
    if not names:
        raise UsageError(
            f"'{augmented_model}' puts out no inner tensors: call modify_model_output_intermediate_tensors first."
        )
    found: dict[str, list[Array]] = {name.removesuffix(_SAVED): [] for name in names}
    for feeds in _feeds(input_reader):
        try:
            values = session.run(names, dict(feeds))
        except RUNTIME_ERRORS as e:
            raise DataError(f"The model does not run on the data: {first_line(e)}") from e
        for kept, value in zip(found.values(), values, strict=True):
            kept.append(value)
    if not next(iter(found.values())):
        raise DataError("The data gave no samples: nothing was run (has it been read before?).")
    return found


def _feeds(reader: Any) -> Iterator[Mapping[str, Array]]:
    if hasattr(reader, "get_next"):
        return iter(lambda: reader.get_next() or None, None)
    return iter(reader)


def create_activation_matching(
    qdq_activations: Mapping[str, Sequence[Array]],
    float_activations: Mapping[str, Sequence[Array]] | None = None,
) -> dict[str, dict[str, Sequence[Array]]]:
    """Return each tensor of a QDQ model before and behind its quantization, and as the float model has it.

    Args:
        qdq_activations: What `collect_activations` gave of the quantized model.
        float_activations: What it gave of the float model; None: the two are not compared.

    Returns:
        By tensor: "pre_qdq", "post_qdq", and "float" where the float model has it.
    """
    found: dict[str, dict[str, Sequence[Array]]] = {}
    for name, values in qdq_activations.items():
        behind, before = _BEHIND.fullmatch(name), _BEFORE.fullmatch(name)
        if behind and behind["tensor"] in qdq_activations:
            tensor = behind["tensor"]
            found[tensor] = {"pre_qdq": qdq_activations[tensor], "post_qdq": values}
        elif before and before["tensor"] in qdq_activations:
            tensor = before["tensor"]
            found[tensor] = {"pre_qdq": values, "post_qdq": qdq_activations[tensor]}
    for tensor, known in found.items():
        if float_activations and tensor in float_activations:
            known["float"] = float_activations[tensor]
    return found


def create_weight_matching(
    float_model_path: str | Path, qdq_model_path: str | Path
) -> dict[str, dict[str, Array]]:
    """Return each weight of a float model that a quantized model stores as integers.

    Args:
        float_model_path: The float model.
        qdq_model_path: The quantized one.

    Returns:
        By the name in the float model: "float", and "dequantized", what the integers stand for.
    """
    model, other = load_model(float_model_path).model, load_model(qdq_model_path).model
    floats, integers = stored_constants(model), stored_constants(other)
    by_reader = _read_alike(model, other)
    factors = Factors(other)
    found = {}
    for name, stored in integers.items():
        if stored.scaling is None:
            continue
        plain = next((n for n in (base_name(name), by_reader.get(name)) if n in floats), None)
        if plain is None:
            _LOG.warning("'%s' has no counterpart in '%s'.", name, float_model_path)
            continue
        pair = _arrays(floats[plain], stored, factors)
        if pair is None:
            _LOG.warning("'%s' has another shape in '%s'.", name, float_model_path)
        else:
            found[plain] = pair
    return found


def _arrays(plain: Stored, stored: Stored, factors: Factors) -> dict[str, Array] | None:
    expected = plain.floats()
    restored, _ = factors.undone(stored.floats(), stored)
    if expected.T.shape == restored.shape != expected.shape:
        restored = restored.T
    if expected.shape != restored.shape:
        return None
    return {"float": expected, "dequantized": restored}


def _read_alike(model: ir.Model, other: ir.Model) -> dict[str, str]:
    """Return, by a constant of the other model, the one that the same input of the same node reads in the first."""
    found = {}
    for node, partner in pair_nodes(model, other).items():
        if node.op_type != partner.op_type:
            continue
        for value, read in zip(node.inputs, partner.inputs, strict=False):
            maker = None if read is None else read.producer()
            if value is not None and maker is not None and maker.op_type == "DequantizeLinear":
                constant = maker.inputs[0]
                found[(constant.name if constant is not None else "") or ""] = value.name or ""
    return found


def compute_signal_to_quantization_noice_ratio(
    x: Sequence[Array] | Array, y: Sequence[Array] | Array
) -> float:
    """Return ``20 log10(|x| / |x - y|)`` in dB, over all arrays together; the spelling is onnxruntime's.

    Raises:
        UsageError: There are not as many values of the one as of the other.
    """
    arrays = [[a] if isinstance(a, np.ndarray) else list(a) for a in (x, y)]
    if len(arrays[0]) != len(arrays[1]):
        raise UsageError(f"{len(arrays[0])} arrays cannot be compared with {len(arrays[1])}.")
    left, right = (np.concatenate([np.ravel(a) for a in each] or [np.empty(0)]) for each in arrays)
    if left.shape != right.shape:
        raise UsageError(f"{left.size} values cannot be compared with {right.size}.")
    least = float(np.finfo(np.float64).eps)  # nothing, or no difference, is so much
    signal = max(float(np.linalg.norm(left.astype(np.float64))), least)
    noise = max(float(np.linalg.norm(left.astype(np.float64) - right)), least)
    return 20 * math.log10(signal / noise)


Error = Callable[[Any, Any], float]


def compute_weight_error(
    weights_match: Mapping[str, Mapping[str, Array]],
    err_func: Error = compute_signal_to_quantization_noice_ratio,
) -> dict[str, float]:
    """Return the error of each weight that `create_weight_matching` found."""
    return {n: err_func(pair["float"], pair["dequantized"]) for n, pair in weights_match.items()}


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Sequence[Array]]],
    err_func: Error = compute_signal_to_quantization_noice_ratio,
) -> dict[str, dict[str, float]]:
    """Return the errors of each tensor that `create_activation_matching` found.

    Returns:
        By tensor: "qdq_err", of its own quantization, and "xmodel_err", of all before it too, where the float model
        has it.
    """
    found = {}
    for tensor, match in activations_match.items():
        errors = {"qdq_err": err_func(match["pre_qdq"], match["post_qdq"])}
        if len(match.get("float", ())):
            errors["xmodel_err"] = err_func(match["float"], match["post_qdq"])
        found[tensor] = errors
    return found


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
