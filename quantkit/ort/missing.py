"""What onnxruntime.quantization has and quantkit.ort has not: every way to ask for it says what to use instead.

A module's ``__getattr__`` answers ``quantkit.ort.X``. It cannot answer ``from quantkit.ort import X``: Python drops its
message, and then looks for a module ``quantkit.ort.X``; so a finder at the end of ``sys.meta_path`` answers that, and
``import quantkit.ort.X`` with it. Modules of the package that stand for one of onnxruntime's have a ``__path__``,
without which Python would not look.
"""

import ast
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from quantkit.errors import UsageError

__all__ = ["MissingModuleError", "MissingNameError", "missing"]

_OURS, _THEIRS = "quantkit.ort", "onnxruntime.quantization"

_BLOCKS = (
    "weights in blocks of few bits are made by quantkit.ort.matmul_nbits_quantizer.MatMulNBitsQuantizer, and by "
    "quantkit.quantize_weights(model, output)"
)
_OLDER = (
    "onnxruntime calls it matmul_nbits_quantizer.MatMulNBitsQuantizer now, with bits as its second argument; use "
    "quantkit.ort.matmul_nbits_quantizer"
)
_FLOATS = (
    "bitsandbytes' 4-bit floats (FP4, NF4) are not written; 4-bit integers in blocks are, by "
    "quantkit.quantize_weights(model, output, bits=4)"
)
_AWQ = (
    "quantkit.quantize_weights(model, output, data, weights=quantkit.WeightsSettings(awq=True)) does AWQ, with samples of "
    "your own"
)
_QNN = "use quantkit.quantize_static(model, output, data, target='qnn')"
_QNN_CONFIG = "it is in quantkit.ort.execution_providers.qnn"
_PLAN = (
    "quantkit.plan_static(model, data) decides about each node, its plan can be edited, and "
    "quantkit.quantize_static(model, output, data, plan=plan) does what it says"
)
_STATISTICS = (
    "quantkit.calibrate(model, data) collects histograms and ranges, and quantkit.ort.create_calibrator returns a "
    "calibrater"
)
_SIMPLIFY = (
    "use quantkit.ort.quant_pre_process or quantkit.optimize(model, output), which fold and fuse"
)

# By the first part of what is asked for: modules of onnxruntime.quantization, and names that are often imported.
_INSTEAD = {
    "CalTableFlatBuffers": "quantkit.ort.write_calibration_table writes such tables",
    "CudaQuantizer": "quantkit quantizes for CPUs, and for GPUs through TensorRT: "
    "quantkit.quantize_static(model, output, data, target='tensorrt')",
    "base_quantizer": _PLAN,
    "cuda_quantizer": "use quantkit.quantize_static(model, output, data, target='tensorrt')",
    "fusions": _SIMPLIFY,
    "get_qnn_qdq_config": _QNN_CONFIG,
    "matmul_4bits_quantizer": _OLDER,
    "matmul_bnb4_quantizer": _FLOATS,
    "neural_compressor": _BLOCKS,
    "onnx_model": "read and change models with the package onnx_ir, or simplify them with quantkit.optimize",
    "onnx_quantizer": _PLAN,
    "operators": _PLAN,
    "registry": _PLAN,
}
_NAMES_OF = {
    _OLDER: ("MatMul4BitsQuantizer",),
    _FLOATS: ("MatMulBnb4Quantizer",),
    _AWQ: ("NVAWQ",),
    _BLOCKS: ("MatMulNBitsQuantizer", "WeightOnly"),
    _PLAN: ("ONNXQuantizer", "BaseQuantizer", "QuantizationParams", "QDQ", "QuantizedValue"),
    _STATISTICS: ("HistogramCollector", "CalibrationDataCollector"),
    _SIMPLIFY: ("optimize_model", "load_model_with_shape_infer", "shape_infer"),
}


class MissingNameError(UsageError, AttributeError):
    """A name of onnxruntime.quantization that quantkit.ort does not have."""


class MissingModuleError(UsageError, ModuleNotFoundError):
    """A module or name of onnxruntime.quantization that was imported, and that quantkit.ort does not have."""


def missing(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module of this package does not have."""
    said = _instead(f"{module}.{name}")
    return MissingNameError(said) if said else AttributeError(_unknown(module, name))


def _instead(full: str) -> str:
    """Return what to use instead of something that onnxruntime has; "" if it has no such thing either."""
    asked = full.removeprefix(f"{_OURS}.")
    first, last = asked.split(".")[0], asked.rpartition(".")[2]
    if last.startswith("_"):
        return ""
    hint = _INSTEAD.get(first) or _INSTEAD.get(last)
    for said, words in _NAMES_OF.items():
        hint = hint or (said if any(word in last for word in words) else "")
    if not hint:
        if not _onnxruntime_has(asked):
            return ""
        hint = f"quantkit has no counterpart; onnxruntime's own is {_THEIRS}.{asked}"
    return f"There is no {full}: {hint}."


def _onnxruntime_has(asked: str) -> bool:
    """Say whether the installed onnxruntime has a module or name.

    Its files are read, not imported: whoever puts this package in the place of onnxruntime.quantization would be
    asked again, and again.
    """
    *folders, name = asked.split(".")
    with suppress(ImportError, ValueError, OSError, SyntaxError):  # no onnxruntime, or an odd one
        found = find_spec("onnxruntime")
        for place in (found.submodule_search_locations or ()) if found is not None else ():
            around = Path(place, "quantization", *folders)
            own = around / name
            if own.is_dir() or own.with_suffix(".py").is_file():
                return True
            source = around / "__init__.py" if around.is_dir() else around.with_suffix(".py")
            return source.is_file() and name in _defined(source)
    return False


def _defined(source: Path) -> set[str]:
    """Return the names that a module has once it is imported, as far as its outermost statements say."""
    names: set[str] = set()
    for line in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.FunctionDef | ast.ClassDef):
            names.add(line.name)
        elif isinstance(line, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in line.names)
        elif isinstance(line, ast.Assign):
            names.update(target.id for target in line.targets if isinstance(target, ast.Name))
    return names


def _unknown(module: str, name: str) -> str:
    near = get_close_matches(name, getattr(sys.modules.get(module), "__all__", ()), 1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"module '{module}' has no attribute '{name}'{hint}"


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Find nothing, and say so where onnxruntime has something."""
        del path, target
        if fullname.startswith(f"{_OURS}.") and (said := _instead(fullname)):
            raise MissingModuleError(said)


sys.meta_path.append(_Finder())
