"""Execute a plan on a graph. Nothing here decides anything."""

from quantkit.emit.dynamic import emit_dynamic

__all__ = ["emit_dynamic"]
