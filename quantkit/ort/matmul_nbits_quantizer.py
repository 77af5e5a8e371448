"""onnxruntime's `MatMulNBitsQuantizer`, its configurations, and its command: weights of few bits in blocks.

    python -m quantkit.ort.matmul_nbits_quantizer --input_model IN --output_model OUT

Flags are onnxruntime's; ``quantkit quantize weights`` is the command with quantkit's own.
"""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import cached_property, partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import matmul_nbits_quantizer as theirs
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
    parse_args,
)
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.quant_utils import QuantFormat

from quantkit.api.arguments import checked_names
from quantkit.errors import OutputError, QuantkitError, UsageError, as_os_error
from quantkit.files import scratch
from quantkit.model.graph.load import read_structure
from quantkit.model.graph.protos import to_ir
from quantkit.model.graph.save import staged
from quantkit.ort._passthrough import forward
from quantkit.ort.weight_only import Given, quantize_in_blocks, settings_of
from quantkit.pipeline.result import QuantizeResult

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
    "main",
    "parse_args",
]

__getattr__ = forward(__name__)


def _in_either_format(kind: Any) -> Any:
    """Return a subclass of one of onnxruntime's configurations that accepts QDQ, which onnxruntime cannot write."""

    @wraps(kind.__init__)
    def keep(self: Any, *args: Any, **options: Any) -> None:
        given = signature(kind).bind(*args, **options)
        wanted = given.arguments.pop("quant_format", QuantFormat.QOperator)
        kind.__init__(self, *given.args, **given.kwargs)
        self.quant_format = wanted

    return type(kind.__name__, (kind,), {"__init__": keep, "__doc__": kind.__doc__})


RTNWeightOnlyQuantConfig = _in_either_format(theirs.RTNWeightOnlyQuantConfig)
KQuantWeightOnlyQuantConfig = _in_either_format(theirs.KQuantWeightOnlyQuantConfig)
GPTQWeightOnlyQuantConfig = _in_either_format(theirs.GPTQWeightOnlyQuantConfig)
HQQWeightOnlyQuantConfig = _in_either_format(theirs.HQQWeightOnlyQuantConfig)


class MatMulNBitsQuantizer:
    """Stores weights in 2 to 8 bits, in blocks: MatMul becomes MatMulNBits, Gather GatherBlockQuantized.

    `process` quantizes; `model` then holds the result (``model.save_model_to_file(path)``).
    """

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model: onnx.ModelProto | str | Path,
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,  # noqa: FBT001 - onnxruntime's signature
        accuracy_level: int | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        nodes_to_include: list[str] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: tuple[str, ...] | None = None,
        quant_axes: tuple[tuple[str, int], ...] | None = None,
        channel_wised_quantize: bool = False,  # noqa: FBT001
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        """Keep what is asked for.

        Args:
            model: The float model, in memory or as a path.
            bits: Of a weight, 2 to 8.
            block_size: Neighbours that share a scale: 16 to 256.
            is_symmetric: Zero points in the middle.
            accuracy_level: Of MatMulNBits; None: 4, activations are rounded to 8 bits inside the kernel.
            nodes_to_exclude: Never these nodes.
            nodes_to_include: These nodes beside those of the operator types.
            quant_format: QOperator, onnxruntime's own operators; QDQ, DequantizeLinear of blocks.
            op_types_to_quantize: Only these operator types; None: MatMul.
            quant_axes: Along which axis blocks run, by operator type: MatMul 0, Gather 1.
            channel_wised_quantize: Not supported.
            algo_config: How weights are rounded. What it says is not taken from the arguments above.

        Raises:
            QuantkitError: The model is not there, or what is asked for cannot be done.
        """
        self.model_path = str(model) if isinstance(model, str | Path) else None
        if self.model_path is not None:
            read_structure(Path(self.model_path))
        elif isinstance(model, onnx.ModelProto):
            self.model = ONNXModel(model)
        else:
            raise UsageError(
                f"A model is given as a path or an onnx.ModelProto, not as {type(model).__name__}."
            )
        self.bits = bits
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.accuracy_level = accuracy_level
        self.nodes_to_exclude = set(checked_names(nodes_to_exclude, "nodes_to_exclude"))
        included = checked_names(nodes_to_include, "nodes_to_include")
        self.nodes_to_include = set(included) if included else None
        self.algo_config = algo_config or DefaultWeightOnlyQuantConfig(
            block_size=block_size,
            is_symmetric=is_symmetric,
            accuracy_level=accuracy_level,
            quant_format=quant_format,
            op_types_to_quantize=op_types_to_quantize,
            quant_axes=quant_axes,
            bits=bits,
        )
        if channel_wised_quantize and algo_config is None:
            self.algo_config.channel_wised_quantize = True  # refused below, with the reason
        settings_of(self.algo_config, self._given)

    @cached_property
    def model(self) -> ONNXModel:
        """The model: float before `process`, quantized behind it. That of a path is read when it is asked for."""
        assert self.model_path is not None  # noqa: S101 - one in memory is set
        return ONNXModel(onnx.load(self.model_path))

    @property
    def _given(self) -> Given:
        return Given(
            bits=self.bits,
            block_size=self.block_size,
            is_symmetric=self.is_symmetric,
            accuracy_level=self.accuracy_level,
            include=self.nodes_to_include or (),
            exclude=self.nodes_to_exclude,
        )

    def process(self) -> QuantizeResult:
        """Quantize; the result is checked, loaded, run and compared with float before it takes the model's place.

        Returns:
            What was done to each node and why; its warnings are logged.

        Raises:
            QuantkitError: With one line that says what is wrong. The model stays as it was.
        """
        held: ONNXModel | None = self.__dict__.get("model")  # somebody may have changed it
        source = self.model_path if held is None else held.model
        assert source is not None  # noqa: S101 - one of the two is there
        with scratch() as folder:
            path = folder / "quantized.onnx"
            result = quantize_in_blocks(source, path, self.algo_config, self._given)
            self.model = ONNXModel(onnx.load(path))
        return result


_CONFIGS: dict[str, Callable[..., WeightOnlyQuantConfig]] = {
    "default": DefaultWeightOnlyQuantConfig,
    "hqq": HQQWeightOnlyQuantConfig,
    "rtn": RTNWeightOnlyQuantConfig,
    "k_quant": KQuantWeightOnlyQuantConfig,
    "gptq": GPTQWeightOnlyQuantConfig,
    "nvidia_awq": partial(WeightOnlyQuantConfig, "nvidia_awq"),
}


def _config(given: Namespace) -> WeightOnlyQuantConfig:
    """Return the configuration of the method, with those of the flags that it takes."""
    kind = _CONFIGS[given.quant_method]
    flags = vars(given) | {
        "is_symmetric": given.symmetric is not False,
        "quant_format": QuantFormat[given.quant_format],
    }
    return kind(**{name: flags[name] for name in signature(kind).parameters if name in flags})


def _flags() -> Namespace:
    given: Namespace = parse_args()
    if not any(flag.startswith("--s") for flag in sys.argv):  # then the method decides
        given.symmetric = None
    return given


def main() -> None:
    """Quantize as the command line says.

    Raises:
        QuantkitError: With one line that says what is wrong. Nothing is written then.
    """
    given = _flags()
    if given.verbose:
        logging.basicConfig(level=logging.DEBUG)
    if Path(given.output_model).exists():
        said = f"'{given.output_model}' is there already: remove it, or name another file."
        raise as_os_error(OutputError(said), FileExistsError)
    quantizer = MatMulNBitsQuantizer(
        given.input_model,
        bits=given.bits,
        block_size=given.block_size,
        is_symmetric=bool(given.symmetric),
        accuracy_level=given.accuracy_level,
        nodes_to_exclude=given.nodes_to_exclude,
        nodes_to_include=given.nodes_to_include,
        algo_config=_config(given),
    )
    quantizer.process()
    with staged(Path(given.output_model)) as stage:
        stage.write(to_ir(quantizer.model.model), external=True)
        stage.commit()


if __name__ == "__main__":
    try:
        main()
    except QuantkitError as e:
        sys.stderr.write(f"error: {e}\n")
        sys.exit(2)
