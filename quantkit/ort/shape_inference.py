"""onnxruntime's `quant_pre_process`: here it is `quantkit.optimize`."""

from pathlib import Path
from typing import Any

import onnx

from quantkit.errors import UsageError
from quantkit.ort.missing import missing
from quantkit.workflows.optimize import OptimizeResult, optimize_model

__all__ = ["quant_pre_process"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

_INT_MAX = 2**31 - 1
_THRESHOLD = 1024


def quant_pre_process(  # noqa: PLR0913 - onnxruntime's signature
    input_model: str | Path | onnx.ModelProto | None = None,
    output_model_path: str | Path | None = None,
    skip_optimization: bool = False,  # noqa: FBT001 - onnxruntime's signature
    skip_onnx_shape: bool = False,  # noqa: ARG001, FBT001 - shapes are inferred as far as they are needed
    skip_symbolic_shape: bool = False,  # noqa: ARG001, FBT001
    auto_merge: bool = False,  # noqa: ARG001, FBT001
    int_max: int = _INT_MAX,  # noqa: ARG001
    guess_output_rank: bool = False,  # noqa: ARG001, FBT001
    verbose: int = 0,  # noqa: ARG001
    save_as_external_data: bool = False,  # noqa: FBT001
    all_tensors_to_one_file: bool = False,  # noqa: ARG001, FBT001 - it is one file
    external_data_location: str | None = None,
    external_data_size_threshold: int = _THRESHOLD,  # noqa: ARG001
    **deprecated_kwargs: Any,
) -> OptimizeResult:
    """Simplify a float model as `quantkit.optimize` does, and compare it with the original.

    Static quantization does so by itself: this call is not needed before it. What steers onnxruntime's shape
    inference is accepted, for quantkit has nothing to steer.

    Raises:
        UsageError: Input or output are missing, or external data is to have a name.
    """
    source = deprecated_kwargs.pop("input_model_path", None) if input_model is None else input_model
    if source is None or output_model_path is None:
        raise UsageError("quant_pre_process needs input_model and output_model_path.")
    if deprecated_kwargs:
        raise UsageError(f"quant_pre_process has no parameter '{next(iter(deprecated_kwargs))}'.")
    if external_data_location is not None:
        raise UsageError(
            "external_data_location is not available: weights go to a file beside the model that is named by what is in it."
        )
    return optimize_model(
        source,
        output_model_path,
        passes=() if skip_optimization else None,
        external_data=save_as_external_data,
    )


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
