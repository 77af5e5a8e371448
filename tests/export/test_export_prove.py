"""The proof itself, on frameworks made of numpy: what is wrong with a file is found and named."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, save, weight

from quantkit.deploy.export.framework import Exported, Feeds, Framework, Limit, Outputs
from quantkit.deploy.export.inputs import Inputs, parse_inputs
from quantkit.deploy.export.prove import Case, difference, prove
from quantkit.errors import QuantkitError, VerifyError

W = weight(8, 4)


@dataclass(frozen=True, kw_only=True)
class Fake(Framework):
    call: Callable[[Any], Any]
    wide: Callable[[Any], Any] | None = None
    inputs: Inputs = field(default_factory=lambda: Inputs(specs=()))
    outputs: tuple[str, ...] = ("y",)
    name: str = "numpy"
    version: str = "2"
    weights: str = ""

    def run(self, feeds: Feeds) -> Outputs:
        return {"y": self.call(feeds["x"])}

    def run_wide(self, feeds: Feeds) -> Outputs | None:
        return None if self.wide is None else {"y": self.wide(feeds["x"].astype(np.float64))}

    def inner(self, feeds: Feeds) -> Outputs:
        return {"layer": feeds["x"] @ W}

    def export(self, folder: Path, opset: int) -> Exported:
        raise NotImplementedError(folder, opset)


def product(x: Any) -> Any:
    return x @ W


def file(folder: Path, *nodes: onnx.NodeProto, **held: Any) -> Path:
    made = nodes or (node("MatMul", ["x", "w"], ["y"], "product"),)
    proto = model(graph(list(made), {"x": ["batch", 8]}, {"y": ["rows", 4]}, {"w": W, **held}))
    return save(proto, folder / "file.onnx")


def case(path: Path, fake: Fake, text: str = "x:float32[batch,8]", **more: Any) -> Case:
    inputs = parse_inputs([text])
    exported = Exported(
        path=path,
        exporter="nobody",
        sizes=next(iter(inputs.traced())),
        limits=more.get("limits", {}),
        layers=more.get("layers", {}),
    )
    return Case(framework=replace(fake, inputs=inputs), exported=exported, path=path)


def test_an_equal_file_is_proved_at_all_sizes(tmp_path: Path) -> None:
    found = prove(case(file(tmp_path), Fake(call=product)))
    assert {t.sizes["batch"] for t in found.trials} == {1, 2, 3, 7, 32}
    assert found.worst()["y"].ok
    assert [named for named, _ in found.by_size()] == [f"batch={n}" for n in (2, 1, 3, 7, 32)]
    assert found.to_json()["trials"][0]["sizes"] == {"batch": 2}


def test_another_weight_is_named_with_figure_and_layer(tmp_path: Path) -> None:
    other = W.copy()
    other[3, 1] += 0.01
    path = file(tmp_path, node("MatMul", ["x", "other"], ["y"], "product"), other=other)
    with pytest.raises(
        VerifyError,
        match=r"At batch=2 the exported file is .* \(allowed 1.1e-05\).*nothing was written",
    ) as caught:
        prove(case(path, Fake(call=product), layers={"layer": "y"}))
    assert "the first layer that differs is 'layer'" in str(caught.value)


def test_a_frozen_batch_is_named(tmp_path: Path) -> None:
    nodes = node("Slice", ["x", "from", "to"], ["s"], "s"), node("MatMul", ["s", "w"], ["y"], "m")
    path = file(tmp_path, *nodes, **{"from": np.array([0]), "to": np.array([2])})
    with pytest.raises(
        VerifyError,
        match=r"Dimension 'batch' was frozen at batch=2 .* at batch=3 the file gives \[2, 4\]",
    ):
        prove(case(path, Fake(call=product)))


def test_a_size_that_decides_is_named_with_its_line(tmp_path: Path) -> None:
    limit = Limit(most=4, line=("models.py", 7, "if len(x) > 4:"))
    fake = Fake(call=lambda x: product(x) * (2 if len(x) > 4 else 1))
    with pytest.raises(
        VerifyError, match=r"size of 'batch' decides at models.py:7 'if len\(x\) > 4:'"
    ):
        prove(case(file(tmp_path), fake, limits={"batch": limit}))


def test_just_outside_of_what_tracing_found_is_tried(tmp_path: Path) -> None:
    fake = Fake(call=lambda x: product(x) * (2 if len(x) > 60 else 1))
    with pytest.raises(VerifyError, match="frozen at batch=2 by the exporter: at batch=61"):
        prove(case(file(tmp_path), fake, limits={"batch": Limit(most=60)}))


def test_values_of_the_example_are_found(tmp_path: Path) -> None:
    seen = parse_inputs(["x:float32[batch,8]"]).feeds({"batch": 2}, seed=0)["x"]
    nodes = (
        node("MatMul", ["x", "w"], ["m"], "m"),
        node("Add", ["m", "c"], ["y"], "a"),
    )
    path = file(tmp_path, *nodes, c=np.array(seen.sum(), np.float32))
    with pytest.raises(VerifyError, match="holds values of the example that it was traced with"):
        prove(case(path, Fake(call=lambda x: product(x) + x.sum())))


def test_sizes_that_the_model_refuses_are_said(tmp_path: Path) -> None:
    def careful(x: Any) -> Any:
        if len(x) == 1:
            raise ValueError("one is not enough")
        return product(x)

    found = prove(case(file(tmp_path), Fake(call=careful)))
    assert re.fullmatch(
        r"the model itself does not run at batch=1 \(.*one is not enough\): not proved there",
        found.notes[0],
    )
    assert 1 not in {t.sizes["batch"] for t in found.trials}


def test_a_dimension_that_runs_at_one_size_alone_is_refused(tmp_path: Path) -> None:
    def stubborn(x: Any) -> Any:
        if len(x) != 2:
            raise ValueError("two, please")
        return product(x)

    with pytest.raises(
        VerifyError, match="'batch' is no dynamic dimension: the model runs at batch=2 alone"
    ):
        prove(case(file(tmp_path), Fake(call=stubborn)))


def test_own_rounding_is_allowed_ten_times(tmp_path: Path) -> None:
    def rounded(x: Any) -> Any:
        return product(x) + np.float32(3e-5)

    def wide(x: Any) -> Any:
        return x @ W.astype(np.float64)

    found = prove(case(file(tmp_path), Fake(call=rounded, wide=wide)))
    worst = found.worst()["y"]
    assert worst.largest > worst.allowed
    assert worst.own is not None
    assert "from float64 the file is" in str(worst)
    with pytest.raises(QuantkitError):
        prove(case(file(tmp_path), Fake(call=rounded)))


def test_a_file_that_does_not_run_is_one_line(tmp_path: Path) -> None:
    path = file(tmp_path, node("Unknown", ["x"], ["y"], "u"))
    with pytest.raises(
        QuantkitError, match="onnxruntime does not load the exported model"
    ) as caught:
        prove(case(path, Fake(call=product)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expected", "actual", "ok"),
    [
        ([1.0, np.nan], [1.0, np.nan], True),
        ([1.0, np.inf], [1.0, np.inf], True),
        ([1.0, np.inf], [1.0, -np.inf], False),
        ([1.0, 2.0], [1.0, np.nan], False),
        ([1000.0], [1000.009], True),
        ([1000.0], [1000.02], False),
    ],
)
def test_differences(expected: list[float], actual: list[float], *, ok: bool) -> None:
    assert difference("y", np.array(expected), np.array(actual)).ok is ok


def test_whole_numbers_are_equal_or_not() -> None:
    assert difference("y", np.array([1, 2]), np.array([1, 2])).ok
    found = difference("y", np.array([1, 2, 3]), np.array([1, 3, 2]))
    assert not found.ok
    assert found.largest == 2
