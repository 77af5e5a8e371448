"""onnxruntime's command of the same name: ``python -m quantkit.ort.static_quantize_runner -i IN -o OUT``.

It calibrates with the test sets that lie beside the model (test_data_set_*/input_*.pb), as the ONNX model zoo ships
them. Flags and their defaults are onnxruntime's; ``quantkit quantize static`` is the command with quantkit's own.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantkit.data.batch import open_test_sets
from quantkit.data.detect import TEST_SETS, Found, natural
from quantkit.errors import DataError, QuantkitError, UsageError, as_os_error
from quantkit.graph.load import load
from quantkit.observe.prepare import inputs_of
from quantkit.ort.calibrate import CalibrationDataReader, CalibrationMethod
from quantkit.ort.missing import missing
from quantkit.ort.quant_utils import QuantFormat, QuantType
from quantkit.ort.quantize import StaticQuantConfig, quantize

__all__ = [
    "OnnxModelCalibrationDataReader",
    "get_tensor_quant_overrides",
    "main",
    "parse_arguments",
]

__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

_TYPES = {member.name.lower(): member for member in QuantType}
_METHODS = {member.name.lower(): member for member in CalibrationMethod}
_FORMATS = {member.name.lower(): member for member in QuantFormat}

# Flags that switch something on: the key of onnxruntime's options, and what it does.
_SWITCHES = {
    "enable_subgraph": ("EnableSubgraph", "Quantize inside If, Loop and Scan too."),
    "force_quantize_no_input_check": (
        "ForceQuantizeNoInputCheck",
        "Quantize operators that only move values also where nothing before them is quantized.",
    ),
    "matmul_const_b_only": (
        "MatMulConstBOnly",
        "Quantize MatMul only where its second input is constant.",
    ),
    "add_qdq_pair_to_weight": (
        "AddQDQPairToWeight",
        "Keep weights in float, with QuantizeLinear and DequantizeLinear behind them.",
    ),
    "dedicated_qdq_pair": (
        "DedicatedQDQPair",
        "Give each node that reads a tensor a QuantizeLinear and DequantizeLinear of its own.",
    ),
    "calib_tensor_range_symmetric": (
        "CalibTensorRangeSymmetric",
        "Widen ranges until they are symmetric about 0.",
    ),
    "calib_moving_average": (
        "CalibMovingAverage",
        "Average minima and maxima over the samples instead of taking the extremes (method minmax).",
    ),
    "use_qdq_contrib_ops": (
        "UseQDQContribOps",
        "Write QuantizeLinear and DequantizeLinear of the domain com.microsoft.",
    ),
    "qdq_keep_removable_activations": (
        "QDQKeepRemovableActivations",
        "Keep Relu and Clip also where the quantization of their output clips alike.",
    ),
    "qdq_disable_weight_adjust_for_int32_bias": (
        "QDQDisableWeightAdjustForInt32Bias",
        "Do not widen the scale of a weight so that its bias fits into int32.",
    ),
}


class OnnxModelCalibrationDataReader(CalibrationDataReader):
    """The test sets beside a model, one sample each.

    Args:
        model_path: The model.

    Raises:
        DataError: There are none, or they do not fit the model.
    """

    def __init__(self, model_path: str | Path) -> None:
        folder = Path(model_path).parent
        files = sorted(folder.glob("test_data_set_*/input_*.pb"), key=natural)
        if not files:
            said = f"There are no test sets beside '{model_path}': test_data_set_0/input_0.pb and so on."
            raise as_os_error(DataError(said), FileNotFoundError)
        found = Found(kind=TEST_SETS, root=folder, files=tuple(files))
        self._samples = open_test_sets(found, inputs_of(load(model_path)))
        self._next = 0

    def __len__(self) -> int:
        return len(self._samples)

    def get_next(self) -> dict[str, Any] | None:
        """Return the inputs of the next sample by name, or None."""
        if self._next == len(self._samples):
            return None
        self._next += 1
        return dict(self._samples[self._next - 1].feeds)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, `sys.argv` if it is not given."""
    parser = argparse.ArgumentParser(
        prog="python -m quantkit.ort.static_quantize_runner",
        description="Quantize a model to calibrated integers, with the test sets that lie beside it.",
    )
    add = parser.add_argument
    add("-i", "--input_model_path", required=True, help="The float model.")
    add("-o", "--output_quantized_model_path", required=True, help="Where to write.")
    add("--activation_type", choices=_TYPES, default="quint8", help="Type of activations.")
    add("--weight_type", choices=_TYPES, default="qint8", help="Type of weights.")
    add("--quant_format", choices=_FORMATS, default="qdq", help="How the result is written.")
    add("--calibration_method", choices=_METHODS, default="minmax", help="How ranges are chosen.")
    add("--per_channel", action="store_true", help="One scale per output channel of a weight.")
    add("--nodes_to_quantize", nargs="+", help="Only these nodes, by name.")
    add("--nodes_to_exclude", nargs="+", help="Never these nodes, by name.")
    add("--disable_quantize_bias", action="store_true", help="Keep biases in float.")
    for flag, (_, said) in _SWITCHES.items():
        add(f"--{flag}", action="store_true", help=said)
    add(
        "--op_types_to_exclude_output_quantization",
        nargs="+",
        default=[],
        help="Operator types whose outputs stay float.",
    )
    add(
        "--minimum_real_range",
        type=float,
        default=0.0001,
        help="The least that a range is wide; some accelerators want one.",
    )
    add(
        "--op_per_channel_axis",
        nargs=2,
        action="append",
        metavar=("OP_TYPE", "AXIS"),
        default=[],
        help="The axis of channels in weights of an operator type; may be given again.",
    )
    add("--tensor_quant_overrides", help="JSON file of overrides for single tensors.")
    return parser.parse_args(arguments)


def get_tensor_quant_overrides(file: str | Path | None) -> dict[str, Any]:
    """Return what the JSON file of overrides holds; nothing if there is none.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """
    if not file:
        return {}
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as e:
        raise as_os_error(UsageError(f"Cannot read '{file}': {e.strerror or e}."), e) from e
    except (ValueError, RecursionError) as e:
        raise UsageError(f"'{file}' is not JSON: {e}.") from e
    if not isinstance(found, Mapping):
        raise UsageError(f"'{file}' maps no tensor names to lists of overrides.")
    return dict(found)


def main() -> None:
    """Quantize as the command line says.

    Raises:
        QuantkitError: With one line that says what is wrong. Nothing is written then.
    """
    given = parse_arguments()
    options: dict[str, Any] = {key: getattr(given, flag) for flag, (key, _) in _SWITCHES.items()}
    options["QuantizeBias"] = not given.disable_quantize_bias
    options["OpTypesToExcludeOutputQuantization"] = given.op_types_to_exclude_output_quantization
    options["MinimumRealRange"] = given.minimum_real_range
    options["QDQOpTypePerChannelSupportToAxis"] = _axes(given.op_per_channel_axis)
    options["TensorQuantOverrides"] = get_tensor_quant_overrides(given.tensor_quant_overrides)
    config = StaticQuantConfig(
        OnnxModelCalibrationDataReader(given.input_model_path),
        calibrate_method=_METHODS[given.calibration_method],
        quant_format=_FORMATS[given.quant_format],
        activation_type=_TYPES[given.activation_type],
        weight_type=_TYPES[given.weight_type],
        nodes_to_quantize=given.nodes_to_quantize,
        nodes_to_exclude=given.nodes_to_exclude,
        per_channel=given.per_channel,
        extra_options=options,
    )
    quantize(given.input_model_path, given.output_quantized_model_path, config)


def _axes(pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    try:
        return {op_type: int(axis) for op_type, axis in pairs}
    except ValueError as e:
        raise UsageError("--op_per_channel_axis takes an operator type and a whole number.") from e


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)


if __name__ == "__main__":
    try:
        main()
    except QuantkitError as e:
        sys.stderr.write(f"error: {e}\n")
        sys.exit(2)
