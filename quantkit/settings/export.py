"""What is said of a model that is exported: its inputs and outputs, its weights, its opset."""

from dataclasses import dataclass
from pathlib import Path

from quantkit.errors import UsageError
from quantkit.settings.declare import Names, Settings, setting

_OLDEST_OPSET = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings(Settings):
    """How a model is exported. None and empty: as it is found best, or told from the model."""

    inputs: Names = setting(
        "An input: 'input:float32\\[batch,3,224,224]', 'ids:int64\\[batch,seq<=128]{0..30521}'. Names are dynamic dimensions. May be repeated.",
        "SPEC",
        default=(),
        flag="--input",
    )
    example: Path | None = setting(
        "An .npz with an array for each input, instead of --input.", "FILE"
    )
    fixed_batch: bool = setting(
        "The batch has the size of the example; default: any.", default=False, flag="--fixed-batch"
    )
    sizes: Names = setting(
        "Sizes to prove a dynamic dimension at: seq=1,9,128. Default: 1, 2, 3, 7, 32. May be repeated.",
        "NAME=N,N",
        default=(),
    )
    outputs: Names = setting(
        "Name of an output, in order. Default: dict keys, fields, 'output'. May be repeated.",
        "NAME",
        default=(),
        flag="--output",
    )
    weights: Path | None = setting(
        "Load these into the model first: .safetensors, or a state_dict.", "FILE"
    )
    opset: int | None = setting(
        "Opset. Default: 21, or what onnxruntime reads.", "N", ge=_OLDEST_OPSET
    )
    legacy: bool = setting(
        "Use torch's older exporter, with the same proof.", default=False, flag="--legacy"
    )
    classes: Path | None = setting(
        "A text file with the name of a class per line, kept in the model.", "FILE"
    )

    def _check(self) -> None:
        if self.inputs and self.example is not None:
            raise UsageError("--input and --example both say what the inputs are: remove one.")
        if self.fixed_batch and self.example is None:
            raise UsageError("--fixed-batch is for --example; in --input write the number.")
        file = next((name for name in self.outputs if name.endswith(".onnx")), None)
        if file is not None:
            raise UsageError(
                f"--output '{file}' would name an output of the model; the file to write is -o {file}."
            )
