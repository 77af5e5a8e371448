"""`export_model`: a framework's model as ONNX, proved equal before it is written.

load, run twice, trace, tidy, simplify, write to a staging folder, prove, rename into place
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from quantkit.api.arguments import (
    check_output,
    checked_kinds,
    checked_names,
    optional_path,
    settings_from,
)
from quantkit.deploy.export import load_source
from quantkit.deploy.export.framework import Exported, Framework
from quantkit.deploy.export.prove import Case, Proof, prove
from quantkit.deploy.export.tidy import tidy
from quantkit.deploy.export.user_code import own_path
from quantkit.errors import ModelError, UsageError, VerifyError
from quantkit.files import check_outputs, destination, scratch
from quantkit.model.graph.opset import opset_of, raise_opset
from quantkit.model.graph.save import Stage, staged
from quantkit.model.provenance import (
    SOURCE,
    ModelOrigin,
    Provenance,
    Source,
    source_text,
    write_model,
)
from quantkit.quantize.rewrite.simplify import SimplifyReport, simplify
from quantkit.runtime.session import load_model, readable_ir_version, runtime_limits
from quantkit.settings import DataSettings, ExportSettings
from quantkit.settings.record import CARRIED, Carried, carried_text, to_record
from quantkit.text import human

_OPSET = 21
_RANDOM = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was exported, and what was shown before it was written.

    Attributes:
        source: What it was.
        exporter: What wrote it.
        inputs: As users write them.
        outputs: Their names.
        opset: Of the file.
        nbytes: Of the file, external data included.
        external_data: Whether its weights are in a ``.data`` file beside it.
        report: What simplifying did.
        proof: Differences from the framework, at all sizes.
        notes: What was done, and what the user should know.
        seconds: Wall time.
    """

    source: Source
    exporter: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int
    nbytes: int
    external_data: bool
    report: SimplifyReport
    proof: Proof
    notes: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        worst = [f"{name}: {found}" for name, found in self.proof.worst().items()]
        return "\n".join([self._head(), *worst, *(f"note: {text}" for text in self.notes)])

    def __repr__(self) -> str:
        return f"<ExportResult: {self._head()}>"

    def _head(self) -> str:
        return f"{self.source}, {human(self.nbytes)}, opset {self.opset}, equal in {len(self.proof.trials)} runs"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "source": to_record(self.source),
            "exporter": self.exporter,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "opset": self.opset,
            "bytes": self.nbytes,
            "external_data": self.external_data,
            "simplified": self.report.to_json(),
            "proof": self.proof.to_json(),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 4),
        }


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
    chosen = settings_from(
        ExportSettings,
        locals(),
        inputs=checked_names(inputs, "inputs"),
        example=optional_path(example, "example"),
        sizes=_sizes(sizes or {}),
        outputs=checked_names(outputs, "outputs"),
        weights=optional_path(weights, "weights"),
        classes=None,
    )
    carried = _carried(settings or DataSettings(), checked_names(classes, "classes"))
    return _export(source, model_output, chosen, carried)


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
    return _export(source, output, settings, _carried(data, names), progress)


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


def _export(
    source: Any,
    output: str | Path,
    settings: ExportSettings,
    carried: Carried | None,
    progress: Callable[[str], None] = lambda _: None,
) -> ExportResult:
    """Export a model and prove it, before anything is written; `carried` is kept in the file."""
    started = time.perf_counter()
    target = Path(output)
    read = [settings.weights, settings.example, settings.classes, *_files_of(source)]
    check_outputs([target], read)
    opset = _opset(settings)
    with ExitStack() as stack:
        stack.enter_context(own_path())
        framework, origin = load_source(source, settings, progress)
        folder = stack.enter_context(scratch(destination(target).parent))
        stage = stack.enter_context(staged(target))
        progress("Exporting")
        exported = framework.export(folder, opset)
        stack.enter_context(_explained(exported))
        model = _tidied(exported.path, framework)
        model, said = _at_opset(model, opset, asked=settings.opset is not None)
        model.metadata_props[SOURCE] = source_text(origin)
        if carried is not None:
            model.metadata_props[CARRIED] = carried_text(carried)
        _refuse_training(model)
        progress("Simplifying")
        report = simplify(model)
        nbytes = _write(stage, model, _origin(framework, origin, settings))
        case = Case(
            framework=framework,
            exported=exported,
            path=stage.model_path,
            progress=progress,
        )
        proof = prove(case)
        external = stage.commit() is not None
    return ExportResult(
        source=origin,
        exporter=exported.exporter,
        inputs=tuple(map(str, framework.inputs.specs)),
        outputs=framework.outputs,
        opset=opset_of(model),
        nbytes=nbytes,
        external_data=external,
        report=report,
        proof=proof,
        notes=(
            *framework.notes,
            *([exported.second] if exported.second else []),
            *said,
            *_weak(framework),
            *proof.notes,
        ),
        seconds=time.perf_counter() - started,
    )


@contextmanager
def _explained(exported: Exported) -> Iterator[None]:
    """Add to an error what is known of it: why a second choice of exporter was used, and what may be at fault."""
    known = "; ".join(filter(None, (exported.second, exported.doubt)))
    try:
        yield
    except VerifyError as e:
        raise VerifyError(f"{e} ({known})" if known else str(e)) from e


def _files_of(source: Any) -> list[Path]:
    """Return the files that a source is, or whose code it is."""
    if not isinstance(source, str | Path):
        return []
    code = str(source).rpartition(":")[0]
    module = code.replace(".", "/")
    likely = [Path(source), Path(code), Path(f"{module}.py"), Path(module, "__init__.py")]
    return [path for path in likely if path.is_file()]


def _weak(framework: Framework) -> list[str]:
    """Say of which inputs few values were tried."""
    return [
        f"'{name}' was proved with the values 0 and 1 alone: add its range to --input, such as {{0..30521}}"
        for name in framework.inputs.unranged()
    ]


def _opset(settings: ExportSettings) -> int:
    """Return the opset to ask for.

    Raises:
        UsageError: The installed onnxruntime does not read it.
    """
    newest = runtime_limits().opset
    if settings.opset is not None and settings.opset > newest:
        raise UsageError(
            f"opset '{settings.opset}' is newer than the installed onnxruntime reads: use {newest} or less."
        )
    return settings.opset or min(_OPSET, newest)


def _tidied(path: Path, framework: Framework) -> ir.Model:
    try:
        model = load_model(path).model
    except ModelError as e:
        raise ModelError(f"The exporter wrote a file that cannot be read: {e}") from e
    tidy(model, framework.inputs, framework.outputs, framework.prefix)
    return model


def _at_opset(model: ir.Model, opset: int, *, asked: bool) -> tuple[ir.Model, list[str]]:
    """Return the model in the opset that was asked for, or a note that it is in another."""
    model.opset_imports.setdefault("", opset)  # trees alone have no operator of it: all are right
    if opset_of(model) < opset:
        try:
            model = raise_opset(model, opset)
        except ModelError:
            if asked:
                raise
    given = opset_of(model)
    if given > opset and asked:
        raise ModelError(
            f"opset {opset} was asked for, and the exporter only writes {given} for this model; leave out --opset."
        )
    return model, [] if given == opset else [f"opset {given}: the exporter does not write {opset}"]


def _refuse_training(model: ir.Model) -> None:
    """Refuse nodes that belong to training: they would give another answer each time, or use the batch's statistics."""
    for node in model.graph.all_nodes():
        mode = node.attributes.get_int("training_mode", 0)
        trains = node.op_type == "BatchNormalization" and mode == 1
        if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
            value = ir.convenience.get_const_tensor(node.inputs[2])
            trains = value is None or bool(value.numpy().item())
        if node.op_type in _RANDOM or trains:
            raise VerifyError(
                f"The exported model has a {node.op_type} as in training ('{node.name}'): take noise and training=True out "
                "of forward(); nothing was written."
            )


def _write(stage: Stage, model: ir.Model, origin: Provenance) -> int:
    model.ir_version = readable_ir_version(model.ir_version or 0)
    try:
        nbytes = write_model(stage, model, origin, external=False)
        onnx.checker.check_model(str(stage.model_path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as e:
        reason = str(e).strip().splitlines()[0]
        raise VerifyError(
            f"The exported model is not valid ONNX: {reason}; nothing was written."
        ) from e
    return nbytes


def _origin(framework: Framework, source: Source, settings: ExportSettings) -> Provenance:
    """Say what came in and what was decided; no folders and no times."""
    return Provenance(
        kind="export",
        float=ModelOrigin(name=source.code, bytes=framework.nbytes, sha256=framework.weights),
        options={
            "inputs": [str(spec) for spec in framework.inputs.specs],
            "outputs": list(framework.outputs),
            "opset": settings.opset,
            "legacy": settings.legacy,
        },
    )
