"""Every name and module of onnxruntime.quantization is in quantkit.ort: quantkit's where it quantizes, else the same object."""

import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import onnxruntime.quantization as peer
import pytest

import quantkit.ort

ROOT = Path(peer.__file__).parent


def modules() -> list[str]:
    """Return onnxruntime's modules, dotted, without the package's own name; folders without __init__ too."""
    files = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    parts = (file.with_suffix("").parts for file in files)
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts if p != ("__init__",)]


def loaded(name: str) -> ModuleType | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnxruntime's own
        try:
            return import_module(f"{peer.__name__}.{name}")
        except ImportError:  # needs a package that is not here
            return None


def names() -> Iterator[tuple[str, str]]:
    """Yield module and name of all that onnxruntime defines, and what its package shows."""
    for name in dir(peer):
        if not name.startswith("_") and not inspect.ismodule(getattr(peer, name)):
            yield "", name
    for name in modules():
        module = loaded(name)
        for key, value in vars(module).items() if module is not None else ():
            if not key.startswith("_") and getattr(value, "__module__", "") == module.__name__:  # type: ignore[union-attr]
                yield name, key


def test_every_name_is_there() -> None:
    absent = []
    for module, name in names():
        where = f"quantkit.ort.{module}".rstrip(".")
        try:
            exec(f"from {where} import {name}", {})  # noqa: S102 - what users write
        except ImportError as e:
            absent.append(f"from {where} import {name}: {e}")
    assert absent == []


# What quantkit does itself; everything else is the same object as in onnxruntime.
REPLACED = {
    *("quantize", "quantize_static", "quantize_dynamic", "check_static_quant_arguments"),
    *("StaticQuantConfig", "DynamicQuantConfig", "get_qdq_config", "QDQQuantizer"),
    *("write_calibration_table", "MatMulNBitsQuantizer", "parse_args", "main"),
    *(f"{kind}WeightOnlyQuantConfig" for kind in ("RTN", "KQuant", "GPTQ", "HQQ")),
    *("OnnxModelCalibrationDataReader", "get_tensor_quant_overrides"),
}


def test_names_are_onnxruntimes_own_objects_but_for_what_quantizes() -> None:
    other = set()
    for module, name in names():
        ours = import_module(f"quantkit.ort.{module}".rstrip("."))
        theirs = import_module(f"{peer.__name__}.{module}".rstrip("."))
        if getattr(ours, name) is not getattr(theirs, name):
            other.add(name)
    assert other <= REPLACED
    for name in ("StaticQuantConfig", "DynamicQuantConfig"):
        assert issubclass(getattr(quantkit.ort, name), getattr(peer, name))


def test_every_module_is_there_and_keeps_its_own_name() -> None:
    for module in modules():
        if loaded(module) is None:
            continue
        found = import_module(f"quantkit.ort.{module}")
        assert found.__spec__ is not None
        assert found.__spec__.name == found.__name__


def test_a_module_that_onnxruntime_renamed_says_so() -> None:
    with pytest.raises(ModuleNotFoundError, match="matmul_nbits_quantizer now"):
        import_module("quantkit.ort.matmul_4bits_quantizer")


def test_commands_of_modules_that_pass_through_run() -> None:
    words = [sys.executable, "-m", "quantkit.ort.preprocess", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "--skip_symbolic_shape" in done.stdout) == (0, True)


LINES = [
    "from quantkit.ort.calibrate import CalibrationDataReader, CalibrationMethod, TensorsData",
    "from quantkit.ort.calibrate import create_calibrator, MinMaxCalibrater",
    "from quantkit.ort.quant_utils import QuantFormat, QuantType, write_calibration_table",
    "from quantkit.ort.quantize import quantize, quantize_dynamic, quantize_static",
    "from quantkit.ort.shape_inference import quant_pre_process",
    "from quantkit.ort.qdq_loss_debug import collect_activations, create_weight_matching",
    "from quantkit.ort.preprocess import quant_pre_process",
    "from quantkit.ort import calibrate, shape_inference, quant_utils",
    "from quantkit.ort.registry import QLinearOpsRegistry, QDQRegistry",
    "from quantkit.ort.onnx_model import ONNXModel",
    "from quantkit.ort.matmul_nbits_quantizer import MatMulNBitsQuantizer, GPTQWeightOnlyQuantConfig",
    "from quantkit.ort.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model",
    "from quantkit.ort.quant_utils import quantize_data, get_opset_version, ms_domain",
    "from quantkit.ort.execution_providers.qnn import get_qnn_qdq_config",
    "from quantkit.ort.tensor_quant_overrides import TensorQuantOverridesHelper",
    "import quantkit.ort; quantkit.ort.shape_inference.quant_pre_process",
    "import quantkit.ort.quantize; quantkit.ort.quantize('a', 'b', 0) if 0 else callable(quantkit.ort.quantize) or 1/0",
]

IN_A_NEW_PROCESS = """
import os, sys, traceback
import onnx, onnx_ir, onnxruntime.quantization  # take time, and are not what is tested
for line in sys.stdin.read().splitlines():
    child = os.fork()
    if child == 0:
        try:
            exec(line, {})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(line)
"""


@pytest.mark.slow
def test_names_are_found_in_the_modules_where_scripts_look() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_NEW_PROCESS],
        input="\n".join(LINES),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "", done.stderr
    assert done.returncode == 0, done.stderr


def test_a_name_that_nobody_has_is_an_ordinary_mistake() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'quantise'"):
        _ = quantkit.ort.quantise
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from quantkit.ort import nonsense", {})  # noqa: S102 - what users write
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        import_module("quantkit.ort.nonsense")
    assert not hasattr(quantkit.ort, "nonsense")


@pytest.mark.slow
def test_an_older_onnxruntime_lacks_helpers_and_no_more() -> None:
    """Tables of ranges, `get_qdq_config` and the commands came later than the oldest version that is supported."""
    line = (
        "import sys\n"
        "from onnxruntime import quantization\n"
        "from onnxruntime.quantization import calibrate\n"
        "for name in ('load_tensors_data', 'save_tensors_data', 'CalibrationCacheEncoder'):\n"
        "    delattr(calibrate, name)\n"
        "    hasattr(quantization, name) and delattr(quantization, name)\n"
        "sys.modules['onnxruntime.quantization.matmul_nbits_quantizer'] = None\n"
        "sys.modules['onnxruntime.quantization.static_quantize_runner'] = None\n"
        "delattr(sys.modules['onnxruntime.quantization.quantize'], 'get_qdq_config')\n"
        "from quantkit.ort import *\n"
        "print(callable(quantize_static), 'load_tensors_data' in globals())"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


@pytest.mark.slow
def test_quantkit_itself_imports_neither_onnxruntimes_quantization_nor_torch() -> None:
    line = "import sys, quantkit; sys.exit('onnxruntime.quantization' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
    line = "import sys, quantkit.ort; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
