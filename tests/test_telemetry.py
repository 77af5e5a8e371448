"""onnxruntime says nothing to its makers, and leaves nothing in the user's cache, unless the user wants it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import matmul_model, save


def home_after(tmp_path: Path, **settings: str) -> list[str]:
    """Return what is in a new user's home after a model was quantized."""
    home = tmp_path / "home"
    home.mkdir()
    source = save(matmul_model(), tmp_path / "m.onnx")
    keep = {
        k: v for k, v in os.environ.items() if k not in {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}
    }
    program = "import sys; from quantkit.cli.app import run; sys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "quantize", "dynamic", source, tmp_path / "q.onnx"],
        env={**keep, "HOME": str(home), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [p.name for p in home.rglob("*")]


@pytest.mark.slow
def test_the_home_of_a_new_user_stays_empty(tmp_path: Path) -> None:
    assert home_after(tmp_path) == []


@pytest.mark.parametrize("value", ["0", "1"])
def test_what_the_user_set_stays(value: str) -> None:
    code = "import os, quantkit.runtime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ORT_DISABLE_TELEMETRY": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == value
