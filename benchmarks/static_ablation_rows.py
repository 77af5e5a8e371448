"""The variants of static_ablation.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quantkit import RecoverSettings
from quantkit.model.graph.load import load
from quantkit.model.graph.products import products_of
from quantkit.pipeline.static_model import simplified
from quantkit.quantize.rewrite.equalize import groups_of
from quantkit.quantize.rewrite.smooth import smoothable
from quantkit.settings import StaticSettings

__all__ = ["SATURATION", "STEPS", "Variant", "recovery", "steps_of"]

_OFF = RecoverSettings(
    equalize=False,
    smooth=False,
    bias=False,
    empirical=False,
    ranges=False,
    activation_ranges=False,
    rounding=False,
    adaptive=False,
)
_ROUNDED = replace(_OFF, rounding=True)
_CORRECTED = replace(_ROUNDED, bias=True)
_ADAPTED = replace(_CORRECTED, adaptive=True)
STEPS = ("equalize", "smooth", "rounding", "bias", "activation_ranges")
_EXTRAS = ("adaptive", "ranges", "empirical")
_FREE = "x86-vnni"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to quantize; equal ones are made once.

    Attributes:
        recover: What is done to win back accuracy.
        target: What will run the result.
        reduced: Weights have 7 bits.
        without: A pass that is left out when the graph is simplified.
    """

    recover: RecoverSettings = field(default_factory=RecoverSettings)
    target: str = "cpu"
    reduced: bool = False
    without: str = ""

    def doing(self, steps: Sequence[str]) -> "Variant":
        """Return the same with plain words for "auto", and off what finds nothing to do: equal ones become equal."""
        plain = dict.fromkeys([step for step in STEPS if step not in steps], False)
        plain |= {
            name: True for name in ("rounding", "bias") if self._leaves(name) and name in steps
        }
        plain |= {name: False for name in _EXTRAS if self._leaves(name)}
        return replace(self, recover=replace(self.recover, **plain))

    def _leaves(self, name: str) -> bool:
        return bool(getattr(self.recover, name) == "auto")


SATURATION: Mapping[str, Variant] = {
    "nearest, no constraint": Variant(recover=_OFF, target=_FREE),
    "nearest, 7 bits": Variant(recover=_OFF, target=_FREE, reduced=True),
    "pair-safe scales": Variant(recover=_OFF),
    "+ second-order rounding": Variant(recover=_ROUNDED),
    "+ bias correction": Variant(recover=_CORRECTED),
    "+ adaptive": Variant(recover=_ADAPTED),
    "the last, no constraint": Variant(recover=_ADAPTED, target=_FREE),
}


def recovery(steps: Sequence[str]) -> dict[str, Variant]:
    """Return the rows of the first table, for the steps that find something to do."""
    alone = {f"{s} alone": replace(_OFF, **{s: True}) for s in steps}
    without = {f"defaults without {s}": RecoverSettings(**{s: False}) for s in steps}
    extras = [s for s in _EXTRAS if s != "empirical" or "bias" in steps]
    more = {f"defaults and {s}": RecoverSettings(**{s: True}) for s in extras}
    rows = {"everything off": _OFF, **alone, "defaults": RecoverSettings(), **without, **more}
    return {name: Variant(recover=recover) for name, recover in rows.items()}


def steps_of(model: Path) -> tuple[str, ...]:
    """Return the steps that find something to do in a model."""
    ready = simplified(load(model), StaticSettings())
    idle = set()
    products = products_of(ready.view)
    if not any(product.biased for product in products):
        idle.add("bias")
    if not groups_of(ready.view, products):
        idle.add("equalize")
    if not smoothable(ready.view):
        idle.add("smooth")
    return tuple(step for step in STEPS if step not in idle)
