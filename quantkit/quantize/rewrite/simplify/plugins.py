"""Passes of other packages: entry points of the group "quantkit.passes", or ``module:attribute``.

They run after the built-in ones, and only when the user asks for them: what is installed changes nothing by itself.
"""

from dataclasses import replace
from difflib import get_close_matches
from typing import Protocol

import onnx_ir as ir

from calibrators.plugins import Plugins
from quantkit.errors import UsageError, VerifyError
from quantkit.model.graph.protos import root_cause
from quantkit.quantize.rewrite.simplify import PASSES, SimplifyReport, count_operators

PLUGINS = Plugins(group="quantkit.passes", kind="pass", built_in=PASSES, error=UsageError)
"""The passes of other packages."""


class ModelPass(Protocol):
    """A pass of somebody else's: every `onnx_ir.passes.PassBase` is one, in place or functional.

    The model that it returns computes the same outputs from the same inputs, under the same names.
    """

    def __call__(self, model: ir.Model, /) -> ir.passes.PassResult:
        """Return the model, the same object or a new one, and whether anything was modified."""


def find_pass(name: str) -> ModelPass:
    """Import a pass: the entry point of that name, or ``module:attribute``. A class is called without arguments.

    Raises:
        UsageError: There is none, it cannot be imported, or is no pass.
    """
    if ":" in name:
        found = PLUGINS.import_named(name, "pass")
    elif name in PASSES:
        raise UsageError(f"The pass '{name}' is built in, and runs unless it is skipped.")
    elif name not in (known := PLUGINS.names()[len(PASSES) :]):
        near = get_close_matches(name, known, 1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        listed = f"there are {', '.join(known)};" if known else "install its package,"
        raise UsageError(
            f"No pass '{name}' is installed{hint}: {listed} or write module:attribute."
        )
    else:
        found = PLUGINS.load(name)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as e:  # whatever a stranger's class raises
            raise UsageError(
                f"The pass '{name}' cannot be made without arguments: {type(e).__name__}: {e}"
            ) from e
    if not callable(found):
        raise UsageError(f"The pass '{name}' is none: it must be callable with an onnx_ir model.")
    made: ModelPass = found
    return made


def run_pass(name: str, run: ModelPass, model: ir.Model) -> ir.passes.PassResult:
    """Run a pass of somebody else's, and look at the form of what it returns; what that computes is the caller's to prove.

    Args:
        name: For messages.
        run: The pass.
        model: It may be changed in place.

    Raises:
        VerifyError: It fails, returns no result, or changes what the model takes and gives.
    """
    before = _signature(model)
    try:
        result = run(model)
    except Exception as e:  # whatever a stranger's code raises
        raise VerifyError(
            f"The pass '{name}' failed: {type(e).__name__}: {root_cause(e)}; nothing was written."
        ) from e
    if not isinstance(result, ir.passes.PassResult):
        raise VerifyError(
            f"The pass '{name}' returned {type(result).__name__}, not an onnx_ir.passes.PassResult; nothing was written."
        )
    after = _signature(result.model)
    if before != after:
        gone, new = (
            [n for n in some if n not in other]
            for some, other in ((before, after), (after, before))
        )
        named = ", ".join(f"'{text}'" for text in (*gone, *new)) or "their order"
        raise VerifyError(
            f"The pass '{name}' changed the model's inputs or outputs ({named}); nothing was written."
        )
    for key, value in model.meta.items():  # a new model knows nothing of what was found at load
        result.model.meta.setdefault(key, value)
    return result


def with_pass(report: SimplifyReport, name: str, result: ir.passes.PassResult) -> SimplifyReport:
    """Return the report with what one more pass has done."""
    changes = {**report.changes, name: int(result.modified)}
    return replace(report, after=count_operators(result.model), changes=changes)


def _signature(model: ir.Model) -> list[str]:
    """Return what a user of the model sees: names and types of inputs and outputs, in order."""
    ends = (("input", model.graph.inputs), ("output", model.graph.outputs))
    return [f"{kind} {value.name}: {value.dtype}" for kind, values in ends for value in values]
