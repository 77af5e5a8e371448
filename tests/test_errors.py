"""Errors of one tree are also the builtins that callers catch."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import matmul_model, save

import quantkit
from quantkit import ort
from quantkit.errors import DataError, ModelError, OutputError, QuantkitError, UsageError
from quantkit.errors import as_os_error as also
from quantkit.installation import install_command

DATA = np.zeros((2, 128), np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(matmul_model(), tmp_path / "in.onnx")


CALLS: dict[str, tuple[Callable[[Path, Path], Any], type[QuantkitError], type[OSError], str]] = {
    "model": (
        lambda _, p: quantkit.quantize_dynamic(p / "none.onnx", p / "out.onnx"),
        ModelError,
        FileNotFoundError,
        "does not exist.",
    ),
    "model that is a folder": (
        lambda _, p: quantkit.quantize_dynamic(p, p / "out.onnx"),
        ModelError,
        IsADirectoryError,
        "is a directory: did you mean",
    ),
    "data": (
        lambda m, p: quantkit.quantize_static(m, p / "out.onnx", str(p / "none")),
        DataError,
        FileNotFoundError,
        "There is no data at",
    ),
    "folder of the output": (
        lambda m, p: quantkit.quantize_dynamic(m, p / "none" / "out.onnx"),
        UsageError,
        FileNotFoundError,
        "does not exist.",
    ),
    "output that is a folder": (
        quantkit.quantize_dynamic,
        UsageError,
        IsADirectoryError,
        "give a file name.",
    ),
    "plan": (
        lambda m, p: quantkit.quantize_static(m, p / "o.onnx", DATA, plan=p / "none.json"),
        UsageError,
        FileNotFoundError,
        "Cannot read plan",
    ),
    "cache": (
        lambda m, p: ort.quantize_static(m, p / "o.onnx", calibration_cache_path=p / "none.json"),
        UsageError,
        FileNotFoundError,
        "There is no calibration",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_file_that_is_not_there_is_the_systems_error_as_well(
    name: str, model: Path, tmp_path: Path
) -> None:
    call, ours, theirs, said = CALLS[name]
    with pytest.raises(theirs) as caught:
        call(model, tmp_path)
    assert isinstance(caught.value, ours)
    assert said in str(caught.value)
    assert str(caught.value).count(" '") <= 1  # one sentence, not one inside another


def test_an_argument_that_makes_no_sense_is_a_value_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Unknown weight type"):
        quantkit.quantize_dynamic(model, tmp_path / "out.onnx", weight_type="int3")


def test_an_error_of_two_kinds_goes_from_process_to_process() -> None:
    error = also(OutputError("Cannot write."), PermissionError(13, "denied"))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert isinstance(again, OutputError)
    assert isinstance(again, PermissionError)
    assert (str(again), repr(again)) == ("Cannot write.", "OutputError('Cannot write.')")


def test_errors_of_two_kinds_of_one_kind_are_one_type() -> None:
    first, second = (
        also(ModelError("a"), FileNotFoundError),
        also(ModelError("b"), FileNotFoundError(2, "no")),
    )
    assert type(first) is type(second)
    assert not isinstance(first, PermissionError)


@pytest.mark.parametrize(
    ("said", "command"),
    [
        (None, "pip install 'quantkit-onnx[serve]'"),
        (
            '{"url": "file:///src/kit", "dir_info": {"editable": true}}',
            "pip install -e '/src/kit[serve]'",
        ),
        ('{"url": "file:///src/my%20kit", "dir_info": {}}', "pip install '/src/my kit[serve]'"),
        ('{"url": "file:///k.whl", "archive_info": {}}', "pip install '/k.whl[serve]'"),
        ('{"url": "https://host/k.git", "vcs_info": {}}', "pip install 'quantkit-onnx[serve]'"),
    ],
)
def test_extras_are_installed_from_where_quantkit_is(
    said: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "quantkit.installation.__file__", "/env/quantkit/installation.py"
    )  # not in a clone

    class Installed:
        @staticmethod
        def read_text(name: str) -> str | None:
            return said if name == "direct_url.json" else None

    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Installed)
    assert install_command("serve") == command


def test_extras_of_a_clone_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps({"url": Path.cwd().as_uri(), "dir_info": {"editable": True}})
    monkeypatch.setattr(
        "importlib.metadata.distribution", lambda _: SimpleNamespace(read_text=lambda _: text)
    )
    assert install_command("serve") == "pip install -e '.[serve]'"
