"""result.json: written and read strictly, with the place of whatever is wrong in it.

It ends with a seal, the SHA-256 of all the rest. Nobody signs it: it shows what was changed by accident or without care,
not by somebody who computes it anew.
"""

import codecs
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from quantkit.errors import UsageError, as_os_error
from quantkit.files import replace_text
from quantkit.result.evaluation import OLDER, SCHEMA, Result
from quantkit.text import printable

__all__ = [
    "json_schema",
    "legible",
    "load_result",
    "result_file",
    "result_from_json",
    "result_text",
    "save_result",
]


def result_text(result: Result) -> str:
    """Return the result as JSON. A figure that is not finite becomes null."""
    plain = msgspec.json.decode(msgspec.json.encode(result))
    if result.tuning is None:  # evaluations are written as before there were searches
        del plain["tuning"]
    done = msgspec.json.encode(plain | {"seal": _seal(plain)})
    return msgspec.json.format(done, indent=1).decode() + "\n"


def _seal(plain: dict[str, Any]) -> str:
    """Return the digest of a result as plain data, however it is written."""
    return sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def save_result(result: Result, path: Path) -> None:
    """Write result.json, whole or not at all.

    Raises:
        OutputError: It cannot be written.
    """
    replace_text(path, result_text(result))


def result_file(path: str | Path) -> Path:
    """Return the file of a result: a folder stands for the result.json in it."""
    path = Path(path)
    return path / "result.json" if path.is_dir() else path


def load_result(path: str | Path) -> Result:
    """Read a result; a folder stands for the result.json in it.

    Raises:
        UsageError: It cannot be read, is no result, one of a newer quantkit, or not as quantkit wrote it.
    """
    if not isinstance(path, str | Path):
        raise UsageError(f"A result is read from the path of its file or folder, not {path!r}.")
    path = result_file(path)
    try:
        content = path.read_bytes()
    except OSError as e:
        raise as_os_error(UsageError(f"Cannot read the result '{path}': {e.strerror}."), e) from e
    return result_from_json(content, str(path))


def result_from_json(content: bytes, name: str) -> Result:
    """Read a result from JSON; `name` is for messages."""
    content = content.removeprefix(codecs.BOM_UTF8)  # some editors mark UTF-8
    try:
        plain = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"'{name}' is no result: it is not JSON ({e}).") from e
    except RecursionError as e:
        raise UsageError(f"'{name}' is no result: it is nested too deeply.") from e
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema not in {SCHEMA, *OLDER}:
        found = f"its schema is '{schema}'" if schema else "it names no schema"
        raise UsageError(f"'{name}' is no result of this version: {found}, not '{SCHEMA}'.")
    try:
        result = msgspec.json.decode(content, type=Result)
    except msgspec.ValidationError as e:
        raise UsageError(f"'{name}' is no complete result: {e}.") from e
    if not result.models or result.models[0].role != "float":
        raise UsageError(f"'{name}' is no complete result: its first model is not the float one.")
    if result.tuning is not None and not _names_its_own(result):
        raise UsageError(f"'{name}' is no complete result: its search chose what it does not hold.")
    if schema == SCHEMA and plain.pop("seal", None) != _seal(plain):
        raise UsageError(
            f"'{name}' is not as quantkit wrote it: something in it was changed; evaluate again."
        )
    return result


def _names_its_own(result: Result) -> bool:
    """Say whether what a search chose is one of the candidates, and each candidate one of its trials."""
    tried = {trial.name for trial in result.tuning.trials} if result.tuning else set()
    held = {model.name for model in result.candidates}
    chosen = result.tuning.chosen if result.tuning else ""
    return held <= tried and (not chosen or chosen in held)


def legible(result: Result) -> Result:
    """Return the result as views show it: no text in it can do more than be read."""
    return msgspec.convert(_legible(msgspec.to_builtins(result)), Result)


def _legible(plain: Any) -> Any:
    if isinstance(plain, str):
        return printable(plain, keep="\n\t")
    if isinstance(plain, dict):
        return {_legible(key): _legible(value) for key, value in plain.items()}
    return [_legible(item) for item in plain] if isinstance(plain, list | tuple) else plain


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of result.json."""
    found: dict[str, Any] = json.loads(json.dumps(msgspec.json.schema(Result)))
    found["$defs"]["Result"]["properties"]["seal"] = {"type": "string"}
    return found
