"""The modules that a server needs: those that can be reached by import statements from `quantkit.deploy.serve`, and no others.

With their licence. import-linter holds that none of them reaches onnx, scipy or the command line; so an image with these files and the packages
of `quantkit.deploy.package.lock` is complete.
"""

import ast
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from quantkit.errors import UsageError

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
        top, _, rest = module.partition(".")
        if module in seen or top not in roots:
            continue
        seen.add(module)
        file = _file(roots[top], rest)
        if file is not None:  # else it is a name in a module
            found[file.relative_to(roots[top].parent).as_posix()] = file
            waiting += [*_Imports(file).names, module.rpartition(".")[0]]
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


def _file(root: Path, module: str) -> Path | None:
    """Return the file of a module below a package; None if there is none."""
    place = root.joinpath(*filter(None, module.split(".")))
    candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in candidates if file.is_file()), None)


class _Imports(ast.NodeVisitor):
    """Collects the names that a file imports anywhere, but for those that only type checkers read."""

    def __init__(self, file: Path) -> None:
        self.names: list[str] = []
        self.visit(ast.parse(file.read_bytes()))

    def visit_If(self, node: ast.If) -> None:
        typing_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for one in node.orelse if typing_only else (*node.body, *node.orelse):
            self.visit(one)

    def visit_Import(self, node: ast.Import) -> None:
        self.names += [one.name for one in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        self.names += [module, *(f"{module}.{one.name}" for one in node.names)]
