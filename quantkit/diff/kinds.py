"""What a file is that somebody wants compared."""

import json
from pathlib import Path
from typing import Literal

from quantkit.errors import UsageError
from quantkit.plan.plan_file import FORMAT
from quantkit.result import SCHEMA

__all__ = ["Kind", "kind_of", "located"]

Kind = Literal["model", "result", "plan"]
_RESULT = "result.json"


def located(path: Path) -> Path:
    """Return the file: a folder stands for the result in it.

    Raises:
        UsageError: There is no such file, or the folder holds no result.
    """
    if path.is_dir():
        if not (path / _RESULT).is_file():
            raise UsageError(f"'{path}' is a folder without {_RESULT}; give a file.")
        return path / _RESULT
    if not path.is_file():
        raise UsageError(f"There is no file '{path}'.")
    return path


def kind_of(path: Path) -> Kind:
    """Tell a result and a plan by what they say of themselves; everything that is not JSON is taken for a model.

    Raises:
        UsageError: It is JSON of another kind, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
    except OSError as e:
        raise UsageError(f"Cannot read '{path}': {e.strerror or e}.") from e
    if not start.startswith((b"{", b"[")) and path.suffix != ".json":
        return "model"
    try:
        plain = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise UsageError(f"'{path}' is not JSON: {e}.") from e
    said = plain if isinstance(plain, dict) else {}
    if str(said.get("schema", "")).partition("/")[0] == SCHEMA.partition("/")[0]:
        return "result"
    if str(said.get("format", "")).startswith(FORMAT.rpartition(".")[0]):
        return "plan"
    raise UsageError(f"'{path}' is neither a model nor a result nor a plan of quantkit.")
