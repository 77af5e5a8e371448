"""A plan becomes a graph. Emitters decide nothing."""

from quantkit.quantize.emit.dynamic import emit_dynamic
from quantkit.quantize.emit.half import emit_half
from quantkit.quantize.emit.static import Format, emit_static

__all__ = ["Format", "emit_dynamic", "emit_half", "emit_static"]
