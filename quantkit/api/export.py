"""`export_model`: a framework's model as ONNX, proved equal before it is written."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantkit.api.arguments import as_path, check_output, checked_kinds, checked_names
from quantkit.errors import UsageError
from quantkit.pipeline.export import ExportJob, ExportResult, export
from quantkit.settings import DataSettings, ExportSettings
from quantkit.settings.carried import Carried


@checked_kinds
def export_model(  # noqa: PLR0913 - one parameter per question
    source: Any,
    model_output: str | Path,
    *,
    inputs: Sequence[str] = (),
    example: str | Path | None = None,
    fixed_batch: bool = False,
    sizes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = (),
    weights: str | Path | None = None,
    opset: int | None = None,
    legacy: bool = False,
    classes: Sequence[str] = (),
    settings: DataSettings | None = None,
) -> ExportResult:
    """Export a model of PyTorch, scikit-learn, LightGBM, XGBoost or Keras, and prove the file equal to it.

        export_model("models:mlp", "mlp.onnx", inputs=["x:float32[batch,16]"])

    The file is checked, run at several sizes of every dynamic dimension, and compared with the framework before it is
    written. Importing a source runs its code.

    Args:
        source: "package.module:factory", "file.py:factory", a .pt2, TorchScript, .keras, .tflite or SavedModel file; or the
            model itself.
        model_output: Where to write. Above 2 GB the weights go to a ``.data`` file beside it.
        inputs: What it takes: "input:float32[batch,3,224,224]", "ids:int64[batch,seq<=128]{0..30521}". Names are dynamic
            dimensions.
        example: An .npz with an array for each input instead; its first axis is the batch.
        fixed_batch: The batch has the example's size, too.
        sizes: What dynamic dimensions are tried at, by name; else at 1, 2, 3, 7 and 32.
        outputs: Names of outputs; else keys of dicts, fields of named tuples, or "output".
        weights: Loaded into the model first: safetensors, or a state_dict that `torch.save` wrote.
        opset: Which one; None: 21, or what the installed onnxruntime reads.
        legacy: Use torch's older exporter.
        classes: Names of classes in the order of the scores, kept in the file.
        settings: How samples are prepared, kept in the file.

    Returns:
        What was exported from what, and the differences at all sizes.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    check_output(model_output)
    chosen = ExportSettings(
        inputs=checked_names(inputs, "inputs"),
        example=None if example is None else as_path(example, "example"),
        fixed_batch=fixed_batch,
        sizes=_sizes(sizes or {}),
        outputs=checked_names(outputs, "outputs"),
        weights=None if weights is None else as_path(weights, "weights"),
        opset=opset,
        legacy=legacy,
    )
    carried = _carried(settings or DataSettings(), checked_names(classes, "classes"))
    return export(ExportJob(source=source, settings=chosen, carried=carried), model_output)


def _sizes(sizes: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    return tuple(f"{name}={','.join(map(str, listed))}" for name, listed in sizes.items())


def export_as(
    source: Any,
    output: str | Path,
    settings: ExportSettings,
    data: DataSettings,
    progress: Callable[[str], None],
) -> ExportResult:
    """Export a model as settings say.

    Args:
        source: See `export_model`.
        output: Where to write.
        settings: Inputs, outputs, weights, opset, and the file with the names of classes.
        data: How samples are prepared, kept in the file.
        progress: Called with what is being done.
    """
    names = () if settings.classes is None else _class_names(settings.classes)
    job = ExportJob(source=source, settings=settings, carried=_carried(data, names))
    return export(job, output, progress)


def _carried(data: DataSettings, classes: Sequence[str] = ()) -> Carried | None:
    """Return what a model says of its inputs and classes; None if there is nothing to say."""
    said = data.image != DataSettings().image or data.text != DataSettings().text
    return Carried(data=data, labels=tuple(classes)) if said or classes else None


def _class_names(path: Path) -> tuple[str, ...]:
    """Read names of classes, one per line.

    Raises:
        UsageError: The file cannot be read, or holds none.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeError) as e:
        raise UsageError(f"The classes in '{path}' cannot be read: {e}.") from e
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise UsageError(f"'{path}' holds no names of classes: write one per line.")
    return names
