"""Pruning from a file to a file: what is removed, what it loses, what is refused, what is made again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, run, save, sqnr, weight

import quantkit
from quantkit.api.quantize import Task, job_of, make_plan
from quantkit.api.verify import reproduce
from quantkit.cli.app import run as quantkit_command
from quantkit.errors import NothingToPruneError, QuantkitError, UnreachableError, UsageError
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.prepared import Output
from quantkit.pipeline.prune_result import PrunePlan
from quantkit.reduce.prune.widths import Widths
from quantkit.settings import DataSettings, PruneSettings

SAME: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}


def images(classes: int = 6) -> onnx.ModelProto:
    """Three Convs, one of them around a shortcut, and a Gemm; half of the channels of 'inner' are nearly copies of the other."""
    wide = weight(32, 16, 3, 3, seed=1)
    wide[16:] = wide[:16] * 0.9
    held = {
        "w0": weight(16, 3, 3, 3),
        "b0": weight(16),
        "w1": wide,
        "b1": np.concatenate([half := weight(16, seed=2), half]),
        "w2": weight(16, 32, 3, 3, seed=3) / 4,
        "b2": weight(16, seed=4),
        "w3": weight(classes, 16, seed=5),
        "b3": weight(classes, seed=6),
    }
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], "stem", **SAME),
        node("Relu", ["a"], ["r"], "relu0"),
        node("Conv", ["r", "w1", "b1"], ["b"], "inner", **SAME),
        node("Relu", ["b"], ["c"], "relu1"),
        node("Conv", ["c", "w2", "b2"], ["d"], "back", **SAME),
        node("Add", ["d", "r"], ["e"], "sum"),
        node("GlobalAveragePool", ["e"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flat"),
        node("Gemm", ["f", "w3", "b3"], ["y"], "head", transB=1),
    ]
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", classes]}, held))


def encoder(width: int = 16, layers: int = 2) -> onnx.ModelProto:
    """Layers of neurons around a shortcut, normalized, over sequences; the second one is close to an affine map."""
    nodes, held, value = [], dict[str, Array](), "x"
    for n in range(layers):
        own: dict[str, Array] = {
            f"up{n}": weight(width, 32, seed=n) / 4,
            f"up_bias{n}": weight(32, seed=n + 9) + 4 * (n == 1),
            f"down{n}": weight(32, width, seed=n + 20) / 4,
            f"down_bias{n}": weight(width, seed=n + 30),
            f"scale{n}": np.ones(width, np.float32),
            f"shift{n}": np.zeros(width, np.float32),
        }
        held |= own
        nodes += [
            node("MatMul", [value, f"up{n}"], [f"a{n}"], f"up_{n}"),
            node("Add", [f"a{n}", f"up_bias{n}"], [f"b{n}"], f"up_add_{n}"),
            node("Relu", [f"b{n}"], [f"c{n}"], f"relu_{n}"),
            node("MatMul", [f"c{n}", f"down{n}"], [f"d{n}"], f"down_{n}"),
            node("Add", [f"d{n}", f"down_bias{n}"], [f"e{n}"], f"down_add_{n}"),
            node("Add", [f"e{n}", value], [f"s{n}"], f"sum_{n}"),
            node("LayerNormalization", [f"s{n}", f"scale{n}", f"shift{n}"], [f"n{n}"], f"norm_{n}"),
        ]
        value = f"n{n}"
    nodes.insert(0, node("Abs", ["tokens"], ["x"], "first"))
    nodes.append(node("Neg", [value], ["y"], "last"))
    shape: list[int | str | None] = ["N", "S", width]
    return model(graph(nodes, {"tokens": shape}, {"y": shape}, held))


def pictures(count: int = 96) -> dict[str, Array]:
    return {"x": rng(1).standard_normal((count, 3, 8, 8)).astype(np.float32)}


def sequences(count: int = 96) -> dict[str, Array]:
    return {"tokens": rng(1).standard_normal((count, 5, 16)).astype(np.float32)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(images(), tmp_path / "m.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", x=pictures()["x"])
    return tmp_path / "data.npz"


def with_widths(
    source: Path, output: Path | None, data: object, widths: Widths, **options: Any
) -> Any:
    """Prune to given widths, as a run again does: nothing is timed."""
    how = PruneSettings(**options)
    job = replace(job_of(Task(source=source, how=how, data=data)), widths=widths.to_json())
    return run_form(form_of(job, Output(path=output)))


def test_copies_go_for_nothing(source: Path, data: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "o.onnx", source.read_bytes()
    result = with_widths(source, out, data, Widths(kept={"inner": 16}))
    assert source.read_bytes() == before
    assert result.output_bytes < 0.65 * result.input_bytes
    shapes = {t.name: list(t.dims) for t in onnx.load(out).graph.initializer}
    assert shapes["w1"] == [16, 16, 3, 3]
    assert shapes["w2"] == [16, 16, 3, 3]
    x = pictures(8)
    (want,) = run(source, x)
    for optimize in (True, False):
        assert sqnr(want, run(out, x, optimize=optimize)[0]) > 30


def test_weights_make_up_for_what_is_removed(source: Path, tmp_path: Path) -> None:
    """The shortcut loses channels too, and every operator behind is fitted to what it then gets."""
    widths, x = Widths(kept={"inner": 16, "stem": 8}), pictures(64)
    (want,) = run(source, x)
    found = {}
    for name, samples in (("few", 2), ("all", None)):
        out = tmp_path / f"{name}.onnx"
        limited = {"x": pictures()["x"][:samples]}
        with_widths(source, out, limited, widths)
        found[name] = sqnr(want, run(out, x)[0])
    assert found["all"] > found["few"] + 3


def test_weights_fitted_each_by_itself_are_made_again_too(
    source: Path, data: Path, tmp_path: Path
) -> None:
    """A run whose samples were too few to fit weights in order says so in its record, and nothing is compared again."""
    x, widths = pictures(64), Widths(kept={"inner": 16, "stem": 8}, in_order=False)
    with_widths(source, tmp_path / "each.onnx", data, widths)
    with_widths(source, tmp_path / "order.onnx", data, replace(widths, in_order=True))
    (want,) = run(source, x)
    found = [sqnr(want, run(tmp_path / f"{name}.onnx", x)[0]) for name in ("each", "order")]
    assert 3 < found[0] < found[1]


def test_a_size_is_reached_judged_and_made_again(source: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    result = quantkit.prune(source, out, data, size="60%", force=True)
    assert out.stat().st_size == result.output_bytes <= 0.6 * result.input_bytes
    assert isinstance(result.plan, PrunePlan)
    assert result.plan.split is not None
    assert result.judged is not None
    assert result.judged.samples == len(result.plan.split.judging)
    parts = (result.plan.split.calibration, result.plan.split.choosing, result.plan.split.judging)
    assert sum(map(len, parts)) == len(set().union(*parts)) == 96
    assert result.speed is not None
    assert "held-out" in str(result)
    assert any("distill" in note for note in result.notes)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.npz", "m.onnx", "o.onnx"]
    check = reproduce(out, source, data=data)
    assert (check.outcome, check.sentence) == (
        "ok",
        "Made again from the same inputs, it has the same bytes.",
    )


def test_blocks_become_one_map(tmp_path: Path) -> None:
    source, out = save(encoder(), tmp_path / "m.onnx"), tmp_path / "o.onnx"
    with_widths(source, out, sequences(), Widths(mapped=frozenset({"up_0", "up_1"})))
    ops = [n.op_type for n in onnx.load(out).graph.node]
    assert ops.count("MatMul") == 1
    assert ops.count("LayerNormalization") == 1
    (want,) = run(source, sequences(16))
    near = sqnr(want, run(out, sequences(16))[0])
    with_widths(source, out, sequences(), Widths(mapped=frozenset({"up_1"})))
    assert sqnr(want, run(out, sequences(16))[0]) > near > 3
    assert onnx.load(out).graph.input[0].name == "tokens"


def test_a_drop_bounds_what_is_removed(source: Path, data: Path, tmp_path: Path) -> None:
    result = quantkit.prune(source, tmp_path / "o.onnx", data, max_drop=0.2, force=True)
    assert result.plan.changes
    assert result.judged is not None
    assert result.judged.interval is None or result.judged.interval.low <= 0.2


def test_excluded_channels_stay(source: Path, data: Path) -> None:
    how = PruneSettings(size=0.95, exclude=("stem", "head"))
    plan: Any = make_plan(Task(source=source, how=how, data=data))
    assert list(plan.units) == ["inner"]


def test_the_plan_prices_what_is_removed(source: Path, data: Path, capsys: Any) -> None:
    code = quantkit_command(["plan", "prune", str(source), "--data", str(data), "--nodes"])
    shown = capsys.readouterr().out
    assert code in (0, 1)
    assert "What pruning costs" in shown
    assert "of float's latency" in shown
    assert (code == 1) == ("does not pay" in shown)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"size": 0.05, "force": True}, UnreachableError, "still has"),
        ({"speed": 0.001, "force": True}, UnreachableError, "still takes"),
        ({"speed": 0.5, "size": 0.5}, UsageError, "give one"),
    ],
)
def test_what_cannot_be_reached_is_said(
    options: dict[str, Any], error: type[QuantkitError], says: str, source: Path, data: Path
) -> None:
    with pytest.raises(error, match=says):
        quantkit.prune(source, source.with_name("o.onnx"), data, **options)
    assert not source.with_name("o.onnx").exists()


def test_out_of_reach_exits_with_1(source: Path, data: Path, capsys: Any) -> None:
    command = ["prune", str(source), str(source.with_name("o.onnx")), "--data", str(data)]
    assert quantkit_command([*command, "--size", "5%", "--force"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()[-1:]) == 1
    assert not source.with_name("o.onnx").exists()


def test_int8_without_a_gain_is_refused(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantkit.pipeline.forms.prune.int8_gain", lambda *_: (0.5, 0.96))
    with pytest.raises(UnreachableError, match=r"int8 alone takes 0\.50 .* 0\.96 of that"):
        quantkit.prune(source, source.with_name("o.onnx"), data, size=0.7)
    result = quantkit.prune(source, source.with_name("o.onnx"), data, size=0.7, force=True)
    assert any("does not pay" in text for text in result.warnings)


def test_models_without_channels_are_refused(tmp_path: Path) -> None:
    relu = model(graph([node("Cast", ["x"], ["a"], to=7), node("CumSum", ["a", "k"], ["y"])],
                       {"x": ["N", 4]}, {"y": ["N", 4]}, {"k": np.array(1, np.int64)}))  # fmt: skip
    source = save(relu, tmp_path / "m.onnx")
    with pytest.raises(NothingToPruneError, match=r"Nothing to prune in .*m\.onnx.*CumSum"):
        quantkit.prune(source, tmp_path / "o.onnx", {"x": np.ones((9, 4), np.float32)})


def test_pruning_needs_data(source: Path) -> None:
    with pytest.raises(UsageError, match="needs samples"):
        quantkit.prune(source, source.with_name("o.onnx"), None)


def test_samples_that_come_once_are_refused(source: Path) -> None:
    stream = ({"x": x[np.newaxis]} for x in pictures()["x"])
    with pytest.raises(UsageError, match="only once"):
        quantkit.prune(source, source.with_name("o.onnx"), stream, settings=DataSettings())
