"""Sessions of halves: bfloat16 is computed in float32, and halves are fed with floats."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, run, save, sqnr, weight
from half_cases import FORMS, Form, Kind, images, network
from onnx import TensorProto

from quantkit.model.graph.half import RUN_WIDE
from quantkit.model.graph.load import load
from quantkit.runtime.check_result import Reference, compare, run_float
from quantkit.runtime.kernels import half_kernels, runtime_of
from quantkit.runtime.session import (
    RUNTIME_ERRORS,
    HalfPorts,
    make_session,
    widened_feeds,
    widened_file,
)
from quantkit.runtime.taps import TappedSession, read_tensors

CASES = pytest.mark.parametrize(("kind", "form"), FORMS, ids=["-".join(case) for case in FORMS])


@CASES
def test_a_model_in_halves_runs_on_floats_and_is_near_them(
    kind: Kind, form: Form, tmp_path: Path
) -> None:
    path = save(network(kind, form), tmp_path / "m.onnx")
    expected = run(network("float32"), {"x": images()})[0]
    for source in (str(path), path.read_bytes()):
        actual = make_session(source).run(None, {"x": images()})[0]
        assert actual.dtype == (np.float16 if (kind, form) == ("float16", "whole") else np.float32)
        assert sqnr(expected, actual.astype(np.float32)) > (50 if kind == "float16" else 35)


@pytest.mark.parametrize("feed", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_are_fed_with_any_float(kind: Kind, feed: type) -> None:
    session = make_session(network(kind).SerializeToString())
    assert isinstance(session, HalfPorts)
    x: Array = images(2).astype(feed)
    assert (
        sqnr(
            run(network("float32"), {"x": images(2)})[0],
            session.run(["y"], {"x": x})[0].astype(np.float32),
        )
        > 35
    )


def test_other_types_are_refused_as_ever() -> None:
    session = make_session(network("float16").SerializeToString())
    with pytest.raises(RUNTIME_ERRORS):
        session.run(None, {"x": images(2).astype(np.int64)})


def test_a_model_that_fails_for_another_reason_fails_with_it(tmp_path: Path) -> None:
    proto = network("float32")
    proto.graph.node[0].op_type = "Canv"
    with pytest.raises(RUNTIME_ERRORS, match="Canv"):
        make_session(proto.SerializeToString())
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    with widened_file(str(path), None) as found:
        assert found is None
    for source in (str(path), path.read_bytes(), b""):
        with pytest.raises(RUNTIME_ERRORS):
            make_session(source)


def test_a_session_without_halves_is_onnxruntime_s_own() -> None:
    assert not isinstance(make_session(network("float32").SerializeToString()), HalfPorts)
    assert not isinstance(make_session(network("float16", "inside").SerializeToString()), HalfPorts)


def test_nothing_is_left_of_the_file_that_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    make_session(network("bfloat16").SerializeToString())
    assert not list(tmp_path.iterdir())


@CASES
def test_the_float_model_is_run_and_inner_tensors_are_read(
    kind: Kind, form: Form, tmp_path: Path
) -> None:
    path = save(network(kind, form), tmp_path / "m.onnx")
    reference = run_float(load(path))
    assert reference.outputs
    assert reference.note == (RUN_WIDE if kind == "bfloat16" and form != "stored" else "")
    feeds = {"x": images(2)}
    inner = next(iter(read_tensors(path, ["r"], [feeds])))["r"]
    assert inner.shape == (2, 16, 8, 8)
    tapped = dict(TappedSession(load(path), ["r"], only_ends=["r"]).run(feeds))["r"]
    assert tapped.astype(np.float32) == pytest.approx([inner.min(), inner.max()], rel=0.02)


def test_ends_in_float16_are_compared_as_floats(tmp_path: Path) -> None:
    half = save(network("float16"), tmp_path / "h.onnx")
    plain = run_float(load(network("float32")))
    known = Reference(feeds=plain.feeds, outputs=plain.outputs, halved=frozenset({"x", "y"}))
    checked = compare(half, known, nbytes=half.stat().st_size)
    assert checked.compared["y"] > 40


def test_feeds_that_any_form_takes() -> None:
    feeds: dict[str, Array] = {
        "a": np.ones(2, np.float16),
        "b": np.ones(2, np.int64),
        "c": np.ones(2, ml_dtypes.bfloat16),
    }
    kinds = {name: str(x.dtype) for name, x in widened_feeds(feeds).items()}
    assert kinds == {"a": "float32", "b": "int64", "c": "float32"}


def test_what_onnxruntime_computes_in_halves_is_counted(tmp_path: Path) -> None:
    whole = half_kernels(save(network("float16", "inside"), tmp_path / "i.onnx"))
    assert whole.products == 3
    stored = half_kernels(save(network("float16", "stored"), tmp_path / "s.onnx"))
    assert (stored.casts, stored.products, stored.half_products) == (0, 3, 0)
    assert "gains no speed here" in str(stored)
    assert str(type(whole)(casts=1, products=3, half_products=2)) == (
        "onnxruntime computes 2 of 3 layers (Conv, Gemm, MatMul, ...) in float16 on this CPU, with 1 Cast between float16 and float32"
    )


def test_casts_around_what_has_no_float16_kernel_are_counted(tmp_path: Path) -> None:
    """A Round has a kernel in float16, a Sin has none."""
    nodes = [
        node("Round", ["x"], ["r"], "round"),
        node("Sin", ["r"], ["s"], "sin"),
        node("Round", ["s"], ["y"], "again"),
    ]
    types = dict.fromkeys(("x", "y"), TensorProto.FLOAT16)
    proto = model(graph(nodes, {"x": [4]}, {"y": [4]}, types=types), opset=22)
    assert half_kernels(save(proto, tmp_path / "m.onnx")).casts == 2


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("stored", "the weight has 16 bits in the file and becomes float"),
        ("inside", "it is float16 in the file"),
    ],
)
def test_the_reason_for_float_is_true(form: Form, why: str, tmp_path: Path) -> None:
    found = runtime_of(save(network("float16", form), tmp_path / "m.onnx"))
    assert found.integer == 0
    assert {n.node for n in found.nodes} == {"conv0", "conv1", "gemm"}
    assert all(n.why.startswith(why) for n in found.nodes)


def test_external_data_of_a_bfloat16_model_is_found(tmp_path: Path) -> None:
    proto = network("bfloat16")
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > 1024:
            (tmp_path / f"{tensor.name}.bin").write_bytes(tensor.raw_data)
            tensor.external_data.add(key="location", value=f"{tensor.name}.bin")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.ClearField("raw_data")
    path = save(proto, tmp_path / "m.onnx")
    expected = run(network("float32"), {"x": images(2)})[0]
    assert sqnr(expected, make_session(str(path)).run(None, {"x": images(2)})[0]) > 35
    folder_given = make_session(path.read_bytes(), folder=tmp_path)
    assert sqnr(expected, folder_given.run(None, {"x": images(2)})[0]) > 35


def test_functions_are_taken_along() -> None:
    body = [onnx.helper.make_node("Relu", ["a"], ["b"])]
    made = onnx.helper.make_function(
        "own", "Half", ["a"], ["b"], body, [onnx.helper.make_opsetid("", 22)]
    )
    nodes = [node("Half", ["x"], ["r"], domain="own"), node("MatMul", ["r", "w"], ["y"])]
    kind = TensorProto.BFLOAT16
    proto = graph(nodes, {"x": [2, 4]}, {"y": [2, 4]}, types={"x": kind, "y": kind})
    tensor = proto.initializer.add(name="w", dims=[4, 4], data_type=kind)
    tensor.raw_data = weight(4, 4).astype(ml_dtypes.bfloat16).tobytes()
    whole = model(proto, opset=22, ir_version=10, domains={"own": 1}, functions=[made])
    x = np.ones((2, 4), np.float32)
    found = make_session(whole.SerializeToString()).run(None, {"x": x})[0]
    assert found == pytest.approx(x @ weight(4, 4), abs=0.02)
