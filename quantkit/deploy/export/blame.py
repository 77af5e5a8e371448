"""What a framework complains of, in one line that names the user's own line of code."""

import re
import sysconfig
import traceback
from pathlib import Path

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
