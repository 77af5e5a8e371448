"""`compare_models`: what differs between two model files.

What they say about themselves (versions, metadata, inputs and outputs), their nodes and weights, and the scales and zero
points of activations that both quantize.
"""

import filecmp
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from quantkit.evaluate.diff.nodes import Change, NodesDiff, nodes_diff
from quantkit.evaluate.diff.stored import dtype_name
from quantkit.evaluate.diff.tensor_errors import TensorErrors, tensor_errors
from quantkit.evaluate.diff.weights import WeightsDiff, weights_diff
from quantkit.evaluate.match import ModelPair, base_name, pair_nodes
from quantkit.evaluate.match.correspondence import Quantizer, quantizer_in
from quantkit.model.graph.load import LoadedModel
from quantkit.model.ops.integer_ops import INTEGER_OPS, IntegerOp, Role
from quantkit.runtime.synthetic_inputs import Feeds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleChange:
    """A tensor that is quantized in both models, not alike.

    Attributes:
        tensor: Its name.
        a: In the first model.
        b: In the second.
        ratio: The second's scale over the first's: above 1 the steps became coarser.
    """

    tensor: str
    a: Quantizer
    b: Quantizer
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalesDiff:
    """What became of quantized activations.

    Attributes:
        equal: How many have the same type, scale and zero point in both.
        changed: The others that are quantized in both; the largest change of scale first.
        only_a: Quantized only in the first model.
        only_b: Quantized only in the second.
    """

    equal: int
    changed: tuple[ScaleChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


def _scales_diff(a: ir.Model, b: ir.Model) -> ScalesDiff:
    """Compare what QuantizeLinear and integer kernels say of the tensors that they make."""
    left, right = dict(_fixed_scales(a)), dict(_fixed_scales(b))
    both = [tensor for tensor in left if tensor in right]
    changed = [
        ScaleChange(
            tensor=tensor,
            a=left[tensor],
            b=right[tensor],
            ratio=_step(right[tensor]) / _step(left[tensor]),
        )
        for tensor in both
        if left[tensor] != right[tensor]
    ]
    return ScalesDiff(
        equal=len(both) - len(changed),
        changed=tuple(sorted(changed, key=lambda c: -abs(log(c.ratio)))),
        only_a=tuple(t for t in left if t not in right),
        only_b=tuple(t for t in right if t not in left),
    )


def _step(found: Quantizer) -> float:
    return found.scale or 1.0  # those without one are not compared


def _fixed_scales(model: ir.Model) -> Iterator[tuple[str, Quantizer]]:
    """Yield the tensors that nodes quantize with constant scales."""
    for node in model.graph.all_nodes():
        row = INTEGER_OPS.get(node.op_type)
        if row is None or row.result is None or _is_weight(node, row):
            continue
        value = node.outputs[0]
        # The integers are named after the tensor; what is read may have a name of its own, if it is an output.
        if row.role is Role.CONVERTS and base_name(value.name or "") == value.name:
            value = node.inputs[0] or value
        found = quantizer_in(node, row.result)
        if found is not None and (found.scale or 0) > 0:
            yield base_name(value.name or ""), found


def _is_weight(node: ir.Node, row: IntegerOp) -> bool:
    """Say whether a node quantizes a weight at run time."""
    read = node.inputs[0]
    return row.role is Role.CONVERTS and (read is None or read.is_initializer())


_SHOWN = 70  # characters of a value
_DIGEST = 64  # hexadecimal digits of SHA-256
_DIGEST_SHOWN = 12
# What provenance says of the file that it stands in: any difference below differs here too.
_FOLLOWS = frozenset({"content", "seal"})


def _changes(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the facts that differ, or that one model alone has."""
    return tuple(
        Change(what=key, a=_short(left.get(key, "")), b=_short(right.get(key, "")))
        for key in {**left, **right}
        if left.get(key, "") != right.get(key, "")
    )


def _short(text: str) -> str:
    if len(text) == _DIGEST and set(text) <= set("0123456789abcdef"):
        return text[:_DIGEST_SHOWN]
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _header(model: ir.Model) -> Iterator[tuple[str, str]]:
    yield "IR version", str(model.ir_version or "")
    for domain, version in sorted(model.opset_imports.items()):
        yield f"opset {domain or 'ai.onnx'}", str(version)
    yield "producer", f"{model.producer_name or ''} {model.producer_version or ''}".strip()
    yield "domain", model.domain or ""
    yield "model version", str(model.model_version or "")
    yield "doc string", model.doc_string or ""
    for key, value in sorted(model.metadata_props.items()):
        yield from _entry(key, value)


def _entry(key: str, value: str) -> Iterator[tuple[str, str]]:
    """Yield a metadata entry; one that is a JSON object, as provenance is, leaf by leaf."""
    try:
        plain = json.loads(value) if value.startswith("{") else None
    except (ValueError, RecursionError):
        plain = None
    if isinstance(plain, dict):
        yield from _leaves(key, plain)
    else:
        yield key, value


def _leaves(path: str, plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in sorted(plain.items()):
        if isinstance(value, dict):
            yield from _leaves(f"{path}.{key}", value)
        elif value not in (None, "", []) and key not in _FOLLOWS:
            yield f"{path}.{key}", value if isinstance(value, str) else json.dumps(value)


def _ports(model: ir.Model) -> Iterator[tuple[str, str]]:
    for value in model.graph.inputs:
        if not value.is_initializer():
            yield f"input {value.name}", typed_shape(value)
    for value in model.graph.outputs:
        yield f"output {value.name}", typed_shape(value)


def typed_shape(value: ir.Value) -> str:
    """Return "float32[N, 3, 224, 224]"; a dimension without a name is a question mark."""
    dtype = dtype_name(value.dtype) if value.dtype is not None else "?"
    if value.shape is None:
        return dtype
    extents = (n if isinstance(n, int) else (n.value or "?") for n in value.shape.dims)
    return f"{dtype}[{', '.join(str(n) for n in extents)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """Bytes of one cause in both models."""

    cause: str
    a: int
    b: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDiff:
    """What differs between two models.

    Attributes:
        a: Path of the first.
        b: Path of the second.
        identical: The files have the same bytes; then nothing was run.
        nbytes: Size of both, external data included.
        header: Versions and metadata that differ.
        ports: Inputs and outputs that differ.
        nodes: How nodes correspond.
        weights: How weights correspond.
        scales: How activations are quantized.
        sizes: By cause, in both; they add up to `nbytes`.
        errors: What running both shows.
    """

    a: str
    b: str
    identical: bool
    nbytes: tuple[int, int]
    header: tuple[Change, ...]
    ports: tuple[Change, ...]
    nodes: NodesDiff
    weights: WeightsDiff
    scales: ScalesDiff
    sizes: tuple[SizeChange, ...]
    errors: TensorErrors

    @property
    def computes_the_same(self) -> bool:
        """Whether graph, weights and scales are the same, whatever the files say about themselves."""
        parts = (self.nodes, self.weights, self.scales)
        changed = any(part.changed or part.only_a or part.only_b for part in parts)
        return not (changed or self.ports or self.errors.differ)

    @property
    def same(self) -> bool:
        """Whether no difference was found."""
        return self.identical or (
            self.computes_the_same
            and not self.header
            and not self.nodes.renamed
            and self.nbytes[0] == self.nbytes[1]
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(self)
        )  # no NaN, no Infinity
        return {"kind": "models", "same": self.same, **plain}


def compare_models(
    a: Path,
    b: Path,
    *,
    samples: Sequence[Feeds] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> ModelDiff:
    """Compare two model files.

    Args:
        a: The first: float, or the last release.
        b: The second.
        samples: Inputs to run both on; without, one is made up from the signature.
        progress: Told what begins.

    Raises:
        ModelError: One of the two cannot be read.
        DataError: The models do not run on the samples.
    """
    progress("Reading both models")
    pair = ModelPair.of(a, b)
    for model in pair.sides:
        model.loaded.require_weights()
    # Weights are compared as a runtime has them, not as the nodes that unpack them.
    first, second = pair.a.unpacked, pair.b.unpacked
    identical = _identical(pair.a.loaded, pair.b.loaded)
    progress("Matching nodes")
    pairs = pair_nodes(first, second)
    nodes = nodes_diff(first, second, pairs)
    progress("Comparing weights")
    weights = weights_diff(first, second, pairs)
    errors = TensorErrors()
    if not identical:
        progress("Running both models")
        errors = tensor_errors(pair, samples, progress)
    return ModelDiff(
        a=str(a),
        b=str(b),
        identical=identical,
        nbytes=(pair.a.loaded.nbytes, pair.b.loaded.nbytes),
        header=_changes(dict(_header(first)), dict(_header(second))),
        ports=_changes(dict(_ports(first)), dict(_ports(second))),
        nodes=nodes,
        weights=weights,
        scales=_scales_diff(first, second),
        sizes=_sizes(pair),
        errors=errors,
    )


def _identical(a: LoadedModel, b: LoadedModel) -> bool:
    """Say whether all files have the same contents, one after the other."""
    return len(a.files) == len(b.files) and all(
        filecmp.cmp(x, y, shallow=False) for x, y in zip(a.files, b.files, strict=True)
    )


def _sizes(pair: ModelPair) -> tuple[SizeChange, ...]:
    before = {part.cause: part.nbytes for part in pair.a.accounts.parts}
    after = {part.cause: part.nbytes for part in pair.b.accounts.parts}
    found = [
        SizeChange(cause=cause, a=before.get(cause, 0), b=after.get(cause, 0))
        for cause in {**before, **after}
    ]
    return tuple(sorted(found, key=lambda s: -max(s.a, s.b)))
