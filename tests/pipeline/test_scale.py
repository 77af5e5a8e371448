"""Memory does not grow with the model: weights are mapped, results are streamed."""

import subprocess
import sys
from pathlib import Path

import pytest
from builders import run
from synthetic import big_model, long_graph

# VmHWM, because ru_maxrss survives exec: it would start at the peak of the test runner.
_WATCH = """
import re, sys
from pathlib import Path
from quantkit import quantize_dynamic

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = peak()
quantize_dynamic(sys.argv[1], sys.argv[2], verify=sys.argv[3] == "verify")
print(peak() - before)
"""


def grown_kb(source: Path, target: Path, verify: str) -> int:
    """Quantize in a process of its own; return by how much its peak memory rose, in KB."""
    done = subprocess.run(
        [sys.executable, "-c", _WATCH, str(source), str(target), verify],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's peak resident memory")
@pytest.mark.slow
def test_quantizing_needs_a_fraction_of_the_models_size(tmp_path: Path) -> None:
    source = big_model(tmp_path / "big.onnx", layers=6, width=3072)  # 226 MB
    grown = grown_kb(source, tmp_path / "q.onnx", "no-verify")
    assert 10_000 < grown < 150_000


def test_a_model_with_external_data_becomes_one_file_that_runs(tmp_path: Path) -> None:
    import numpy as np

    from quantkit import quantize_dynamic

    source = big_model(tmp_path / "big.onnx", layers=3, width=512)
    quantize_dynamic(source, tmp_path / "q.onnx")
    x = np.ones((2, 512), np.float32)
    assert run(tmp_path / "q.onnx", {"x": x})[0].shape == (2, 512)
    assert not (tmp_path / "q.onnx.data").exists()


@pytest.mark.slow
def test_a_graph_of_thousands_of_nodes(tmp_path: Path) -> None:
    from quantkit import quantize_dynamic

    source = long_graph(tmp_path / "long.onnx", 2000, width=32)
    result = quantize_dynamic(source, tmp_path / "q.onnx")
    assert len(result.plan.weights) == 1000
    assert result.output_bytes < 0.5 * result.input_bytes
