"""What kind of data is at a path: decided from names alone, before anything is read.

A directory holds one kind. Two kinds are an error and no guess: calibrating on the half that was
meant for something else would go unnoticed.
"""

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from quantkit.data.check import quoted
from quantkit.errors import DataError

__all__ = [
    "ARROW",
    "CSV",
    "IMAGES",
    "JSON",
    "JSONL",
    "NPY",
    "NPZ",
    "PARQUET",
    "SAVED",
    "TEST_SETS",
    "Found",
    "detect",
    "natural",
]

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
# What Hugging Face writes beside a tokenizer, a model or a data set: settings, no samples.
_IGNORED = re.compile(
    r"\..*|readme.*|licen[sc]e.*|.*\.md"
    r"|tokenizer(_config)?\.json|special_tokens_map\.json|added_tokens\.json|vocab\.json"
    r"|((generation|preprocessor)_)?config\.json|dataset_infos?\.json|state\.json",
    re.IGNORECASE,
)
_NOUNS = {TEST_SETS: "test set", IMAGES: "image"}
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The data at a path: its kind, its files in reading order, and what they are named from."""

    kind: str
    root: Path
    files: tuple[Path, ...]

    @property
    def location(self) -> str:
        """The path that was given: the file if it is one, else the directory."""
        single = len(self.files) == 1 and self.kind not in {TEST_SETS, SAVED}
        return str(self.files[0] if single else self.root)


def natural(path: Path) -> tuple[object, ...]:
    """Return a sort key by which 'set_2' comes before 'set_10'."""
    parts = re.split(r"(\d+)", path.as_posix())
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in parts)


def detect(path: Path) -> Found:
    """Return what is at the path.

    Raises:
        DataError: Nothing is there, nothing that quantkit reads, or more than one kind.
    """
    if not path.exists():
        raise DataError(f"There is no data at '{path}': give a directory or file that exists.")
    if path.is_file():
        return _single(path)
    if (path / "dataset_dict.json").exists():
        return _split(path)
    if (path / "dataset_info.json").exists() and (path / "state.json").exists():
        files = sorted([*path.glob("*.arrow"), path / "state.json"])
        return Found(kind=SAVED, root=path, files=tuple(files))
    by_kind = _files(path)
    if len(by_kind) > 1:
        counts = [f"{len(files)} {_NOUNS.get(k, f'.{k}')}" for k, files in by_kind.items()]
        raise DataError(
            f"'{path}' mixes kinds of data: {' and '.join(counts)} files; keep one kind, or point --data at the files."
        )
    if not by_kind:
        raise DataError(f"'{path}' holds no data that quantkit reads: {_hint(path)}.")
    ((kind, found),) = by_kind.items()
    return Found(kind=kind, root=path, files=tuple(found))


def _single(path: Path) -> Found:
    suffix = path.suffix.lower()
    kind = TEST_SETS if suffix == ".pb" else _SUFFIXES.get(suffix)
    if kind is None:
        raise DataError(
            f"'{path}' is of no kind that quantkit reads: use a directory, "
            f"{', '.join(_SUFFIXES)} or .pb."
        )
    return Found(kind=kind, root=path.parent, files=(path,))


def _split(path: Path) -> Found:
    """Return the only split of a saved DatasetDict."""
    splits = sorted(p.parent.name for p in path.glob("*/state.json"))
    if len(splits) != 1:
        raise DataError(
            f"'{path}' holds {len(splits)} splits ({quoted(splits) or 'none'}): "
            f"point --data at one{f', for example {path / splits[0]}' if splits else ''}."
        )
    return detect(path / splits[0])


def _files(path: Path) -> dict[str, list[Path]]:
    """Return the files of each kind, kinds in the order of detection."""
    by_kind = _by_suffix(path)
    sets = [*path.glob("test_data_set_*/input_*.pb"), *path.glob("input_*.pb")]
    if sets:
        by_kind[TEST_SETS] = sorted(sets, key=natural)
    images = by_kind.get(IMAGES, []) + _nested_images(path)
    if images:
        by_kind[IMAGES] = sorted(images)
        labels = [f for f in by_kind.get(CSV, []) if f.name != "labels.csv"]
        by_kind = {k: v for k, v in {**by_kind, CSV: labels}.items() if v}
    return {k: by_kind[k] for k in (TEST_SETS, *dict.fromkeys(_SUFFIXES.values())) if k in by_kind}


def _by_suffix(path: Path) -> dict[str, list[Path]]:
    by_kind: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir(), key=natural):
        kind = _SUFFIXES.get(file.suffix.lower())
        if kind and not _IGNORED.fullmatch(file.name) and file.is_file():
            by_kind.setdefault(kind, []).append(file)
    return by_kind


def _nested_images(path: Path) -> list[Path]:
    found = []
    for folder, subfolders, names in os.walk(path, followlinks=True):
        subfolders[:] = sorted(
            s for s in subfolders if not s.startswith((".", "__", "test_data_set_"))
        )
        if Path(folder) == path:
            continue
        found += [
            Path(folder, name)
            for name in names
            if _SUFFIXES.get(Path(name).suffix.lower()) == IMAGES and not name.startswith(".")
        ]
    top = {file.relative_to(path).parts[0] for file in found}
    if top and {name.lower() for name in top} <= _SPLITS:
        example = path / min(top)
        raise DataError(
            f"'{path}' holds the splits {quoted(sorted(top))}: "
            f"point --data at one, for example {example}."
        )
    return found


def _hint(path: Path) -> str:
    inside = [p.name for p in sorted(path.iterdir()) if p.is_dir() and _by_suffix(p)]
    if inside:
        return f"but '{inside[0]}' in it does; point --data at {path / inside[0]}"
    kinds = Counter(p.suffix or p.name for p in path.iterdir() if p.is_file())
    has = f"it has only {quoted(sorted(kinds))}" if kinds else "it is empty"
    return f"{has}; {', '.join(_SUFFIXES)}, test_data_set_*/ or a saved dataset would do"
