"""onnxruntime's calibraters, spelled as there: they run the model on data and give ranges. And the base class of such data."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantkit.errors import UsageError
from quantkit.observe import Calibration, CalibratorOf
from quantkit.ort.missing import missing
from quantkit.ort.quant_utils import CalibrationMethod
from quantkit.ort.tensors import (
    TensorData,
    TensorsData,
    load_tensors_data,
    method_of,
    save_tensors_data,
)
from quantkit.settings import DataSettings
from quantkit.workflows.calibrate import CalibrateOptions, calibrate_model

__all__ = [
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DistributionCalibrater",
    "EntropyCalibrater",
    "MinMaxCalibrater",
    "PercentileCalibrater",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "load_tensors_data",
    "save_tensors_data",
]


class CalibrationDataReader(ABC):
    """A stream of model inputs: subclass it and return a dict of arrays, or None at the end."""

    @abstractmethod
    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """Return the next inputs by name, or None."""

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return self

    def __next__(self) -> dict[str, NDArray[Any]]:
        found = self.get_next()
        if found is None:
            raise StopIteration
        return found

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} does not say how long it is.")

    def set_range(self, start_index: int, end_index: int) -> None:  # noqa: ARG002
        """Restrict the stream to a range of samples; a reader that can overrides this."""
        raise TypeError(f"{type(self).__name__} cannot be restricted to a range of samples.")


__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

_AUGMENTED = "augmented_model.onnx"
_CPU = "CPUExecutionProvider"


class CalibraterBase:
    """Observes a model, in as many calls of `collect_data` as there are, and gives ranges.

    Every tensor that can be quantized is observed, whatever `op_types_to_calibrate` lists. No augmented model is
    written, and statistics have bins of their own: the parameters about them are accepted.
    """

    calibration_method = CalibrationMethod.MinMax

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        symmetric: bool = False,  # noqa: FBT001 - onnxruntime's signature
        use_external_data_format: bool = False,  # noqa: ARG002, FBT001
        per_channel: bool = False,  # noqa: FBT001
    ) -> None:
        if per_channel:
            raise UsageError("Activations have one range per tensor; leave out per_channel.")
        self.model_path = model_path
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.found: Calibration | None = None

    def _ask(self) -> CalibratorOf | None:
        return method_of(self.calibration_method)

    def augment_graph(self) -> None:
        """Nothing: observing needs no model on disk."""

    def create_inference_session(self) -> None:
        """Nothing: sessions are made when data comes."""

    def set_execution_providers(self, execution_providers: Sequence[str] = (_CPU,)) -> None:
        """Accept the CPU."""
        if any(provider != _CPU for provider in execution_providers):
            raise UsageError(f"quantkit calibrates with {_CPU}.")

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on data; may be called again with more."""
        ask = self._ask()
        options = CalibrateOptions() if ask is None else CalibrateOptions(method=ask)
        found = calibrate_model(self.model_path, data_reader, None, options, DataSettings())
        if self.found is None:
            self.found = found
        else:
            self.found.seen.merge(found.seen)

    def clear_collected_data(self) -> None:
        """Forget what was seen."""
        self.found = None

    def compute_data(self) -> TensorsData:
        """Return the ranges of all tensors."""
        if self.found is None:
            raise UsageError("No data was collected; call collect_data first.")
        ranges: dict[str, TensorData] = {}
        for tensor, (low, high) in self.found.ranges().items():
            extent = max(-low, high)
            ends = (-extent, extent) if self.symmetric else (low, high)
            ranges[tensor] = TensorData(
                lowest=np.array(ends[0], np.float32), highest=np.array(ends[1], np.float32)
            )
        return TensorsData(self.calibration_method, ranges)


class MinMaxCalibrater(CalibraterBase):
    """The smallest and the largest value, or moving averages of them."""

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        symmetric: bool = False,  # noqa: FBT001 - onnxruntime's signature
        use_external_data_format: bool = False,  # noqa: ARG002, FBT001
        moving_average: bool = False,  # noqa: FBT001
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,  # noqa: ARG002 - memory does not grow
        per_channel: bool = False,  # noqa: FBT001
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            per_channel=per_channel,
        )
        self.momentum = 1 - averaging_constant if moving_average else None

    def _ask(self) -> CalibratorOf | None:
        return method_of(self.calibration_method, self.momentum)


class EntropyCalibrater(CalibraterBase):
    """The range whose quantized distribution diverges least from what was seen."""

    calibration_method = CalibrationMethod.Entropy

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        use_external_data_format: bool = False,  # noqa: ARG002, FBT001 - onnxruntime's signature
        method: str = "entropy",  # noqa: ARG002
        symmetric: bool = False,  # noqa: FBT001
        num_bins: int = 128,  # noqa: ARG002
        num_quantized_bins: int = 128,  # noqa: ARG002
    ) -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, symmetric)


class PercentileCalibrater(CalibraterBase):
    """The range that keeps a share of the values."""

    calibration_method = CalibrationMethod.Percentile

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = _AUGMENTED,
        use_external_data_format: bool = False,  # noqa: ARG002, FBT001 - onnxruntime's signature
        method: str = "percentile",  # noqa: ARG002
        symmetric: bool = False,  # noqa: FBT001
        num_bins: int = 2048,  # noqa: ARG002
        percentile: float = 99.999,
    ) -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, symmetric)
        self.percentile = percentile

    def _ask(self) -> CalibratorOf | None:
        return method_of(self.calibration_method, percentile=self.percentile)


class DistributionCalibrater(CalibraterBase):
    """Raises: it is for 8-bit floats."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        method_of(CalibrationMethod.Distribution)


_SETTINGS: dict[str, tuple[type[CalibraterBase], tuple[str, ...]]] = {
    "MinMax": (
        MinMaxCalibrater,
        (
            "symmetric",
            "moving_average",
            "averaging_constant",
            "max_intermediate_outputs",
            "per_channel",
        ),
    ),
    "Entropy": (EntropyCalibrater, ("symmetric", "num_bins", "num_quantized_bins")),
    "Percentile": (PercentileCalibrater, ("symmetric", "num_bins", "percentile")),
}


def create_calibrator(  # noqa: PLR0913 - onnxruntime's signature
    model: str | Path | onnx.ModelProto,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str | Path = _AUGMENTED,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
    providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> CalibraterBase:
    """Return a calibrater by its method."""
    method_of(calibrate_method)  # refuses what there is not
    made, settings = _SETTINGS[str(getattr(calibrate_method, "name", calibrate_method))]
    given = {"symmetric": calibrate_method.name == "Percentile", **(extra_options or {})}
    strange = next((key for key in given if key not in settings), None)
    if strange is not None:
        raise UsageError(f"{made.__name__} has no option '{strange}': use {', '.join(settings)}.")
    found = made(
        model,
        op_types_to_calibrate,
        augmented_model_path,
        use_external_data_format=use_external_data_format,
        **given,
    )
    found.set_execution_providers(providers or (_CPU,))
    return found


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
