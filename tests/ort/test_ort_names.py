"""Every public name of onnxruntime.quantization is in quantkit.ort, or asking for it says what to use instead."""

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
from quantkit.errors import QuantkitError
from quantkit.ort import registry

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


def explains(error: BaseException) -> bool:
    """Say whether an error names a way that is not the one just tried."""
    said = str(error)
    return isinstance(error, QuantkitError) and any(
        way in said for way in ("quantkit.", "quantkit quantize", "onnx_ir", "onnxruntime.quant")
    )


def test_every_name_is_there_or_says_what_to_use_instead() -> None:
    unexplained = []
    for module, name in names():
        where = f"quantkit.ort.{module}".rstrip(".")
        try:
            exec(f"from {where} import {name}", {})  # noqa: S102 - what users write
        except ImportError as e:
            if not explains(e):
                unexplained.append(f"from {where} import {name}: {e}")
    assert unexplained == []


def test_every_module_is_there_or_says_what_to_use_instead() -> None:
    unexplained = []
    for module in modules():
        try:
            import_module(f"quantkit.ort.{module}")
        except ModuleNotFoundError as e:
            if not explains(e):
                unexplained.append(f"import quantkit.ort.{module}: {e}")
    assert unexplained == []


def test_an_attribute_that_is_missing_says_what_to_use_instead() -> None:
    public = {name for module, name in names() if not module}
    unexplained = []
    for name in sorted(public | {m.split(".")[0] for m in modules()}):
        try:
            getattr(quantkit.ort, name)
        except AttributeError as e:
            if not explains(e):
                unexplained.append(name)
    assert unexplained == []


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("from quantkit.ort import MatMulNBitsQuantizer", ImportError, "matmul_nbits_quantizer"),
        ("quantkit.ort.MatMulNBitsQuantizer", AttributeError, "quantize_weights("),
        ("import quantkit.ort.matmul_4bits_quantizer", ModuleNotFoundError, "second argument"),
        ("from quantkit.ort import MatMul4BitsQuantizer", ImportError, "matmul_nbits_quantizer"),
        ("import quantkit.ort.matmul_bnb4_quantizer", ModuleNotFoundError, "quantize_weights("),
        ("from quantkit.ort import MatMulBnb4Quantizer", ImportError, "NF4"),
        (
            "from quantkit.ort.matmul_nbits_quantizer import NVAWQWeightOnlyQuantConfig",
            ImportError,
            "awq=True",
        ),
        (
            "from quantkit.ort.matmul_nbits_quantizer import HQQWeightOnlyQuantizer",
            ImportError,
            "MatMulNBitsQuantizer",
        ),
        ("from quantkit.ort import get_qnn_qdq_config", ImportError, "execution_providers.qnn"),
        ("quantkit.ort.get_qnn_qdq_config", AttributeError, "execution_providers.qnn"),
        ("from quantkit.ort.calibrate import HistogramCollector", ImportError, "calibrate("),
        ("quantkit.ort.calibrate.HistogramCollector", AttributeError, "calibrate("),
        ("from quantkit.ort import CudaQuantizer", ImportError, "tensorrt"),
        ("import quantkit.ort.onnx_quantizer", ModuleNotFoundError, "plan_static"),
    ],
)
def test_the_usual_ones(line: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said.replace("(", r"\(")) as caught:
        exec(line, {"quantkit": quantkit})  # noqa: S102 - what users write
    assert isinstance(caught.value, QuantkitError)


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
import onnx, onnx_ir, onnxruntime  # what takes time, and is nobody's question here
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


def test_lists_of_operators_hold_what_onnxruntimes_hold() -> None:
    for name in registry.__all__:
        theirs = getattr(import_module("onnxruntime.quantization.registry"), name)
        assert set(theirs) <= set(getattr(registry, name))
    assert "Conv" in list(registry.QLinearOpsRegistry.keys())


def test_a_name_that_nobody_has_is_an_ordinary_mistake() -> None:
    with pytest.raises(AttributeError, match="did you mean 'quantize'"):
        _ = quantkit.ort.quantise
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from quantkit.ort import nonsense", {})  # noqa: S102 - what users write
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        import_module("quantkit.ort.nonsense")
    assert not hasattr(quantkit.ort, "nonsense")
    assert not hasattr(quantkit.ort, "MatMulNBitsQuantizer")


IN_ITS_PLACE = """
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

THEIRS = "onnxruntime.quantization"

class Swap(MetaPathFinder, Loader):
    def find_spec(self, name, path, target=None):
        swapped = name == THEIRS or name.startswith(THEIRS + ".")
        return ModuleSpec(name, self, is_package=True) if swapped else None
    def create_module(self, spec):
        return import_module("quantkit.ort" + spec.name.removeprefix(THEIRS))
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Swap())
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod
for line in ("from onnxruntime.quantization.calibrate import HistogramCollector",
             "from onnxruntime.quantization import nonsense",
             "import onnxruntime.quantization.matmul_bnb4_quantizer"):
    try:
        exec(line)
    except ImportError:
        print("ImportError")
"""


def test_it_may_stand_in_the_place_of_onnxruntimes_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_ITS_PLACE],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["ImportError"] * 3, done.stderr


def test_asking_for_a_name_never_imports_onnxruntimes_own() -> None:
    line = (
        "import sys, quantkit.ort\n"
        "for name in ('nonsense', 'normalize_axis', 'quant_utils', 'QuantType', 'CudaQuantizer'):\n"
        "    hasattr(quantkit.ort, name), hasattr(quantkit.ort.calibrate, name)\n"
        "sys.exit('onnxruntime.quantization' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
