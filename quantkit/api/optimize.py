"""`optimize`: a float model, simplified."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from quantkit.api.arguments import check_output, checked_kinds, checked_names
from quantkit.pipeline.optimize import OptimizeResult, optimize_model
from quantkit.quantize.rewrite.simplify import PASSES
from quantkit.quantize.rewrite.simplify.plugins import PLUGINS

__all__ = ["describe_passes", "optimize", "optimize_model"]


@checked_kinds
def optimize(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    *,
    passes: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    extra_passes: Sequence[str] = (),
    use_external_data_format: bool = False,
    verify: bool = True,
    sample: Mapping[str, NDArray[Any]] | None = None,
) -> OptimizeResult:
    """Simplify a float model: fold, fuse and remove what its outputs do not need.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write.
        passes: Only these; ``quantkit optimize --list`` names them.
        exclude: All but these.
        extra_passes: Passes of other packages, run after these: names of entry points of the group "quantkit.passes", or
            "module:attribute". An `onnx_ir` pass is one as it is.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Compare the result with the input before writing.
        sample: Inputs to verify with; made up from the model's signature if not given.

    Returns:
        Nodes before and after, what each pass did, and what the verification found.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    check_output(model_output)
    return optimize_model(
        model_input,
        model_output,
        passes=None if passes is None else checked_names(passes, "passes"),
        exclude=checked_names(exclude, "exclude"),
        extra_passes=checked_names(extra_passes, "extra_passes"),
        verify=verify,
        external_data=use_external_data_format,
        sample=sample,
    )


def describe_passes() -> dict[str, str]:
    """Return what each pass does, by its name; of a plug-in, where it is."""
    built_in = {
        name: f"{(run.__doc__ or '').partition(';')[0].strip()}." for name, run in PASSES.items()
    }
    plugins = PLUGINS.names()[len(PASSES) :]
    return built_in | {
        name: f"Plug-in {PLUGINS.where(name)}; runs with --pass {name}." for name in plugins
    }
