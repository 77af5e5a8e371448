"""onnxruntime's command of the same name: ``python -m quantkit.ort.static_quantize_runner -i IN -o OUT``.

It calibrates with the test sets that lie beside the model (test_data_set_*/input_*.pb), as the ONNX model zoo ships
them. Flags and their defaults are onnxruntime's; ``quantkit quantize static`` is the command with quantkit's own.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType
from onnxruntime.quantization.static_quantize_runner import parse_arguments

from quantkit.calibration.model_inputs import inputs_of
from quantkit.data.detect import TEST_SETS, Found, natural
from quantkit.data.test_sets import open_test_sets
from quantkit.errors import DataError, QuantkitError, UsageError, as_os_error
from quantkit.model.graph.load import load
from quantkit.ort._passthrough import forward
from quantkit.ort.quantize import StaticQuantConfig, quantize

__all__ = [
    "OnnxModelCalibrationDataReader",
    "get_tensor_quant_overrides",
    "main",
    "parse_arguments",
]

__getattr__ = forward(__name__)

_TYPES = {member.name.lower(): member for member in QuantType}
_METHODS = {member.name.lower(): member for member in CalibrationMethod}
_FORMATS = {member.name.lower(): member for member in QuantFormat}

# Keys of onnxruntime's options that are flags of the same name, in small letters.
_OPTIONS = (
    "EnableSubgraph",
    "ForceQuantizeNoInputCheck",
    "MatMulConstBOnly",
    "AddQDQPairToWeight",
    "DedicatedQDQPair",
    "CalibTensorRangeSymmetric",
    "CalibMovingAverage",
    "UseQDQContribOps",
    "QDQKeepRemovableActivations",
    "QDQDisableWeightAdjustForInt32Bias",
    "OpTypesToExcludeOutputQuantization",
    "MinimumRealRange",
)


class OnnxModelCalibrationDataReader(CalibrationDataReader):  # type: ignore[misc]
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
    flags = {flag.replace("_", ""): value for flag, value in vars(given).items()}
    options: dict[str, Any] = {key: flags[key.lower()] for key in _OPTIONS}
    options["QuantizeBias"] = not given.disable_quantize_bias
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


if __name__ == "__main__":
    try:
        main()
    except QuantkitError as e:
        sys.stderr.write(f"error: {e}\n")
        sys.exit(2)
