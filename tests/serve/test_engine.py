"""What is found out about a model before it answers: who computes, and whether requests may share a run."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders import graph, model, node, save, weight
from onnx import TensorProto
from serve_cases import linear

from quantkit.api.quantize import Task, quantize
from quantkit.deploy.serve.engine import Engine, _tried, load_engine, mixing_operator
from quantkit.deploy.serve.predict import answer
from quantkit.errors import ModelError, UsageError
from quantkit.settings import DynamicSettings


def test_a_model_is_loaded_run_and_described(tmp_path: Path) -> None:
    engine = load_engine(linear(tmp_path))
    assert [str(port) for port in engine.inputs] == ["x FP32[?, 8]"]
    assert engine.unbatched == ""
    assert engine.seconds > 0
    assert engine.provider == "CPUExecutionProvider"
    assert engine.notes == ()


def test_requests_of_a_dynamically_quantized_model_do_not_share_runs(tmp_path: Path) -> None:
    proto = graph(
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": ["batch", 128]},
        {"y": ["batch", 192]},
        {"w": weight(128, 192)},
    )
    quantize(
        Task(source=save(model(proto), tmp_path / "m.onnx"), how=DynamicSettings()),
        tmp_path / "q.onnx",
    )
    engine = load_engine(tmp_path / "q.onnx")
    assert "DynamicQuantizeLinear" in engine.unbatched
    # What was read in the file is also found by running it.
    rows = {"x": np.random.default_rng(0).standard_normal((1, 128)).astype(np.float32)}
    assert "depends on the rows beside it" in _tried(engine, rows)
    assert _tried(load_engine(tmp_path / "m.onnx"), rows) == ""


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "said"),
    [
        (
            [node("ReduceMean", ["x"], ["m"], axes=[0]), node("Sub", ["x", "m"], ["y"])],
            ["batch", 4],
            ["batch", 4],
            "depends on the rows beside it",
        ),
        ([node("ReduceSum", ["x"], ["y"], keepdims=0)], ["batch", 4], [], "no row for each row"),
        ([node("Relu", ["x"], ["y"])], [1, 4], [1, 4], "is fixed"),
        ([node("CumSum", ["x", "zero"], ["y"])], ["batch", 4], ["batch", 4], "rows beside it"),
        (
            [node("CumSum", ["x", "zero"], ["y"], reverse=1)],
            ["batch", 4],
            ["batch", 4],
            "rows beside it",
        ),
        ([node("Softmax", ["x"], ["y"], axis=0)], ["batch", 4], ["batch", 4], "rows beside it"),
        (
            [
                node("ReduceMax", ["x"], ["m"], axes=[0]),
                node("Greater", ["m", "far"], ["high"]),
                node("Where", ["high", "m", "x"], ["y"]),
            ],
            ["batch", 4],
            ["batch", 4],
            "a row's output 'y' depends",
        ),
        (
            [node("Pad", ["x", "pads"], ["p"]), node("Slice", ["p", "from", "to"], ["y"])],
            ["batch", 4],
            ["batch", 4],
            "rows beside it",
        ),
        (
            [
                node("Transpose", ["x"], ["t"]),
                node("MatMul", ["x", "t"], ["s"]),
                node("Trilu", ["s"], ["low"], upper=0),
                node("MatMul", ["low", "x"], ["y"]),
            ],
            ["batch", 4],
            ["batch", 4],
            "rows beside it",
        ),
        (
            [
                node(
                    "BatchNormalization",
                    ["x", "one", "one", "one", "one"],
                    ["y", "mean", "var"],
                    training_mode=1,
                )
            ],
            ["batch", 4],
            ["batch", 4],
            "rows beside it",
        ),
        (
            [
                node("Shape", ["x"], ["s"], start=0, end=1),
                node("Cast", ["s"], ["n"], to=TensorProto.FLOAT),
                node("Div", ["x", "n"], ["y"]),
            ],
            ["batch", 4],
            ["batch", 4],
            "how many rows there are",
        ),
    ],
    ids=[
        "mean over the batch",
        "one answer for all",
        "fixed batch",
        "sum of the rows before",
        "sum of the rows behind",
        "softmax over the batch",
        "mixed only when a value is large",
        "the row three places before",
        "causal attention",
        "batch norm in training mode",
        "divided by the batch",
    ],
)
def test_rows_that_depend_on_others_are_found_by_running(
    tmp_path: Path, nodes: list[object], inputs: list[object], outputs: list[object], said: str
) -> None:
    constants = {
        "zero": np.array(0),
        "one": np.ones(4, np.float32),
        "far": np.array(1.0, np.float32),
        "pads": np.array([3, 0, 0, 0]),
        "from": np.array([0, 0]),
        "to": np.array([-3, 4]),
    }
    proto = graph(nodes, {"x": inputs}, {"y": outputs}, constants)  # type: ignore[arg-type,dict-item]
    assert said in load_engine(save(model(proto), tmp_path / "m.onnx")).unbatched


def recurrent(op: str, first: list[object], *, batch_first: bool = False) -> onnx.ModelProto:
    """Return a recurrent model: of whole numbers [sequence], or of floats [sequence, 1, 4] or [batch, sequence, 4]."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    weights = {
        "w": weight(1, gates * 5, 4, scale=1.0),
        "r": weight(1, gates * 5, 5, scale=1.0),
        "table": weight(200, 1, 4, scale=1.0),
        "axis": np.array([1]),
    }
    start = [node("Identity", ["x"], ["e"])]
    if len(first) == 1:
        start = [node("Gather", ["table", "x"], ["e"])]
    elif batch_first:
        start = [node("Transpose", ["x"], ["e"], perm=[1, 0, 2])]
    end = [node("Squeeze", ["h", "axis"], ["t"])]  # [sequence, batch, 5]
    if len(first) == 1:  # a label for each row, which hides small differences
        end.append(node("ArgMax", ["t"], ["y"], axis=2))
    else:
        perm = [1, 0, 2] if batch_first else [0, 1, 2]
        end.append(node("Transpose", ["t"], ["y"], perm=perm))
    nodes = [*start, node(op, ["e", "w", "r"], ["h"], hidden_size=5), *end]
    types = {"x": TensorProto.INT64, "y": TensorProto.INT64} if len(first) == 1 else {}
    return model(graph(nodes, {"x": first}, {"y": [None] * 3}, weights, types=types))  # type: ignore[dict-item]


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_the_sequence_of_a_recurrent_model_is_not_a_batch(tmp_path: Path, op: str) -> None:
    rows: dict[str, list[object]] = {"floats": ["n", 1, 4], "numbers": ["n"]}
    for name, first in rows.items():
        engine = load_engine(save(recurrent(op, first), tmp_path / f"{name}.onnx"))
        assert f"the first axis is the sequence of a {op}" in engine.unbatched
    floats = load_engine(tmp_path / "floats.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 1, 4)).astype(np.float32)}
    assert "depends on the rows beside it" in _tried(floats, feeds)  # also found by running it
    proto = recurrent(op, ["n", "steps", 4], batch_first=True)
    assert load_engine(save(proto, tmp_path / "batch.onnx")).unbatched == ""


def test_a_recurrent_operator_that_reads_batches_first_does_not_mix_rows() -> None:
    proto = recurrent("GRU", ["n", "steps", 4])
    assert "sequence of a GRU" in mixing_operator(proto.SerializeToString(), {"x"})
    proto.graph.node[1].attribute.append(onnx.helper.make_attribute("layout", 1))
    assert mixing_operator(proto.SerializeToString(), {"x"}) == ""


def test_an_axis_that_is_called_a_sequence_is_not_a_batch(tmp_path: Path) -> None:
    for axis, said in (("seq_len", "is called 'seq_len'"), ("batch_sequence", "")):
        made = model(graph([node("Relu", ["x"], ["y"])], {"x": [axis, 4]}, {"y": [axis, 4]}))
        engine = load_engine(save(made, tmp_path / "m.onnx"))
        assert said in engine.unbatched
        assert bool(engine.unbatched) == bool(said)


def test_neighbours_with_other_masks_are_tried(tmp_path: Path) -> None:
    """The longest row decides how many columns are summed."""
    nodes = [
        node("ReduceSum", ["mask", "columns"], ["each"], keepdims=0),
        node("ReduceMax", ["each"], ["longest"], keepdims=0),
        node("Cast", ["longest"], ["factor"], to=TensorProto.FLOAT),
        node("Mul", ["x", "factor"], ["y"]),
    ]
    shapes: dict[str, list[object]] = {"x": ["batch", 4], "mask": ["batch", 4]}
    proto = graph(
        nodes,
        shapes,  # type: ignore[arg-type]
        {"y": ["batch", 4]},
        {"columns": np.array([1])},
        types={"mask": TensorProto.INT64},
    )
    engine = load_engine(save(model(proto), tmp_path / "m.onnx"))
    assert "a row's output 'y' depends" in engine.unbatched


def test_a_provider_that_is_absent_is_replaced_and_said(tmp_path: Path) -> None:
    engine = load_engine(linear(tmp_path), provider="cuda")
    assert engine.provider == "CPUExecutionProvider"
    assert "'cuda' is not in this onnxruntime" in engine.notes[0]
    with pytest.raises(UsageError, match="did you mean 'cuda'"):
        load_engine(linear(tmp_path), provider="cuds")


def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    for name in ("bad.onnx", "absent.onnx"):
        with pytest.raises(ModelError) as refused:
            load_engine(tmp_path / name)
        assert "\n" not in str(refused.value)


def test_digest_and_session_come_from_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = linear(tmp_path), linear(tmp_path, "other", seed=1)
    before = path.read_bytes()
    make = ort.InferenceSession

    def replaced_meanwhile(*arguments: object, **named: object) -> object:
        path.write_bytes(other.read_bytes())
        return make(*arguments, **named)

    expected = load_engine(path).run({"x": np.ones((1, 8), np.float32)})["logits"]
    monkeypatch.setattr(ort, "InferenceSession", replaced_meanwhile)
    engine = load_engine(path)
    assert engine.digest == sha256(before).hexdigest()
    assert np.array_equal(engine.run({"x": np.ones((1, 8), np.float32)})["logits"], expected)


def test_weights_beside_the_model_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = linear(tmp_path)
    expected = load_engine(path).run({"x": np.ones((1, 8), np.float32)})["logits"]
    (tmp_path / "out").mkdir()
    onnx.save(
        onnx.load(path),
        tmp_path / "out/m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    monkeypatch.chdir(tmp_path)
    found = load_engine(Path("out/m.onnx")).run({"x": np.ones((1, 8), np.float32)})["logits"]
    assert np.array_equal(found, expected)


def test_a_model_with_other_classes_does_not_answer_in_its_place(tmp_path: Path) -> None:
    def with_outputs(name: str, *extents: int | str) -> Engine:
        made = model(
            graph(
                [node("MatMul", ["x", "w"], ["logits"])],
                {"x": ["batch", 8]},
                {"logits": list(extents)},
                {"w": weight(8, 5 if 5 in extents else 4)},
            )
        )
        return load_engine(save(made, tmp_path / f"{name}.onnx"))

    four, five = with_outputs("four", "batch", 4), with_outputs("five", "batch", 5)
    unsaid = with_outputs("unsaid", "batch", "classes")
    assert four.fits(four)
    assert not five.fits(four)
    assert unsaid.fits(four)
    assert four.fits(unsaid)


def test_outputs_that_are_not_finite_are_compared_without_a_warning(tmp_path: Path) -> None:
    """Warnings would be lines of the log that are no JSON."""
    made = model(graph([node("Log", ["x"], ["y"])], {"x": ["n", 2]}, {"y": ["n", 2]}))
    engine = load_engine(save(made, tmp_path / "log.onnx"))
    found = engine.run({"x": np.array([[0.0, -1.0]], np.float32)})
    assert np.isneginf(found["y"][0, 0])
    assert engine.unbatched == ""
    said = answer(found, (), top=2, softmax=True)
    assert np.isnan(said["predictions"][0][0]["score"])
