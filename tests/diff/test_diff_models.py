"""What differs between two models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, rng, run, save, sqnr, weight
from layer_cases import float_model, quantized, rescaled
from onnx import numpy_helper

from quantkit import quantize_dynamic, quantize_static
from quantkit.errors import DataError, ModelError
from quantkit.evaluate.diff import ModelDiff, compare_models


def conv_model(*, eps: float = 1e-3) -> onnx.ModelProto:
    """x -> Conv 'c1' -> BatchNormalization 'bn' -> Relu 'r' -> Conv 'c2' -> y."""
    nodes = [
        node("Conv", ["x", "w1"], ["c"], "c1"),
        node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], "bn", epsilon=eps),
        node("Relu", ["n"], ["a"], "r"),
        node("Conv", ["a", "w2"], ["y"], "c2"),
    ]
    held = {
        "w1": weight(8, 3, 3, 3),
        "g": np.linspace(0.5, 2, 8, dtype=np.float32),
        "b": weight(8, seed=3),
        "m": weight(8, seed=4),
        "v": np.linspace(0.1, 3, 8, dtype=np.float32),
        "w2": weight(4, 8, 1, 1, seed=2),
    }
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": None}, held))


def images(n: int = 8) -> list[dict[str, Any]]:
    return [{"x": rng(i).standard_normal((1, 3, 8, 8)).astype(np.float32)} for i in range(n)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    source = save(conv_model(), folder / "float.onnx")
    target = folder / "static.onnx"
    quantize_static(source, target, images(16))
    return source, target


def test_a_file_and_its_copy_are_the_same(tmp_path: Path) -> None:
    a = save(matmul_model(), tmp_path / "a.onnx")
    b = save(matmul_model(), tmp_path / "b.onnx")
    found = compare_models(a, b)
    assert found.identical
    assert found.same
    assert found.errors.samples == 0
    assert found.nodes.same == 2
    assert found.weights.equal == 2


def test_every_kind_of_model_is_the_same_as_itself(pair: tuple[Path, Path]) -> None:
    for path in pair:
        found = compare_models(path, path)
        assert found.same
        assert found.computes_the_same
        assert not found.nodes.renamed


def test_another_weight_is_found_with_its_distance(tmp_path: Path) -> None:
    proto = matmul_model()
    a = save(proto, tmp_path / "a.onnx")
    w = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    w[3, 4] += 0.25
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    b = save(proto, tmp_path / "b.onnx")
    found = compare_models(a, b)
    assert not found.same
    assert found.weights.equal == 1
    (change,) = found.weights.changed
    assert change.a.name == "w"
    assert change.largest == pytest.approx(0.25)
    assert change.mean == pytest.approx(0.25 / w.size)
    assert found.errors.made_up
    assert {e.a for e in found.errors.tensors} == {"m", "y"}


def test_static_against_float(pair: tuple[Path, Path]) -> None:
    found = compare_models(*pair, samples=images(3))
    assert {r.op_type for r in found.nodes.only_a} == {"BatchNormalization", "Relu"}
    assert {r.op_type for r in found.nodes.only_b} == {"QuantizeLinear", "DequantizeLinear"}
    assert not found.nodes.changed
    weights = {c.a.name: c for c in found.weights.changed}
    assert {(c.a.dtype, c.b.dtype) for c in weights.values()} == {("float32", "int8")}
    # With the normalization folded in and channels evened out, what is left is the error of 8 bits.
    assert "BN folded in" in weights["w1"].note
    assert all((c.sqnr_db or 0) > 30 for c in weights.values())
    assert found.scales.only_b == ("x", "a", "y")
    assert sum(s.a for s in found.sizes) == found.nbytes[0] == pair[0].stat().st_size
    assert sum(s.b for s in found.sizes) == found.nbytes[1] == pair[1].stat().st_size
    assert found.errors.samples == 3
    assert not found.errors.made_up


def test_errors_of_outputs_are_those_of_running_both(pair: tuple[Path, Path]) -> None:
    feeds = images(4)
    found = compare_models(*pair, samples=feeds)
    expected, actual = (np.concatenate([run(p, f, optimize=False)[0] for f in feeds]) for p in pair)
    errors = {e.a: e.sqnr_db for e in found.errors.tensors}
    assert errors["y"] == pytest.approx(sqnr(expected, actual), abs=1e-3)
    ranked = [e.sqnr_db for e in found.errors.tensors if e.sqnr_db is not None]
    assert ranked == sorted(ranked)


def test_either_may_be_the_first(pair: tuple[Path, Path]) -> None:
    forth = compare_models(*pair, samples=images(2))
    back = compare_models(*reversed(pair), samples=images(2))
    assert forth.nodes.only_a == back.nodes.only_b
    assert {e.a for e in forth.errors.tensors} == {e.b for e in back.errors.tensors}
    worst = forth.errors.tensors[0].sqnr_db, back.errors.tensors[0].sqnr_db
    assert worst[0] == pytest.approx(worst[1], abs=1.5)


def test_dynamic_against_float_matches_products(tmp_path: Path) -> None:
    source = save(matmul_model(), tmp_path / "f.onnx")
    dynamic = tmp_path / "d.onnx"
    quantize_dynamic(source, dynamic)
    found = compare_models(source, dynamic)
    (changed,) = found.nodes.changed
    assert (changed.a.op_type, changed.b.op_type) == ("MatMul", "MatMulInteger")
    assert found.weights.equal == 1  # the bias
    (w,) = found.weights.changed
    assert (w.b.dtype, w.note) == ("uint8", "")
    assert w.sqnr_db is not None
    assert w.sqnr_db > 35


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_both_forms_of_static_hold_the_same(
    form: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    target = tmp_path / f"{form}.onnx"
    quantize_static(pair[0], target, images(16), quant_format=form)
    found = compare_models(pair[1], target, samples=images(2))
    assert not found.weights.changed
    assert not found.scales.changed
    if form == "qoperator":
        assert {c.b.op_type for c in found.nodes.changed} == {"QLinearConv"}
        # Integers beside what comes back from integers: the same but for ties of rounding.
        assert {e.b for e in found.errors.tensors} >= {"a_quantized"}
        assert all(e.sqnr_db is None or e.sqnr_db > 45 for e in found.errors.tensors)
    else:
        assert found.computes_the_same


def test_a_scale_times_4_is_found(pair: tuple[Path, Path], tmp_path: Path) -> None:
    proto = onnx.load(pair[1])
    maker = next(n for n in proto.graph.node if n.op_type == "QuantizeLinear" and "x" in n.input)
    tensor = next(t for t in proto.graph.initializer if t.name == maker.input[1])
    scale = numpy_helper.to_array(tensor) * np.float32(4)
    tensor.CopyFrom(numpy_helper.from_array(scale, tensor.name))
    found = compare_models(pair[1], save(proto, tmp_path / "b.onnx"), samples=images(2))
    changed = {c.tensor: c.ratio for c in found.scales.changed}
    assert changed["x"] == pytest.approx(4)
    assert found.errors.differ


def test_types_versions_metadata_and_ports(tmp_path: Path) -> None:
    proto = matmul_model()
    a = save(proto, tmp_path / "a.onnx")
    proto.ir_version, proto.opset_import[0].version = 9, 18
    proto.producer_name = "somebody"
    proto.metadata_props.add(key="made", value='{"by": {"whom": "me"}, "with": [1, 2]}')
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    found = compare_models(a, save(proto, tmp_path / "b.onnx"))
    header = {c.what: (c.a, c.b) for c in found.header}
    assert header == {
        "IR version": ("8", "9"),
        "opset ai.onnx": ("17", "18"),
        "producer": ("", "somebody"),
        "made.by.whom": ("", "me"),
        "made.with": ("", "[1, 2]"),
    }
    assert [(c.what, c.a, c.b) for c in found.ports] == [
        ("input x", "float32[N, 128]", "float32[batch, 128]")
    ]
    assert not found.same


def test_only_metadata_differs(tmp_path: Path) -> None:
    proto = matmul_model()
    a = save(proto, tmp_path / "a.onnx")
    proto.producer_name = "somebody"
    found = compare_models(a, save(proto, tmp_path / "b.onnx"))
    assert found.computes_the_same
    assert not found.same


def test_other_inputs_are_not_run(tmp_path: Path) -> None:
    a = save(matmul_model(), tmp_path / "a.onnx")
    other = model(graph([node("Relu", ["z"], ["y"])], {"z": [2]}, {"y": [2]}))
    found = compare_models(a, save(other, tmp_path / "b.onnx"))
    assert "other inputs" in found.errors.note
    assert found.errors.samples == 0


def test_json_is_strict(pair: tuple[Path, Path]) -> None:
    plain = json.loads(json.dumps(compare_models(*pair).to_json(), allow_nan=False))
    assert plain["kind"] == "models"
    assert plain["same"] is False
    assert plain["nodes"]["same"] == 2
    assert isinstance(compare_models(*pair), ModelDiff)


def test_data_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    a = save(matmul_model(bias=True), tmp_path / "a.onnx")
    b = save(matmul_model(bias=False), tmp_path / "b.onnx")
    with pytest.raises(DataError, match="do not both run"):
        compare_models(a, b, samples=[{"x": np.zeros((1, 5), np.float32)}])


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    a = save(matmul_model(), tmp_path / "a.onnx")
    (tmp_path / "b.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"b\.onnx"):
        compare_models(a, tmp_path / "b.onnx")


def chain(length: int, *, skip: int = -1) -> onnx.ModelProto:
    """A chain of Relu and Neg; `skip` leaves one out."""
    nodes, last = [], "x"
    for i in range(length):
        if i == skip:
            continue
        op = ("Relu", "Neg")[i % 2]
        nodes.append(node(op, [last], [f"t{i}"], f"n{i}"))
        last = f"t{i}"
    nodes.append(node("Identity", [last], ["y"], "last"))
    return model(graph(nodes, {"x": [4]}, {"y": [4]}))


@pytest.mark.slow
def test_thousands_of_nodes(tmp_path: Path) -> None:
    a = save(chain(5000), tmp_path / "a.onnx")
    found = compare_models(a, save(chain(5000, skip=2500), tmp_path / "b.onnx"))
    assert [r.name for r in found.nodes.only_a] == ["n2500"]
    assert not found.nodes.only_b
    assert found.nodes.same == 4999
    (changed,) = found.nodes.changed
    assert changed.reads is not None
    assert (changed.reads.a, changed.reads.b) == ("t2500", "t2499")


def test_of_very_many_tensors_some_are_compared_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantkit.evaluate.diff.tensor_errors._TENSORS", 10)
    a, b = (save(chain(99, skip=s), tmp_path / f"{s}.onnx") for s in (-1, 50))
    errors = compare_models(a, b).errors
    assert errors.note == f"of 99 that correspond, {len(errors.tensors)} were compared"
    assert 10 <= len(errors.tensors) <= 11
    assert errors.outputs == ("y",)


@pytest.mark.parametrize("kind", ["qdq", "qoperator"])
def test_equalized_channels_are_no_error_of_the_weights(kind: str, tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    found = compare_models(source, quantized(kind, source, tmp_path, feeds), samples=feeds[:2])
    weights = [c for c in found.weights.changed if len(c.a.shape) > 1]
    assert len(weights) == 5
    assert any("equalization undone" in c.note for c in weights)
    assert all(c.sqnr_db is not None and c.sqnr_db > 30 for c in weights)
    assert not any("rescaled" in c.note for c in found.weights.changed)


def test_a_wrong_scale_is_still_found_behind_equalization(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    good = quantized("qdq", source, tmp_path, feeds)
    wrong = rescaled(good, tmp_path / "wrong.onnx", "w2_scale", 1.5)
    found = compare_models(source, wrong, samples=feeds[:2])
    assert found.weights.changed[0].a.name == "w2"
    assert (found.weights.changed[0].sqnr_db or 99) < 10
