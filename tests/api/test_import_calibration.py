"""Calibration costs nothing until it is used: what is imported when."""

import subprocess
import sys

import pytest

HEAVY = "{'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'scipy', 'dask', 'distributed', 'datasets'}"


def imported(code: str, watched: str) -> str:
    program = f"import sys\n{code}\nprint(sorted({watched} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "watched"),
    [
        ("from quantkit.cli.app import run; run(['calibrate', '--help'])", HEAVY),
        (
            "import quantkit.calibration",
            "{'onnx_ir', 'onnxruntime', 'dask', 'distributed', 'datasets'}",
        ),
        (
            "from quantkit import calibrate, Calibration",
            "{'dask', 'distributed', 'datasets', 'PIL'}",
        ),
        ("import calibrators", "{'onnx', 'onnxruntime', 'dask', 'datasets'}"),
    ],
    ids=["help", "reading-a-file", "the-call", "calibrators"],
)
@pytest.mark.slow
def test_what_is_not_needed_is_not_imported(code: str, watched: str) -> None:
    assert imported(code, watched) == "[]"
