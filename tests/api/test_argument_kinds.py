"""Whatever a call of the API is given: it works, or one clear error says what is wrong."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import node, save
from static_cases import X, chain

import quantkit
from quantkit import QuantkitError

DATA = [{"x": X}] * 3
CALLS = [
    "quantize_static",
    "quantize_dynamic",
    "optimize",
    "export_model",
    "plan_static",
    "calibrate",
    "evaluate_models",
    "inspect_model",
    "load_result",
    "diff_models",
    "diff_results",
    "gate_result",
    "write_report",
    "verify_file",
    "prepare_static",
    "plan_prepared",
    "realize_plan",
    "save_prepared",
    "load_prepared",
]
# What is missing, of another kind, or a class where one of its objects is meant.
STRANGE: dict[str, Any] = {"an object": object(), "a class": dict, "bytes": b"abc"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    between = node("Relu", ["a"], ["b"], "relu")
    return save(chain(between), tmp_path_factory.mktemp("models") / "model.onnx")


def needed(name: str, source: Path, folder: Path) -> dict[str, Any]:
    """What a call cannot do without; models are all the same one."""
    output, result = folder / "out.onnx", folder / "none.json"
    values: dict[str, Any] = {"model_input": source, "model_output": output, "model": source}
    values |= {"data_or_calibration": DATA, "data": DATA, "float_model": source}
    values |= {"candidates": [source], "source": source, "path": result, "result": result}
    values |= {"a": source, "b": source, "prepared": None, "plan": None, "folder": folder}
    parameters = inspect.signature(getattr(quantkit, name)).parameters.values()
    return {p.name: values[p.name] for p in parameters if p.default is p.empty}


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_no_kind_is_one_clear_error(
    source: Path, tmp_path: Path, name: str, strange: str
) -> None:
    call = getattr(quantkit, name)
    given = needed(name, source, tmp_path)
    for parameter in inspect.signature(call).parameters.values():
        if "Callable" in str(parameter.annotation):
            continue  # someone's own function
        with pytest.raises(QuantkitError) as caught:
            call(**{**given, parameter.name: STRANGE[strange]})
        assert "\n" not in str(caught.value), parameter.name
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "data",
    [7, None, 1.5, True, object(), dict, lambda: None],
    ids=["int", "none", "float", "bool", "object", "class", "function"],
)
def test_what_is_no_data_is_said_before_anything_runs(
    source: Path, tmp_path: Path, data: object
) -> None:
    for call in (
        lambda: quantkit.quantize_static(source, tmp_path / "q.onnx", data),
        lambda: quantkit.plan_static(source, data),
        lambda: quantkit.calibrate(source, data),
    ):
        with pytest.raises(QuantkitError, match="is no kind of data: give a path"):
            call()


@pytest.mark.parametrize("workers", [0, -1])
def test_a_calibration_has_at_least_one_worker(source: Path, workers: int) -> None:
    with pytest.raises(QuantkitError, match=f"workers = {workers}: workers takes"):
        quantkit.calibrate(source, DATA, workers=workers)


def test_a_result_is_read_by_the_text_of_its_path(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with pytest.raises(QuantkitError, match="Cannot read the result"):
        quantkit.load_result(str(path))
    path.write_text(json.dumps({}))
    for given in (str(path), str(tmp_path), tmp_path):
        with pytest.raises(QuantkitError, match="it names no schema"):
            quantkit.load_result(given)
    with pytest.raises(QuantkitError, match="path of its file or folder, not 7"):
        quantkit.load_result(7)  # type: ignore[arg-type]


def test_numbers_of_numpy_and_0_and_1_are_taken(source: Path, tmp_path: Path) -> None:
    found = quantkit.quantize_static(
        source,
        tmp_path / "q.onnx",
        DATA,
        per_channel=np.True_,  # type: ignore[arg-type]
        use_external_data_format=0,  # type: ignore[arg-type]
        limit=np.int64(3),  # type: ignore[arg-type]
        nodes_to_exclude=np.array(["c1", "relu"]),  # type: ignore[arg-type]
    )
    assert found.plan.node["c1"].why.startswith("excluded")


def test_what_is_given_in_a_wrong_place_is_not_shown_whole(source: Path) -> None:
    with pytest.raises(QuantkitError, match="data is a path, not") as caught:
        quantkit.verify_file(source, data=DATA)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
