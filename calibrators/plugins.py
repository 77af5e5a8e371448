"""Plug-ins: what other packages add to the built-in names, read in one way for all kinds of them.

A plug-in is an entry point of a group, or an object named as ``module:attribute``. It is imported only when it is asked
for by name: a package that is merely installed changes nothing. Standard library only.
"""

import importlib
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """One group of entry points, and the names that they must leave alone.

    Attributes:
        group: The group, such as "quantkit.calibrators".
        kind: What one of them is called in messages: "calibrator".
        built_in: Names that are taken.
        error: What is raised.
    """

    group: str
    kind: str
    built_in: Collection[str]
    error: type[ValueError] = ValueError

    def names(self) -> tuple[str, ...]:
        """Return all names, the built-in ones first.

        Raises:
            ValueError: A plug-in takes a name that is already in use.
        """
        return (*self.built_in, *sorted(self._points()))

    def where(self, name: str) -> str:
        """Return what an entry point names, "package.module:attribute", for messages."""
        return self._points()[name].value

    def load(self, name: str) -> Any:
        """Import what the entry point of that name, one of `names`, names.

        Raises:
            ValueError: It cannot be imported.
        """
        point = self._points()[name]
        try:
            return point.load()
        except Exception as e:  # whatever a stranger's module raises when it is run
            raise self.error(
                f"The plug-in '{point.value}' for the {self.kind} '{name}' cannot be imported: {type(e).__name__}: {e}"
            ) from e

    def import_named(self, name: str, what: str = "function") -> Any:
        """Import an object by ``module:attribute``, or ``file.py:attribute``; modules are also looked for in the working directory.

        Args:
            name: Where it is.
            what: What the attribute is called in messages.

        Raises:
            ValueError: There is no such module or attribute, or the module cannot be imported.
        """
        module, _, attribute = name.rpartition(":")
        if not module or not attribute:
            raise self.error(f"{self.kind} '{name}' is no {what}: write module:{what}.")
        folder = os.getcwd()  # noqa: PTH109 sys.path holds texts
        added = folder not in sys.path
        if added:
            sys.path.insert(0, folder)
        try:
            found = (
                _from_file(module) if module.endswith(".py") else importlib.import_module(module)
            )
        except Exception as e:  # whatever the user's module raises when it is run
            raise self.error(
                f"{self.kind} '{name}': the module '{module}' cannot be imported: {type(e).__name__}: {e}"
            ) from e
        finally:
            if added:
                sys.path.remove(folder)
        if not callable(getattr(found, attribute, None)):
            raise self.error(
                f"{self.kind} '{name}': the module '{module}' has no {what} '{attribute}'."
            )
        return getattr(found, attribute)

    def _points(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            if point.name in self.built_in or point.name in found:
                raise self.error(
                    f"The plug-in '{point.value}' takes the {self.kind} name '{point.name}', which is already in use; "
                    "it needs another, or to be uninstalled."
                )
            found[point.name] = point
        return found


def _from_file(path: str) -> ModuleType:
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' is no Python file")
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
