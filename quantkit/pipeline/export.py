"""Export, in order: load, run twice, trace, tidy, simplify, write to a staging folder, prove, rename into place."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from quantkit.deploy.export.framework import Exported, Framework
from quantkit.deploy.export.load_source import load_source
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
from quantkit.settings import ExportSettings
from quantkit.settings.carried import Carried, carried_text
from quantkit.settings.record import CARRIED, to_record
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
class ExportJob:
    """What to export, and how.

    Attributes:
        source: ``package.module:factory``, ``file.py:factory``, a framework's file, or the model itself.
        settings: Its inputs, outputs, weights and opset.
        carried: How its inputs are made and its classes are called, kept in the file; None: nothing is said of that.
    """

    source: Any
    settings: ExportSettings
    carried: Carried | None = None


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


def export(
    job: ExportJob, output: str | Path, progress: Callable[[str], None] = lambda _: None
) -> ExportResult:
    """Export a model and prove it, before anything is written.

    Args:
        job: What to export.
        output: Where to write.
        progress: Called with what is being done.

    Raises:
        UsageError: The source, an input or a package is missing.
        ModelError: The model cannot be exported; the message names the line of code.
        VerifyError: The file gives something else; nothing was written.
    """
    started = time.perf_counter()
    target, settings = Path(output), job.settings
    read = [settings.weights, settings.example, settings.classes, *_files_of(job.source)]
    check_outputs([target], read)
    opset = _opset(settings)
    with ExitStack() as stack:
        stack.enter_context(own_path())
        framework, source = load_source(job.source, settings, progress)
        folder = stack.enter_context(scratch(destination(target).parent))
        stage = stack.enter_context(staged(target))
        progress("Exporting")
        exported = framework.export(folder, opset)
        stack.enter_context(_explained(exported))
        model = _tidied(exported.path, framework)
        model, said = _at_opset(model, opset, asked=settings.opset is not None)
        model.metadata_props[SOURCE] = source_text(source)
        if job.carried is not None:
            model.metadata_props[CARRIED] = carried_text(job.carried)
        _refuse_training(model)
        progress("Simplifying")
        report = simplify(model)
        nbytes = _write(stage, model, _origin(framework, source, settings))
        case = Case(
            framework=framework,
            exported=exported,
            path=stage.model_path,
            progress=progress,
        )
        proof = prove(case)
        external = stage.commit() is not None
    return ExportResult(
        source=source,
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
