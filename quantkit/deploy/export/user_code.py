"""Import and run code of the user: its output is redirected, and its errors are one line that names the user's line."""

import importlib
import importlib.util
import logging
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from quantkit.errors import ModelError, QuantkitError, UsageError, as_os_error
from quantkit.installation import install_command
from quantkit.settings import closest

_LONG = 200
_OURS = f"{Path(__file__).resolve().parents[2]}/"
_PYTHON = sysconfig.get_paths()["stdlib"]
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
# Whose frames nobody wants to see: those of the exporter, and of what it is made of.
_EXPORTERS = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?:torch|functorch|onnxscript|onnx|onnx_ir|sympy|numpy|skl2onnx|onnxmltools|sklearn|lightgbm|xgboost)[/\\]"
)

Line = tuple[str, int, str]
"""File, number and text of a line of code."""


def innermost(stack: traceback.StackSummary) -> Line | None:
    """Return the deepest line of a stack that is neither of Python, nor of an exporter, nor of quantkit."""
    for frame in reversed(stack):
        if is_users(frame.filename):
            return frame.filename, frame.lineno or 0, (frame.line or "").strip()
    return None


def is_users(file: str) -> bool:
    """Say whether a file of code is neither of Python, nor of an exporter, nor of quantkit."""
    if file.startswith(("<", _OURS)) or file.endswith(".pyx") or _EXPORTERS.search(file):
        return False
    return not file.startswith(_PYTHON) or bool(_INSTALLED.search(file))


def line_of(error: BaseException) -> Line | None:
    """Return the user's line that an error comes from; None if it is of none."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0, (error.text or "").strip()
    found, seen = None, error
    while found is None and seen is not None:
        found = innermost(traceback.extract_tb(seen.__traceback__))
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    return found


def said_by(error: BaseException) -> str:
    """Return what an error says, its first paragraph on one line."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    first = re.sub(r"\x1b\[[0-9;]*m", "", said).strip().split("\n\n")[0]
    text = " ".join(first.split())
    text = text if len(text) <= _LONG else f"{text[:_LONG]}..."
    return f"{type(error).__name__}: {text}".rstrip(".: ")


def blamed(error: BaseException) -> str:
    """Return where an error comes from and what it says, for the middle of a sentence."""
    line = line_of(error)
    return f"{placed(line)}: {said_by(error)}" if line else said_by(error)


def placed(line: Line) -> str:
    """Return a line as people look for it: ``models.py:24 'if y.sum() > 0:'``, seen from the current folder."""
    name, number, text = line
    path = Path(name)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{number}" + (f" '{text}'" if text else "")


_TORCH = (
    "{} needs PyTorch, which is not installed: install its CPU build with the command that PyTorch's 'Get started' "
    "page shows for compute platform CPU (a plain 'pip install torch' brings CUDA and 5 GB on Linux), and {}."
)

HOW = "give package.module:factory, path/to/file.py:factory, or a .pt2, TorchScript, .keras, .tflite or SavedModel file"
"""How a source is written, for the end of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An object of the user's code.

    Attributes:
        value: The object.
        name: How it is called in records: without folders.
        file: Where its code is; None if that cannot be told.
    """

    value: Any
    name: str
    file: Path | None


def load_object(source: str) -> Loaded:
    """Import ``package.module:name`` or ``path/to/file.py:name``; the current folder is searched first.

    Raises:
        UsageError: There is no such module or name, or its code fails; the message names the line.
    """
    place, _, name = source.rpartition(":")
    if not place or not name:
        raise UsageError(f"'{source}' is no source of a model: {HOW}.")
    module = _module(place, source)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            said = sorted(n for n, v in vars(module).items() if callable(v) and n[:1] != "_")
            named = closest(name, said) or (f": there is {', '.join(said[:8])}" if said else "")
            raise UsageError(f"'{place}' has no '{name}'{named}.")
        found = getattr(found, part)
    file = getattr(module, "__file__", None)
    shown = Path(place).name if place.endswith(".py") else place
    return Loaded(value=found, name=f"{shown}:{name}", file=Path(file) if file else None)


@contextmanager
def own_path() -> Iterator[None]:
    """Leave `sys.path` as it was: what is beside a user's file must not stand before installed modules afterwards."""
    before = sys.path.copy()
    try:
        yield
    finally:
        sys.path[:] = before


def _module(place: str, source: str) -> ModuleType:
    if place.endswith(".py"):
        return _module_of_file(Path(place))
    if not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"'{place}' is no name of a module: {HOW}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with user_code(f"Importing '{place}'"):
            return importlib.import_module(place)
    except UsageError as e:
        missing = getattr(e.__cause__, "name", None) or place
        if place == missing or place.startswith(f"{missing}."):
            raise UsageError(
                f"There is no module '{missing}' here or among the installed ones: '{source}' is read as MODULE:NAME."
            ) from e
        raise


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise as_os_error(UsageError(f"'{path}' does not exist."), FileNotFoundError)
    for folder in (
        str(Path.cwd()),
        str(path.resolve().parent),
    ):  # what stands beside it can be imported
        if folder not in sys.path:
            sys.path.insert(0, folder)
    name = _free_name(path)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"'{path}' cannot be imported as Python code.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with user_code(f"Importing '{path}'"):
            spec.loader.exec_module(module)
    except ModelError as e:
        sys.modules.pop(name, None)
        if "relative import" not in str(e.__cause__):
            raise
        raise UsageError(
            f"'{path}' imports from its own package: give it as package.{path.stem}:NAME, from the folder that holds the "
            "package."
        ) from e
    return module


def _free_name(path: Path) -> str:
    """Return how a file's module is called: as the file, unless that is a module which others need."""
    known = sys.modules.get(path.stem)
    ours = known is None or getattr(known, "__file__", None) == str(path.resolve())
    return path.stem if ours else f"{path.stem}_of_{path.resolve().parent.name}"


@contextmanager
def user_code(doing: str) -> Iterator[None]:
    """Run code of the user's: what it prints goes to the error stream, and what it raises is one line.

    It finds no arguments of the command line: those are quantkit's.

    Raises:
        UsageError: A package that it imports is not there; of torch, how to get the right one.
        ModelError: It failed; the message names the user's line.
    """
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        with redirect_stdout(sys.stderr):
            yield
    except QuantkitError:
        raise
    except ModuleNotFoundError as e:
        missing = e.name or str(e)
        if missing.partition(".")[0] == "torch":
            raise UsageError(_TORCH.format("This source", install_command("export"))) from e
        raise UsageError(f"{doing} needs the module '{missing}': install it.") from e
    except (Exception, SystemExit) as e:
        raise ModelError(f"{doing} fails: {blamed(e)}.") from e
    finally:
        sys.argv = arguments


def quiet_import(name: str, needs: str) -> ModuleType:
    """Import a package that quantkit does without.

    Args:
        name: Of the module.
        needs: What to say if it is not there: one sentence with what to install.

    Raises:
        UsageError: It is not installed, or does not load.
    """
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise UsageError(needs if getattr(e, "name", None) else f"{needs} ({e})") from e


def need_torch(what: str = "This source", extra: str = "export") -> Any:
    """Import torch, or say in one line how to get its build for CPUs and the extra of quantkit for `what`."""
    return quiet_import("torch", _TORCH.format(what, install_command(extra)))


@contextmanager
def hushed(*, ignore: bool = True) -> Iterator[None]:
    """Keep a framework from writing to the terminal: torch's messages are pages long.

    Args:
        ignore: Warnings too; False: whoever asks listens to them.
    """
    loggers = [
        logging.getLogger(name)
        for name in ("torch", *logging.root.manager.loggerDict)
        if name.startswith(("torch", "onnxscript"))
    ]
    kept: Sequence[tuple[logging.Logger, list[logging.Handler], bool]] = [
        (logger, logger.handlers, logger.propagate) for logger in loggers
    ]
    for logger in loggers:
        logger.handlers, logger.propagate = [logging.NullHandler()], False
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            if ignore:
                warnings.simplefilter("ignore")
            yield
    finally:
        for logger, handlers, propagate in kept:
            logger.handlers, logger.propagate = handlers, propagate
