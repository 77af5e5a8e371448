"""Whether the rows of arrays are samples, or each file is one: names of axes first, then what the model computes."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, Shape, graph, model, node, rng, weight
from data.makers import ramp, spec
from onnx import TensorProto

from quantkit.calibration.model_inputs import inputs_of
from quantkit.data import collate, open_data
from quantkit.errors import DataError
from quantkit.runtime.runs import row_trial
from quantkit.runtime.session import float_session, load_model

INT64 = TensorProto.INT64


def opened(proto: onnx.ModelProto, data: Any) -> Any:
    loaded = load_model(proto)
    return open_data(data, inputs_of(loaded), trial=row_trial(partial(float_session, loaded)))


def saved(folder: Path, *files: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, arrays in enumerate(files):
        np.savez(folder / f"{number}.npz", **arrays)
    return folder


def graph_network() -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["feat", "w"], ["c"]),
        node("Gather", ["c", "edge_to"], ["y"], axis=0),
    ]
    inputs: dict[str, Shape] = {"feat": ["nodes", 4], "edge_to": ["edges"]}
    built = graph(nodes, inputs, {"y": ["edges", 3]}, {"w": weight(4, 3)}, types={"edge_to": INT64})
    return model(built)


def coordinates() -> onnx.ModelProto:
    """Edges as [2, edges], as PyTorch Geometric has them, beside nodes of an unnamed axis."""
    nodes = [
        node("MatMul", ["feat", "w"], ["c"]),
        node("Gather", ["edge_index", "one"], ["to"], axis=0),
        node("Gather", ["c", "to"], ["y"], axis=0),
    ]
    inputs = {"feat": [None, 4], "edge_index": [2, None]}
    weights = {"w": weight(4, 3), "one": np.asarray(1)}
    return model(graph(nodes, inputs, {"y": [None, 3]}, weights, types={"edge_index": INT64}))


def steps(name: str | None) -> onnx.ModelProto:
    """A sum over all rows before: what a recurrent network with time first does."""
    weights = {"axis": np.asarray(0), "w": weight(4, 4)}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("CumSum", ["h", "axis"], ["y"])]
    return model(graph(nodes, {"x": [name, 4]}, {"y": [name, 4]}, weights))


def two_inputs(first: str | None, second: str | None) -> onnx.ModelProto:
    nodes = [node("MatMul", ["a", "w"], ["h"]), node("Add", ["h", "b"], ["y"])]
    inputs = {"a": [first, 4], "b": [second, 3]}
    return model(graph(nodes, inputs, {"y": [None, 3]}, {"w": weight(4, 3)}))


def normal(*shape: int) -> Array:
    return rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_files_with_arrays_of_different_lengths_are_one_sample_each(tmp_path: Path) -> None:
    files = [{"feat": normal(n, 4), "edge_to": np.arange(2 * n) % n} for n in (3, 5, 5)]
    found = opened(graph_network(), saved(tmp_path / "d", *files))
    assert [found[i].feeds["feat"].shape[0] for i in range(3)] == [3, 5, 5]
    assert found.description.division.startswith("one per file: arrays of a file have different")
    # The indices of the second graph would point into the first.
    assert len(collate([found[1], found[2]])) == 2


def test_as_many_edges_as_nodes_are_no_rows(tmp_path: Path) -> None:
    files = [{"feat": normal(5, 4), "edge_to": np.arange(5)[::-1].copy()}] * 2
    found = opened(graph_network(), saved(tmp_path / "d", *files))
    assert len(found) == 2
    assert found[0].feeds["feat"].shape == (5, 4)
    assert "depend on the others" in found.description.division


def test_an_input_of_two_rows_is_not_given_to_every_node(tmp_path: Path) -> None:
    edges = np.asarray([[0, 1, 2, 3], [3, 2, 1, 0]])
    found = opened(
        coordinates(), saved(tmp_path / "d", {"feat": normal(4, 4), "edge_index": edges})
    )
    assert len(found) == 1
    assert found[0].feeds["feat"].shape == (4, 4)
    assert found[0].whole


def test_packed_sequences_are_one_sample() -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["e"]),
        node("Cast", ["starts"], ["f"], to=TensorProto.FLOAT),
        node("ReduceSum", ["f"], ["s"]),
        node("Add", ["e", "s"], ["y"]),
    ]
    inputs = {"ids": ["tokens"], "starts": ["texts"]}
    types = {"ids": INT64, "starts": INT64}
    proto = model(graph(nodes, inputs, {"y": ["tokens", 4]}, {"table": weight(9, 4)}, types=types))
    found = opened(proto, {"ids": np.arange(7), "starts": np.asarray([0, 3, 7])})
    assert len(found) == 1
    assert (
        found.description.division == "all rows together: arrays of a file have different lengths"
    )


@pytest.mark.parametrize("name", [None, "steps"])
def test_steps_of_time_are_no_samples(name: str | None, tmp_path: Path) -> None:
    files = [{"x": normal(n, 4)} for n in (6, 6, 9)]
    found = opened(steps(name), saved(tmp_path / "d", *files))
    assert [found[i].feeds["x"].shape[0] for i in range(len(found))] == [6, 6, 9]
    objects = opened(steps(name), files)
    assert len(collate([objects[0], objects[1]])) == 2


@pytest.mark.parametrize("names", [(None, None), ("unk__1", "unk__2"), ("n", "n")])
def test_rows_that_do_not_depend_on_others_are_samples(
    names: tuple[str | None, str | None], tmp_path: Path
) -> None:
    folder = saved(tmp_path / "d", {"a": normal(20, 4), "b": normal(20, 3)})
    found = opened(two_inputs(*names), folder)
    assert len(found) == 20
    assert found.description.division == (
        "rows of axis 0 'n'" if names[0] == "n" else "rows of axis 0"
    )
    assert len(collate([found[0], found[1]])) == 1


def test_integers_that_name_the_row_are_no_sign_of_dependence(tmp_path: Path) -> None:
    """A detector's boxes with the number of the image that each is of."""
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Shape", ["x"], ["s"], end=1),
        node("Squeeze", ["s"], ["n"]),
        node("Range", ["zero", "n", "one"], ["image"]),
    ]
    weights = {"w": weight(4, 3), "zero": np.asarray(0), "one": np.asarray(1)}
    outputs: dict[str, Shape] = {"y": [None, 3], "image": [None]}
    built = graph(nodes, {"x": [None, 4]}, outputs, weights, types={"image": INT64})
    found = opened(model(built), saved(tmp_path / "d", {"x": normal(6, 4)}))
    assert len(found) == 6


def test_a_declared_batch_is_not_tried() -> None:
    def never(*_: object) -> bool:
        raise AssertionError

    inputs = [spec("a", None, 2, axis="batch_size"), spec("b", None, 3, axis="batch_size")]
    found: Any = open_data({"a": ramp(5, 2), "b": ramp(5, 3)}, inputs, trial=never)
    assert len(found) == 5
    assert found.description.division == "rows of axis 0 'batch_size'"
    with pytest.raises(DataError, match="give all arrays the same number of rows"):
        open_data({"a": ramp(5, 2), "b": ramp(4, 3)}, inputs, trial=never)


def test_outputs_that_show_nothing_are_warned_of() -> None:
    def unknown(*_: object) -> None:
        return None

    alike: Any = open_data({"x": ramp(5, 2)}, [spec("x", None, 2)], trial=unknown)
    assert len(alike) == 5
    assert "Rows of axis 0 are taken as samples" in alike.description.warnings[0]
    inputs = [spec("a", None, 2, axis="n"), spec("b", None, 3, axis="m")]
    other: Any = open_data({"a": ramp(5, 2), "b": ramp(5, 3)}, inputs, trial=unknown)
    assert len(other) == 1
    assert "first axes of 'a' and 'b' have different names" in other.description.warnings[0]


def test_an_input_without_axes_may_have_a_value_per_row() -> None:
    inputs = [spec("x", None, 4, axis="batch"), spec("rate", dtype="int64")]
    found: Any = open_data({"x": ramp(3, 4), "rate": np.asarray([8, 16, 24])}, inputs)
    assert [int(found[i].feeds["rate"]) for i in range(3)] == [8, 16, 24]
    with pytest.raises(DataError, match="give it 1 axes, rows first, or 0 for one sample"):
        open_data({"x": ramp(3, 4), "rate": ramp(3, 1)}, inputs)
