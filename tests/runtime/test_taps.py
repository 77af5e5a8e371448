"""What comes out of a model with taps is what comes out when a tensor is made an output by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, graph, model, node, rng, run, save, weight
from onnx import TensorProto, helper

from quantkit.calibration import MinMaxOf, Request, SketchOf
from quantkit.calibration.job import Job, OpenJob
from quantkit.calibration.requests import StatisticOf
from quantkit.model.graph.load import load
from quantkit.runtime.session import make_session
from quantkit.runtime.taps import Runner, read_tensors

K = 8


def convolution() -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu (fused by onnxruntime), then Flatten and Gemm."""
    nodes = [
        node("Conv", ["x", "c"], ["t"], "conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["t", "s", "b", "m", "v"], ["n"], "bn"),
        node("Relu", ["n"], ["r"], "relu"),
        node("Flatten", ["r"], ["f"], "flat"),
        node("Gemm", ["f", "w"], ["y"], "fc"),
    ]
    ones = np.ones(3, np.float32)
    weights = {
        "c": weight(3, 2, 3, 3),
        "s": weight(3, seed=1) + 1,
        "b": weight(3, seed=2),
        "m": weight(3, seed=3),
        "v": ones,
        "w": weight(48, 5),
    }
    return model(graph(nodes, {"x": ["N", 2, 4, 4]}, {"y": ["N", 5]}, weights))


def product(dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """x -> MatMul -> m -> Relu -> y."""
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    weights = {"w": weight(K, K).astype(kind)}
    types = {"x": dtype, "y": dtype}
    return model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, weights, types=types))


def opened(source: Path | onnx.ModelProto, tensors: Sequence[str], what: StatisticOf) -> OpenJob:
    requests = tuple(Request(tensor=t, statistic=what) for t in tensors)
    return OpenJob(Job(key="", model=source, samples=None, groups=(requests,)), 0)


def by_hand(proto: onnx.ModelProto, feeds: Mapping[str, Array], tensor: str) -> Array:
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    if tensor not in {o.name for o in proto.graph.output}:
        changed.graph.output.append(helper.make_empty_tensor_value_info(tensor))
    names = [o.name for o in changed.graph.output]
    return run(changed, feeds)[names.index(tensor)]


def test_taps_are_what_onnxruntime_computes() -> None:
    proto = convolution()
    tensors = ("x", "t", "n", "r", "y")
    feeds = {"x": rng().standard_normal((2, 2, 4, 4)).astype(np.float32)}
    found = dict(opened(proto, tensors, SketchOf()).session.run(feeds))
    assert tuple(found) == tensors
    np.testing.assert_array_equal(found["x"], feeds["x"])
    for tensor in tensors[1:]:
        expected = by_hand(proto, feeds, tensor)
        np.testing.assert_allclose(found[tensor], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tensor", ["n", "r"])
def test_one_tap_gives_the_very_bits(tensor: str) -> None:
    proto = convolution()
    feeds = {"x": rng(1).standard_normal((1, 2, 4, 4)).astype(np.float32)}
    (found,) = dict(opened(proto, (tensor,), SketchOf()).session.run(feeds)).values()
    np.testing.assert_array_equal(found, by_hand(proto, feeds, tensor))


@pytest.mark.parametrize("what", [SketchOf(), MinMaxOf()], ids=["values", "span"])
@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
def test_taps_of_a_half_precision_model_are_single(what: StatisticOf, *, typed: bool) -> None:
    proto = product(TensorProto.FLOAT16)
    if typed:
        info = helper.make_tensor_value_info("m", TensorProto.FLOAT16, ["N", K])
        proto.graph.value_info.append(info)
    feeds = {"x": rng().standard_normal((2, K)).astype(np.float16)}
    found = dict(opened(proto, ("m", "y"), what).session.run(feeds))
    assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}
    expected = by_hand(proto, feeds, "m").astype(np.float32)
    if isinstance(what, MinMaxOf):
        expected = np.array([expected.min(), expected.max()])
    np.testing.assert_allclose(found["m"], expected, rtol=2e-3, atol=2e-3)


def _in_memory(_: Path) -> onnx.ModelProto:
    return product()


def _file(folder: Path) -> Path:
    return save(product(), folder / "m.onnx")


def _external(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(
        product(), str(path), save_as_external_data=True, location="m.bin", size_threshold=100
    )
    return path


@pytest.mark.parametrize("make", [_in_memory, _file, _external], ids=["memory", "file", "external"])
def test_every_way_to_give_a_model(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    feeds = {"x": rng().standard_normal((2, K)).astype(np.float32)}
    found = dict(opened(source, ("m",), SketchOf()).session.run(feeds))
    np.testing.assert_array_equal(found["m"], by_hand(product(), feeds, "m"))
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("on_disk", [True, False], ids=["file", "memory"])
def test_tensors_inside_a_local_function_are_seen(tmp_path: Path, *, on_disk: bool) -> None:
    function = helper.make_function(
        "own",
        "Twice",
        ["a", "w"],
        ["b"],
        [node("MatMul", ["a", "w"], ["h"], "one"), node("MatMul", ["h", "w"], ["b"], "two")],
        [helper.make_opsetid("", 17)],
    )
    call = helper.make_node("Twice", ["x", "w"], ["y"], name="call", domain="own")
    proto = model(
        graph([call], {"x": [1, K]}, {"y": [1, K]}, {"w": weight(K, K)}),
        domains={"own": 1},
        functions=[function],
    )
    source: Path | onnx.ModelProto = save(proto, tmp_path / "f.onnx") if on_disk else proto
    inner = next(n for n in load(source).model.graph if n.op_type == "MatMul").outputs[0].name
    assert inner is not None
    x = rng().standard_normal((1, K)).astype(np.float32)
    found = dict(opened(source, (inner, "y"), SketchOf()).session.run({"x": x}))
    np.testing.assert_allclose(found[inner], x @ weight(K, K), rtol=1e-5, atol=1e-6)


def test_a_span_is_taken_inside_the_graph_and_is_numpys() -> None:
    proto = convolution()
    feeds = {"x": rng().standard_normal((2, 2, 4, 4)).astype(np.float32)}
    work = opened(proto, ("x", "t", "n"), MinMaxOf())
    assert [len(t.outputs) for t in work.session.taps] == [0, 2, 2]
    found = dict(work.session.run(feeds))
    whole = dict(opened(proto, ("x", "t", "n"), SketchOf()).session.run(feeds))
    for tensor in ("t", "n"):
        assert found[tensor].shape == (2,)
        np.testing.assert_array_equal(found[tensor], [whole[tensor].min(), whole[tensor].max()])


def test_a_tensor_that_someone_needs_whole_does_not_stay_inside() -> None:
    requests = (
        Request(tensor="m", statistic=MinMaxOf()),
        Request(tensor="m", statistic=SketchOf()),
        Request(tensor="y", statistic=MinMaxOf()),
    )
    work = OpenJob(Job(key="", model=product(), samples=None, groups=(requests,)), 0)
    assert [len(t.outputs) for t in work.session.taps] == [1, 2]


def selecting() -> onnx.ModelProto:
    """x -> the columns that are not zero -> times two: the shape depends on the values."""
    nodes = [
        node("NonZero", ["x"], ["at"]),
        node("GatherND", ["x", "places"], ["g"]),
        node("Transpose", ["at"], ["places"]),
        node("Mul", ["g", "two"], ["y"]),
    ]
    nodes[1], nodes[2] = nodes[2], nodes[1]
    return model(graph(nodes, {"x": [K]}, {"y": [None]}, {"two": np.array(2, np.float32)}))


def test_shapes_that_depend_on_values_do_not_break_later_runs() -> None:
    work = opened(selecting(), ("g", "y"), SketchOf())
    for kept in (3, 3, 5, 5, 2, 0, 0, 4):
        x = np.zeros(K, np.float32)
        x[:kept] = np.arange(1, kept + 1)
        found = dict(work.session.run({"x": x}))
        np.testing.assert_array_equal(found["y"], 2 * np.arange(1, kept + 1, dtype=np.float32))


def test_buffers_used_again_hold_only_the_last_batch() -> None:
    session = make_session(product().SerializeToString(), threads=1)
    runner = Runner(session, ["y"])
    seen = []
    for seed in (0, 1, 2, 2, 0):
        x = rng(seed).standard_normal((3, K)).astype(np.float32)
        (y,) = runner.run({"x": x})
        seen.append(y)
        np.testing.assert_array_equal(y, run(product(), {"x": x})[0])
    assert seen[-1] is seen[-2]  # the memory is the same
    (y,) = runner.run({"x": np.ones((1, K), np.float32)})
    assert y.shape == (1, K)


def test_a_feed_that_is_not_contiguous_is_fed_right() -> None:
    session = make_session(product().SerializeToString(), threads=1)
    runner = Runner(session, ["y"])
    x = rng().standard_normal((K, 3)).astype(np.float32).T
    for _ in range(3):
        (y,) = runner.run({"x": x})
        np.testing.assert_array_equal(y, run(product(), {"x": np.ascontiguousarray(x)})[0])


@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "file"])
def test_tensors_of_samples_are_read_and_the_model_stays_as_it_is(
    tmp_path: Path, *, in_memory: bool
) -> None:
    path = save(convolution(), tmp_path / "m.onnx")
    loaded = load(path).model
    before = ir.to_proto(loaded).SerializeToString(), path.read_bytes()
    samples = [{"x": rng(i).standard_normal((1, 2, 4, 4)).astype(np.float32)} for i in range(2)]
    source = loaded if in_memory else path
    found = list(read_tensors(source, ["x", "r", "y", "nobody"], samples, optimized=False))
    assert [set(one) for one in found] == [{"x", "r", "y"}] * 2
    for one, feeds in zip(found, samples, strict=True):
        np.testing.assert_array_equal(one["x"], feeds["x"])
        expected = by_hand(convolution(), feeds, "r")
        np.testing.assert_allclose(one["r"], expected, rtol=1e-5, atol=1e-6)
    assert (ir.to_proto(loaded).SerializeToString(), path.read_bytes()) == before


def test_without_samples_or_inner_tensors_no_session_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("quantkit.runtime.taps.make_session", None)
    path = save(convolution(), tmp_path / "m.onnx")
    assert list(read_tensors(path, ["r"], [])) == []
    x = np.ones((1, 2, 4, 4), np.float32)
    assert list(read_tensors(path, ["x"], [{"x": x}])) == [{"x": x}]
