"""What each form of quantization would do with a model, without data: the plan, and about how large the file would be."""

from collections.abc import Mapping
from dataclasses import dataclass

from quantkit.model.graph.half import half_type, widen
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.view import view_of
from quantkit.model.ops.float_ops import FLOAT_PRODUCTS
from quantkit.model.ops.view import View
from quantkit.numerics.blocks import BlockGrid
from quantkit.pipeline.calibrate import view_for_static
from quantkit.pipeline.forms.float16 import foreseen, held_bytes
from quantkit.quantize.plan import Mode, Plan, plan_blocks, plan_dynamic, plan_static, ranges_needed
from quantkit.quantize.plan.blocks import packed_bytes
from quantkit.quantize.rewrite.simplify.initializers import tie_weights
from quantkit.settings import DynamicSettings, StaticSettings

_FLOAT = 4  # bytes
_INT8 = frozenset({Mode.STATIC, Mode.INTEGER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """What would come of a model.

    Attributes:
        view: The float model as planners see it.
        plans: By the name of a mode: "static" (if its weights are there), "dynamic", "stored", "weights", "float16".
        nbytes: About how large the file would be, by mode.
        int8: How many layers would compute in int8, by "static" and "dynamic"; under "layers" how many there are.
    """

    view: View
    plans: Mapping[str, Plan]
    nbytes: Mapping[str, int]
    int8: Mapping[str, int]


def foresee(loaded: LoadedModel, nbytes: int) -> Foresight:
    """Plan every form.

    Args:
        loaded: The model; halves become float32 in it and equal weights one, as quantizing does.
        nbytes: Size of its files.
    """
    model = loaded.model
    float16, float16_bytes = foreseen(loaded)
    if half_type(model):
        widen(model)
    before = held_bytes(model)
    if not loaded.missing:
        tie_weights(model)
    tied = before - held_bytes(model)
    view = view_of(model, read_weights=not loaded.missing)
    plans = {
        "dynamic": plan_dynamic(view),
        "stored": plan_dynamic(view, DynamicSettings(integer=False)),
        "weights": plan_blocks(view),
        "float16": float16,
    }
    views = dict.fromkeys(plans, view)
    if not loaded.missing and (prepared := view_for_static(model)[0]):
        views = {"static": prepared, **views}
        plans = {"static": _static_plan(prepared), **plans}
    sizes = {name: nbytes - tied - _saved(plan, views[name]) for name, plan in plans.items()}
    return Foresight(
        view=view,
        plans=plans,
        nbytes={**sizes, "float16": float16_bytes},
        int8=_int8_layers(plans, views),
    )


def _static_plan(view: View) -> Plan:
    """Return the static plan, as if calibration had found a range for every tensor that needs one."""
    needed = ranges_needed(view, StaticSettings())
    return plan_static(view, dict.fromkeys(needed, (-1.0, 1.0)))


def _int8_layers(plans: Mapping[str, Plan], views: Mapping[str, View]) -> dict[str, int]:
    """Count the layers that could compute in int8, by mode, and all of them."""
    found: dict[str, int] = {}
    for mode in ("dynamic", "static"):
        if mode in plans:
            nodes = views[mode].nodes
            layers = [n.name for n in nodes if n.weights and n.op_type in FLOAT_PRODUCTS]
            how = [plans[mode].node[name].mode for name in layers if name in plans[mode].node]
            found |= {mode: sum(m in _INT8 for m in how), "layers": len(layers)}
    return found


def _saved(plan: Plan, view: View) -> int:
    """Return about how many bytes a plan takes off the weights of a file."""
    saved = 0
    for planned in plan.weights:
        weight, spec = view.weights[planned.tensor], planned.spec
        axis = getattr(spec.granularity, "axis", None)
        rows = 1 if axis is None else weight.shape[axis]
        grid = planned.blocks or BlockGrid(bits=spec.dtype.bits, size=0, symmetric=True, largest=1)
        saved += _FLOAT * weight.size - packed_bytes(grid, rows, weight.size // rows)
    return saved
