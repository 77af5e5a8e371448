"""A model as static quantization sees it, for questions that need no data: which ranges will a plan ask for?"""

import onnx_ir as ir

from quantkit.errors import (
    ModelError,
)
from quantkit.model.graph.half import half_type, widen
from quantkit.model.graph.normalize import fix_defaults
from quantkit.model.graph.opset import raise_opset
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View
from quantkit.quantize.plan import ranges_needed
from quantkit.quantize.rewrite.simplify import simplify
from quantkit.quantize.rewrite.split import split_fused
from quantkit.settings import StaticSettings
from quantkit.targets import DEFAULT, registered


def needed_by_any(model: ir.Model) -> tuple[str, ...]:
    """Return the tensors of a float model whose ranges a plan needs, for whichever target it will be made."""
    view, renamed = view_for_static(model)
    if view is None:  # then no plan can be made either
        return ()
    asked = (ranges_needed(view, StaticSettings(target=t.name)) for t in registered())
    return tuple(dict.fromkeys(renamed.get(name, name) for names in asked for name in names))


def view_for_static(model: ir.Model) -> tuple[View | None, dict[str, str]]:
    """Return a view of a model as `quantkit.pipeline.prepare` plans it, and the names of tensors that it widened.

    Weights are neither copied nor read. The view is None where the opset cannot be raised.
    """
    copy = copy_of(model)
    fix_defaults(copy)
    renamed = widen(copy) if half_type(copy) else {}
    try:
        copy = raise_opset(copy, DEFAULT.min_opset)
    except ModelError:
        return None, renamed
    split_fused(copy)
    simplify(copy)
    return view_of(copy, read_weights=False), renamed
