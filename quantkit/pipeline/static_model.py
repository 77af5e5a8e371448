"""The float model that static quantization plans: computed in float32, simplified, in the opset that the target needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import onnx
import onnx_ir as ir

from quantkit.calibration.collect import CalibrateOptions
from quantkit.errors import ModelError, UsageError
from quantkit.files import scratch
from quantkit.model.graph.edit import nodes_of
from quantkit.model.graph.half import stays_half
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.normalize import lift_weights
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.protos import root_cause
from quantkit.model.graph.save import Stage
from quantkit.model.graph.shapes import infer_types
from quantkit.model.ops.float_ops import PRODUCTS
from quantkit.pipeline.prepared import FloatModel, float_copy, with_opset
from quantkit.quantize.rewrite.decompose import decompose
from quantkit.quantize.rewrite.simplify import simplify
from quantkit.quantize.rewrite.split import split_fused
from quantkit.runtime.check_result import LARGE
from quantkit.runtime.session import load_model
from quantkit.settings import StaticSettings
from quantkit.targets import cores

STEPS = 5  # of static quantization: read, observe channels, observe ranges, round, write
_PAIR_OPSET = 10  # QuantizeLinear
_WIDE_OPSET = 21  # QuantizeLinear to 16 bits


def simplified(source: LoadedModel, options: StaticSettings, at_least: int = 0) -> FloatModel:
    """Compute in float32, raise the opset as far as the target needs and to `at_least`, and simplify.

    The source stays as it is.

    Args:
        source: The model as it was loaded.
        options: The target, and which passes are left out.
        at_least: An opset that a plan needs; 0: none.
    """
    model, notes, renamed = float_copy(source.model, keep_inputs=options.keep_inputs)
    known = frozenset(node.name or "" for node in source.model.graph.all_nodes())
    minimum = max(minimum_opset(options, source.model), at_least)
    if options.covers_all and stays_half(source.model):
        minimum = max(minimum, _WIDE_OPSET)  # from which float16 is quantized, too
    model, raised = with_opset(model, minimum)
    notes += raised
    if options.simplify:
        split_fused(model)
        notes += simplify(model).notes
    if options.simplify and not options.covers_all:
        decompose(model, options.runs_on.decomposed)
    if options.covers_all:
        lift_weights(model)
        infer_types(model)  # only floats are quantized
    name = source.path.name if source.path else "model.onnx"
    return FloatModel.of(model, notes=tuple(notes), name=name, known=known, renamed=renamed)


def minimum_opset(options: StaticSettings, model: ir.Model) -> int:
    """Return the opset that target and types need for a model.

    A graph that is to stay as it is, and has nothing with a scale per channel, is not raised further than pairs need: a new
    opset makes inputs of attributes.

    Args:
        options: What the user chose.
        model: The float model.
    """
    types = [options.activation, options.weight]
    types += [rule.int_type for rule in options.tensors if rule.int_type]
    # onnxruntime's own operators have all types in every opset, but no blocks.
    wide = not options.qdq.contrib_ops and any(t.bits != 8 for t in types)
    wide = wide or options.qdq.block_size is not None
    stays = options.covers_all and not options.simplify and options.format != "qoperator"
    plain = (
        stays and not options.tensors and not any(n.op_type in PRODUCTS for n in nodes_of(model))
    )
    least = _PAIR_OPSET if plain else options.runs_on.min_opset
    return max(least, _WIDE_OPSET if wide else 0)


@contextmanager
def runnable(ready: FloatModel) -> Iterator[LoadedModel]:
    """Write a float model where onnxruntime and workers can read it, for a while, and open it there."""
    with scratch() as folder:
        stage = Stage(folder / ready.name, folder)
        try:
            stage.write(ready.model)
        except onnx.checker.ValidationError as e:
            raise ModelError(f"The simplified model is not valid ONNX: {root_cause(e)}") from e
        except OSError as e:
            raise ModelError(
                f"The simplified model cannot be written to '{folder}': {e.strerror or e}; set TMPDIR to "
                "a folder with room for it."
            ) from e
        yield load_model(stage.model_path)


def fitting(options: CalibrateOptions, ready: FloatModel) -> CalibrateOptions:
    """Run a model that is too large to be in memory once per core in one process, with all cores for each operator."""
    many = options.scheduler is not None or options.workers is not None
    large = ready.nbytes >= LARGE
    return replace(options, workers=1, threads=cores()) if large and not many else options


def require_same_preparation(was: StaticSettings, now: StaticSettings, model: ir.Model) -> None:
    """Refuse settings for which something else was to be observed or rewritten.

    Args:
        was: What a model was prepared with.
        now: What is asked for.
        model: The prepared model.
    """
    needed, opset = minimum_opset(now, model), opset_of(model)
    for same, message in (
        (
            was.runs_on == now.runs_on,
            f"The model was prepared for {was.runs_on.name}, and {now.runs_on.name} is asked for: prepare it again, with that target.",
        ),
        (
            was.recover == now.recover,
            "What is done to win back accuracy is decided when a model is prepared: prepare it again, with these settings.",
        ),
        (
            was.keep_inputs == now.keep_inputs,
            "Which inputs become constants is decided when a model is prepared: prepare it again, with these settings.",
        ),
        (
            needed <= opset,
            f"These types need opset {needed}, and the model was prepared in opset {opset}: prepare it again, with these types.",
        ),
    ):
        if not same:
            raise UsageError(message)
