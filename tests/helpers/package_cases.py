"""Packages made for tests: without hashes, so that no index is asked."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_cases import WAIT, free_port

from quantkit import Packaged, PackageSettings, package_model

# What is not in the image.
ABSENT = ("onnx", "onnx_ir", "scipy", "datasets", "typer", "rich", "jinja2")


def packed(model: Path, output: Path, *, form: Any = "docker", **how: Any) -> Packaged:
    """Make a package without asking an index."""
    own = {
        k: how.pop(k)
        for k in ("sample", "tolerance", "report", "base", "image", "arch")
        if k in how
    }
    settings = replace(PackageSettings(form=form, hashes=False), **own)
    return package_model(model, output, settings=settings, **how)


@contextmanager
def running(folder: Path, *flags: str, token: str = "") -> Iterator[str]:
    """Start what the image starts, with the files of the package alone; give its address."""
    port = free_port()
    words = [str(folder / "model/model.onnx"), "--recipe", str(folder / "config/quantkit.toml")]
    words += ["--host", "127.0.0.1", "--port", str(port), "--drain-s", "0", *flags]
    code = (
        f"import sys, runpy; sys.modules.update(dict.fromkeys({ABSENT!r})); sys.argv[1:] = {words!r}; "
        "runpy.run_module('quantkit.deploy.serve', run_name='__main__', alter_sys=True)"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder / "app"), "QUANTKIT_TOKEN": token}
    log = folder.parent / f"{time.monotonic_ns()}.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stderr=stderr, cwd=folder / "app", env=environment
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(WAIT) == 0, log.read_text()


def smoke(folder: Path, *words: str, token: str = "") -> tuple[int, str]:
    """Run ./smoke; return its exit code and what it said."""
    environment = {**os.environ, "QUANTKIT_TOKEN": token}
    command = [sys.executable, "-I", str(folder / "smoke"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }
