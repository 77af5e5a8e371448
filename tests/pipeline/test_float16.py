"""16 bits from a file to a file: what is written, what is refused, what is made again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, op_types, rng, run, save, sqnr, weight
from half_cases import FORMS, Form, Kind, images, network, saved
from onnx import TensorProto

import quantkit
from quantkit import quantize_float16
from quantkit.api.quantize import Task, quantize
from quantkit.api.verify import reproduce
from quantkit.cli.app import run as quantkit_command
from quantkit.errors import (
    DataError,
    ModelError,
    NothingToQuantizeError,
    QuantkitError,
    UsageError,
    VerifyError,
)
from quantkit.model.provenance import read_provenance
from quantkit.pipeline.forms.float16 import Float16Form
from quantkit.pipeline.verify_file import attest
from quantkit.quantize.plan import Mode
from quantkit.settings import Float16Settings

CASES = pytest.mark.parametrize(("kind", "form"), FORMS, ids=["-".join(case) for case in FORMS])


def tokens(k: int = 64) -> onnx.ModelProto:
    """x -> MatMul 'mm' -> Add 'bias' -> Relu -> MatMul 'end' -> y; 200 KB of weights."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("Add", ["a", "b"], ["c"], "bias"),
        node("Relu", ["c"], ["d"], "relu"),
        node("MatMul", ["d", "v"], ["y"], "end"),
    ]
    held = {"w": weight(k, 400), "b": weight(400, seed=1), "v": weight(400, k, seed=2)}
    return model(graph(nodes, {"x": ["N", k]}, {"y": ["N", k]}, held))


def rows(count: int = 24, k: int = 64) -> Array:
    return rng().standard_normal((count, k)).astype(np.float32)


# ---------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize(("dtype", "least"), [("float16", 65.0), ("bfloat16", 45.0)])
def test_half_the_file_and_as_good_as_rounding_is(dtype: str, least: float, tmp_path: Path) -> None:
    path, out = save(tokens(), tmp_path / "m.onnx"), tmp_path / "o.onnx"
    before = path.read_bytes()
    result = quantize_float16(path, out, dtype=dtype)
    assert path.read_bytes() == before
    assert result.output_bytes == out.stat().st_size < 0.52 * result.input_bytes
    assert result.verification is not None
    assert result.verification.compared["y"] > least
    assert result.half is None
    assert {h.tensor for h in result.plan.halves} == {"w", "v"}
    assert sqnr(run(path, {"x": rows()})[0], run(out, {"x": rows()})[0]) > least
    assert op_types(onnx.load(out)).count("Cast") == 2


def test_arithmetic_says_what_onnxruntime_makes_of_it(tmp_path: Path) -> None:
    path = save(tokens(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", rows())
    result = quantize_float16(path, tmp_path / "o.onnx", tmp_path / "x.npy", compute=True)
    assert {n.mode for n in result.plan.nodes} == {Mode.HALF}
    assert result.half is not None
    assert result.half.products == 2
    assert str(result.half) in str(result)
    assert result.to_json()["half"] == result.half.to_json()
    assert result.verification is not None
    assert result.verification.judged_on == "24 samples of the given data"
    assert not any("Ranges are unknown" in text for text in result.warnings)


def test_a_scatter_that_adds_up_stays_float32(tmp_path: Path) -> None:
    """Messages between the nodes of a graph: onnxruntime loads such a Scatter in float16, and fails when it runs it."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("ScatterElements", ["zero", "places", "a"], ["s"], "scatter", reduction="add"),
        node("MatMul", ["s", "v"], ["y"], "end"),
    ]
    held: dict[str, Array] = {
        "w": weight(64, 64),
        "v": weight(64, 64, seed=1),
        "zero": np.zeros((4, 64), np.float32),
        "places": np.zeros((4, 64), np.int64),
    }
    proto = model(graph(nodes, {"x": [4, 64]}, {"y": [4, 64]}, held))
    data = [{"x": rng(i).standard_normal((4, 64)).astype(np.float32)} for i in range(4)]
    result = quantize_float16(proto, tmp_path / "o.onnx", data, compute=True)
    assert result.plan.node["scatter"].mode is not Mode.HALF
    assert result.plan.node["mm"].mode is Mode.HALF


def test_without_samples_it_says_that_ranges_are_unknown(tmp_path: Path) -> None:
    result = quantize_float16(tokens(), tmp_path / "o.onnx", compute=True)
    assert any("Ranges are unknown" in text for text in result.warnings)
    assert not any("Ranges" in t for t in quantize_float16(tokens(), tmp_path / "o.onnx").warnings)


def test_nodes_whose_values_do_not_fit_stay_float32(tmp_path: Path) -> None:
    """Samples a thousand times as large as those that the weights are for."""
    x = rows() * 1e4
    result = quantize_float16(
        tokens(), tmp_path / "o.onnx", [{"x": r[None]} for r in x], compute=True
    )
    assert not any(n.mode is Mode.HALF for n in result.plan.nodes)
    assert {n.mode for n in result.plan.nodes if n.op_type == "MatMul"} == {Mode.STORED}
    assert all("65504" in n.why for n in result.plan.nodes)
    assert any("Nothing computes in float16" in text for text in result.warnings)


def overflowing() -> onnx.ModelProto:
    """Squares of thousands, which are results too."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("Mul", ["a", "a"], ["s"], "square"),
        node("Relu", ["a"], ["r"], "relu"),
        node("MatMul", ["r", "u"], ["y"], "end"),
    ]
    held = {"w": weight(64, 400, scale=300.0), "u": weight(400, 64)}
    return model(graph(nodes, {"x": [4, 64]}, {"y": [4, 64], "s": [4, 400]}, held))


def test_what_comes_out_infinite_is_made_with_less_in_float16(tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    result = quantize_float16(overflowing(), out, compute=True, half_outputs=True)
    assert {n.node for n in result.plan.nodes if n.mode is not Mode.HALF} == {"square"}
    assert any(
        "holds NaN or infinity. So more stays float32: nodes (1)" in w for w in result.warnings
    )
    assert any("'s' was asked for in float16 and stays float32" in w for w in result.warnings)
    x = rows(4)
    y, s = run(out, {"x": x})
    assert [str(y.dtype), str(s.dtype)] == ["float16", "float32"]
    assert sqnr(run(overflowing(), {"x": x})[1], s) > 40


def test_what_stays_infinite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Float16Form, "_with_less_in_float16", lambda *_: None)
    with pytest.raises(VerifyError, match="holds NaN or infinity"):
        quantize_float16(overflowing(), tmp_path / "o.onnx", compute=True, half_outputs=True)
    assert not list(tmp_path.iterdir())


def test_noise_on_real_samples_is_refused(tmp_path: Path) -> None:
    """The difference of two near numbers: rounding of their weights is all that is left of it."""
    w = weight(64, 400) + 100
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["x", "v"], ["b"]),
        node("Sub", ["a", "b"], ["y"]),
    ]
    held = {"w": w, "v": w + weight(64, 400, seed=1, scale=1e-3)}
    proto = model(graph(nodes, {"x": ["N", 64]}, {"y": ["N", 400]}, held))
    with pytest.raises(VerifyError, match=r"which is noise\. Nothing was written"):
        quantize_float16(proto, tmp_path / "o.onnx", [{"x": r[None]} for r in rows(4)])
    assert not list(tmp_path.iterdir())
    made_up = quantize_float16(proto, tmp_path / "o.onnx")
    assert any("which is noise" in text for text in made_up.warnings)


@pytest.mark.parametrize("compute", [False, True])
def test_ends_in_float16_are_verified_too(tmp_path: Path, *, compute: bool) -> None:
    out = tmp_path / "o.onnx"
    result = quantize_float16(tokens(), out, compute=compute, half_inputs=True, half_outputs=True)
    assert result.verification is not None
    assert result.verification.compared["y"] > 55
    assert run(out, {"x": rows().astype(np.float16)})[0].dtype == np.float16


@pytest.mark.parametrize(
    "ends",
    [{"half_outputs": True}, {"half_inputs": True}, {"half_inputs": True, "half_outputs": True}],
)
@pytest.mark.parametrize("given", [False, True])
def test_ends_in_float16_are_verified_again_as_recorded(
    ends: dict[str, Any], tmp_path: Path, *, given: bool
) -> None:
    source, out, data = save(tokens(), tmp_path / "m.onnx"), tmp_path / "o.onnx", tmp_path / "x.npy"
    np.save(data, rows())
    quantize_float16(source, out, data if given else None, compute=given, **ends)
    found = attest(out, float_model=source, data=data if given else None)
    checks = {check.name: check for check in found.checks}
    assert checks["runs"].outcome == "ok", checks["runs"]
    assert "against float" in checks["runs"].sentence


def test_equal_weights_and_transposed_ones_are_stored_once(tmp_path: Path) -> None:
    table = weight(300, 64)
    nodes = [
        node("Gather", ["e", "i"], ["a"], "embed"),
        node("MatMul", ["a", "t"], ["y"], "head"),
        node("Gather", ["f", "i"], ["z"], "again"),
    ]
    held = {"e": table, "t": np.ascontiguousarray(table.T), "f": table.copy()}
    types = {"i": TensorProto.INT64}
    proto = model(graph(nodes, {"i": [2]}, {"y": None, "z": None}, held, types=types))
    out = tmp_path / "o.onnx"
    result = quantize_float16(proto, out)
    assert [h.tensor for h in result.plan.halves] == ["e"]
    assert result.output_bytes < 0.25 * result.input_bytes
    assert any("twice and are stored once: 2." in note for note in result.notes)
    feeds = {"i": np.array([3, 250])}
    for expected, actual in zip(run(proto, feeds), run(out, feeds), strict=True):
        assert sqnr(expected, actual) > 60


def test_an_old_opset_is_raised_where_cast_needs_it(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"], "mm")]
    proto = model(graph(nodes, {"x": [2, 64]}, {"y": [2, 400]}, {"w": weight(64, 400)}), opset=9)
    assert not quantize_float16(proto, tmp_path / "a.onnx").notes
    raised = quantize_float16(proto, tmp_path / "b.onnx", dtype="bfloat16")
    assert raised.notes == ("Opset raised from 9 to 13.",)


def test_inputs_with_a_value_become_constants_unless_they_are_kept(tmp_path: Path) -> None:
    proto = tokens()
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT, [64, 400]))
    result = quantize_float16(proto, tmp_path / "a.onnx")
    assert "w" in result.plan.half
    assert "1 inputs that have a value in the file are constants now" in result.notes[0]
    kept = quantize_float16(proto, tmp_path / "b.onnx", keep_inputs=True)
    assert kept.plan.half.keys() == {"v"}
    assert [v.name for v in onnx.load(tmp_path / "b.onnx").graph.input] == ["x", "w"]


def test_external_data(tmp_path: Path) -> None:
    path, out = save(tokens(), tmp_path / "m.onnx"), tmp_path / "o.onnx"
    result = quantize_float16(path, out, use_external_data_format=True)
    assert result.external_data
    assert len(list(tmp_path.glob("o.onnx.*.data"))) == 1
    again = quantize_float16(path, tmp_path / "single.onnx")
    assert abs(result.output_bytes - again.output_bytes) < 20_000  # aligned to pages
    x = {"x": rows()}
    assert run(out, x)[0].tobytes() == run(tmp_path / "single.onnx", x)[0].tobytes()


# ---------------------------------------------------------------------------------------- what is refused


@CASES
@pytest.mark.parametrize("compute", [False, True])
def test_a_model_in_halves_has_nothing_to_store(
    kind: Kind, form: Form, tmp_path: Path, *, compute: bool
) -> None:
    with pytest.raises(NothingToQuantizeError, match=f"its weights are {kind} already"):
        quantize_float16(
            network(kind, form), tmp_path / "o.onnx", compute=compute and form == "whole"
        )
    assert not list(tmp_path.iterdir())


def test_a_result_has_nothing_to_store_either(tmp_path: Path) -> None:
    quantize_float16(tokens(), tmp_path / "a.onnx")
    with pytest.raises(NothingToQuantizeError, match="its weights are float16 already"):
        quantize_float16(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    proto = model(graph([node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]}))
    with pytest.raises(NothingToQuantizeError, match="no float32 weights worth it"):
        quantize_float16(proto, tmp_path / "o.onnx")
    huge = tokens()
    for tensor in huge.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor) * np.float32(1e7)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    with pytest.raises(NothingToQuantizeError, match="2 MatMul: a weight has values beyond 65504"):
        quantize_float16(huge, tmp_path / "o.onnx", verify=False)


def islands(count: int) -> onnx.ModelProto:
    """Products, and between them operators that have no float16: each border is a Cast."""
    nodes, last = [node("MatMul", ["x", "w"], ["t0"], "mm")], "t0"
    for i in range(count):
        nodes.append(node("MatMul", [last, "v"], [f"m{i}"], f"mm{i}"))
        nodes.append(node("Gelu", [f"m{i}"], [f"t{i + 1}"], f"g{i}", domain="com.microsoft"))
        last = f"t{i + 1}"
    held = {"w": weight(8, 8), "v": weight(8, 8, seed=1)}
    return model(graph(nodes, {"x": [1, 8]}, {last: [1, 8]}, held), domains={"com.microsoft": 1})


def test_values_of_unknown_type_are_left_alone(tmp_path: Path) -> None:
    """onnx does not know what operators of other domains make."""
    result = quantize_float16(islands(2), tmp_path / "o.onnx", compute=True)
    assert result.plan.node["mm1"].why == "the type of what it reads or makes is not known"
    assert result.plan.node["mm"].mode is Mode.HALF


def test_what_gains_nothing_is_refused(tmp_path: Path) -> None:
    proto = islands(800)
    for i in range(800):  # declared, so that types are known
        for name in (f"m{i}", f"t{i}"):
            proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, 1, [1, 8]))
    path = save(proto, tmp_path / "m.onnx")
    with pytest.raises(NothingToQuantizeError, match="gains nothing"):
        quantize_float16(path, tmp_path / "o.onnx", compute=True, verify=False)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"dtype": "float8"}, UsageError, "dtype 'float8' is unknown"),
        ({"dtype": "bfloat16", "compute": True}, UsageError, "bfloat16 is for the file alone"),
        ({"data": "nowhere"}, DataError, "nowhere"),
        ({"data": 3}, UsageError, "'int' is no kind of data"),
        ({"data": []}, QuantkitError, ""),
        ({"nodes_to_exclude": ["nobody"]}, UsageError, "no node 'nobody'"),
        ({"nodes_to_exclude": "mm"}, UsageError, "is a list of names"),
    ],
)
def test_bad_arguments_are_one_line_and_nothing_is_written(
    given: dict[str, object], kind: type[Exception], says: str, tmp_path: Path
) -> None:
    path = save(tokens(), tmp_path / "m.onnx")
    with pytest.raises(kind) as raised:
        quantize_float16(path, tmp_path / "o.onnx", **given)  # type: ignore[arg-type]
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_calibration_is_not_what_is_asked_for(tmp_path: Path) -> None:
    path, data = saved(tmp_path, "float32")
    known = quantkit.calibrate(path, data)
    known.save(tmp_path / "c.qk")
    for given in (known, tmp_path / "c.qk"):
        with pytest.raises(UsageError, match=r"give the samples themselves|no kind of data"):
            quantize_float16(path, tmp_path / "o.onnx", given, compute=True)


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    path = save(tokens(), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="would overwrite the input"):
        quantize_float16(path, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        quantize_float16(path, tmp_path / "o.onnx")


# ---------------------------------------------------------------------------------------- again


def test_the_same_bytes_come_out_again(tmp_path: Path) -> None:
    path, data = saved(tmp_path, "float32")
    plain, computed = tmp_path / "a.onnx", tmp_path / "b.onnx"
    quantize_float16(path, plain, data)
    quantize_float16(path, computed, data, compute=True, nodes_to_exclude=["conv1"])
    assert reproduce(plain, path).sentence.endswith("it has the same bytes.")
    assert reproduce(computed, path, data=data).sentence.endswith("it has the same bytes.")
    with pytest.raises(UsageError, match="to make it again give the data"):
        reproduce(computed, path)
    made = read_provenance(computed)
    assert made is not None
    assert made.kind == "float16"
    assert made.data is not None
    assert (made.data.samples, made.data.method) == (24, "minmax")
    without = read_provenance(plain)
    assert without is not None
    assert without.data is None  # samples only judged it


def test_a_file_is_attested(tmp_path: Path) -> None:
    path, data = saved(tmp_path, "float32")
    out = tmp_path / "o.onnx"
    quantize_float16(path, out, data, compute=True)
    assert attest(out, float_model=path, data=data).ok
    told = {c.name: c.outcome for c in attest(out, float_model=path).checks}
    assert told["runs"] == "ok"
    assert told["data"] == "unknown"


def test_a_repair_is_made_again_the_same(tmp_path: Path) -> None:
    path, out = save(overflowing(), tmp_path / "m.onnx"), tmp_path / "o.onnx"
    quantize_float16(path, out, compute=True, half_outputs=True)
    assert reproduce(out, path).sentence.endswith("it has the same bytes.")


def test_a_job_without_verification(tmp_path: Path) -> None:
    job = Task(source=save(tokens(), tmp_path / "m.onnx"), how=Float16Settings(compute=True))
    result = quantize(job, tmp_path / "o.onnx", verify=False)
    assert result.verification is None
    assert result.half is None
    assert any("Not verified" in text for text in result.warnings)
    assert quantize(replace(job, how=Float16Settings()), tmp_path / "p.onnx").verification


@pytest.mark.slow
def test_a_model_of_many_nodes_takes_time_in_proportion(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["t0"], "mm")]
    nodes += [node("Relu", [f"t{i}"], [f"t{i + 1}"], f"r{i}") for i in range(4000)]
    proto = model(graph(nodes, {"x": [1, 64]}, {"t4000": None}, {"w": weight(64, 400)}))
    path = save(proto, tmp_path / "m.onnx")
    for compute in (False, True):
        result = quantize_float16(path, tmp_path / "o.onnx", compute=compute, verify=False)
        assert result.seconds < 60


# ---------------------------------------------------------------------------------------- halves as input


@CASES
@pytest.mark.parametrize(
    "command",
    [
        "inspect {m}",
        "optimize {m} {o}",
        "calibrate {m} --data {d} -o {o}",
        "plan {m} --data {d}",
        "quantize dynamic {m} {o}",
        "quantize static {m} {o} --data {d}",
        "diff {f} {m}",
        "diff {m} {f}",
        "evaluate {f} {m} --data {d} -o {o} --skip latency --skip memory",
        "evaluate {m} {f} --data {d} -o {o} --skip latency --skip memory",
    ],
)
@pytest.mark.slow
def test_every_command_takes_halves(
    command: str, kind: Kind, form: Form, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = saved(tmp_path, kind, form)
    other = save(network("float32"), tmp_path / "f.onnx")
    line = command.format(m=path, d=data, o=tmp_path / "out", f=other).split()
    assert quantkit_command(line) in ({0} if "diff" not in command else {0, 1})
    captured = capsys.readouterr()
    assert "not run" not in captured.out
    assert "could not be measured" not in captured.out + captured.err
    assert "error" not in captured.err


@pytest.mark.parametrize(("kind", "form"), FORMS[::3])
def test_results_of_halves_are_evaluated_verified_and_made_again(
    kind: Kind, form: Form, tmp_path: Path
) -> None:
    path, data = saved(tmp_path, kind, form)
    quantkit.quantize_dynamic(path, tmp_path / "dynamic.onnx")
    quantkit.quantize_static(path, tmp_path / "static.onnx", data)
    for out in (tmp_path / "dynamic.onnx", tmp_path / "static.onnx"):
        result = quantkit.evaluate_models(path, [out], data, skip=["latency", "memory"])
        candidate = result.candidates[0]
        assert candidate.drift is not None
        assert candidate.drift.outputs[0].db > 20
        assert candidate.layers is not None
        assert {layer.node for layer in candidate.layers.layers} >= {"gemm"}
        assert attest(out, float_model=path, data=data).ok
        assert reproduce(out, path, data=data).outcome == "ok"


def test_evaluation_says_that_bfloat16_was_run_in_float32(tmp_path: Path) -> None:
    path, data = saved(tmp_path, "bfloat16")
    other = save(network("float32"), tmp_path / "f.onnx")
    result = quantkit.evaluate_models(other, [path], data, skip=["latency", "memory"])
    assert any("no kernels for bfloat16" in text for text in result.candidates[0].warnings)


@pytest.mark.parametrize("compute", [False, True])
def test_a_result_is_weighed_compared_and_explained(tmp_path: Path, *, compute: bool) -> None:
    path, data = saved(tmp_path, "float32")
    out = tmp_path / "o.onnx"
    quantize_float16(path, out, data, compute=compute)
    result = quantkit.evaluate_models(path, [out], data, skip=["latency", "memory"])
    candidate = result.candidates[0]
    parts = {part.cause: part.nbytes for part in candidate.size.parts}
    assert parts["weights of Conv"] < 0.6 * 4 * (16 * 27 + 16 + 32 * 16 * 9)
    assert candidate.changes is not None
    assert candidate.changes.weights["float16"] > 50_000
    assert candidate.changes.kept == candidate.changes.weights.get("float32", 0)
    assert candidate.runtime is not None
    assert all("in the file" in n.why for n in candidate.runtime.nodes)
    found = quantkit.diff_models(path, out)
    assert not found.weights.only_a
    assert not found.weights.only_b
    assert all(w.sqnr_db is not None and w.sqnr_db > 65 for w in found.weights.changed)
    assert {(w.a.dtype, w.b.dtype) for w in found.weights.changed} == {("float32", "float16")}
    assert sqnr(run(path, {"x": images()})[0], run(out, {"x": images()})[0]) > 50
