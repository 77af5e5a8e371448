"""What the files of a table may ask for, looked at before a library reads them.

pyarrow's reader of JSON ends the whole process where values are nested some ten thousand deep; a few
megabytes of Parquet unpack to gigabytes; a saved dataset names its own files, which may be anything.
"""

import json
import re
from pathlib import Path

from quantkit.data import detect
from quantkit.data.detect import Found
from quantkit.errors import DataError
from quantkit.settings import memory_text

__all__ = ["check_tables"]

_DEEPEST = 64
_OBJECTS = 8  # what a document takes in memory as Python objects, in times its bytes
_RATIO = 100  # a table may unpack to so many times its bytes, or to what memory there is
_VARIABLE = 16  # bytes of a value whose length is not fixed, at least
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[{]|[\]}]")


def check_tables(found: Found, memory: int) -> None:
    """Raise DataError where reading the files would take all memory, or end the process."""
    try:
        for file in found.files:
            match found.kind:
                case detect.JSONL | detect.JSON:
                    _check_json(file, memory, lines=found.kind == detect.JSONL)
                case detect.PARQUET:
                    _check_parquet(file, memory)
                case _:
                    pass
        if found.kind == detect.SAVED:
            _check_saved(found.root)
    except OSError as e:
        raise DataError(f"Cannot read '{e.filename or found.location}': {e.strerror or e}.") from e


def _check_json(file: Path, memory: int, *, lines: bool) -> None:
    most = memory // _OBJECTS
    with file.open("rb") as stream:
        lines = lines and stream.read(1) != b"["  # else it is one document, whatever its name
        stream.seek(0)
        if not lines and file.stat().st_size > most:
            raise _too_large(
                file, file.stat().st_size, memory, "save it as .jsonl, one row per line"
            )
        while line := stream.readline(most + 1) if lines else stream.read():
            if len(line) > most:
                raise _too_large(file, len(line), memory, "its lines are too long")
            if _depth(line) > _DEEPEST:
                raise DataError(
                    f"Cannot read '{file}': values are nested more than {_DEEPEST} deep; save plain rows."
                )


def _depth(content: bytes) -> int:
    """Return how deep brackets are nested, those in texts left out."""
    if content.count(b"[") + content.count(b"{") <= _DEEPEST:
        return 0  # nearly all lines
    depth = deepest = 0
    for bracket in _BRACKET.finditer(_TEXT.sub(b"", content)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
        if deepest > _DEEPEST:
            break
    return deepest


def _check_parquet(file: Path, memory: int) -> None:
    """Compare what the rows will take with what is there: packed zeros cost next to nothing."""
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            rows, schema = opened.metadata.num_rows, opened.schema_arrow
            groups = [opened.metadata.row_group(i) for i in range(opened.num_row_groups)]
            declared = sum(max(group.total_byte_size, 0) for group in groups)
    except Exception as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise
        reason = str(e).strip().partition("\n")[0].rstrip(".") or type(e).__name__
        raise DataError(f"Cannot read '{file}' as parquet: {reason}.") from e
    taken = max(declared, rows * sum(map(_width, schema.types)))
    if taken > max(memory, file.stat().st_size * _RATIO):
        raise _too_large(file, taken, memory, "give a part of it")


def _width(kind: object) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)  # type: ignore[attr-defined]
    except (ValueError, AttributeError):  # a text, a list
        return _VARIABLE


def _too_large(file: Path, taken: int, memory: int, what: str) -> DataError:
    return DataError(
        f"'{file}' takes {memory_text(taken)} or more to read and quantkit may hold "
        f"{memory_text(memory)}: {what}, or allow more with --memory."
    )


def _check_saved(root: Path) -> None:
    """Refuse a saved dataset that names other files than its own."""
    try:
        state = json.loads((root / "state.json").read_bytes())
        names: list[object] = [entry["filename"] for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise DataError(f"Cannot read '{root / 'state.json'}': it is no saved dataset's.") from e
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (root / name).is_file():
            raise DataError(
                f"'{root / 'state.json'}' names '{name}', which is no file beside it: save the dataset again."
            )
