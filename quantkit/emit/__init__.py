"""A plan becomes a graph. Emitters decide nothing."""

from quantkit.emit.dynamic import emit_dynamic
from quantkit.emit.solved import Solved, SolvedWeight
from quantkit.emit.static import Format, emit_static

__all__ = ["Format", "Solved", "SolvedWeight", "emit_dynamic", "emit_static"]
