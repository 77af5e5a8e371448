"""Targets by name: the built-in ones, and plug-ins.

A plug-in is an entry point of the group "quantkit.targets" that names a `Target`, whose name is the entry point's.
It is imported only when asked for by name. `check_target` checks it.
"""

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from types import MappingProxyType

from calibrators.plugins import Plugins
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
_PLUGINS = Plugins(group=GROUP, kind="target", built_in=TARGETS, error=UsageError)


def names() -> tuple[str, ...]:
    """Return every name that `target` knows, the built-in ones first.

    Raises:
        UsageError: A plug-in takes a name that is already in use.
    """
    return _PLUGINS.names()


def registered() -> tuple[Target, ...]:
    """Return every target, the built-in ones first; plug-ins that cannot be loaded are left to whom asks for them."""
    found = list(TARGETS.values())
    with suppress(UsageError):  # two of one name
        for name in names()[len(TARGETS) :]:
            with suppress(UsageError):  # someone else's code, which this run does not use
                found.append(target(name))
    return tuple(found)


def target(name: str) -> Target:
    """Return a target by its name. Built-in names never look for plug-ins, which takes milliseconds.

    Raises:
        UsageError: No such target, or a plug-in that is none.
    """
    if name in TARGETS:
        return TARGETS[name]
    known = names()
    if name not in known:
        near = get_close_matches(name.lower(), known, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise UsageError(f"target '{name}' is unknown{hint}: use one of {', '.join(known)}.")
    found = _PLUGINS.load(name)
    if not isinstance(found, Target) or found.name != name:
        raise UsageError(
            f"The plug-in '{_PLUGINS.where(name)}' is no Target called '{name}': it must name one."
        )
    return found
