"""onnxruntime's `MatMulNBitsQuantizer`, its configurations, and its command: weights of few bits in blocks.

    python -m quantkit.ort.matmul_nbits_quantizer --input_model IN --output_model OUT

Flags are onnxruntime's; ``quantkit quantize weights`` is the command with quantkit's own.
"""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnxruntime.quantization import matmul_nbits_quantizer as theirs
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
    parse_args,
)
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.quant_utils import QuantFormat

from quantkit.api.arguments import checked_names
from quantkit.api.quantize import plan_weights, quantize_weights
from quantkit.errors import (
    NothingToQuantizeError,
    OutputError,
    QuantkitError,
    UnsupportedError,
    UsageError,
    as_os_error,
)
from quantkit.files import scratch
from quantkit.model.graph.edit import own_name
from quantkit.model.graph.load import load, read_structure
from quantkit.model.graph.protos import to_ir
from quantkit.model.graph.save import staged
from quantkit.ort._passthrough import forward
from quantkit.ort.dynamic import told
from quantkit.pipeline.apart import write_float
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.blocks import grid_of, slow_path
from quantkit.quantize.plan.model import kernel_bits
from quantkit.quantize.plan.selection import resolve_names
from quantkit.reasons import Why, because
from quantkit.settings import WeightsSettings

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

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
    "main",
    "parse_args",
]

__getattr__ = forward(__name__)


def settings_of(config: Any, given: "MatMulNBitsQuantizer") -> WeightsSettings:
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


def quantize_in_blocks(
    model: Source, output: Path, config: Any, given: "MatMulNBitsQuantizer"
) -> QuantizeResult:
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
    model: ir.Model, settings: WeightsSettings, given: "MatMulNBitsQuantizer"
) -> tuple[WeightsSettings, list[str]]:
    """Return the settings with the operator types and nodes that are meant, and what is to be said of them.

    As with onnxruntime, nodes that are included come beside those of the operator types. Products of two activations are
    left out: nobody who says MatMul means them.
    """
    nodes = {own_name(node): node for node in model.graph.all_nodes()}
    added = resolve_names(given.nodes_to_include or (), frozenset(nodes))
    types = {*settings.op_types, *(nodes[name].op_type for name in added)}
    meant = [n for n, node in nodes.items() if n in added or node.op_type in settings.op_types]
    left = {n for n, node in nodes.items() if node.op_type in types and n not in meant}
    left |= {n for n in meant if not any(map(_is_constant, nodes[n].inputs))}
    notes = [
        f"nodes_to_exclude: the model has no node '{name}'."
        for name in sorted(given.nodes_to_exclude)
        if name not in nodes
    ]
    if added and all(nodes[name].op_type in settings.op_types for name in added):
        notes.append(
            f"nodes_to_include changes nothing: all of {', '.join(sorted(types))} are quantized, as with onnxruntime. For some "
            "alone use quantkit.quantize_weights(model, output, nodes_to_quantize=[...])."
        )
    left |= nodes.keys() & given.nodes_to_exclude
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
    nodes = {own_name(node): node for node in graph.all_nodes()}
    plan = plan_weights(model, weights=settings)
    notes = []
    for name, wanted in custom.items():
        own = _own(name, wanted, settings)
        held = [] if name not in nodes else [own_name(v) for v in filter(None, nodes[name].inputs)]
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


def _without_effect(config: Any, given: "MatMulNBitsQuantizer") -> Iterable[str]:
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


def _in_either_format(kind: Any) -> Any:
    """Return a subclass of one of onnxruntime's configurations that accepts QDQ, which onnxruntime cannot write."""

    @wraps(kind.__init__)
    def keep(self: Any, *args: Any, **options: Any) -> None:
        given = signature(kind).bind(*args, **options)
        wanted = given.arguments.pop("quant_format", QuantFormat.QOperator)
        kind.__init__(self, *given.args, **given.kwargs)
        self.quant_format = wanted

    return type(kind.__name__, (kind,), {"__init__": keep, "__doc__": kind.__doc__})


RTNWeightOnlyQuantConfig = _in_either_format(theirs.RTNWeightOnlyQuantConfig)
KQuantWeightOnlyQuantConfig = _in_either_format(theirs.KQuantWeightOnlyQuantConfig)
GPTQWeightOnlyQuantConfig = _in_either_format(theirs.GPTQWeightOnlyQuantConfig)
HQQWeightOnlyQuantConfig = _in_either_format(theirs.HQQWeightOnlyQuantConfig)


class MatMulNBitsQuantizer:
    """Stores weights in 2 to 8 bits, in blocks: MatMul becomes MatMulNBits, Gather GatherBlockQuantized.

    `process` quantizes; `model` then holds the result (``model.save_model_to_file(path)``).
    """

    def __init__(  # noqa: PLR0913 - onnxruntime's signature
        self,
        model: onnx.ModelProto | str | Path,
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,  # noqa: FBT001 - onnxruntime's signature
        accuracy_level: int | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        nodes_to_include: list[str] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: tuple[str, ...] | None = None,
        quant_axes: tuple[tuple[str, int], ...] | None = None,
        channel_wised_quantize: bool = False,  # noqa: FBT001
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        """Keep what is asked for.

        Args:
            model: The float model, in memory or as a path.
            bits: Of a weight, 2 to 8.
            block_size: Neighbours that share a scale: 16 to 256.
            is_symmetric: Zero points in the middle.
            accuracy_level: Of MatMulNBits; None: 4, activations are rounded to 8 bits inside the kernel.
            nodes_to_exclude: Never these nodes.
            nodes_to_include: These nodes beside those of the operator types.
            quant_format: QOperator, onnxruntime's own operators; QDQ, DequantizeLinear of blocks.
            op_types_to_quantize: Only these operator types; None: MatMul.
            quant_axes: Along which axis blocks run, by operator type: MatMul 0, Gather 1.
            channel_wised_quantize: Not supported.
            algo_config: How weights are rounded. What it says is not taken from the arguments above.

        Raises:
            QuantkitError: The model is not there, or what is asked for cannot be done.
        """
        self.model_path = str(model) if isinstance(model, str | Path) else None
        if self.model_path is not None:
            read_structure(Path(self.model_path))
        elif isinstance(model, onnx.ModelProto):
            self.model = ONNXModel(model)
        else:
            raise UsageError(
                f"A model is given as a path or an onnx.ModelProto, not as {type(model).__name__}."
            )
        self.bits = bits
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.accuracy_level = accuracy_level
        self.nodes_to_exclude = set(checked_names(nodes_to_exclude, "nodes_to_exclude"))
        included = checked_names(nodes_to_include, "nodes_to_include")
        self.nodes_to_include = set(included) if included else None
        self.algo_config = algo_config or DefaultWeightOnlyQuantConfig(
            block_size=block_size,
            is_symmetric=is_symmetric,
            accuracy_level=accuracy_level,
            quant_format=quant_format,
            op_types_to_quantize=op_types_to_quantize,
            quant_axes=quant_axes,
            bits=bits,
        )
        if channel_wised_quantize and algo_config is None:
            self.algo_config.channel_wised_quantize = True  # refused below, with the reason
        settings_of(self.algo_config, self)

    @cached_property
    def model(self) -> ONNXModel:
        """The model: float before `process`, quantized behind it. That of a path is read when it is asked for."""
        assert self.model_path is not None  # noqa: S101 - one in memory is set
        return ONNXModel(onnx.load(self.model_path))

    def process(self) -> QuantizeResult:
        """Quantize; the result is checked, loaded, run and compared with float before it takes the model's place.

        Returns:
            What was done to each node and why; its warnings are logged.

        Raises:
            QuantkitError: With one line that says what is wrong. The model stays as it was.
        """
        held: ONNXModel | None = self.__dict__.get("model")  # somebody may have changed it
        source = self.model_path if held is None else held.model
        assert source is not None  # noqa: S101 - one of the two is there
        with scratch() as folder:
            path = folder / "quantized.onnx"
            result = quantize_in_blocks(source, path, self.algo_config, self)
            self.model = ONNXModel(onnx.load(path))
        return result


_CONFIGS: dict[str, Callable[..., WeightOnlyQuantConfig]] = {
    "default": DefaultWeightOnlyQuantConfig,
    "hqq": HQQWeightOnlyQuantConfig,
    "rtn": RTNWeightOnlyQuantConfig,
    "k_quant": KQuantWeightOnlyQuantConfig,
    "gptq": GPTQWeightOnlyQuantConfig,
    "nvidia_awq": partial(WeightOnlyQuantConfig, "nvidia_awq"),
}


def _config(given: Namespace) -> WeightOnlyQuantConfig:
    """Return the configuration of the method, with those of the flags that it takes."""
    kind = _CONFIGS[given.quant_method]
    flags = vars(given) | {
        "is_symmetric": given.symmetric is not False,
        "quant_format": QuantFormat[given.quant_format],
    }
    return kind(**{name: flags[name] for name in signature(kind).parameters if name in flags})


def _flags() -> Namespace:
    given: Namespace = parse_args()
    if not any(flag.startswith("--s") for flag in sys.argv):  # then the method decides
        given.symmetric = None
    return given


def main() -> None:
    """Quantize as the command line says.

    Raises:
        QuantkitError: With one line that says what is wrong. Nothing is written then.
    """
    given = _flags()
    if given.verbose:
        logging.basicConfig(level=logging.DEBUG)
    if Path(given.output_model).exists():
        said = f"'{given.output_model}' is there already: remove it, or name another file."
        raise as_os_error(OutputError(said), FileExistsError)
    quantizer = MatMulNBitsQuantizer(
        given.input_model,
        bits=given.bits,
        block_size=given.block_size,
        is_symmetric=bool(given.symmetric),
        accuracy_level=given.accuracy_level,
        nodes_to_exclude=given.nodes_to_exclude,
        nodes_to_include=given.nodes_to_include,
        algo_config=_config(given),
    )
    quantizer.process()
    with staged(Path(given.output_model)) as stage:
        stage.write(to_ir(quantizer.model.model), external=True)
        stage.commit()


if __name__ == "__main__":
    try:
        main()
    except QuantkitError as e:
        sys.stderr.write(f"error: {e}\n")
        sys.exit(2)
