"""How quantkit is installed here, for messages about packages that are missing."""

from pathlib import Path
from typing import Any

_PACKAGE = "quantkit-onnx"


def install_command(extra: str) -> str:
    """Return the pip command that adds an extra to quantkit as it is installed here.

    What was installed from a clone, a folder or a file is installed from there again: no index needs to have it.
    """
    import shlex
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    where = _origin()
    place = str(where.get("url", ""))
    if not place.startswith("file:"):
        return f"pip install '{_PACKAGE}[{extra}]'"
    folder = Path(url2pathname(urlsplit(place).path))
    editable = "-e " if where.get("dir_info", {}).get("editable") else ""
    shown = "." if folder == Path.cwd() else str(folder)
    return f"pip install {editable}{shlex.quote(f'{shown}[{extra}]')}"


def _origin() -> dict[str, Any]:
    """Return where pip installed quantkit from (PEP 610); nothing if that was an index."""
    import json
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, distribution

    said = None
    with suppress(PackageNotFoundError):  # run from a clone that was never installed
        said = distribution(_PACKAGE).read_text("direct_url.json")
    clone = Path(__file__).resolve().parents[1]
    # The folder of a clone may come first in the path, with what building left there and without that record.
    if said is None and (clone / "pyproject.toml").is_file():
        return {"url": clone.as_uri(), "dir_info": {"editable": True}}
    found: dict[str, Any] = json.loads(said or "{}")
    return found
