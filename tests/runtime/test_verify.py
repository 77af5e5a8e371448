"""Nothing is written that was not loaded, run and compared; what could not be is said."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders import Array, Shape, graph, matmul_model, model, node, run, save, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from quantkit import QuantizeResult, quantize_dynamic
from quantkit.errors import ModelError, RuntimeSupportError, VerifyError
from quantkit.model.graph.load import load
from quantkit.runtime import check_result as verify
from quantkit.runtime.check_result import (
    Agreement,
    Excess,
    Reference,
    Tally,
    Verification,
    compare,
    run_float,
)
from quantkit.runtime.session import (
    RUNTIME_ERRORS,
    readable_ir_version,
    runtime_limits,
    runtime_version,
)

FEEDS = {"x": weight(2, 128, seed=9)}


def quantized(
    proto: onnx.ModelProto, folder: Path, *, from_file: bool = True, **options: Any
) -> QuantizeResult:
    source = save(proto, folder / "m.onnx") if from_file else proto
    return quantize_dynamic(source, folder / "q.onnx", **options)


def extended(*nodes: onnx.NodeProto, outputs: Mapping[str, int]) -> onnx.ModelProto:
    """The product of `matmul_model`, and outputs computed from its result y."""
    proto = matmul_model()
    proto.graph.node.extend(nodes)
    for name, dtype in outputs.items():
        proto.graph.output.append(helper.make_tensor_value_info(name, dtype, None))
    return proto


# --- the runtime's limits ----------------------------------------------------------------------


def test_limits_are_those_of_the_installed_runtime() -> None:
    limits = runtime_limits()
    assert 10 <= limits.ir_version <= onnx.IR_VERSION
    assert 21 <= limits.opset <= onnx.defs.onnx_opset_version()
    assert runtime_version() == ort.__version__
    proto = matmul_model(opset=limits.opset)
    proto.ir_version = limits.ir_version
    assert run(proto, FEEDS)[0].shape == (2, 192)


@pytest.mark.parametrize("field", ["ir_version", "opset"])
def test_what_is_beyond_the_limits_does_not_load(field: str) -> None:
    limits = runtime_limits()
    proto = matmul_model()
    if field == "opset":
        proto.opset_import[0].version = limits.opset + 1
    else:
        proto.ir_version = limits.ir_version + 1
    with pytest.raises(RUNTIME_ERRORS):
        run(proto, FEEDS)


@pytest.mark.parametrize("version", [3, 8, 10])
def test_an_ir_version_that_all_runtimes_read_stays(version: int) -> None:
    assert readable_ir_version(version) == version


def test_an_ir_version_that_is_too_new_is_lowered() -> None:
    assert readable_ir_version(99) == runtime_limits().ir_version


@pytest.mark.parametrize("from_file", [True, False], ids=["file", "proto"])
@pytest.mark.parametrize("ir_version", [onnx.IR_VERSION, 99], ids=["newest", "unheard-of"])
def test_a_model_stamped_with_a_new_ir_version_is_quantized(
    ir_version: int,
    from_file: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    proto = matmul_model()
    proto.ir_version = ir_version
    result = quantized(proto, tmp_path, from_file=from_file)
    assert result.verification is not None
    assert result.verification.compared["y"] > 30
    assert run(tmp_path / "q.onnx", FEEDS)[0].shape == (2, 192)
    assert onnx.load(tmp_path / "q.onnx").ir_version <= runtime_limits().ir_version
    assert proto.ir_version == ir_version


# --- float models that the runtime does not load -----------------------------------------------


def custom_domain() -> onnx.ModelProto:
    proto = matmul_model()
    proto.graph.node.append(node("Mine", ["y"], ["z"], "mine", domain="my.ops"))
    proto.graph.output[0].name = "z"
    proto.opset_import.append(helper.make_opsetid("my.ops", 1))
    return proto


def newer_opset() -> onnx.ModelProto:
    proto = matmul_model()
    proto.opset_import[0].version = runtime_limits().opset + 1
    return proto


def unknown_operator() -> onnx.ModelProto:
    proto = matmul_model()
    proto.graph.node[1].op_type = "Plus"
    return proto


def equal_node_names() -> onnx.ModelProto:
    proto = matmul_model()
    proto.graph.node[1].name = "mm"
    return proto


@pytest.mark.parametrize("from_file", [True, False], ids=["file", "proto"])
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (newer_opset, [f"uses opset {runtime_limits().opset + 1}", "lower opset"]),
        (custom_domain, ["custom domain 'my.ops'", "verification off"]),
        (unknown_operator, ["Plus"]),
        (equal_node_names, ["same node name"]),
    ],
    ids=["opset", "custom-domain", "unknown-operator", "equal-node-names"],
)
def test_a_float_model_that_does_not_load_is_explained(
    build: Callable[[], onnx.ModelProto],
    expected: list[str],
    from_file: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    with pytest.raises(RuntimeSupportError) as caught:
        quantized(build(), tmp_path, from_file=from_file)
    message = str(caught.value)
    assert "\n" not in message
    assert f"onnxruntime {runtime_version()}" in message
    assert ("m.onnx" if from_file else "the given ModelProto") in message
    for part in expected:
        assert part in message
    assert isinstance(caught.value, ModelError)
    assert not (tmp_path / "q.onnx").exists()


def test_a_custom_domain_is_quantized_unseen(tmp_path: Path) -> None:
    result = quantized(custom_domain(), tmp_path, verify=False)
    proto = onnx.load(tmp_path / "q.onnx")
    assert result.verification is None
    assert any(warning.startswith("Not verified") for warning in result.warnings)
    assert result.output_bytes < result.input_bytes / 3
    assert [item.domain for item in proto.graph.node][-1] == "my.ops"
    assert {o.domain: o.version for o in proto.opset_import}["my.ops"] == 1


# --- made-up inputs ----------------------------------------------------------------------------


def made_up(proto: onnx.ModelProto) -> Mapping[str, Array]:
    reference = run_float(load(proto))
    assert reference.note == ""
    assert set(reference.outputs) == {value.name for value in proto.graph.output}
    return reference.feeds


def echo(types: Mapping[str, int], shapes: Mapping[str, Shape]) -> onnx.ModelProto:
    """A model that returns each of its inputs."""
    nodes = [node("Identity", [name], [f"{name}_out"]) for name in shapes]
    outputs: dict[str, Shape] = {f"{name}_out": None for name in shapes}
    all_types = {**types, **{f"{name}_out": dtype for name, dtype in types.items()}}
    return model(graph(nodes, shapes, outputs, types=all_types))


def bert(vocabulary: int, positions: int) -> onnx.ModelProto:
    """Token and type look-ups, positions for exactly so many tokens, and a masked mean."""
    nodes = [
        node("Gather", ["words", "input_ids"], ["e"]),
        node("Gather", ["kinds", "token_type_ids"], ["t"]),
        node("Add", ["e", "t"], ["s"]),
        node("Add", ["s", "places"], ["p"]),
        node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["m", "last"], ["m3"]),
        node("Mul", ["p", "m3"], ["pm"]),
        node("MatMul", ["pm", "w"], ["y"], "mm"),
    ]
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs: dict[str, Shape] = {name: ["batch", "sequence"] for name in names}
    weights: dict[str, Array] = {
        "words": weight(vocabulary, 128),
        "kinds": weight(2, 128, seed=1),
        "places": weight(positions, 128, seed=2),
        "last": np.array([-1]),
        "w": weight(128, 192, seed=3),
    }
    types = dict.fromkeys(names, TensorProto.INT64)
    return model(graph(nodes, inputs, {"y": None}, weights, types=types))


@pytest.mark.parametrize("vocabulary", [1000, 10], ids=["large", "small"])
@pytest.mark.parametrize("positions", [1, 16, 128, 512])
def test_tokens_masks_and_types_are_made_up(vocabulary: int, positions: int) -> None:
    feeds = made_up(bert(vocabulary, positions))
    tokens = feeds["input_ids"]
    assert tokens.dtype == np.int64
    assert tokens.shape[1] == positions or positions == 1
    assert 0 <= tokens.min() <= tokens.max() < vocabulary
    assert (feeds["attention_mask"] == 1).all()
    assert feeds["token_type_ids"].max() < 2


def test_a_language_model_is_verified_without_a_sample(tmp_path: Path) -> None:
    result = quantized(bert(1000, 128), tmp_path)
    assert result.verification is not None
    assert result.verification.note == ""
    assert result.verification.compared["y"] > 25


@pytest.mark.parametrize("side", [64, 224, 640])
def test_images_are_tried_until_one_fits(side: int) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "grid"], ["y"]),  # fits one size only
    ]
    weights = {"w": weight(4, 3, 3, 3), "grid": weight(1, 1, side, side)}
    proto = model(graph(nodes, {"x": ["N", 3, "H", "W"]}, {"y": None}, weights))
    assert made_up(proto)["x"].shape == (1, 3, side, side)


@pytest.mark.parametrize(
    ("dtype", "name", "check"),
    [
        (TensorProto.BOOL, "flag", lambda a: a.all()),
        (TensorProto.INT64, "attention_mask", lambda a: (a == 1).all()),
        (TensorProto.FLOAT, "x", lambda a: a.std() > 0.5),
        (TensorProto.FLOAT16, "half", lambda a: a.dtype == np.float16),
        (TensorProto.DOUBLE, "double", lambda a: a.dtype == np.float64),
        (TensorProto.INT32, "token_type_ids", lambda a: a.max() < 2),
        (TensorProto.INT32, "lengths", lambda a: (a == a.flat[0]).all() and a.flat[0] > 0),
        (TensorProto.UINT8, "pixels", lambda a: a.max() > 1),
        (TensorProto.INT8, "bytes", lambda a: a.min() >= 0),
    ],
    ids=["bool", "mask", "float", "float16", "double", "types", "lengths", "uint8", "int8"],
)
def test_inputs_of_each_kind(dtype: int, name: str, check: Callable[[Array], bool]) -> None:
    feeds = made_up(echo({name: dtype}, {name: ["batch", 32]}))
    assert feeds[name].shape == (1, 32)
    assert check(feeds[name])


KINDS = [TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16]
DIMENSIONS = st.lists(st.integers(1, 5) | st.sampled_from(["a", "b", "N"]), max_size=5)


@settings(max_examples=40, deadline=None)
@given(signature=st.lists(st.tuples(st.sampled_from(KINDS), DIMENSIONS), min_size=1, max_size=3))
def test_made_up_inputs_fit_any_signature(
    signature: list[tuple[int, Sequence[int | str]]],
) -> None:
    types = {f"i{k}": dtype for k, (dtype, _) in enumerate(signature)}
    shapes: dict[str, Shape] = {f"i{k}": list(shape) for k, (_, shape) in enumerate(signature)}
    feeds = made_up(echo(types, shapes))
    for name, shape in shapes.items():
        assert shape is not None
        assert feeds[name].dtype == helper.tensor_dtype_to_np_dtype(types[name])
        for wanted, got in zip(shape, feeds[name].shape, strict=True):
            assert got == wanted if isinstance(wanted, int) else got >= 1


def test_inputs_are_the_same_every_time() -> None:
    first, second = (made_up(matmul_model())["x"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def picky() -> onnx.ModelProto:
    """Takes only 7 rows, which nobody guesses."""
    proto = matmul_model(bias=False)
    proto.graph.node[0].output[0] = "m"
    proto.graph.node.append(node("Add", ["m", "seven"], ["y"]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight(7, 192), "seven"))
    proto.graph.node.insert(0, node("Reshape", ["x", "shape"], ["r"]))
    proto.graph.node[1].input[0] = "r"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7, 128]), "shape"))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "K"
    return proto


def test_a_model_that_takes_no_made_up_input_is_written_and_says_so(tmp_path: Path) -> None:
    result = quantized(picky(), tmp_path)
    assert result.verification is not None
    assert result.verification.compared == {}
    assert result.verification.note.startswith("not run")
    assert "--sample FILE" in result.verification.note
    assert any("--sample FILE" in warning for warning in result.warnings)
    assert (tmp_path / "q.onnx").exists()


def test_the_same_model_is_compared_on_a_sample(tmp_path: Path) -> None:
    result = quantized(picky(), tmp_path, sample={"x": weight(7, 128, seed=9)})
    assert result.verification is not None
    assert result.verification.compared["y"] > 25
    assert result.verification.note == ""


def strings() -> onnx.ModelProto:
    proto = matmul_model()
    for side, name in ((proto.graph.input, "label"), (proto.graph.output, "echo")):
        side.append(helper.make_tensor_value_info(name, TensorProto.STRING, ["N"]))
    proto.graph.node.append(node("Identity", ["label"], ["echo"]))
    return proto


@pytest.mark.parametrize("from_file", [True, False], ids=["file", "proto"])
def test_a_model_with_string_inputs_is_not_run_and_says_so(
    from_file: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    result = quantized(strings(), tmp_path, from_file=from_file)
    assert result.verification is not None
    assert result.verification.compared == {}
    assert "--sample FILE" in result.verification.note


def test_the_note_on_string_inputs_says_what_cannot_be_made_up(tmp_path: Path) -> None:
    result = quantized(strings(), tmp_path)
    assert result.verification is not None
    assert "string" in result.verification.note


def test_a_model_with_string_inputs_is_compared_on_a_sample(tmp_path: Path) -> None:
    sample = {**FEEDS, "label": np.array(["a", "b"], dtype=object)}
    result = quantized(strings(), tmp_path, sample=sample)
    assert result.verification is not None
    assert result.verification.compared["y"] > 30
    assert result.verification.agreement["echo"] == Agreement(2, 2)


# --- samples -----------------------------------------------------------------------------------


SAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "wrong-name": ({"image": FEEDS["x"]}, "x"),
    "nothing": ({}, "x"),
    "one-name-too-many": ({**FEEDS, "extra": FEEDS["x"]}, "extra"),
    "wrong-extent": ({"x": weight(2, 5)}, "x"),
    "wrong-rank": ({"x": weight(128)}, "x"),
    "wrong-type": ({"x": np.zeros((2, 128), np.int32)}, "int32"),
}


@pytest.mark.parametrize(("sample", "named"), SAMPLES.values(), ids=SAMPLES)
def test_a_sample_that_does_not_fit_is_an_error(
    sample: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(VerifyError, match="does not run on the given sample") as caught:
        quantized(matmul_model(), tmp_path, sample=sample)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_sample_is_what_is_compared(tmp_path: Path) -> None:
    result = quantized(matmul_model(), tmp_path, sample=FEEDS)
    expected = run(matmul_model(), FEEDS, optimize=False)[0]
    actual = run(tmp_path / "q.onnx", FEEDS)[0]
    noise = float(((expected - actual) ** 2).sum())
    found = result.verification
    assert found is not None
    assert found.about_zero["y"] == pytest.approx(
        10 * np.log10(float((expected**2).sum()) / noise), abs=0.01
    )
    assert found.compared == found.about_zero  # the mean adds less than 10 dB
    assert (found.samples, found.judged_on) == (1, "a given sample")


@given(st.floats(-100, 100), st.floats(0.01, 1), st.floats(0.001, 10))
def test_the_mean_of_an_output_adds_10_db_at_most(mean: float, spread: float, noise: float) -> None:
    expected = mean + spread * np.array([-1.0, 1.0, -1.0, 1.0])
    tally = Tally()
    tally.add(expected, expected + noise)
    about_zero = 10 * np.log10((mean**2 + spread**2) / noise**2)
    varying = 10 * np.log10(spread**2 / noise**2)
    assert tally.about_zero == pytest.approx(about_zero, abs=1e-6)
    assert tally.sqnr == pytest.approx(min(about_zero, varying + 10), abs=1e-6)
    assert tally.lost == pytest.approx(10 ** (-tally.sqnr / 10))


def test_each_sample_counts_in_median_worst_and_share(tmp_path: Path) -> None:
    nodes = [node("Identity", ["x"], ["y"], "same")]
    path = candidate(model(graph(nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, {})), tmp_path)
    signal = np.array([[-1.0, 1.0, -1.0, 1.0]], np.float32)
    errors = [0.01, 0.02, 0.1, 0.5]  # 40, 34, 20 and 6 dB

    def found(mean: float, excess: float) -> Verification:
        runs = [({"x": mean + signal + e}, {"y": mean + signal}) for e in errors]
        (feeds, outputs), *others = runs
        reference = Reference(
            feeds=feeds,
            outputs=outputs,
            others=tuple(others),
            on=verify.IN_TURNS,
            excess=({"y": Excess(1e9, excess * 1e9)},) * 4,
        )
        return compare(path, reference, nbytes=1000)

    plain = found(0.0, 1.0)
    assert plain.median["y"] == pytest.approx((20 + 33.98) / 2, abs=0.01)
    assert plain.lowest["y"] == pytest.approx(6.02, abs=0.01)
    assert plain.largest_share["y"] == pytest.approx(0.25 / 0.2605, abs=1e-4)
    assert found(0.0, 10.0).compared["y"] == pytest.approx(plain.compared["y"] - 10, abs=0.01)
    assert found(0.0, 10.0).lowest["y"] == pytest.approx(-3.98, abs=0.01)
    # What the mean may not add to all samples it does not add to one.
    assert found(1000.0, 1.0).compared["y"] == pytest.approx(plain.compared["y"] + 10, abs=0.05)
    assert found(1000.0, 1.0).lowest["y"] == pytest.approx(16.02, abs=0.05)


# --- candidates --------------------------------------------------------------------------------


def candidate(proto: onnx.ModelProto, folder: Path) -> Path:
    return save(proto, folder / "candidate.onnx")


def reference_of(proto: onnx.ModelProto) -> Reference:
    return run_float(load(proto), FEEDS)


def poisoned(op_type: str) -> onnx.ModelProto:
    """y becomes not a number, or infinite."""
    proto = matmul_model()
    proto.graph.node[1].output[0] = "sum"
    proto.graph.node.append(node("Mul", ["sum", "zero"], ["z"]))
    proto.graph.node.append(node("Exp" if op_type == "one" else "Abs", ["z"], ["e"]))
    proto.graph.node.append(node("Div", ["e", "zero"], ["y"]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
    return proto


def test_an_equal_candidate_has_no_noise(tmp_path: Path) -> None:
    path = candidate(matmul_model(), tmp_path)
    checked = compare(path, reference_of(matmul_model()), nbytes=path.stat().st_size)
    assert checked.compared["y"] > 100
    assert checked.note == ""
    assert checked.worst == checked.compared["y"]


@pytest.mark.parametrize("value", ["nan", "one"], ids=["nan", "infinity"])
def test_a_candidate_that_is_not_finite_fails(value: str, tmp_path: Path) -> None:
    path = candidate(poisoned(value), tmp_path)
    with pytest.raises(VerifyError, match="'y' of the result holds NaN or infinity"):
        compare(path, reference_of(matmul_model()), nbytes=1000)


def test_a_candidate_is_checked_where_float_is_zero(tmp_path: Path) -> None:
    reference = Reference(feeds=FEEDS, outputs={"y": np.zeros((2, 192), np.float32)})
    path = candidate(poisoned("nan"), tmp_path)
    with pytest.raises(VerifyError, match="NaN"):
        compare(path, reference, nbytes=1000)


def test_a_candidate_that_does_not_load_fails(tmp_path: Path) -> None:
    path = candidate(unknown_operator(), tmp_path)
    with pytest.raises(VerifyError, match="does not load the result") as caught:
        compare(path, reference_of(matmul_model()), nbytes=1000)
    assert "\n" not in str(caught.value)


def test_a_candidate_that_does_not_run_fails(tmp_path: Path) -> None:
    path = candidate(matmul_model(64), tmp_path)
    with pytest.raises(VerifyError, match="loads but does not run"):
        compare(path, reference_of(matmul_model()), nbytes=1000)


def test_a_candidate_that_does_not_run_is_explained_in_one_line(tmp_path: Path) -> None:
    path = candidate(matmul_model(64), tmp_path)
    with pytest.raises(VerifyError) as caught:
        compare(path, reference_of(matmul_model()), nbytes=1000)
    assert "\n" not in str(caught.value)


def test_a_candidate_that_fails_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_: Any, **__: Any) -> None:
        raise VerifyError("not good enough")

    monkeypatch.setattr("quantkit.pipeline.form.compare_apart", failed)
    (tmp_path / "q.onnx").write_bytes(b"old")
    with pytest.raises(VerifyError, match="not good enough"):
        quantized(matmul_model(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "q.onnx"]
    assert (tmp_path / "q.onnx").read_bytes() == b"old"


def test_noise_on_a_sample_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.runtime.check_result.NOISE_DB", 1000.0)
    with pytest.raises(VerifyError, match=r"'y' .* is noise"):
        quantized(matmul_model(), tmp_path, sample=FEEDS)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_noise_on_made_up_inputs_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantkit.runtime.check_result.NOISE_DB", 1000.0)
    result = quantized(matmul_model(), tmp_path)
    assert any("switched off" in warning for warning in result.warnings)
    assert any("random inputs" in warning for warning in result.warnings)
    assert (tmp_path / "q.onnx").exists()


# --- outputs that cannot be compared -----------------------------------------------------------


def test_integer_outputs_are_compared_by_equality(tmp_path: Path) -> None:
    proto = extended(node("ArgMax", ["y"], ["best"], axis=1), outputs={"best": TensorProto.INT64})
    result = quantized(proto, tmp_path)
    assert result.verification is not None
    assert list(result.verification.compared) == ["y"]
    assert result.verification.note == ""
    assert result.verification.agreement["best"].values == 1


def detector() -> onnx.ModelProto:
    """Boxes and scores from one product, then NonMaxSuppression: how many remain may differ."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("Sigmoid", ["m"], ["p"]),
        node("Reshape", ["p", "five"], ["rows"]),
        node("Split", ["rows", "parts"], ["boxes", "column"], axis=2),
        node("Transpose", ["column"], ["scores"], perm=[0, 2, 1]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["kept"]),
    ]
    weights: dict[str, Array] = {
        "w": weight(128, 200),
        "five": np.array([1, -1, 5]),
        "parts": np.array([4, 1]),
        "most": np.array([100]),
        "overlap": np.array([0.3], np.float32),
    }
    types = {"kept": TensorProto.INT64}
    return model(graph(nodes, {"x": [1, 128]}, {"kept": [None, 3]}, weights, types=types))


def test_non_max_suppression_is_run_but_not_compared(tmp_path: Path) -> None:
    result = quantized(detector(), tmp_path)
    assert result.verification is not None
    assert result.verification.compared == {}
    assert result.verification.worst is None
    assert result.verification.note == "not of float's shape, so not compared: kept"


CONSTANT_OUTPUTS = {
    "zero": [node("Sub", ["y", "y"], ["other"])],
    "not-a-number": [node("Sub", ["y", "y"], ["z"]), node("Div", ["z", "z"], ["other"])],
    "empty": [node("Slice", ["y", "none", "none"], ["other"])],
}


@pytest.mark.parametrize("nodes", CONSTANT_OUTPUTS.values(), ids=CONSTANT_OUTPUTS)
def test_outputs_without_a_signal_are_not_compared(
    nodes: list[onnx.NodeProto], tmp_path: Path
) -> None:
    proto = extended(*nodes, outputs={"other": TensorProto.FLOAT})
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "none"))
    result = quantized(proto, tmp_path)
    assert result.verification is not None
    assert list(result.verification.compared) == ["y"]
    assert result.verification.note == "not comparable: other"


def test_outputs_that_are_sequences_are_compared(tmp_path: Path) -> None:
    proto = matmul_model()
    proto.graph.node.append(node("SplitToSequence", ["y"], ["rows"], axis=0))
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    proto.graph.output.append(helper.make_value_info("rows", kind))
    result = quantized(proto, tmp_path)
    assert result.verification is not None
    assert list(result.verification.compared) == ["y", "rows"]
    assert result.verification.note == ""


# --- large models ------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
def test_a_large_model_is_run_but_not_compared_and_says_so(
    external: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "LARGE", 1000)
    result = quantized(matmul_model(), tmp_path, use_external_data_format=external)
    assert result.verification is not None
    assert result.verification.compared == {}
    assert result.verification.note.startswith("not compared with float")
    assert any("not compared with float" in warning for warning in result.warnings)


def test_a_large_model_is_compared_on_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "LARGE", 1000)
    result = quantized(matmul_model(), tmp_path, sample=FEEDS)
    assert result.verification is not None
    assert result.verification.compared["y"] > 30


def test_a_large_candidate_that_does_not_load_still_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "LARGE", 1000)
    path = candidate(unknown_operator(), tmp_path)
    with pytest.raises(VerifyError, match="does not load"):
        compare(path, Reference(feeds={}, outputs={}), nbytes=path.stat().st_size)


def test_verification_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("onnxruntime was started")

    monkeypatch.setattr(verify, "make_session", never)
    result = quantized(matmul_model(), tmp_path, verify=False)
    assert result.verification is None
    assert result.to_json()["verification"] is None


def test_an_output_of_another_rank_fails(tmp_path: Path) -> None:
    path = candidate(matmul_model(), tmp_path)
    reference = Reference(feeds=FEEDS, outputs={"y": np.ones((2, 192, 1), np.float32)})
    with pytest.raises(VerifyError, match="Output 'y' of the result is"):
        compare(path, reference, nbytes=1000)


def test_minus_infinity_in_float_is_no_reason_not_to_compare(tmp_path: Path) -> None:
    expected = run(matmul_model(), FEEDS)[0]
    expected[:, 0] = -np.inf
    reference = Reference(feeds=FEEDS, outputs={"y": expected})
    found = compare(candidate(matmul_model(), tmp_path), reference, nbytes=1000)
    assert found.compared["y"] > 100


def test_an_output_of_another_extent_fails_where_the_model_fixes_it(tmp_path: Path) -> None:
    path = candidate(matmul_model(), tmp_path)  # declares y as (N, 192)
    free = Reference(feeds=FEEDS, outputs={"y": np.ones((3, 192), np.float32)})
    assert compare(path, free, nbytes=1000).note == "not of float's shape, so not compared: y"
    proto = matmul_model()
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    assert quantized(proto, tmp_path).verification is not None  # what it declares is wrong


def test_an_input_of_an_absurd_size_is_not_made_up(tmp_path: Path) -> None:
    proto = matmul_model()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**40
    result = quantized(proto, tmp_path)
    assert result.verification is not None
    assert "no value can be made up for input 'x'" in result.verification.note


@pytest.mark.parametrize(
    ("found", "heading"),
    [
        ({"compared": {"y": 33.0}}, "verified"),
        ({"compared": {"y": -17.6, "z": 40.0}}, "noise"),
        ({"compared": {"y": 1.0}, "about_zero": {"y": 30.0}}, "noise"),
        ({"compared": {}, "agreement": {"y": Agreement(3, 20)}}, "noise"),
        ({"compared": {}, "agreement": {"y": Agreement(19, 20)}}, "verified"),
        ({"compared": {}}, "verified"),
    ],
)
def test_noise_is_not_called_verified(found: dict[str, Any], heading: str) -> None:
    assert str(Verification(note="", ran=True, **found)).startswith(f"{heading}: valid")
