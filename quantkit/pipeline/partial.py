"""What a long run leaves for the next one to go on with, should it be killed: a folder beside the output."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from quantkit.errors import OutputError, QuantkitError, UsageError, as_os_error
from quantkit.files import replace_text, scratch, sweep
from quantkit.pipeline.only_run import only_run

_HEAD = "job.json"


@dataclass(frozen=True, slots=True)
class Partial:
    """A folder of one job.

    Attributes:
        folder: Where it is.
        resumed: Whether an earlier run of the same job has left it.
    """

    folder: Path
    resumed: bool


@contextmanager
def partial_folder(output: Path | None, job: Mapping[str, Any]) -> Iterator[Partial]:
    """Make the folder of a job, or take up what an earlier run of the same has left.

    It stays if the process is killed or interrupted. It goes when the block ends, also by an error: then the same run would come to the same end.

    Args:
        output: What the job is to write: the folder is ``<output>.partial``; None: it cannot be taken up, and is anywhere.
        job: All that its results depend on; plain data.

    Raises:
        UsageError: There is something of that name that is not quantkit's, or another run is writing the output.
    """
    if output is None:
        with scratch() as folder:
            yield Partial(folder, False)
        return
    folder = output.with_name(f"{output.name}.partial")
    with only_run(output):
        yield from _kept_folder(
            folder, sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
        )


def _kept_folder(folder: Path, key: str) -> Iterator[Partial]:
    resumed = _key_of(folder) == key
    if not resumed:
        _make(folder, key)
    try:
        yield Partial(folder, resumed)
    except QuantkitError:
        _remove(folder)
        raise
    except OSError as e:
        _remove(folder)
        raise _unwritable(folder, e) from e
    _remove(folder)


def _make(folder: Path, key: str) -> None:
    """Make a folder in the place of what another job has left; it has its name when it is known as quantkit's."""
    _make_room(folder)
    try:
        with scratch(folder.parent) as place:
            whole = place / "whole"
            whole.mkdir()
            replace_text(whole / _HEAD, json.dumps({"quantkit": "partial", "key": key}))
            whole.rename(folder)
    except OSError as e:
        raise _unwritable(folder, e) from e


def _unwritable(folder: Path, error: OSError) -> QuantkitError:
    said = f"Cannot write into '{folder}': {error.strerror or error}; nothing was written."
    return as_os_error(OutputError(said), error)


def _remove(folder: Path) -> None:
    """Remove a folder under another name: half of it, should the process be killed, would not be known as quantkit's."""
    with suppress(OSError), scratch(folder.parent) as place:
        folder.rename(place / "old")


def _key_of(folder: Path) -> str | None:
    """Return the key of the job that a folder is of; None if it is of none."""
    try:
        found = json.loads((folder / _HEAD).read_text(encoding="utf-8"))
        return str(found["key"]) if found.get("quantkit") == "partial" else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _make_room(folder: Path) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_dir() and not folder.is_symlink():
        sweep(folder)  # of versions that could be killed before the folder was known as quantkit's
        if _key_of(folder) or not any(folder.iterdir()):
            _remove(folder)
            return
    raise UsageError(
        f"'{folder}' is in the way of what is kept while weights are solved for, and not quantkit's: move it, or choose another output."
    )
