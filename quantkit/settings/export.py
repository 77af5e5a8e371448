"""What is said of a model that is exported: its inputs and outputs, its weights, its opset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from quantkit.errors import UsageError
from quantkit.settings.declare import Setting, check
from quantkit.settings.values import Names

__all__ = ["ExportSettings"]

_OLDEST_OPSET = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """How a model is exported. None and empty: as it is found best, or told from the model."""

    inputs: Annotated[
        Names,
        Setting(
            "An input: 'input:float32\\[batch,3,224,224]', 'ids:int64\\[batch,seq<=128]{0..30521}'. Names are dynamic dimensions. May be repeated.",
            "SPEC",
            flag="--input",
        ),
    ] = ()
    example: Annotated[
        Path | None,
        Setting("An .npz with an array for each input, instead of --input.", "FILE"),
    ] = None
    fixed_batch: Annotated[
        bool,
        Setting("The batch has the size of the example; default: any.", flag="--fixed-batch"),
    ] = False
    sizes: Annotated[
        Names,
        Setting(
            "Sizes to prove a dynamic dimension at: seq=1,9,128. Default: 1, 2, 3, 7, 32. May be repeated.",
            "NAME=N,N",
        ),
    ] = ()
    outputs: Annotated[
        Names,
        Setting(
            "Name of an output, in order. Default: dict keys, fields, 'output'. May be repeated.",
            "NAME",
            flag="--output",
        ),
    ] = ()
    weights: Annotated[
        Path | None,
        Setting("Load these into the model first: .safetensors, or a state_dict.", "FILE"),
    ] = None
    opset: Annotated[
        int | None,
        Setting("Opset. Default: 21, or what onnxruntime reads.", "N", least=_OLDEST_OPSET),
    ] = None
    legacy: Annotated[
        bool, Setting("Use torch's older exporter, with the same proof.", flag="--legacy")
    ] = False
    classes: Annotated[
        Path | None,
        Setting("A text file with the name of a class per line, kept in the model.", "FILE"),
    ] = None

    def __post_init__(self) -> None:
        check(self)
        if self.inputs and self.example is not None:
            raise UsageError("--input and --example both say what the inputs are: remove one.")
        if self.fixed_batch and self.example is None:
            raise UsageError("--fixed-batch is for --example; in --input write the number.")
        file = next((name for name in self.outputs if name.endswith(".onnx")), None)
        if file is not None:
            raise UsageError(
                f"--output '{file}' would name an output of the model; the file to write is -o {file}."
            )
