"""`quantkit quantize`: the group, and `dynamic IN OUT`."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from quantkit.cli.flags import Command, Flags, Group, expanded
from quantkit.cli.options import (
    ExternalDataOption,
    JsonOption,
    OutputOption,
    VerifyOption,
    one_output,
)
from quantkit.cli.progress import progress
from quantkit.cli.quantize_float16 import float16
from quantkit.cli.quantize_static import static
from quantkit.cli.quantize_weights import weights
from quantkit.cli.result_view import print_result
from quantkit.errors import UsageError
from quantkit.settings import DynamicSettings, load_recipe

__all__ = ["quantize"]

_DATA_FLAGS = ("--data", "--calibration", "--plan")


class _StaticOrDynamic(Group):
    """`quantize IN OUT` is static where data is given; else the user is told of both."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not any(name in args for name in self.commands) and _model_in(args):
            args = ["static", *args]
            if not _has_data(args):
                model, *rest = (a for a in args[1:] if not a.startswith("-"))
                files = shlex.join([model, *rest[:1]] if rest else [model, "OUT"])
                raise UsageError(
                    f"static or dynamic? 'quantkit quantize static {files} --data DIR' calibrates on real "
                    f"samples: fastest, also for Conv; 'quantkit quantize dynamic {files}' needs no data."
                )
        return super().parse_args(ctx, args)


def _model_in(args: list[str]) -> bool:
    """Tell whether a model stands where the mode should, perhaps behind flags."""
    start = args if args[:1] and args[0].startswith("-") else args[:1]
    return any(a.endswith(".onnx") or Path(a).is_file() for a in start if not a.startswith("-"))


def _has_data(args: list[str]) -> bool:
    """Tell whether a flag or quantkit.toml names data."""
    if any(a.split("=")[0] in _DATA_FLAGS for a in args):
        return True
    return load_recipe().data.path is not None


quantize = typer.Typer(
    cls=_StaticOrDynamic,
    no_args_is_help=True,
    help="Quantize a model: static (calibrated on real data), dynamic (no data needed), weights (few bits, in blocks) or float16 (half the file).",
)


class _DynamicFlags(Flags):
    """What is decided about weights and nodes."""

    kinds = (DynamicSettings,)


@quantize.callback()
def _group() -> None:
    """Quantize a model: static (calibrated on real data), dynamic (no data needed), weights (few bits, in blocks) or float16 (half the file)."""


@quantize.command(cls=Command)
@expanded
def dynamic(  # noqa: PLR0913 - one parameter per flag
    *,
    model: Annotated[Path, typer.Argument(help="The float32 model.", metavar="IN")],
    output: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <model>.int8.onnx here.", metavar="OUT"),
    ] = None,
    named: OutputOption = None,
    flags: _DynamicFlags,
    external_data: ExternalDataOption = False,
    verify: VerifyOption = True,
    sample: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Verify with these inputs: an .npz keyed by input name."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize weights to int8, and activations while the model runs. Needs no data."""
    from quantkit.files import check_outputs
    from quantkit.pipeline.forms.dynamic import dynamic as pipeline

    if sample is not None and not verify:
        raise UsageError("--sample is what the result is verified with; leave out --no-verify.")
    target = one_output(output, named) or Path(f"{model.stem}.int8.onnx")
    check_outputs([target], [sample])
    with progress() as show:
        result = pipeline(
            model,
            target,
            flags.over(DynamicSettings()),
            verify=verify,
            external_data=external_data,
            sample=_inputs(sample) if sample else None,
            progress=show,
        )
    print_result(result, model, target, as_json=as_json)


def _inputs(path: Path) -> dict[str, Any]:
    """Read model inputs from an .npz file."""
    import zipfile

    import numpy as np

    if not path.is_file():
        raise UsageError(f"The sample '{path}' does not exist.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as e:
        raise UsageError(
            f"The sample '{path}' is not an .npz file; write one with numpy.savez(path, NAME=array)."
        ) from e


quantize.command(cls=Command)(static)
quantize.command(cls=Command)(weights)
quantize.command(cls=Command)(float16)
