"""Targets by name: the built-in ones, and plug-ins.

A plug-in is an entry point of the group "quantkit.targets" that names a `Target`, whose name is the entry point's.
It is imported only when asked for by name. `check_target` checks it.
"""

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from quantkit.errors import UsageError
from quantkit.targets.cpu import ARM64, AVX2, CPU, VNNI
from quantkit.targets.model import Target
from quantkit.targets.providers import OPENVINO, QNN, TENSORRT

__all__ = ["DEFAULT", "GROUP", "TARGETS", "names", "registered", "target"]

GROUP = "quantkit.targets"

TARGETS: Mapping[str, Target] = MappingProxyType(
    {t.name: t for t in (CPU, VNNI, AVX2, ARM64, TENSORRT, OPENVINO, QNN)}
)
"""The built-in targets, the default first."""

DEFAULT = TARGETS["cpu"]


def names() -> tuple[str, ...]:
    """Return every name that `target` knows, the built-in ones first.

    Raises:
        UsageError: A plug-in takes a name that is already in use.
    """
    return (*TARGETS, *sorted(_plugins()))


def registered() -> tuple[Target, ...]:
    """Return every target, the built-in ones first; plug-ins that cannot be loaded are left to whom asks for them."""
    found = list(TARGETS.values())
    for point in entry_points(group=GROUP):
        with suppress(Exception):  # someone else's code, which this run does not use
            found.append(target(point.name))
    return tuple(dict.fromkeys(found))


def target(name: str) -> Target:
    """Return a target by its name. Built-in names never look for plug-ins, which takes milliseconds.

    Raises:
        UsageError: No such target, or a plug-in that is none.
    """
    if name in TARGETS:
        return TARGETS[name]
    plugins = _plugins()
    if name not in plugins:
        known = [*TARGETS, *sorted(plugins)]
        near = get_close_matches(name.lower(), known, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise UsageError(f"target '{name}' is unknown{hint}: use one of {', '.join(known)}.")
    found = plugins[name].load()
    if not isinstance(found, Target) or found.name != name:
        raise UsageError(
            f"The plug-in '{plugins[name].value}' is no Target called '{name}': it must name one."
        )
    return found


def _plugins() -> dict[str, EntryPoint]:
    """Return the entry points by name."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in TARGETS or point.name in found:
            raise UsageError(
                f"The plug-in '{point.value}' takes the target name '{point.name}', which is already in use; "
                "it needs another, or to be uninstalled."
            )
        found[point.name] = point
    return found
