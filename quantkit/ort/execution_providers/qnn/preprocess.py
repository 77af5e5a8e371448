"""onnxruntime's `qnn_preprocess_model`: a float model with the operators, shapes and layout that QNN wants."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx

from quantkit.errors import ModelError, UsageError, VerifyError
from quantkit.files import check_outputs, destination, put, scratch
from quantkit.graph.load import LoadedModel, external_files, model_files
from quantkit.graph.messages import proto_graphs, root_cause, to_proto
from quantkit.graph.save import Stage
from quantkit.ort.missing import missing
from quantkit.ort.onnx_model import ONNXModel
from quantkit.rewrite.fuse import gelu, layer_normalization, lp_normalization, space_to_depth
from quantkit.rewrite.simplify import simplify
from quantkit.runtime.check_result import run_float
from quantkit.runtime.session import load_model
from quantkit.workflows.apart import compare_apart

__all__ = ["qnn_preprocess_model"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

_WRONG_DB = 40.0  # rounding is far above it
_THRESHOLD = 1024
_LEAST_RANK = 3


def qnn_preprocess_model(  # noqa: PLR0913 - onnxruntime's signature
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    exclude_initializer_from_input: bool = False,  # noqa: FBT001
    fuse_layernorm: bool = False,  # noqa: FBT001
    save_as_external_data: bool = False,  # noqa: FBT001
    all_tensors_to_one_file: bool = False,  # noqa: FBT001
    external_data_location: str | None = None,
    external_data_size_threshold: int = _THRESHOLD,
    external_data_convert_attribute: bool = False,  # noqa: FBT001
    inputs_to_make_channel_last: Sequence[str] | None = None,
    outputs_to_make_channel_last: Sequence[str] | None = None,
    dynamic_input_shapes: Sequence[tuple[str, str]] | None = None,
) -> bool:
    """Write a float model for QNN, if anything is to be changed; it computes the same, which is checked before.

    The model is simplified, and sequences of nodes become Gelu, LpNormalization and SpaceToDepth.

    Args:
        model_input: A path or a model.
        model_output: Where to write.
        exclude_initializer_from_input: Constants are no longer inputs too.
        fuse_layernorm: Sequences become LayerNormalization as well (opset 17 and above).
        save_as_external_data: Write weights to other files.
        all_tensors_to_one_file: To one.
        external_data_location: Its name.
        external_data_size_threshold: Bytes from which on a tensor goes there.
        external_data_convert_attribute: Tensors in attributes too.
        inputs_to_make_channel_last: Inputs (N, C, ...) that become (N, ..., C), with a Transpose behind them.
        outputs_to_make_channel_last: Outputs alike, with a Transpose before them.
        dynamic_input_shapes: Inputs and their extents: [("x", "1,3,224,224")].

    Returns:
        Whether something was changed; nothing is written otherwise.

    Raises:
        UsageError: There is no such input or output, or it has fewer than three axes.
        VerifyError: The result would compute something else; nothing is written.
    """
    target = Path(model_output)
    read = () if isinstance(model_input, onnx.ModelProto) else model_files(Path(model_input))
    check_outputs([target], read)
    proto = _read(model_input)
    changed = any(not n.name for n in proto.graph.node if n.op_type != "Constant")
    changed |= _fix_shapes(proto, dynamic_input_shapes or ())
    if exclude_initializer_from_input:
        changed |= _unlist(proto)
    loaded = load_model(proto)
    fused = _fused(loaded, layers=fuse_layernorm)
    if fused is not None:
        proto = fused
    moved = [*(inputs_to_make_channel_last or ()), *(outputs_to_make_channel_last or ())]
    if not (changed or fused is not None or moved):
        return False
    held = ONNXModel(proto)
    for name in inputs_to_make_channel_last or ():
        _move_input(held, name)
    for name in outputs_to_make_channel_last or ():
        _move_output(held, name)
    held.clean_initializers()
    held.topological_sort()
    options = {
        "save_as_external_data": save_as_external_data,
        "all_tensors_to_one_file": all_tensors_to_one_file,
        "location": external_data_location,
        "size_threshold": external_data_size_threshold,
        "convert_attribute": external_data_convert_attribute,
    }
    _write(held.model, target, options, read)
    return True


def _read(source: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of one's own, with its weights."""
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        return proto
    load_model(source)  # says what is wrong
    return onnx.load_model(source)


def _fix_shapes(proto: onnx.ModelProto, shapes: Iterable[tuple[str, str]]) -> bool:
    """Give inputs the extents that are asked for; what was inferred before no longer holds."""
    changed = False
    for name, text in shapes:
        declared = _value(proto.graph.input, name, "input")
        try:
            extents = [int(extent) for extent in str(text).split(",")]
        except ValueError as e:
            raise UsageError(
                f"dynamic_input_shapes of '{name}' is '{text}', not '1,3,224,224'."
            ) from e
        dims = declared.type.tensor_type.shape.dim
        if dims and len(dims) != len(extents):
            raise UsageError(f"Input '{name}' has {len(dims)} axes, and {len(extents)} are given.")
        del dims[:]
        for extent in extents:
            dims.add(dim_value=extent)
        changed = True
    if changed:
        del proto.graph.value_info[:]
        for output in proto.graph.output:
            output.type.tensor_type.ClearField("shape")
        proto.CopyFrom(onnx.shape_inference.infer_shapes(proto))
    return changed


def _unlist(proto: onnx.ModelProto) -> bool:
    """Take constants out of the list of inputs."""
    held = {tensor.name for tensor in proto.graph.initializer}
    kept = [value for value in proto.graph.input if value.name not in held]
    changed = len(kept) < len(proto.graph.input)
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return changed


def _fused(loaded: LoadedModel, *, layers: bool) -> onnx.ModelProto | None:
    """Return the simplified model with operators instead of sequences, proved; None if it has no sequences.

    Raises:
        VerifyError: It computes something else.
    """
    reference = run_float(loaded)
    model = loaded.model
    report = simplify(model)
    count = space_to_depth(model) + gelu(model) + lp_normalization(model)
    count += layer_normalization(model) if layers else 0
    if not count and not report.changed:
        return None
    with scratch() as folder:
        stage = Stage(folder / "fused.onnx", folder)
        try:
            nbytes = stage.write(model)
        except onnx.checker.ValidationError as e:
            raise VerifyError(f"The result is not valid ONNX: {root_cause(e)}") from e
        found = compare_apart(stage.model_path, reference, nbytes=nbytes)
    worst = min(found.compared, key=lambda name: found.compared[name], default=None)
    if worst is not None and found.compared[worst] < _WRONG_DB:
        raise VerifyError(
            f"Output '{worst}' of the result is {found.compared[worst]:.1f} dB from the input's; nothing was written."
        )
    return to_proto(model)


def _value(values: Any, name: str, what: str) -> onnx.ValueInfoProto:
    found: onnx.ValueInfoProto | None = next((v for v in values if v.name == name), None)
    if found is None:
        known = ", ".join(value.name for value in values)
        raise UsageError(f"The model has no {what} '{name}' (it has {known}).")
    return found


def _move_input(held: ONNXModel, name: str) -> None:
    """Let an input be channel last: what reads it reads a Transpose of it."""
    declared = _value(held.graph().input, name, "input")
    inside = _declared_inside(held, declared)
    rank = _channel_last(declared)
    for graph in proto_graphs(held.graph()):
        for node in graph.node:
            held.replace_node_input(node, name, inside)
    _transpose(held, (name, inside), [0, rank - 1, *range(1, rank - 1)])


def _move_output(held: ONNXModel, name: str) -> None:
    """Let an output be channel last: it is a Transpose of what it was."""
    declared = _value(held.graph().output, name, "output")
    inside = _declared_inside(held, declared)
    rank = _channel_last(declared)
    if name not in held.output_name_to_node():
        raise UsageError(
            f"Output '{name}' is an input or a constant; its layout cannot be changed."
        )
    held.replace_output_of_all_nodes(name, inside)
    for graph in proto_graphs(held.graph()):
        for node in graph.node:
            held.replace_node_input(node, name, inside)
    _transpose(held, (inside, name), [0, *range(2, rank), 1])


def _declared_inside(held: ONNXModel, declared: onnx.ValueInfoProto) -> str:
    """Return the name of the tensor as it was, which is described as before."""
    taken = {*held.output_name_to_node(), *held.input_name_to_nodes()}
    inside = f"{declared.name}_chanfirst"
    while inside in taken:
        inside += "_"
    described = onnx.ValueInfoProto()
    described.CopyFrom(declared)
    described.name = inside
    held.graph().value_info.append(described)
    return inside


def _channel_last(declared: onnx.ValueInfoProto) -> int:
    """Move the extent of the second axis to the end; return how many axes there are."""
    dims = declared.type.tensor_type.shape.dim
    if len(dims) < _LEAST_RANK:
        raise UsageError(
            f"'{declared.name}' has {len(dims)} axes; what is made channel last has to be of rank >= {_LEAST_RANK}."
        )
    ordered = [dims[0], *dims[2:], dims[1]]
    copies = []
    for extent in ordered:
        copy = onnx.TensorShapeProto.Dimension()
        copy.CopyFrom(extent)
        copies.append(copy)
    del dims[:]
    dims.extend(copies)
    return len(copies)


def _transpose(held: ONNXModel, ends: tuple[str, str], order: Sequence[int]) -> None:
    prefix = "Transpose_channel_"
    number = held.get_largest_node_name_suffix(prefix) + 1
    node = onnx.NodeProto(
        op_type="Transpose", input=[ends[0]], output=[ends[1]], name=f"{prefix}{number}"
    )
    node.attribute.add(name="perm", type=onnx.AttributeProto.INTS, ints=order)
    held.add_node(node)


def _write(
    proto: onnx.ModelProto, target: Path, options: dict[str, Any], read: Iterable[Path]
) -> None:
    """Write a model with its external data, whole or not at all; what onnxruntime does not load is not written.

    Raises:
        ModelError: It is not valid.
        UsageError: A file of the input would be overwritten.
    """
    load_model(proto)
    with scratch(destination(target).parent) as folder:
        made = folder / target.name
        try:
            onnx.save_model(proto, made, **options)
        except (ValueError, OSError) as e:
            raise ModelError(f"The model cannot be written to '{target}': {e}.") from e
        beside = external_files(onnx.load_model(made, load_external_data=False), folder)
        check_outputs([target, *(target.with_name(data.name) for data in beside)], read)
        for data in beside:
            put(data, target.with_name(data.name))
        put(made, destination(target))


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
