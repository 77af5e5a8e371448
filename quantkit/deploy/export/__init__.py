"""Load a model to export: an object of Python code, or a file of a framework; never a pickle, which runs code when it is read."""

import inspect
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any, Literal

from quantkit.deploy.export.framework import Framework
from quantkit.deploy.export.inputs import Inputs, inputs_of_example, parse_inputs, with_sizes
from quantkit.deploy.export.user_code import HOW, Loaded, load_object, need_torch, user_code
from quantkit.errors import ModelError, UsageError, as_os_error
from quantkit.model.provenance import Source
from quantkit.settings import ExportSettings

Kind = Literal["object", "program", "torchscript", "keras", "tflite", "saved model"]

_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_SUFFIXES: dict[str, Kind] = {".pt2": "program", ".keras": "keras", ".tflite": "tflite"}
_PICKLED = {".pkl", ".pickle", ".joblib", ".pth", ".pt", ".ckpt", ".bin", ".sav"}


def load_source(
    source: Any, settings: ExportSettings, progress: Callable[[str], None]
) -> tuple[Framework, Source]:
    """Load a model; return it, and what is written into the file about it.

    Args:
        source: ``package.module:factory``, ``file.py:factory``, a file of a framework, or an object of Python.
        settings: What the user says of it.
        progress: Called with what is being done.

    Raises:
        UsageError: It is no source, inputs are missing, or a package is.
        ModelError: Its code fails, or it is nothing that can be exported.
    """
    if not isinstance(source, str | Path):
        own = type(source)
        named = f"{own.__module__}:{own.__qualname__}"
        loaded = Loaded(value=source, name=named, file=None)
        return _of_object(loaded, settings, _given(settings))
    name = str(source)
    kind = _kind_of(name)
    if kind == "object":
        given = _given(settings)  # before code is run that may import a framework for seconds
        if settings.weights is not None and not settings.weights.exists():
            raise UsageError(f"The weights '{settings.weights}' do not exist.")
        progress(f"Running {name}")
        return _of_object(load_object(name), settings, given)
    progress(f"Reading {name}")
    if settings.weights is not None:
        raise UsageError(
            f"--weights is for a model made by code; '{name}' has its own: remove one."
        )
    return _with_source(_open_file(Path(name), kind, settings), Path(name).name)


def _kind_of(source: str) -> Kind:
    """Return what a source is, by its content rather than by its name."""
    path = Path(source)
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return "saved model"
        raise UsageError(f"'{source}' is a folder without saved_model.pb: {HOW}.")
    if path.is_file():
        return _kind_of_file(path)
    if ":" in source.removeprefix(path.drive):
        return "object"
    if path.suffix in {*_SUFFIXES, *_PICKLED, ".onnx", ".py"} or os.sep in source:
        raise as_os_error(UsageError(f"'{source}' does not exist."), FileNotFoundError)
    raise UsageError(f"'{source}' is no source of a model: {HOW}.")


def _kind_of_file(path: Path) -> Kind:
    if path.suffix == ".onnx":
        raise UsageError(f"'{path}' is an ONNX model already: 'quantkit optimize' simplifies it.")
    if path.suffix == ".py":
        raise UsageError(
            f"Which object of '{path}'? Write {path}:NAME, where NAME returns the model."
        )
    with path.open("rb") as file:
        head = file.read(8)
    if path.suffix in _SUFFIXES and not head.startswith(_PICKLES):
        return _SUFFIXES[path.suffix]
    if head[4:8] == b"TFL3":
        return "tflite"
    is_archive = zipfile.is_zipfile(path)
    if kind := _kind_of_archive(path) if is_archive else None:
        return kind
    if is_archive or path.suffix in _PICKLED or head.startswith(_PICKLES):
        raise UsageError(
            f"'{path}' is a pickle, or no model at all: a pickle runs whatever code it holds when it is read, and holds no "
            f"code of the model; give the code as package.module:factory, and torch weights with --weights."
        )
    raise UsageError(f"'{path}' is no source of a model: {HOW}.")


def _kind_of_archive(path: Path) -> Kind | None:
    """Return which of torch's archives a zip file is; None if it is another."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    has_code = any("/code/" in name for name in names)
    if has_code and any(name.endswith("constants.pkl") for name in names):
        return "torchscript"
    if any("models/" in name and name.endswith(".json") for name in names):
        return "program"
    return None


def _given(settings: ExportSettings) -> Inputs | None:
    """Return the inputs that the user described; None if none."""
    if settings.example is not None:
        found = inputs_of_example(settings.example, fixed_batch=settings.fixed_batch)
        return with_sizes(found, settings.sizes)
    return parse_inputs(settings.inputs, settings.sizes) if settings.inputs else None


def _of_object(
    loaded: Loaded, settings: ExportSettings, given: Inputs | None
) -> tuple[Framework, Source]:
    value = _made(loaded)
    if _is_of(value, "torch.nn.modules.module", "Module"):
        from quantkit.deploy.export.torch_module import ready_module

        framework: Framework = ready_module(value, given, settings, loaded.name)
        return _with_source(framework, loaded.name, loaded.file)
    from quantkit.deploy.export.estimators import is_estimator, open_estimator

    if not is_estimator(value):
        raise ModelError(
            f"'{loaded.name}' gives a {type(value).__name__}, which is neither a torch.nn.Module nor a fitted estimator of "
            "scikit-learn, LightGBM or XGBoost: return the model alone."
        )
    if settings.weights is not None:
        raise UsageError("--weights is for torch; an estimator has its own: remove it.")
    return _with_source(open_estimator(value, given, settings), loaded.name, loaded.file)


def _made(loaded: Loaded) -> Any:
    """Return the model: the object itself, or what it returns when it is called.

    Random weights are the same each time, so that the same source gives the same file.
    """
    value = loaded.value
    is_model = _is_of(value, "torch.nn.modules.module", "Module") or hasattr(value, "predict")
    if not callable(value) or (is_model and not isinstance(value, type)):
        return value
    if needed := _needed(value):
        raise UsageError(
            f"'{loaded.name}' needs {', '.join(needed)}, and is called with nothing: write a function without parameters that "
            "returns the model, and name that."
        )
    if "torch" in sys.modules:
        need_torch().manual_seed(0)
    with user_code(f"{loaded.name}()"):
        return value()


def _needed(function: Any) -> list[str]:
    """Return the parameters that a function or a class must be given."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of built-in functions
        return []
    several = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return [p.name for p in found if p.default is p.empty and p.kind not in several]


def _is_of(value: Any, module: str, name: str) -> bool:
    """Say whether an object, or a class, is of a type, without importing the type's package."""
    kind = value if isinstance(value, type) else type(value)
    return any(base.__module__ == module and base.__name__ == name for base in kind.__mro__)


def _open_file(path: Path, kind: Kind, settings: ExportSettings) -> Framework:
    given = _given(settings)
    if kind in {"program", "torchscript"}:
        from quantkit.deploy.export.torch_files import open_program, open_script

        opened = open_program if kind == "program" else open_script
        return opened(path, given, settings)
    from quantkit.deploy.export.tensorflow import open_tensorflow

    return open_tensorflow(path, kind, given, settings)


def _with_source(
    framework: Framework, code: str, file: Path | None = None
) -> tuple[Framework, Source]:
    commit, changed = _commit_of(file)
    return framework, Source(
        framework=framework.name,
        version=framework.version,
        code=code,
        weights=framework.weights,
        commit=commit,
        changed=changed,
    )


def _commit_of(file: Path | None) -> tuple[str, bool]:
    """Return the git commit that a file's folder is at, and whether it has changes since; "" where there is none."""
    git = which("git")
    if file is None or git is None:
        return "", False

    def asked(*words: str) -> str:
        command = [git, "-C", str(file.resolve().parent), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - git itself
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = asked("rev-parse", "HEAD")
    tracked = bool(commit) and bool(asked("ls-files", "--", str(file.resolve())))
    if not tracked:  # the folder may lie within somebody else's repository
        return "", False
    return commit, bool(asked("status", "--porcelain", "--untracked-files=no"))
