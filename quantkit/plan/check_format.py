"""Whether a target, a format and integer types go together."""

from quantkit.errors import UsageError
from quantkit.plan.model import Plan
from quantkit.targets import Target

__all__ = ["check_target_of"]


def check_target_of(plan: Plan, target: Target) -> None:
    """Check that a plan that was saved, and perhaps edited, is one for this target.

    A plan older than the field does not say what it was made for; what it holds is checked all the same.

    Args:
        plan: What is to be applied.
        target: What is asked for.

    Raises:
        UsageError: It was made for another, or holds what the target's runtime refuses.
    """
    if plan.target not in {None, target.name}:
        raise UsageError(
            f"The plan was made for {plan.target}, and {target.name} is asked for: make one with --target {target.name}, or "
            "leave the target away (--target, target in quantkit.toml)."
        )
    types = {f"'{a.tensor}'": a.dtype for a in plan.activations}
    types |= {f"weight '{w.tensor}'": w.spec.dtype for w in plan.weights}
    for what, dtype in types.items():
        if dtype not in target.types:
            taken = " or ".join(sorted(t.name for t in target.types))
            raise UsageError(
                f"The plan gives {what} the type {dtype.name}, which {target.name} does not take: use {taken}."
            )
    if target.zero_points:
        return
    shifted = [
        f"'{a.tensor}' the zero point {a.zero_point}" for a in plan.activations if a.zero_point
    ]
    shifted += [f"weight '{w.tensor}' zero points" for w in plan.weights if not w.spec.symmetric]
    if shifted:
        raise UsageError(
            f"The plan gives {shifted[0]}, and {target.name} takes no zero points: use 0 and scales for both signs, or make "
            f"the plan with --target {target.name}."
        )
