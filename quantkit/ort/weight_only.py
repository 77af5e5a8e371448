"""What onnxruntime's arguments about weights in blocks ask of `quantkit.quantize_weights`, and the call."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from quantkit.api.arguments import checked_names
from quantkit.api.quantize import plan_weights, quantize_weights
from quantkit.errors import NothingToQuantizeError, UnsupportedError, UsageError
from quantkit.model.graph.load import load
from quantkit.ort.dynamic import told
from quantkit.pipeline.result import QuantizeResult
from quantkit.pipeline.write_float import write_float
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.blocks import grid_of, slow_path
from quantkit.quantize.plan.model import kernel_bits
from quantkit.quantize.plan.selection import resolve_names
from quantkit.reasons import Why, because
from quantkit.settings import WeightsSettings

__all__ = ["Given", "quantize_in_blocks", "settings_of"]

Source = str | Path | onnx.ModelProto

# How ranges of blocks are chosen, by onnxruntime's name of an algorithm. k_quant has no counterpart: it searches
# scale and zero of each block for the least weighted squared error, and "mse" is the nearest to that.
_METHODS = {"DEFAULT": "minmax", "RTN": "minmax", "HQQ": "hqq", "k_quant": "mse", "GPTQ": "mse"}
_FORMATS = {"QOperator": "contrib", "QDQ": "onnx"}
_AXES = {"MatMul": (0, -2), "Gather": (1, -1)}  # of matrices, along which blocks run
_DAMPING = 0.01  # that quantkit.numerics.blocks adds to moments
_SCHEMES = {"sym": True, "asym": False}
_SLOW = frozenset({Why.BLOCKS_SLOW, Why.BLOCKS_CUSTOM_SLOW})
_CUSTOM = ("bits", "group_size", "scheme")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The arguments of a quantizer, beside its configuration.

    Attributes:
        bits: Of a weight, where the configuration does not say.
        block_size: Likewise, neighbours that share a scale.
        is_symmetric: Likewise, zero points in the middle.
        accuracy_level: Likewise, of MatMulNBits.
        include: Nodes beside those of the operator types.
        exclude: Never these nodes.
    """

    bits: int
    block_size: int
    is_symmetric: bool
    accuracy_level: int | None
    include: Collection[str]
    exclude: Collection[str]


def settings_of(config: Any, given: Given) -> WeightsSettings:
    """Return the settings that a configuration, of this package or of onnxruntime, and arguments ask for together.

    Args:
        config: What to do.
        given: What it does not say.

    Raises:
        UsageError: It cannot be done, or makes no sense.
    """
    algorithm = _algorithm(config)
    _refuse(config)
    own = {"DEFAULT", "HQQ"} & {algorithm}  # of GPTQ, block_size is something else
    symmetric = getattr(config, "is_symmetric", given.is_symmetric)
    level = getattr(config, "accuracy_level", None)
    bits = config.bits if own else given.bits
    return WeightsSettings(
        bits=bits,
        embedding_bits=bits,
        block=config.block_size if own else given.block_size,
        symmetric=bool(symmetric) and algorithm != "HQQ",
        accuracy_level=given.accuracy_level if level is None else level,
        format=_format(config.quant_format),  # type: ignore[arg-type]  # checked there
        method=_method(algorithm, symmetric=bool(symmetric)),  # type: ignore[arg-type]
        op_types=tuple(sorted(checked_names(config.op_types_to_quantize, "op_types_to_quantize"))),
        # What is asked for is done, also what is not faster by it.
        force=True,
        measure=False,
    )


def _method(algorithm: str, *, symmetric: bool) -> str:
    """Return how ranges are chosen.

    onnxruntime's own kernel gives the larger end of a symmetric block the code that the other end lacks, by a negative
    scale. Scales are positive here: minmax loses 0.6 dB by that in 4 bits, and "mse" wins it back (0.2 dB better; in
    2 bits 0.6 dB worse: means of six single layers in blocks of 128).
    """
    return "mse" if algorithm == "DEFAULT" and symmetric else _METHODS[algorithm]


def _algorithm(config: Any) -> str:
    algorithm = getattr(config, "algorithm", None)
    if algorithm in _METHODS:
        return str(algorithm)
    if algorithm == "nvidia_awq":
        raise UnsupportedError(
            "nvidia_awq is not there: quantkit.quantize_weights(model, output, data, weights=WeightsSettings(awq=True)) "
            "does AWQ, with samples of your own."
        )
    kinds = "Default, RTN, HQQ, KQuant or GPTQWeightOnlyQuantConfig"
    what = type(config).__name__ if algorithm is None else f"one of algorithm {algorithm!r}"
    raise UsageError(f"algo_config is a {kinds}, not {what}.")


def _refuse(config: Any) -> None:
    """Refuse what cannot be done."""
    if getattr(config, "channel_wised_quantize", False):
        raise UnsupportedError(
            "channel_wised_quantize=True: few bits with one scale per channel are not written; use block_size=128, or "
            "quantkit.quantize_static(model, output, data) for 8 bits per channel."
        )
    if getattr(config, "ratios", None):
        raise UnsupportedError(
            "ratios: ranges are not cut by hand; KQuantWeightOnlyQuantConfig() without them tries narrower ranges of each "
            "block and takes the best."
        )
    if getattr(config, "customized_weight_config", None) and _format(config.quant_format) == "onnx":
        raise UnsupportedError("customized_weight_config needs quant_format=QuantFormat.QOperator.")
    if getattr(config, "axis", 1) != 1:
        raise UnsupportedError(
            f"axis={config.axis}: kernels take blocks along the inputs of a layer; use axis=1."
        )
    for op_type, axis in config.quant_axes.items():
        if op_type in config.op_types_to_quantize and axis not in _AXES.get(op_type, (axis,)):
            raise UnsupportedError(
                f"quant_axes: kernels take blocks of {op_type} along axis {_AXES[op_type][0]}, not {axis}; leave it out."
            )
    if config.algorithm == "GPTQ" and config.calibration_data_reader is None:
        raise UsageError(
            "GPTQWeightOnlyQuantConfig needs a calibration_data_reader; without samples use KQuantWeightOnlyQuantConfig(). "
            "On the command line `quantkit quantize weights IN OUT --data SAMPLES` does it."
        )


def _format(quant_format: Any) -> str:
    name = str(getattr(quant_format, "name", quant_format))
    if name not in _FORMATS:
        raise UsageError(f"Unknown format {quant_format!r}: use QuantFormat.QOperator or QDQ.")
    return _FORMATS[name]


def quantize_in_blocks(model: Source, output: Path, config: Any, given: Given) -> QuantizeResult:
    """Quantize as `quantkit.quantize_weights` does; where there is nothing to quantize the float model is written.

    Args:
        model: The float model, which is not touched.
        output: Where to write.
        config: What to do, a configuration of this package or of onnxruntime.
        given: What it does not say.

    Raises:
        QuantkitError: With one line that says what is wrong. Nothing is written then.
    """
    settings, notes = _chosen(load(model).model, settings_of(config, given), given)
    notes += _without_effect(config, given)
    samples = getattr(config, "calibration_data_reader", None)
    custom, plan = getattr(config, "customized_weight_config", None) or {}, None
    try:
        if custom:
            plan, more = _customized(model, settings, custom)
            notes += more
        result = quantize_weights(model, output, samples, weights=settings, plan=plan)
    except NothingToQuantizeError as e:
        said = str(NothingToQuantizeError(e.why, e.advice, "The model stays float"))
        result = write_float(model, output, said)
    notes += _slow(result.plan)
    return told(replace(result, warnings=(*result.warnings, *notes)))


def _chosen(
    model: ir.Model, settings: WeightsSettings, given: Given
) -> tuple[WeightsSettings, list[str]]:
    """Return the settings with the operator types and nodes that are meant, and what is to be said of them.

    As with onnxruntime, nodes that are included come beside those of the operator types. Products of two activations are
    left out: nobody who says MatMul means them.
    """
    nodes = {node.name or "": node for node in model.graph.all_nodes()}
    added = resolve_names(given.include, frozenset(nodes))
    types = {*settings.op_types, *(nodes[name].op_type for name in added)}
    meant = [n for n, node in nodes.items() if n in added or node.op_type in settings.op_types]
    left = {n for n, node in nodes.items() if node.op_type in types and n not in meant}
    left |= {n for n in meant if not any(map(_is_constant, nodes[n].inputs))}
    notes = [
        f"nodes_to_exclude: the model has no node '{name}'."
        for name in sorted(given.exclude)
        if name not in nodes
    ]
    if added and all(nodes[name].op_type in settings.op_types for name in added):
        notes.append(
            f"nodes_to_include changes nothing: all of {', '.join(sorted(types))} are quantized, as with onnxruntime. For some "
            "alone use quantkit.quantize_weights(model, output, nodes_to_quantize=[...])."
        )
    left |= nodes.keys() & set(given.exclude)
    return replace(settings, op_types=tuple(sorted(types)), exclude=tuple(sorted(left))), notes


def _is_constant(value: ir.Value | None) -> bool:
    """Say whether a value is a constant, or one behind a Transpose or Cast."""
    while value is not None:
        if ir.convenience.get_const_tensor(value) is not None:
            return True
        maker = value.producer()
        value = maker.inputs[0] if maker is not None and len(maker.inputs) == 1 else None
    return False


def _customized(
    model: Source, settings: WeightsSettings, custom: Mapping[str, Any]
) -> tuple[Plan, list[str]]:
    """Return the plan with the grids that single nodes are given, and what is to be said."""
    graph = load(model).model.graph
    nodes = {node.name or "": node for node in graph.all_nodes()}
    plan = plan_weights(model, weights=settings)
    notes = []
    for name, wanted in custom.items():
        own = _own(name, wanted, settings)
        held = [] if name not in nodes else [v.name or "" for v in filter(None, nodes[name].inputs)]
        tensor = next((one for one in held if one in plan.weight), "")
        if not tensor or plan.node[name].mode is not Mode.BLOCKS:
            why = plan.node[name].why if name in plan.node else "the model has no such node"
            notes.append(f"customized_weight_config of '{name}' has no effect: {why}.")
            continue
        plan = _with_grid(plan, name, tensor, own)
    return plan, notes


def _own(name: str, wanted: Any, settings: WeightsSettings) -> WeightsSettings:
    """Return the settings of one node."""
    if not isinstance(wanted, Mapping):
        raise UsageError(f"customized_weight_config of '{name}' is no dictionary: {wanted!r}.")
    strange = next((key for key in wanted if key not in _CUSTOM), None)
    if strange is not None:
        raise UsageError(
            f"customized_weight_config of '{name}' has no '{strange}': known are {', '.join(_CUSTOM)}."
        )
    scheme = wanted.get("scheme", "sym" if settings.symmetric else "asym")
    if scheme not in _SCHEMES:
        raise UsageError(f'scheme {scheme!r} of \'{name}\' is unknown: use "sym" or "asym".')
    return replace(
        settings,
        bits=wanted.get("bits", settings.bits),
        block=wanted.get("group_size", settings.block),
        symmetric=_SCHEMES[scheme],
    )


def _with_grid(plan: Plan, name: str, tensor: str, own: WeightsSettings) -> Plan:
    """Store a weight as one of its nodes wants it; all who read it read the same."""
    grid = grid_of(own, own.bits, own.block or 0, kernel=True)
    spec = replace(plan.weight[tensor].spec, symmetric=grid.symmetric)
    stored = replace(plan.weight[tensor], spec=spec, blocks=grid)
    slow = slow_path(kernel_bits(grid.bits), grid.size, own.level)
    why = because(Why.BLOCKS_CUSTOM, bits=grid.bits, block=grid.size)
    if slow is not None:
        why = because(Why.BLOCKS_CUSTOM_SLOW, bits=grid.bits, block=grid.size, against=slow)
    return replace(
        plan,
        weights=tuple(stored if w.tensor == tensor else w for w in plan.weights),
        nodes=tuple(replace(n, reason=why) if n.node == name else n for n in plan.nodes),
    )


def _without_effect(config: Any, given: Given) -> Iterable[str]:
    """Yield what is said of arguments that change nothing."""
    if config.algorithm == "HQQ" and given.is_symmetric:
        yield "is_symmetric=True has no effect: HQQ is about zero points that are not in the middle."
    if config.algorithm == "GPTQ" and config.percdamp != _DAMPING:
        yield f"percdamp={config.percdamp} has no effect: {_DAMPING} is added, and more the fewer samples there are."
    if config.algorithm == "GPTQ" and not config.perchannel:
        yield "perchannel=False has no effect: each block of each channel has a scale of its own."


def _slow(plan: Plan) -> Iterable[str]:
    """Yield what is said of nodes that the kernel computes on its slow path."""
    found = [n for n in plan.nodes if n.reason.why in _SLOW]
    if found:
        yield (
            f"{len(found)} nodes are far slower than float, such as {found[0].op_type} '{found[0].node}': {found[0].why}."
        )
