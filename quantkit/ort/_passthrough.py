"""The way to onnxruntime.quantization: modules and names that quantkit.ort does not replace are onnxruntime's own.

``quantkit.ort.X`` is the very module ``onnxruntime.quantization.X`` unless this package has a file X, so classes are the
same classes. Files of this package forward the names that they do not define.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = ["forward"]

_OURS, _THEIRS = "quantkit.ort", "onnxruntime.quantization"
_FOLDER = Path(__file__).parent
_RENAMED = {
    "matmul_4bits_quantizer": "onnxruntime calls it matmul_nbits_quantizer now, with bits as its second argument",
}


def forward(module: str) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that finds names in onnxruntime's module of the same name."""
    theirs = _their_name(module)

    def get_name(name: str) -> Any:
        if not name.startswith("__"):
            if module == _OURS and find_spec(f"{_OURS}.{name}") is not None:
                return import_module(f"{_OURS}.{name}")
            found = import_module(theirs)
            if hasattr(found, name):
                return getattr(found, name)
        raise AttributeError(f"module '{module}' has no attribute '{name}'")

    return get_name


def _their_name(module: str) -> str:
    return f"{_THEIRS}{module.removeprefix(_OURS)}"


def _their_spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(_their_name(module))
    except ModuleNotFoundError:  # its parent is not a package
        return None


class _PassThrough(MetaPathFinder, Loader):
    """Loads ``quantkit.ort.X`` by importing ``onnxruntime.quantization.X``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of onnxruntime's that this package has no file for."""
        del path, target
        if not fullname.startswith(f"{_OURS}."):
            return None
        relative = fullname.removeprefix(f"{_OURS}.")
        if _FOLDER.joinpath(*relative.split(".")).with_suffix(".py").is_file():
            return None
        theirs = _their_spec(fullname)
        if theirs is None:
            if relative in _RENAMED:
                raise ModuleNotFoundError(f"There is no {fullname}: {_RENAMED[relative]}.")
            return None
        package = theirs.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=theirs.origin, is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return onnxruntime's module itself."""
        module = import_module(_their_name(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Undo the one thing that the import system changes in a module that was loaded before: its spec."""
        assert module.__spec__ is not None  # noqa: S101 - set by the import system
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module, for ``python -m quantkit.ort.X``."""
        spec = _their_spec(fullname)
        found: CodeType | None = spec.loader.get_code(_their_name(fullname))  # type: ignore[union-attr]
        return found


# First, because a child of onnxruntime's package would otherwise be found in that package's folder and loaded again.
sys.meta_path.insert(0, _PassThrough())
