"""onnxruntime's configurations of weights in blocks: the same parameters, order, defaults and attributes.

Each only keeps what it is given; `quantkit.ort.weight_only` says what that means here.
"""

from collections.abc import Iterable
from typing import Any

from quantkit.errors import UnsupportedError
from quantkit.ort.quant_utils import QuantFormat

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
    "refuse_channel_wise",
]

OpTypes = tuple[str, ...] | None
Axes = tuple[tuple[str, int], ...] | None

_OP_TYPES = ("MatMul",)
_AXES = {"MatMul": 0, "Gather": 1}


class WeightOnlyQuantConfig:
    """What all of them have.

    Args:
        algorithm: Its name.
        quant_format: QOperator, onnxruntime's own operators; QDQ, DequantizeLinear of blocks.
        op_types_to_quantize: Only these operator types; None: MatMul.
        quant_axes: Along which axis blocks run, by operator type.
        customized_weight_config: By node: bits, group_size, scheme ("sym" or "asym").
    """

    def __init__(
        self,
        algorithm: str,
        quant_format: QuantFormat,
        op_types_to_quantize: OpTypes = None,
        quant_axes: Axes = None,
        customized_weight_config: dict[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.quant_format = quant_format
        self.op_types_to_quantize = _types(op_types_to_quantize)
        self.quant_axes: dict[str, int] = dict(quant_axes) if quant_axes else dict(_AXES)
        self.customized_weight_config = customized_weight_config


class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Weights are rounded to the nearest codes; ranges cut nothing off.

    Args:
        ratios: Not supported: ranges are not cut by hand.
        quant_format: As of `WeightOnlyQuantConfig`.
        op_types_to_quantize: Likewise.
        customized_weight_config: Likewise.
    """

    def __init__(
        self,
        ratios: dict[str, float] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: OpTypes = None,
        customized_weight_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__("RTN", quant_format, op_types_to_quantize, None, customized_weight_config)
        self.ratios = {} if ratios is None else ratios


class KQuantWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Of each block the range with the least squared error is taken.

    Args:
        ratios: Not supported: narrower ranges are tried in any case.
        quant_format: As of `WeightOnlyQuantConfig`.
        op_types_to_quantize: Likewise.
        customized_weight_config: Likewise.
    """

    def __init__(
        self,
        ratios: dict[str, float] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: OpTypes = None,
        customized_weight_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            "k_quant", quant_format, op_types_to_quantize, None, customized_weight_config
        )
        self.ratios = {} if ratios is None else ratios


class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Weights are rounded so that the outputs of layers change least on samples.

    Args:
        calibration_data_reader: An object with `get_next()`, or anything that `quantkit.calibrate` takes.
        percdamp: 0.01 is what is done.
        block_size: Accepted: how many inputs are worked on at a time changes no result.
        actorder: Accepted: the inputs that count most come first in any case.
        mse: Accepted: the ranges of blocks have the least squared error in any case.
        perchannel: Accepted: each block of each channel has a scale of its own in any case.
        quant_format: As of `WeightOnlyQuantConfig`.
        op_types_to_quantize: Likewise.
    """

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        calibration_data_reader: Any = None,
        percdamp: float = 0.01,
        block_size: int = 128,
        actorder: bool = False,  # noqa: FBT001 - onnxruntime's signature
        mse: bool = False,  # noqa: FBT001
        perchannel: bool = True,  # noqa: FBT001
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: OpTypes = None,
    ) -> None:
        super().__init__("GPTQ", quant_format, op_types_to_quantize)
        self.calibration_data_reader = calibration_data_reader
        self.percdamp = percdamp
        self.block_size = block_size
        self.actorder = actorder
        self.mse = mse
        self.perchannel = perchannel


class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Zero points are moved to where most weights lose least (half-quadratic), and rounded: few stay moved.

    Args:
        block_size: Neighbours that share a scale.
        bits: Of a weight.
        axis: 1: blocks run along the inputs of a layer.
        quant_format: As of `WeightOnlyQuantConfig`.
        op_types_to_quantize: Likewise.
        quant_axes: Likewise.
    """

    def __init__(
        self,
        block_size: int = 128,
        bits: int = 4,
        axis: int = 1,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: OpTypes = None,
        quant_axes: Axes = None,
    ) -> None:
        super().__init__("HQQ", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.bits = bits
        self.axis = axis


class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Weights are rounded to the nearest codes; ranges cut nothing off, but for symmetric ones.

    Args:
        block_size: Neighbours that share a scale.
        is_symmetric: Zero points in the middle.
        accuracy_level: Of MatMulNBits; None: 4, activations are rounded to 8 bits inside the kernel.
        quant_format: As of `WeightOnlyQuantConfig`.
        op_types_to_quantize: Likewise.
        quant_axes: Likewise.
        bits: Of a weight.
        channel_wised_quantize: Not supported.
    """

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        block_size: int = 128,
        is_symmetric: bool = False,  # noqa: FBT001 - onnxruntime's signature
        accuracy_level: int | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: OpTypes = None,
        quant_axes: Axes = None,
        bits: int = 4,
        channel_wised_quantize: bool = False,  # noqa: FBT001
    ) -> None:
        super().__init__("DEFAULT", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.bits = bits
        self.accuracy_level = accuracy_level
        self.channel_wised_quantize = channel_wised_quantize
        refuse_channel_wise(self)


def refuse_channel_wise(config: object) -> None:
    """Refuse a configuration, of this package or of onnxruntime, that wants one scale per channel.

    Raises:
        UnsupportedError: It does.
    """
    if getattr(config, "channel_wised_quantize", False):
        raise UnsupportedError(
            "channel_wised_quantize=True: few bits with one scale per channel are not written; use block_size=128, or "
            "quantkit.quantize_static(model, output, data) for 8 bits per channel."
        )


def _types(given: Iterable[str] | None) -> set[str]:
    """Return operator types as a set, which scripts look into; a single text is one of them."""
    return {given} if isinstance(given, str) else set(given or _OP_TYPES)
