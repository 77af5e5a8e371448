"""What kind of data is at a path: decided from names alone, before anything is read.

A directory holds one kind. Two kinds are an error and no guess: calibrating on the half that was
meant for something else would go unnoticed.

What the files of a table may ask for is looked at before a library reads them (`check_tables`): pyarrow's reader of
JSON ends the whole process where values are nested some ten thousand deep; a few megabytes of Parquet unpack to
gigabytes; a saved dataset names its own files, which may be anything.
"""

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from quantkit.data.boxes import BOXES
from quantkit.data.model import Description
from quantkit.data.rows import quoted
from quantkit.errors import DataError, as_os_error
from quantkit.settings import memory_text

TEST_SETS = "onnx test sets"
NPZ = "npz"
NPY = "npy"
IMAGES = "image folder"
CSV = "csv"
JSONL = "jsonl"
JSON = "json"
PARQUET = "parquet"
ARROW = "arrow"
SAVED = "saved dataset"

_SUFFIXES = {
    ".npz": NPZ,
    ".npy": NPY,
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"), IMAGES),
    ".csv": CSV,
    ".jsonl": JSONL,
    ".json": JSON,
    ".parquet": PARQUET,
    ".arrow": ARROW,
}
_IMAGE_SUFFIXES = tuple(suffix for suffix, kind in _SUFFIXES.items() if kind == IMAGES)
# What Hugging Face writes beside a tokenizer, a model or a data set: settings, no samples.
_IGNORED = re.compile(
    r"\..*|readme.*|licen[sc]e.*|.*\.md"
    r"|tokenizer(_config)?\.json|special_tokens_map\.json|added_tokens\.json|vocab\.json"
    r"|((generation|preprocessor)_)?config\.json|dataset_infos?\.json|state\.json",
    re.IGNORECASE,
)
_NOUNS = {TEST_SETS: "test set", IMAGES: "image"}
_MOST = 2_000_000  # files; the list of them alone takes a gigabyte
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The data at a path.

    Attributes:
        kind: What it is.
        root: What files are named from.
        files: In reading order.
        single: The path is that of the file itself.
        warnings: What was passed over.
    """

    kind: str
    root: Path
    files: tuple[Path, ...]
    single: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """The path that was given: the file if it is one, else the directory."""
        single = len(self.files) == 1 and self.kind not in {TEST_SETS, SAVED}
        path = str(self.files[0] if single else self.root)
        return path.encode(errors="backslashreplace").decode()  # it may be no UTF-8

    def described(self, samples: int | None = None) -> Description:
        """Return what is known of the data before any of it is read; `samples`: how many there are, if that is known."""
        return Description(
            kind=self.kind, location=self.location, samples=samples, warnings=self.warnings
        )


def natural(path: Path) -> tuple[object, ...]:
    """Return a sort key by which 'set_2' comes before 'set_10'."""
    parts = re.split(r"(\d+)", path.as_posix())
    return tuple((int(p), "") if p.isdecimal() else (-1, p) for p in parts)


def detect(path: Path) -> Found:
    """Return what is at the path.

    Raises:
        DataError: Nothing is there, nothing that quantkit reads, or more than one kind.
    """
    try:
        if not path.exists():
            said = f"There is no data at '{path}': give a directory or file that exists."
            raise as_os_error(DataError(said), FileNotFoundError)
        if path.is_file():
            return _single(path)
        if not path.is_dir():
            raise DataError(
                f"'{path}' is neither a file nor a directory: there is nothing to read."
            )
        return _directory(path)
    except OSError as e:
        if isinstance(e, DataError):
            raise
        said = f"Cannot look into '{e.filename or path}': {e.strerror}."
        raise as_os_error(DataError(said), e) from e


def _directory(path: Path) -> Found:
    if (path / "dataset_dict.json").is_file():
        return _split(path)
    if (path / "dataset_info.json").is_file() and (path / "state.json").is_file():
        files = sorted([*(f for f in path.glob("*.arrow") if f.is_file()), path / "state.json"])
        return Found(kind=SAVED, root=path, files=tuple(files))
    by_kind, passed = _files(path)
    if len(by_kind) > 1:
        counts = [f"{len(files)} {_NOUNS.get(k, f'.{k}')}" for k, files in by_kind.items()]
        raise DataError(
            f"'{path}' mixes kinds of data: {' and '.join(counts)} files; keep one kind, or point --data at the files."
        )
    if not by_kind:
        hint = "; ".join(passed) if passed else _hint(path)
        raise DataError(f"'{path}' holds no data that quantkit reads: {hint}.")
    ((kind, found),) = by_kind.items()
    warnings = tuple(f"{words[0].upper()}{words[1:]}." for words in passed)
    return Found(kind=kind, root=path, files=tuple(found), warnings=warnings)


def _single(path: Path) -> Found:
    suffix = path.suffix.lower()
    kind = TEST_SETS if suffix == ".pb" else _SUFFIXES.get(suffix)
    if kind is None:
        raise DataError(
            f"'{path}' is of no kind that quantkit reads: use a directory, "
            f"{', '.join(_SUFFIXES)} or .pb."
        )
    return Found(kind=kind, root=path.parent, files=(path,), single=True)


def _split(path: Path) -> Found:
    """Return the only split of a saved DatasetDict."""
    splits = sorted(p.parent.name for p in path.glob("*/state.json"))
    if len(splits) != 1:
        raise DataError(
            f"'{path}' holds {len(splits)} splits ({quoted(splits) or 'none'}): "
            f"point --data at one{f', for example {path / splits[0]}' if splits else ''}."
        )
    return detect(path / splits[0])


def _files(path: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the files of each kind, kinds in the order of detection; and what was passed over, in words."""
    # A folder of images may hold tables that are no data of their own: labels.csv, COCO's instances. They are taken
    # out before kinds are counted, or each labelled folder would be "two kinds of data". Test sets of the ONNX model
    # zoo are found by their names, since .pb alone may be anything. What is passed over is said, because a link or a
    # closed folder may be half of the data.
    by_kind, passed = _by_suffix(path)
    sets = [*path.glob("test_data_set_*/input_*.pb"), *path.glob("input_*.pb")]
    if sets := [file for file in sets if file.is_file()]:
        by_kind[TEST_SETS] = sorted(sets, key=natural)
    nested, links, closed = _nested_images(path)
    images = by_kind.get(IMAGES, []) + nested
    if images:
        by_kind[IMAGES] = sorted(images)
        labels = [f for f in by_kind.get(CSV, []) if f.name != "labels.csv"]
        others = [f for f in by_kind.get(JSON, []) if not BOXES.search(f.name)]
        by_kind = {k: v for k, v in {**by_kind, CSV: labels, JSON: others}.items() if v}
    kinds = (TEST_SETS, *dict.fromkeys(_SUFFIXES.values()))
    said = {
        "no regular files, so passed over": passed,
        "links to folders are not followed": links,
        "folders that cannot be looked into": closed,
    }
    words = [f"{text}: {quoted(sorted(names))}" for text, names in said.items() if names]
    return {k: by_kind[k] for k in kinds if k in by_kind}, words


def _by_suffix(path: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the files of each kind, and what is named like one and is none: a pipe, a broken link."""
    by_kind: dict[str, list[Path]] = {}
    strange: list[str] = []
    for count, file in enumerate(path.iterdir()):
        _check_count(count, path)
        kind = _SUFFIXES.get(file.suffix.lower())
        if not kind or _IGNORED.fullmatch(file.name):
            continue
        if file.is_file():
            by_kind.setdefault(kind, []).append(file)
        elif file.is_symlink() or not file.is_dir():
            strange.append(file.name)
    return {kind: sorted(files, key=natural) for kind, files in by_kind.items()}, strange


def _check_count(count: int, path: Path) -> None:
    if count > _MOST:
        raise DataError(
            f"'{path}' holds more than {_MOST:,} files: point --data at a part of them."
        )


def _nested_images(path: Path) -> tuple[list[Path], list[str], list[str]]:
    """Return the images in subfolders, the links to folders, and the folders that cannot be read.

    Those are not followed: what a link inside leads to is found anyway, and what leaves the folder may be
    the whole machine, or have no end.
    """
    found: list[Path] = []
    links: list[str] = []
    closed: list[OSError] = []
    count = 0
    for folder, subfolders, names in os.walk(path, onerror=closed.append):
        count += len(names) + len(subfolders)
        _check_count(count, path)
        # Assigned in place, as os.walk reads this very list to go on: hidden folders, __MACOSX and test sets are
        # never entered. It does not enter links to folders on its own, but lists them, so that they can be named.
        # Files in the folder itself are left to `_by_suffix`, which sees every kind of data; here only images count,
        # since folders of images are the one layout that nests. The count is checked while walking: --data / must end
        # in a sentence and not in an hour.
        subfolders[:] = sorted(
            s for s in subfolders if not s.startswith((".", "__", "test_data_set_"))
        )
        links += [s for s in subfolders if Path(folder, s).is_symlink()]
        if Path(folder) == path:
            continue
        images = (
            Path(folder, name)
            for name in names
            if not name.startswith(".") and name.lower().endswith(_IMAGE_SUFFIXES)
        )
        found += [file for file in images if file.is_file()]
    depth = len(path.parts)
    top = {file.parts[depth] for file in found}
    if top and {name.lower() for name in top} <= _SPLITS:
        example = path / min(top)
        raise DataError(
            f"'{path}' holds the splits {quoted(sorted(top))}: "
            f"point --data at one, for example {example}."
        )
    return found, links, [str(e.filename) for e in closed]


def _hint(path: Path) -> str:
    folders = (p for p in sorted(path.iterdir()) if p.is_dir() and not p.is_symlink())
    inside = next((p for p in folders if _by_suffix(p)[0]), None)
    if inside:
        return f"but '{inside.name}' in it does; point --data at {inside}"
    kinds = Counter(p.suffix or p.name for p in path.iterdir() if not p.is_dir())
    has = f"it has only {quoted(sorted(kinds))}" if kinds else "it is empty"
    if not kinds and any(path.iterdir()):
        has = "it has only folders, and none with images"
    return f"{has}; {', '.join(_SUFFIXES)}, test_data_set_*/ or a saved dataset would do"


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
            if found.kind in (JSONL, JSON):
                _check_json(file, memory, lines=found.kind == JSONL)
            elif found.kind == PARQUET:
                _check_parquet(file, memory)
        if found.kind == SAVED:
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
