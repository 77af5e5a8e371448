"""`quantkit distill`: training through the pipeline, from files to a file."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, op_types, rng, save, weight

import quantkit
from quantkit.calibration.monitor import Silent
from quantkit.cli.app import run as run_command
from quantkit.errors import (
    DataError,
    QuantkitError,
    RuntimeSupportError,
    UnknownNodeError,
    UsageError,
)
from quantkit.model.graph.load import load
from quantkit.model.provenance import read_provenance, software
from quantkit.settings import DataSettings, DistillSettings

pytest.importorskip("torch", reason="torch is not installed: training is not tested")

Array = np.ndarray[Any, Any]
STEPS, SAMPLES = 40, 80


def teacher_proto(noise: float = 0.0) -> onnx.ModelProto:
    """Return a model; with noise a bad copy of it."""
    held = {
        "w1": weight(24, 3, 3, 3, seed=0),
        "b1": weight(24, seed=1),
        "w2": weight(12, 24, 1, 1, seed=2),
        "w3": weight(5, 12, seed=3, scale=1.0),
    }
    held["w2"] = held["w2"] + noise * held["w2"].std() * rng(9).standard_normal(
        held["w2"].shape
    ).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c"], "c1", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "r1"),
        node("Conv", ["r", "w2"], ["d"], "c2"),
        node("GlobalAveragePool", ["d"], ["p"], "p"),
        node("Flatten", ["p"], ["f"], "f"),
        node("Gemm", ["f", "w3"], ["y"], "g", transB=1),
    ]
    return model(graph(nodes, {"x": ["N", 3, 16, 16]}, {"y": ["N", 5]}, held))


def images(seed: int = 5, count: int = SAMPLES) -> Array:
    return rng(seed).standard_normal((count, 3, 16, 16)).astype(np.float32)


class Files:
    """A teacher, a student and data in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.teacher = save(teacher_proto(), folder / "teacher.onnx")
        self.student = save(teacher_proto(noise=0.4), folder / "student.onnx")
        self.data = folder / "x.npy"
        np.save(self.data, images())

    def distill(self, name: str = "out.onnx", **options: Any) -> Any:
        given = {"steps": STEPS, "batch": 8, "threads": 1, **options}
        student = given.pop("student", self.student)
        data = given.pop("data", self.data)
        return quantkit.distill(self.teacher, student, self.folder / name, data, **given)

    def int4(self) -> Path:
        target = self.folder / "int4.onnx"
        quantkit.quantize_static(self.teacher, target, self.data, weight_bits=4, measure=False)
        return target


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def weights(path: Path) -> dict[str, Array]:
    initializers = load(path).model.graph.initializers.items()
    return {n: v.const_value.numpy().copy() for n, v in initializers if v.const_value is not None}


# --- what comes out


def test_a_student_is_trained_and_written_under_the_same_names(files: Files) -> None:
    before = files.student.read_bytes()
    result = files.distill()
    assert result.improved
    assert result.trained.best < 0.7 * result.trained.start
    assert files.student.read_bytes() == before
    out, old = weights(files.folder / "out.onnx"), weights(files.student)
    assert out.keys() == old.keys()
    assert all((out[name] != old[name]).any() for name in ("w1", "w2", "w3"))
    assert op_types(onnx.load(files.folder / "out.onnx")) == op_types(onnx.load(files.student))
    assert not (files.folder / "out.onnx.partial").exists()
    assert "held-out KL" in str(result)
    assert result.to_json()["improved"]


def test_the_record_names_the_student_the_data_and_torch(files: Files) -> None:
    files.distill(threads=None)
    says = read_provenance(files.folder / "out.onnx")
    assert says is not None
    assert (says.kind, says.float.name) == ("distill", "teacher.onnx")
    assert says.options["student"]["name"] == "student.onnx"
    assert says.options["distill"]["steps"] == STEPS
    assert says.options["distill"]["threads"] > 0
    assert says.options["distill"]["precision"] in {"float32", "bfloat16"}
    assert "torch" in says.software
    assert says.data is not None
    assert (says.data.samples, says.data.name) == (SAMPLES - 10, "x.npy")


def test_a_student_that_training_does_not_help_is_returned_unchanged(files: Files) -> None:
    result = files.distill(student=files.teacher)
    assert not result.improved
    assert "the student is returned unchanged" in result.warnings[0]
    before, after = weights(files.teacher), weights(files.folder / "out.onnx")
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_minutes_decide_how_many_steps_there_are(files: Files) -> None:
    result = files.distill(steps=None, minutes=0.002)
    assert result.trained.steps >= 10


def test_quantized_students_keep_their_operators_and_integers(files: Files) -> None:
    student = files.int4()
    result = files.distill(student=student, rate=8.0)
    out = files.folder / "out.onnx"
    before, after = weights(student), weights(out)
    assert op_types(onnx.load(out)) == op_types(onnx.load(student))
    assert {n: (a.dtype, a.shape) for n, a in before.items()} == {
        n: (a.dtype, a.shape) for n, a in after.items()
    }
    assert result.plan.precision == "float32"
    changed = {n for n, a in before.items() if (a != after[n]).any()}
    assert changed == {n for n in changed if before[n].dtype.kind in "iu"}
    assert bool(changed) == result.improved


@pytest.mark.parametrize("quantized", [False, True])
def test_frozen_layers_keep_their_weights(files: Files, *, quantized: bool) -> None:
    student = files.int4() if quantized else files.student
    result = files.distill(student=student, freeze="r1" if not quantized else "c1", rate=8.0)
    before, after = weights(student), weights(files.folder / "out.onnx")
    for name, array in before.items():
        if name.startswith(("w1", "b1")):
            np.testing.assert_array_equal(after[name], array)
    assert not any(name.startswith(("w1", "b1")) for name in result.plan.weights)
    assert any(name.startswith(("w2", "w3")) for name in result.plan.weights)
    if not quantized:
        assert result.improved


def test_both_precisions_train(files: Files) -> None:
    for precision in ("float32", "bfloat16"):
        result = files.distill(f"{precision}.onnx", precision=precision)
        assert result.improved
        assert result.plan.precision == precision


def test_copies_of_held_out_samples_are_not_trained_on(files: Files) -> None:
    from quantkit.calibration.model_inputs import inputs_of
    from quantkit.data import open_data
    from quantkit.reduce.distill.batches import Batches

    twice = np.concatenate([images(count=30), images(count=30)])
    np.save(files.data, twice)
    samples: Any = open_data(files.data, inputs_of(load(files.teacher)))
    found = Batches(samples=samples, places=range(30, 60), held_out=range(5), size=4, seed=0)
    seen = np.concatenate([feeds["x"] for i in range(24) for feeds in found.step(i)])
    held = twice[:5]
    assert not any((x == h).all() for x in seen for h in held)
    assert any((x == twice[6]).all() for x in seen)


# --- the same bytes, and resuming


def test_the_same_steps_write_the_same_bytes_and_can_be_verified(files: Files) -> None:
    files.distill("a.onnx")
    files.distill("b.onnx")
    out = files.folder / "a.onnx"
    assert out.read_bytes() == (files.folder / "b.onnx").read_bytes()
    given: dict[str, Any] = {"again": True, "student": files.student}
    found = quantkit.verify_file(out, files.teacher, files.data, **given)
    assert {c.name: c.outcome for c in found.checks}["again"] == "ok", str(found)
    assert "same bytes" in found.checks[-1].sentence
    for student, why in ((None, "--student"), (files.teacher, "is not the student")):
        again = quantkit.verify_file(out, files.teacher, files.data, again=True, student=student)
        assert again.checks[-1].outcome == "unknown"
        assert why in again.checks[-1].sentence


def test_a_difference_with_another_torch_is_no_fault(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantkit.pipeline.forms import distill
    from quantkit.reduce.distill import training

    files.distill(steps=12)
    monkeypatch.setattr(training, "_FLOAT_RATE", 4e-3)  # another torch computes something else
    there = software("torch")
    monkeypatch.setattr(distill, "software", lambda *_: {**there, "torch": "1.0"})
    given: dict[str, Any] = {"again": True, "student": files.student}
    found = quantkit.verify_file(files.folder / "out.onnx", files.teacher, files.data, **given)
    assert found.checks[-1].outcome == "unknown"
    assert "made with torch" in found.checks[-1].sentence
    assert "only on the same CPU with the same torch" in found.checks[-1].sentence


class StoppedError(BaseException):
    """What a kill does: nothing is tidied up."""


class Stopping(Silent):
    """Stops a training after some steps; counts what happens."""

    def __init__(self, after: int | None = None) -> None:
        self.after, self.ticks, self.before = after, 0, 0

    def tick(self, samples: int) -> None:
        self.ticks += samples
        if self.ticks == self.after:
            raise StoppedError

    def resumed(self, samples: int) -> None:
        self.before = samples


def test_a_killed_run_resumes_and_writes_the_same_bytes(files: Files) -> None:
    from quantkit.api.distill import distill_with

    def start(name: str, monitor: Silent) -> None:
        distill_with(
            files.teacher,
            files.student,
            files.folder / name,
            DistillSettings(steps=24, threads=1),
            data=files.data,
            settings=DataSettings(batch=8),
            monitor=monitor,
        )

    start("whole.onnx", Silent())
    with pytest.raises(StoppedError):
        start("parts.onnx", Stopping(after=13))
    assert (files.folder / "parts.onnx.partial").exists()
    rest = Stopping()
    start("parts.onnx", rest)
    assert rest.before == 12
    assert rest.ticks == 12
    whole, parts = (files.folder / f"{name}.onnx" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    assert not (files.folder / "parts.onnx.partial").exists()


# --- what is refused, in one line


def test_too_few_samples_are_refused(files: Files) -> None:
    np.save(files.data, images(count=39))
    with pytest.raises(DataError, match=r"at least 40 samples.*gives 39"):
        files.distill()


def test_data_that_can_be_read_only_once_is_refused(files: Files) -> None:
    def rows() -> Iterator[dict[str, Array]]:
        for row in images():
            yield {"x": row[None]}

    with pytest.raises(UsageError, match="not an iterator"):
        files.distill(data=rows())


def test_missing_torch_is_one_line_that_says_what_to_install(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"Distilling needs PyTorch.*CPU build.*distill\]"):
        files.distill()


@pytest.mark.parametrize("change", ["outputs", "operator", "node", "nan", "overwrites"])
def test_what_cannot_be_trained_is_refused(files: Files, change: str) -> None:
    kind: type[QuantkitError] = UsageError
    options: dict[str, Any] = {}
    proto = teacher_proto(noise=0.4)
    if change == "outputs":
        proto.graph.output[0].name = proto.graph.node[-1].output[0] = "other"
        match = "different outputs: y and other"
    elif change == "operator":
        proto.graph.node[1].op_type = "Celu"
        match, kind = r"does not support: Celu \('r1'\)", RuntimeSupportError
    elif change == "node":
        options["freeze"] = "nothing"
        match, kind = "has no node 'nothing'", UnknownNodeError
    elif change == "nan":
        array = images()
        array[::3] = np.nan
        np.save(files.data, array)
        match, kind = "NaN", QuantkitError
    else:
        options["name"] = "student.onnx"
        match = "overwrite"
    save(proto, files.student)
    before = sorted(p.name for p in files.folder.iterdir())
    with pytest.raises(kind, match=match) as caught:
        files.distill(**options)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in files.folder.iterdir()) == before


# --- the command


def test_the_command_shows_the_losses_and_draws_them(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    out, curve = files.folder / "out.onnx", files.folder / "curve.svg"
    given = [files.teacher, files.student, out, "--data", files.data, "--curve", curve]
    flags = ["--steps", STEPS, "--batch", 8, "--threads", 1]
    assert run_command(["distill", *map(str, [*given, *flags])]) == 0
    shown = capsys.readouterr().out
    assert "held-out KL" in shown
    assert f"wrote {out}" in shown
    picture = curve.read_text()
    assert picture.startswith("<svg")
    assert picture.count("<polyline") == 2


def test_the_command_says_that_a_student_is_unchanged(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [files.teacher, files.teacher, files.folder / "out.onnx", "--data", files.data]
    assert run_command(["distill", *map(str, given), "--steps", "12", "--batch", "8"]) == 0
    said = capsys.readouterr()
    assert "the student is returned unchanged" in " ".join((said.out + said.err).split())
