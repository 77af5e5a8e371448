"""Weights that are trained, and the loop that trains them."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit import quantize_static
from quantkit.data import Description, Sample
from quantkit.errors import NothingToQuantizeError, RuntimeSupportError, UsageError, VerifyError
from quantkit.model.graph.load import LoadedModel, load
from quantkit.runtime.saturation import saturating_nodes

torch = pytest.importorskip("torch", reason="torch is not installed: training is not tested")

from quantkit.reduce.distill.batches import Batches
from quantkit.reduce.distill.lesson import Lesson
from quantkit.reduce.distill.losses import OutputKind, output_kind
from quantkit.reduce.distill.training import Training
from quantkit.reduce.distill.weights import weights_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Array = np.ndarray[Any, Any]
WIDTH, CLASSES, SAMPLES = 12, 5, 60


def teacher_proto(seed: int = 0, scale: float = 1.0, hidden: int = 24) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c"], "c1", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "r"),
        node("Conv", ["r", "w2"], ["d"], "c2"),
        node("GlobalAveragePool", ["d"], ["p"], "p"),
        node("Flatten", ["p"], ["f"], "f"),
        node("Gemm", ["f", "w3", "b3"], ["y"], "g", transB=1),
    ]
    held = {
        "w1": weight(hidden, 3, 3, 3, seed=seed) * scale,
        "b1": weight(hidden, seed=1),
        "w2": weight(WIDTH, hidden, 1, 1, seed=2),
        "w3": weight(CLASSES, WIDTH, seed=3, scale=1.0),
        "b3": weight(CLASSES, seed=4),
    }
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", CLASSES]}, held))


def noisy(proto: onnx.ModelProto, amount: float = 0.3) -> onnx.ModelProto:
    """Return a model whose second weight is a bad copy."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    for tensor in found.graph.initializer:
        if tensor.name == "w2":
            array = onnx.numpy_helper.to_array(tensor)
            changed = (
                array
                + amount * rng(9).standard_normal(array.shape).astype(np.float32) * array.std()
            )
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed.astype(np.float32), "w2"))
    return found


class Rows:
    """Samples in memory."""

    description = Description(kind="rows", location="here", samples=SAMPLES)

    def __init__(self, bad: int | None = None) -> None:
        self.arrays = rng(5).standard_normal((SAMPLES, 1, 3, 8, 8)).astype(np.float32)
        if bad is not None:
            self.arrays[bad] = np.nan

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        return Sample(feeds={"x": self.arrays[index]}, name=str(index))

    def fingerprint(self) -> str:
        return "rows"


def training(teacher: LoadedModel, student: LoadedModel, folder: Path, **changes: Any) -> Training:
    samples = changes.pop("samples", Rows())
    batches = Batches(
        samples=samples,
        places=range(10, SAMPLES),
        held_out=range(10),
        size=8,
        seed=changes.pop("seed", 0),
        augment=True,
    )
    lesson = Lesson(
        teacher=teacher,
        student=student,
        batches=batches,
        rate=1.0,
        embeddings=(),
        freeze="",
        half=False,
        folder=folder,
        tell=lambda _step, _steps, _figure: None,
        threads=1,
    )
    return replace(lesson, **changes).training()


def stored(of: Training) -> dict[str, Array]:
    return {n: a.copy() for w in of.weights for n, a in w.arrays()}


@cache
def quantized(bits: int) -> LoadedModel:
    proto = model(graph([
        node("Conv", ["x", "w1", "b1"], ["c"], "c1", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "r"),
        node("Conv", ["r", "w2"], ["d"], "c2", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["d"], ["p"], "p"),
        node("Flatten", ["p"], ["f"], "f"),
        node("MatMul", ["f", "w3"], ["y"], "m"),
    ], {"x": ["N", 3, 8, 8]}, {"y": ["N", 40]}, {
        "w1": weight(48, 3, 3, 3, seed=1),
        "b1": weight(48, seed=1),
        "w2": weight(48, 48, 3, 3, seed=2),
        "w3": weight(48, 40, seed=3, scale=1.0),
    }))  # fmt: skip
    folder = Path(__import__("tempfile").mkdtemp())
    source, target = save(proto, folder / "float.onnx"), folder / f"q{bits}.onnx"
    data = [{"x": array} for array in Rows().arrays]
    quantize_static(source, target, data, weight_bits=bits, measure=False)
    return load(target)


# --- weights


@pytest.mark.parametrize("bits", [8, 5, 4, 3, 2])
@pytest.mark.slow
def test_weights_that_nobody_trained_are_those_of_the_file(bits: int) -> None:
    student = quantized(bits)
    for seed in range(3):
        weights = weights_of(student.model, "it", seed)
        assert any(w.grid is not None for w in weights)
        assert any(w.grid is not None and 0 < w.grid.bits == bits for w in weights) == (bits < 8)
        for one in weights:
            for name, array in one.arrays():
                before = student.model.graph.initializers[name].const_value
                assert before is not None
                np.testing.assert_array_equal(array, before.numpy())
                assert array.dtype == before.numpy().dtype


@given(seed=st.integers(0, 1 << 20), far=st.floats(0.5, 200))
@settings(max_examples=25, deadline=None)
def test_trained_integers_keep_the_rule_of_saturation(seed: int, far: float) -> None:
    student = quantized(8)
    assert not saturating_nodes(student.model)
    draw, kept = rng(seed), {}
    for one in weights_of(student.model, "it"):
        one.latent.data.add_(torch.from_numpy(draw.standard_normal(one.latent.shape) * far))
        for name, array in one.arrays():
            value = student.model.graph.initializers[name]
            assert value.const_value is not None
            kept[value] = value.const_value
            value.const_value = onnx_tensor(array, name)
            assert one.grid is None or (one.read().detach().numpy() == array).all()
    assert not saturating_nodes(student.model)
    for value, before in kept.items():
        value.const_value = before


def onnx_tensor(array: Array, name: str) -> Any:
    import onnx_ir as ir

    return ir.Tensor(array, name=name)


def test_a_student_without_weights_is_refused() -> None:
    proto = model(graph([node("Relu", ["x"], ["y"])], {"x": ["N", 4]}, {"y": ["N", 4]}))
    with pytest.raises(NothingToQuantizeError, match="no weights"):
        weights_of(load(proto).model, "it")


# --- training


def test_a_student_gets_nearer_to_its_teacher(tmp_path: Path) -> None:
    found = training(load(teacher_proto()), load(noisy(teacher_proto())), tmp_path)
    before = stored(found)
    state = found.run(steps=60)
    assert state.is_better
    assert state.best < 0.7 * state.start
    after = stored(found)
    assert any((before[name] != after[name]).any() for name in before)


def test_integers_are_trained_too(tmp_path: Path) -> None:
    student = quantized(3)
    teacher = load(student.path.parent / "float.onnx") if student.path else student
    found = training(teacher, student, tmp_path, rate=4.0)
    state = found.run(steps=60)
    assert state.is_better


def test_the_same_seed_trains_the_same(tmp_path: Path) -> None:
    runs = []
    for name in "ab":
        (tmp_path / name).mkdir()
        found = training(load(teacher_proto()), load(noisy(teacher_proto())), tmp_path / name)
        found.run(steps=20)
        runs.append(stored(found))
    for name, array in runs[0].items():
        np.testing.assert_array_equal(array, runs[1][name])


def test_a_killed_run_goes_on_to_the_same_end(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = training(load(teacher_proto()), load(noisy(teacher_proto())), tmp_path / "whole")
    whole.run(steps=24)

    class KilledError(Exception):
        pass

    def kill(step: int, _steps: int, _figure: float) -> None:
        if step == 13:
            raise KilledError

    args = load(teacher_proto()), load(noisy(teacher_proto())), tmp_path / "parts"
    with pytest.raises(KilledError):
        training(*args, tell=kill).run(steps=24)
    seen: list[int] = []
    again = training(*args, tell=lambda step, _steps, _figure: seen.append(step))
    again.run(steps=24)
    assert seen[0] == 13  # the last check was after 12
    for name, array in stored(whole).items():
        np.testing.assert_array_equal(array, stored(again)[name])


def test_a_student_that_gains_nothing_stays_as_it_is(tmp_path: Path) -> None:
    found = training(load(teacher_proto()), load(teacher_proto()), tmp_path)
    before = stored(found)
    state = found.run(steps=20)
    assert not state.is_better
    for name, array in before.items():
        np.testing.assert_array_equal(array, stored(found)[name])


def test_a_rate_that_is_too_high_is_lowered(tmp_path: Path) -> None:
    found = training(
        load(teacher_proto()), load(noisy(teacher_proto(), 0.05)), tmp_path, rate=300.0
    )
    state = found.run(steps=60)
    assert state.restarts > 0


def test_nan_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match="NaN"):
        training(
            load(teacher_proto()), load(noisy(teacher_proto())), tmp_path, samples=Rows(bad=3)
        ).run(steps=5)
    with pytest.raises(VerifyError, match="NaN in step"):
        training(
            load(teacher_proto()), load(noisy(teacher_proto())), tmp_path, samples=AllBad()
        ).run(steps=5)


class AllBad(Rows):
    """Samples of which none that is trained on can be used."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays[10:] = np.nan


@pytest.mark.parametrize("change", ["inputs", "outputs", "shape", "operator"])
def test_models_that_do_not_fit_are_refused(change: str, tmp_path: Path) -> None:
    proto = teacher_proto()
    match, kind = "", UsageError
    if change == "inputs":
        proto.graph.input[0].name = proto.graph.node[0].input[0] = "other"
        match = "different inputs"
    elif change == "outputs":
        proto.graph.output[0].name = proto.graph.node[-1].output[0] = "other"
        match = "different outputs"
    elif change == "shape":
        for tensor in proto.graph.initializer:
            if tensor.name in {"w3", "b3"}:
                array = onnx.numpy_helper.to_array(tensor)[:2]
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2
        match = "must be equal"
    else:
        proto.graph.node[1].op_type = "Celu"
        match, kind = r"Celu \('r'\)", RuntimeSupportError  # type: ignore[assignment]
    with pytest.raises(kind, match=match):
        training(load(teacher_proto()), load(proto), tmp_path)


def test_what_outputs_are() -> None:
    rows, mask = torch.randn(3, 7), torch.ones(3, 5, dtype=torch.int64)
    cases: Sequence[tuple[Any, Any, Mapping[str, bool], OutputKind | None]] = [
        (rows, None, {"embeds": False}, OutputKind.LOGITS),
        (rows, None, {"embeds": True}, OutputKind.VECTORS),
        (torch.nn.functional.normalize(rows), None, {"embeds": False}, OutputKind.VECTORS),
        (torch.softmax(rows, -1), None, {"embeds": False}, OutputKind.PROBABILITIES),
        (torch.randn(3, 5, 7), mask, {"embeds": False}, OutputKind.TOKENS),
        (torch.randn(3, 5, 7), None, {"embeds": False}, OutputKind.VALUES),
        (torch.randn(3), None, {"embeds": False}, OutputKind.VALUES),
        (torch.arange(3), None, {"embeds": False}, None),
    ]
    for output, given_mask, known, kind in cases:
        assert output_kind(output, given_mask, **known) is kind
