"""Open a source: find out what it is, load it, and hand it to the file that knows its framework."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.deploy.export.framework import Framework
from quantkit.deploy.export.inputs import Inputs, inputs_of_example, parse_inputs, with_sizes
from quantkit.deploy.export.source import (
    Kind,
    Loaded,
    commit_of,
    kind_of,
    load_object,
    need_torch,
    user_code,
)
from quantkit.errors import ModelError, UsageError
from quantkit.model.provenance import Source
from quantkit.settings import ExportSettings

__all__ = ["Opened", "open_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A source that can be run and exported.

    Attributes:
        framework: The model.
        inputs: What it takes.
        source: What is written into the file about it.
        prefix: Of the names of weights in the exported file, which is left out.
        notes: What the user should know.
    """

    framework: Framework
    inputs: Inputs
    source: Source
    prefix: str = ""
    notes: tuple[str, ...] = ()


def open_source(source: Any, settings: ExportSettings, progress: Callable[[str], None]) -> Opened:
    """Load a model.

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
        return _open_object(loaded, settings, _given(settings))
    name = str(source)
    kind = kind_of(name)
    if kind == "object":
        given = _given(settings)  # before code is run that may import a framework for seconds
        if settings.weights is not None and not settings.weights.exists():
            raise UsageError(f"The weights '{settings.weights}' do not exist.")
        progress(f"Running {name}")
        return _open_object(load_object(name), settings, given)
    progress(f"Reading {name}")
    if settings.weights is not None:
        raise UsageError(
            f"--weights is for a model made by code; '{name}' has its own: remove one."
        )
    return _open_file(Path(name), kind, settings)


def _given(settings: ExportSettings) -> Inputs | None:
    """Return the inputs that the user described; None if none."""
    if settings.example is not None:
        found = inputs_of_example(settings.example, fixed_batch=settings.fixed_batch)
        return with_sizes(found, settings.sizes)
    return parse_inputs(settings.inputs, settings.sizes) if settings.inputs else None


def _open_object(loaded: Loaded, settings: ExportSettings, given: Inputs | None) -> Opened:
    value = _made(loaded)
    if _is_of(value, "torch.nn.modules.module", "Module"):
        return _open_module(value, loaded, settings, given)
    from quantkit.deploy.export.estimators import is_estimator, open_estimator

    if is_estimator(value):
        if settings.weights is not None:
            raise UsageError("--weights is for torch; an estimator has its own: remove it.")
        framework, inputs = open_estimator(value, given, settings)
        return Opened(
            framework=framework,
            inputs=inputs,
            source=_source(framework, loaded.name, loaded.file),
            notes=framework.notes,
        )
    raise ModelError(
        f"'{loaded.name}' gives a {type(value).__name__}, which is neither a torch.nn.Module nor a fitted estimator of "
        "scikit-learn, LightGBM or XGBoost: return the model alone."
    )


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


def _open_module(
    module: Any, loaded: Loaded, settings: ExportSettings, inputs: Inputs | None
) -> Opened:
    from quantkit.deploy.export.torch_module import ready_module, signature_hint
    from quantkit.deploy.export.torch_trace import PREFIX
    from quantkit.deploy.export.torch_weights import with_weights

    notes = [] if settings.weights is None else with_weights(module, settings.weights)
    if inputs is None:
        raise UsageError(
            f"Missing input description of '{loaded.name}': add {signature_hint(module)} or --example x.npz."
        )
    ready = ready_module(module, inputs, settings.outputs, legacy=settings.legacy)
    return Opened(
        framework=ready,
        inputs=ready.inputs,
        source=_source(ready, loaded.name, loaded.file),
        prefix=PREFIX,
        notes=(*notes, *ready.notes),
    )


def _open_file(path: Path, kind: Kind, settings: ExportSettings) -> Opened:
    given = _given(settings)
    if kind in {"program", "torchscript"}:
        from quantkit.deploy.export.torch_files import open_program, open_script

        opened = open_program if kind == "program" else open_script
        framework, inputs = opened(path, given, settings)
    else:
        from quantkit.deploy.export.tensorflow import open_tensorflow

        framework, inputs = open_tensorflow(path, kind, given, settings)
    return Opened(
        framework=framework,
        inputs=inputs,
        source=_source(framework, path.name, None),
        notes=framework.notes,
    )


def _source(framework: Framework, code: str, file: Path | None) -> Source:
    commit, changed = commit_of(file)
    return Source(
        framework=framework.name,
        version=framework.version,
        code=code,
        weights=framework.weights,
        commit=commit,
        changed=changed,
    )
