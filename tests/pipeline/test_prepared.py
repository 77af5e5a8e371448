"""One preparation, many plans: each gives the file of `quantize_static`, without a second look at the data."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, op_types, rng, save, weight

import quantkit
from quantkit import Prepared, RecoverSettings, StaticSettings
from quantkit.calibration.origin import calibration_digest
from quantkit.errors import DataError, UsageError
from quantkit.model.graph.protos import to_proto
from quantkit.quantize.plan import Mode

CHANNELS = 6
# Channels of very different size, so that there is something to equalize.
SPREAD = np.geomspace(0.01, 3.0, CHANNELS, dtype=np.float32)[:, None, None, None]


def convs(*, spread: bool = True) -> onnx.ModelProto:
    """Three Conv, a Relu behind each, and a sum of two of them."""
    nodes, weights, last = [], {}, "x"
    for i in range(3):
        weights[f"w{i}"] = weight(CHANNELS, CHANNELS, 3, 3, seed=i) * (SPREAD if spread else 1)
        weights[f"b{i}"] = weight(CHANNELS, seed=i + 5)
        nodes.append(node("Conv", [last, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4))
        nodes.append(node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        last = f"r{i}"
    nodes.append(node("Add", ["r0", last], ["y"], "sum"))
    return model(graph(nodes, {"x": ["N", CHANNELS, 8, 8]}, {"y": None}, weights))


def images(count: int = 12) -> Array:
    return rng(1).standard_normal((count, CHANNELS, 8, 8)).astype(np.float32)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(convs(), tmp_path / "m.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", images())
    return tmp_path / "x.npy"


def poison(data: Path) -> None:
    """Let nobody read the data again."""
    data.write_bytes(b"not an array")


def state(prepared: Prepared) -> tuple[bytes, str, Any]:
    """All of a preparation that a plan could spoil."""
    graph_bytes: bytes = to_proto(prepared.ready.model).SerializeToString(deterministic=True)
    source_bytes: bytes = to_proto(prepared.source.model).SerializeToString(deterministic=True)
    held = prepared.moments.held
    moments = "" if held is None else calibration_digest(held)
    return (
        graph_bytes + source_bytes,
        calibration_digest(prepared.seen) + moments,
        prepared.ready.notes,
    )


VARIANTS = {
    "as it was prepared": StaticSettings(),
    "without a layer": StaticSettings(exclude=("conv1",)),
    "qoperator": StaticSettings(format="qoperator"),
    "weights of one scale": StaticSettings(per_channel=False),
    "another method": StaticSettings(method="minmax"),
}


@pytest.mark.slow
def test_many_plans_of_one_preparation_are_the_files_of_many_calls(
    source: Path, data: Path, tmp_path: Path
) -> None:
    expected = {}
    for name, static in VARIANTS.items():
        quantkit.quantize_static(
            source,
            tmp_path / "q.onnx",
            data,
            quant_format=static.format,
            nodes_to_exclude=static.exclude,
            per_channel=static.per_channel is not False,
            method=static.method,
        )
        expected[name] = (tmp_path / "q.onnx").read_bytes()
    assert len(set(expected.values())) == len(VARIANTS)
    prepared = quantkit.prepare_static(source, data)
    before = state(prepared)
    poison(data)
    for name, static in [*VARIANTS.items(), *reversed(VARIANTS.items())]:
        plan = quantkit.plan_prepared(prepared, static)
        assert quantkit.plan_prepared(prepared, static) == plan
        result = quantkit.realize_plan(prepared, plan, tmp_path / "q.onnx", static=static)
        assert result.plan == plan
        assert (tmp_path / "q.onnx").read_bytes() == expected[name], name
    assert state(prepared) == before


def test_an_edited_plan_is_that_of_quantize_static_with_the_same_plan(
    source: Path, data: Path, tmp_path: Path
) -> None:
    prepared = quantkit.prepare_static(source, data)
    plan = quantkit.plan_prepared(prepared, StaticSettings(exclude=("conv2",)))
    quantkit.quantize_static(source, tmp_path / "one.onnx", data, plan=plan)
    poison(data)
    quantkit.realize_plan(prepared, plan, tmp_path / "two.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_a_model_is_written_in_the_format_that_it_was_prepared_for(
    source: Path, data: Path, tmp_path: Path
) -> None:
    prepared = quantkit.prepare_static(source, data, StaticSettings(format="qoperator"))
    assert quantkit.plan_prepared(prepared).output_format == "qoperator"
    quantkit.realize_plan(prepared, None, tmp_path / "q.onnx")
    assert "QLinearConv" in op_types(onnx.load(tmp_path / "q.onnx"))
    other = quantkit.plan_prepared(prepared, StaticSettings(format="qdq"))
    quantkit.realize_plan(prepared, other, tmp_path / "other.onnx")
    assert "QLinearConv" not in op_types(onnx.load(tmp_path / "other.onnx"))


def test_a_plan_can_be_priced_without_a_file(source: Path, data: Path, tmp_path: Path) -> None:
    prepared = quantkit.prepare_static(source, data)
    there = {path.name for path in tmp_path.iterdir()}
    fewer = quantkit.plan_prepared(prepared, StaticSettings(exclude=("conv0",)))
    priced = [quantkit.realize_plan(prepared, plan, None) for plan in (None, fewer)]
    assert {path.name for path in tmp_path.iterdir()} == there
    assert [len([n for n in r.plan.nodes if n.mode is Mode.STATIC]) for r in priced] == [3, 2]
    assert priced[0].verification is not None
    assert priced[0].fusion is not None
    written = quantkit.realize_plan(prepared, None, tmp_path / "q.onnx")
    assert written.output_bytes == priced[0].output_bytes
    assert written.verification == priced[0].verification


def stream() -> Iterator[dict[str, Array]]:
    yield from ({"x": row[None]} for row in images(45))


@pytest.mark.parametrize(
    "given",
    [lambda: {"x": images()}, stream, lambda: quantkit.calibrate(convs(), {"x": images()})],
    ids=["arrays", "a stream", "a calibration"],
)
@pytest.mark.slow
def test_whatever_the_data_is_it_is_needed_once(given: Any, tmp_path: Path) -> None:
    quantkit.quantize_static(convs(), tmp_path / "one.onnx", given())
    prepared = quantkit.prepare_static(convs(), given())
    for _ in range(2):
        quantkit.realize_plan(prepared, None, tmp_path / "two.onnx")
        assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_moments_that_do_not_fit_are_observed_again_for_each_plan(
    source: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantkit.quantize_static(source, tmp_path / "one.onnx", data)
    monkeypatch.setattr("quantkit.pipeline.prepare.memory_left", lambda *_: 2 * 54 * 54 * 8)
    prepared = quantkit.prepare_static(source, data)
    for _ in range(2):
        result = quantkit.realize_plan(prepared, None, tmp_path / "two.onnx")
        assert any("the data was run again" in note for note in result.notes)
        assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert prepared.moments.held is None


@pytest.mark.parametrize(
    ("static", "said"),
    [
        (StaticSettings(target="tensorrt"), "was prepared for cpu, and tensorrt is asked for"),
        (StaticSettings(recover=RecoverSettings(bias=False)), "decided when a model is prepared"),
        (StaticSettings(activation_type="uint16"), "need opset 21"),
        (StaticSettings(exclude=("nobody",)), "nobody"),
    ],
)
def test_what_needs_another_preparation_is_refused(
    static: StaticSettings, said: str, source: Path, data: Path
) -> None:
    prepared = quantkit.prepare_static(source, data)
    with pytest.raises(UsageError, match=said):
        quantkit.plan_prepared(prepared, static)


def test_a_plan_of_another_preparation_is_refused(data: Path, tmp_path: Path) -> None:
    plain = StaticSettings(recover=RecoverSettings(equalize=False, smooth=False))
    one = quantkit.prepare_static(convs(), data)
    other = quantkit.prepare_static(convs(), data, plain)
    with pytest.raises(UsageError, match="equalized with other data, or not at all"):
        quantkit.realize_plan(one, quantkit.plan_prepared(other), tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


def test_a_model_that_changed_after_it_was_prepared_is_an_error(
    source: Path, data: Path, tmp_path: Path
) -> None:
    prepared = quantkit.prepare_static(source, data)
    save(convs(spread=False), source)
    with pytest.raises(quantkit.QuantkitError, match="was changed"):
        quantkit.realize_plan(prepared, None, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


def test_fewer_integers_are_tried_on_the_same_preparation(
    source: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = quantkit.prepare_static(source, data)
    before = state(prepared)
    poison(data)
    monkeypatch.setattr("quantkit.runtime.check_result.NOISE_DB", 1000.0)
    with pytest.raises(quantkit.QuantkitError, match="is noise"):
        quantkit.realize_plan(prepared, None, tmp_path / "q.onnx")
    assert state(prepared) == before
    assert replace(prepared) == prepared


# --- saved, and taken up again ---------------------------------------------------------------


@pytest.mark.parametrize("empirical", [False, True])
def test_a_saved_preparation_gives_the_same_files_without_the_data(
    *, empirical: bool, source: Path, data: Path, tmp_path: Path
) -> None:
    recover = RecoverSettings(empirical=empirical)
    prepared = quantkit.prepare_static(source, data, StaticSettings(recover=recover))
    quantkit.save_prepared(prepared, tmp_path / "saved")
    data.unlink()
    again = quantkit.load_prepared(tmp_path / "saved")
    for static in (None, StaticSettings(exclude=("conv1",), format="qoperator")):
        plan = quantkit.plan_prepared(prepared, static)
        assert quantkit.plan_prepared(again, static) == plan
        one = quantkit.realize_plan(prepared, plan, tmp_path / "one.onnx", static=static)
        two = quantkit.realize_plan(again, plan, tmp_path / "two.onnx", static=static)
        assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
        assert (one.notes, one.warnings) == (two.notes, two.warnings)
        assert one.verification == two.verification


@pytest.mark.parametrize(
    "given",
    [lambda _: {"x": images()}, lambda _: stream(), lambda m: quantkit.calibrate(m, stream())],
    ids=["arrays", "a stream", "a calibration"],
)
@pytest.mark.parametrize("static", [None, StaticSettings(exclude=("conv1",), method="minmax")])
@pytest.mark.slow
def test_a_preparation_from_what_is_in_no_file_is_taken_up_again(
    given: Any, static: StaticSettings | None, source: Path, tmp_path: Path
) -> None:
    prepared = quantkit.prepare_static(source, given(source))
    quantkit.save_prepared(prepared, tmp_path / "saved")
    again = quantkit.load_prepared(tmp_path / "saved")
    for made, name in ((prepared, "one.onnx"), (again, "two.onnx")):
        quantkit.realize_plan(made, None, tmp_path / name, static=static)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_the_model_may_lie_elsewhere_but_must_be_the_same(
    source: Path, data: Path, tmp_path: Path
) -> None:
    quantkit.save_prepared(quantkit.prepare_static(source, data), tmp_path / "saved")
    moved = source.rename(tmp_path / "moved.onnx")
    with pytest.raises(quantkit.QuantkitError, match="does not exist"):
        quantkit.load_prepared(tmp_path / "saved")
    assert quantkit.load_prepared(tmp_path / "saved", moved).ready.name == "m.onnx"
    save(convs(spread=False), moved)
    with pytest.raises(quantkit.QuantkitError, match="is not the model that was prepared"):
        quantkit.load_prepared(tmp_path / "saved", moved)


def test_a_folder_that_was_altered_is_refused(source: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    quantkit.save_prepared(quantkit.prepare_static(source, data), folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "moments.calibration",
        "prepared.json",
        "prepared.onnx",
        "ranges.calibration",
        "samples.zip",
    ]
    for name in names:
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(before.replace(before[40:44], b"\0\0\0\0", 1))
        with pytest.raises(DataError, match=r"was altered|holds no preparation"):
            quantkit.load_prepared(folder)
        (folder / name).unlink()
        with pytest.raises(DataError, match=r"is gone|holds no preparation"):
            quantkit.load_prepared(folder)
        (folder / name).write_bytes(before)
    quantkit.load_prepared(folder)


def test_what_could_not_be_taken_up_again_is_not_saved(
    source: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = quantkit.prepare_static(source, data)
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="exists"):
        quantkit.save_prepared(prepared, tmp_path / "there")
    with pytest.raises(UsageError, match="given in memory"):
        quantkit.save_prepared(quantkit.prepare_static(convs(), data), tmp_path / "saved")
    monkeypatch.setattr("quantkit.pipeline.prepare.memory_left", lambda *_: 2 * 54 * 54 * 8)
    with pytest.raises(UsageError, match="higher limit"):
        quantkit.save_prepared(quantkit.prepare_static(source, data), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_plan_that_was_made_for_an_lstm_is_taken_when_it_is_given(tmp_path: Path) -> None:
    width, hidden = 24, 40
    nodes = [
        node("LSTM", ["x", "w", "r"], ["h", "", ""], "lstm", hidden_size=hidden),
        node("Squeeze", ["h", "axes"], ["s"], "squeeze"),
        node("MatMul", ["s", "v"], ["y"], "mm"),
    ]
    weights: dict[str, Array] = {
        "w": weight(1, 4 * hidden, width),
        "r": weight(1, 4 * hidden, hidden, seed=1),
        "v": weight(hidden, 16, seed=2),
        "axes": np.array([1], np.int64),
    }
    proto = model(graph(nodes, {"x": (5, 1, width)}, {"y": (5, 1, 16)}, weights))
    data = [{"x": rng(k).standard_normal((5, 1, width)).astype(np.float32)} for k in range(8)]
    plan = quantkit.plan_static(proto, data)
    assert any(decided.transposed for decided in plan.weights)
    quantkit.quantize_static(proto, tmp_path / "q.onnx", data, plan=plan)
    assert (tmp_path / "q.onnx").exists()
