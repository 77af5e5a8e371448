"""The modules that a server needs: those that can be reached by import statements from `quantkit.deploy.serve`, and no others.

With their licence. import-linter holds that none of them reaches onnx, scipy or the command line; so an image with these files and the packages
of `quantkit.deploy.package.lock` is complete.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from quantkit.errors import UsageError

__all__ = ["LICENCE", "server_files"]

LICENCE = "LICENSE"
"""The file's name."""

_START = "quantkit.deploy.serve.__main__"
_OWN = ("quantkit", "calibrators")


@cache
def server_files() -> Mapping[str, Path]:
    """Return the server's files by where they stand below the folder that Python looks in."""
    roots = {name: _root(name) for name in _OWN}
    found: dict[str, Path] = {}
    seen: set[str] = set()
    waiting = [_START]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        file = _file(module, roots)
        if file is None:  # a name in a module, and no module
            continue
        found[file.relative_to(roots[module.partition(".")[0]].parent).as_posix()] = file
        waiting += _imported(file)
        if "." in module:
            waiting.append(module.rpartition(".")[0])
    return dict(sorted({**found, LICENCE: _licence(roots[_OWN[0]])}.items()))


def _licence(root: Path) -> Path:
    """Return the licence of quantkit: of the installed package, or in a checkout that is none."""
    try:
        files = distribution("quantkit-onnx").files or ()
    except PackageNotFoundError:
        files = ()
    # Other packages leave a LICENSE of theirs in the folder that all are installed in: it is asked last.
    own = [Path(str(one.locate())) for one in files if one.parts[-2:] == ("licenses", LICENCE)]
    found = next((file for file in (*own, root.parent / LICENCE) if file.is_file()), None)
    if found is None:
        raise UsageError("The licence of quantkit is missing here: install it again with pip.")
    return found


def _root(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None  # noqa: S101 - this is one of them, and needs the other
    assert spec.origin is not None  # noqa: S101 - both have an __init__
    return Path(spec.origin).parent


def _file(module: str, roots: dict[str, Path]) -> Path | None:
    root, *rest = module.split(".")
    place = roots[root].joinpath(*rest)
    candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in candidates if file.is_file()), None)


def _imported(file: Path) -> Iterator[str]:
    """Yield the names of ours that a file imports anywhere, but for those that only type checkers read."""
    waiting: list[ast.AST] = [ast.parse(file.read_bytes())]
    while waiting:
        node = waiting.pop()
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            waiting += node.orelse
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        yield from (name for name in names if name.partition(".")[0] in _OWN)
        waiting += ast.iter_child_nodes(node)
