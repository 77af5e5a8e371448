"""A model file that changes while it is read: one sentence, no file, and no signal."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, rng, weight

from quantkit.api.quantize import Stages, Task, quantize
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.monitor import Silent
from quantkit.errors import ModelError
from quantkit.evaluate.match import named
from quantkit.model.graph import mapping
from quantkit.model.graph.load import LoadedModel
from quantkit.model.provenance import model_digest
from quantkit.pipeline import checks
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.pipeline.evaluate import PARTS, EvaluateOptions, evaluate
from quantkit.pipeline.optimize import optimize_model
from quantkit.pipeline.verify_file import attest
from quantkit.settings import DataSettings, DynamicSettings, StaticSettings

K = 256
DATA = rng(1).standard_normal((48, K)).astype(np.float32)


def build(seed: int) -> bytes:
    weights = {name: weight(K, K, seed=seed + i, scale=0.1) for i, name in enumerate("abc")}
    nodes = [
        node("MatMul", ["x", "a"], ["h"], "m1"),
        node("Relu", ["h"], ["r"], "relu"),
        node("MatMul", ["r", "b"], ["s"], "m2"),
        node("MatMul", ["s", "c"], ["y"], "m3"),
    ]
    proto = model(graph(nodes, {"x": ["N", K]}, {"y": None}, weights))
    return bytes(proto.SerializeToString())


CHANGES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda path: os.truncate(path, 5000),
    "overwritten": lambda path: path.write_bytes(build(9)),
    "replaced": lambda path: shutil.move(save_other(path), path),
    "removed": lambda path: path.unlink(),
}


def save_other(path: Path) -> Path:
    other = path.with_name("other.onnx")
    other.write_bytes(build(9))
    return other


class Changing(Silent):
    """Changes a file when a stage begins."""

    def __init__(self, path: Path, stage: int, change: Callable[[Path], object]) -> None:
        self.path, self.left, self.change = path, stage, change

    def stage(self, text: str) -> None:
        super().stage(text)
        self(text)

    def __call__(self, _: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.change(self.path)


def run_static(path: Path, out: Path, changing: Changing) -> None:
    quantize(Task(source=path, data=DATA, how=StaticSettings()), out, monitor=changing)


def run_calibrate(path: Path, out: Path, changing: Changing) -> None:
    calibrate_model(path, DATA, out, CalibrateOptions(), DataSettings(), changing)


def run_dynamic(path: Path, out: Path, changing: Changing) -> None:
    quantize(Task(source=path, how=DynamicSettings()), out, monitor=Stages(changing))


def run_optimize(path: Path, out: Path, changing: Changing) -> None:
    optimize_model(path, out, progress=changing)


COMMANDS = {
    "static": (run_static, (3, 6, 8, 10)),
    "dynamic": (run_dynamic, (2, 3)),
    "optimize": (run_optimize, (2, 3, 4)),
    "calibrate": (run_calibrate, (2, 3, 4)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("command", "stage"), [(name, n) for name, (_, stages) in COMMANDS.items() for n in stages]
)
def test_a_model_that_changes_meanwhile_is_an_error_and_nothing_is_written(
    command: str, stage: int, change: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out"
    path.write_bytes(build(0))
    changing = Changing(path, stage, CHANGES[change])
    with pytest.raises(ModelError) as caught:
        COMMANDS[command][0](path, out, changing)
    assert "changed while it was being read; nothing was written" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert changing.left <= 0
    assert not out.exists()


def test_a_model_that_is_only_touched_by_its_reader_is_no_change(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    path.write_bytes(build(0))
    (tmp_path / "link.onnx").symlink_to(path)
    quantize(
        Task(source=tmp_path / "link.onnx", how=DynamicSettings()),
        out,
        monitor=Stages(lambda _: path.chmod(0o444)),
    )
    assert out.exists()


@pytest.mark.parametrize("which", [0, 1])
def test_an_evaluation_and_its_digests_belong_to_one_version(which: int, tmp_path: Path) -> None:
    paths = [tmp_path / "m.onnx", tmp_path / "q.onnx"]
    for path in paths:
        path.write_bytes(build(0))
    # The third stage: answers and times are there, digests are not.
    changing = Changing(paths[which], 3, CHANGES["replaced"])
    options = EvaluateOptions(skip=frozenset(PARTS) - {"runtime"})
    with pytest.raises(ModelError, match="changed while it was being read"):
        evaluate(named(paths), DATA, DataSettings(), options, changing)
    assert changing.left <= 0


@pytest.mark.parametrize("which", [0, 1])
def test_what_verify_hashes_and_runs_is_one_version(which: int, tmp_path: Path) -> None:
    paths = [tmp_path / "m.onnx", tmp_path / "q.onnx"]
    paths[0].write_bytes(build(0))
    quantize(Task(source=paths[0], how=DynamicSettings()), paths[1])
    changing = Changing(paths[which], 2, CHANGES["replaced"])
    with pytest.raises(ModelError, match="changed while it was being read"):
        attest(paths[1], float_model=paths[0], progress=changing)


def _overwrite_keeping_times(path: Path) -> None:
    found = path.stat()
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("tick", [0, 2_000_000_000])
def test_a_change_that_hides_its_time_is_seen(
    tick: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "_TICK", tick)
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    path.write_bytes(build(0))
    changing = Changing(path, 3, _overwrite_keeping_times)
    with pytest.raises(ModelError, match="was changed while it was being read"):
        quantize(Task(source=path, how=DynamicSettings()), out, monitor=Stages(changing))
    assert not out.exists()


@pytest.mark.skipif(os.name != "posix", reason="no time of the last change of any kind")
def test_a_file_that_lay_still_is_digested_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    path.write_bytes(build(0))
    again = list[LoadedModel]()

    def counted(loaded: LoadedModel) -> dict[str, Any]:
        again.append(loaded)
        return model_digest(loaded)

    monkeypatch.setattr(checks, "model_digest", counted)
    quantize(Task(source=path, how=DynamicSettings()), out)
    assert len(again) == 1  # written just now: clocks may hide another write
    monkeypatch.setattr(mapping, "_TICK", 0)
    quantize(Task(source=path, how=DynamicSettings()), out)
    assert len(again) == 1
