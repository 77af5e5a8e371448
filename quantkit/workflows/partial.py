"""What a long run leaves for the next one to go on with, should it be killed: a folder beside the output."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from quantkit.errors import OutputError, QuantkitError, UsageError, as_os_error
from quantkit.files import replace_text, scratch

__all__ = ["Partial", "partial_folder"]

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
        UsageError: There is something of that name that is not quantkit's.
    """
    if output is None:
        with scratch() as folder:
            yield Partial(folder, False)
        return
    folder = output.with_name(f"{output.name}.partial")
    key = sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
    resumed = _key_of(folder) == key
    if not resumed:
        _make_room(folder)
        folder.mkdir()
        replace_text(folder / _HEAD, json.dumps({"quantkit": "partial", "key": key}))
    try:
        yield Partial(folder, resumed)
    except QuantkitError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as e:
        shutil.rmtree(folder, ignore_errors=True)
        said = f"Cannot write into '{folder}': {e.strerror or e}; nothing was written."
        raise as_os_error(OutputError(said), e) from e
    shutil.rmtree(folder, ignore_errors=True)


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
    if (
        folder.is_dir()
        and not folder.is_symlink()
        and (_key_of(folder) or not any(folder.iterdir()))
    ):
        shutil.rmtree(folder)
        return
    raise UsageError(
        f"'{folder}' is in the way of what is kept while weights are solved for, and not quantkit's: move it, or choose another output."
    )
