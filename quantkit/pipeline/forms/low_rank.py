"""Linear operators as two of low rank, where that loses less than 4 bits of the same size, and gains time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import PatchMoments
from quantkit.errors import UnreachableError
from quantkit.files import scratch
from quantkit.model.graph.edit import Canvas
from quantkit.model.graph.products import Product
from quantkit.model.graph.save import copy_of
from quantkit.model.ops.view import View
from quantkit.numerics.second_order import damped, damping_share
from quantkit.pipeline.form import Attempt, Draft, FormResult, require_signal, require_smaller
from quantkit.pipeline.forms.sparse import ObservedForm, moments_of
from quantkit.pipeline.measure import file_of, time_ratios
from quantkit.pipeline.prepared import Prepared
from quantkit.pipeline.static_model import runnable
from quantkit.reduce.prune.low_rank import LowRank, low_rank
from quantkit.reduce.prune.surroundings import bias_of
from quantkit.runtime.taps import read_tensors

_POSITIONS = 64  # of a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankPlan:
    """What a low rank loses next to 4 bits of the same size, by operator.

    Attributes:
        layers: Rank, SQNR of the output in dB, and that with 4 bits.
        gains: The operators that lose less at low rank.
    """

    layers: Mapping[str, tuple[int, float, float]]
    gains: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether any operator gains."""
        return bool(self.gains)

    def __str__(self) -> str:
        rows = [
            f"{node}: rank {rank}, {db:.1f} dB, with 4 bits {bits:.1f} dB"
            for node, (rank, db, bits) in self.layers.items()
            if node in self.gains
        ]
        head = f"low rank in {len(self.gains)} of {len(self.layers)} layers"
        return self.refusal or "\n".join([head, *rows])

    @property
    def refusal(self) -> str:
        """Why no layer gains; "" if any does."""
        if self.gains:
            return ""
        if not self.layers:
            return "No layer gains from a low rank: none was observed that is large enough."
        node, (rank, db, bits) = max(self.layers.items(), key=lambda one: one[1][1] - one[1][2])
        return (
            f"No layer gains from a low rank: of {len(self.layers)} none loses less than with 4 bits of the same size "
            f"(nearest: '{node}', rank {rank}, {db:.1f} dB against {bits:.1f} dB). Use `quantkit quantize static --weight-bits 4`."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        layers = {node: list(own) for node, own in self.layers.items()}
        return {"layers": layers, "gains": list(self.gains)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankDraft(Draft):
    """The thin matrices of the operators that gain."""

    plan: LowRankPlan
    found: tuple[tuple[Product, LowRank], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LowRankResult(FormResult):
    """A file with operators of low rank.

    Attributes:
        speed: Latency as a multiple of float's.
    """

    plan: LowRankPlan
    speed: float = field(default=1.0)

    @property
    def measured(self) -> list[str]:
        """What was measured, line by line."""
        return [str(self.plan), *self._runs(), self._checked()]

    def _runs(self) -> list[str]:
        return [f"latency: {self.speed:.2f} of float"]

    def _inside(self) -> dict[str, Any]:
        return {**super(LowRankResult, self)._inside(), "speed": self.speed}


class LowRankForm(ObservedForm[LowRankDraft]):
    """Writes operators as two thin ones: whitened, means taken up by the bias."""

    reports: ClassVar[type[FormResult]] = LowRankResult

    def plan(self, prepared: Prepared) -> LowRankDraft:
        """Compare a low rank with 4 bits of the same size, on samples that neither is fitted to."""
        self.monitor.stage("Comparing low ranks with 4 bits")
        view = prepared.ready.view
        products = [p for p in self.products(prepared) if _is_matrix(p, view)]
        seen, judged = moments_of(prepared), _judged(prepared, products)
        found = []
        for product in products:
            own, other = seen(product), judged[product.node]
            if own is None or not own.count or not other.count:
                continue
            centred = bool(bias_of(view, product))
            rows = product.layout.rows(np.asarray(prepared.ready.tensors[product.weight].numpy()))
            one = low_rank(
                rows[0].astype(np.float64), _h(own, centred=centred), _h(other, centred=centred)
            )
            if one is not None:
                found.append((product, one))
        layers = {
            p.node: (one.rank, round(one.sqnr, 2), round(one.bits_sqnr, 2)) for p, one in found
        }
        gains = tuple((p, one) for p, one in found if one.gains)
        plan = LowRankPlan(layers=layers, gains=tuple(p.node for p, _ in gains))
        if self.writes and not plan.changes:
            raise UnreachableError(plan.refusal)
        return LowRankDraft(plan=plan, found=gains)

    def emit(self, prepared: Prepared, draft: LowRankDraft) -> ir.Model:
        """Return a copy with two thin operators for each that gains."""
        model = copy_of(prepared.ready.model)
        canvas = Canvas(model)
        nodes = {node.name: node for node in model.graph}
        seen = moments_of(prepared)
        for product, one in draft.found:
            moments = seen(product)
            assert moments is not None  # noqa: S101 - it was compared by them
            node = nodes[product.node]
            weight = product.layout.rows(
                np.asarray(prepared.ready.tensors[product.weight].numpy())
            )[0]
            shift = (weight - one.left @ one.right) @ moments.mean[0]
            _split(canvas, node, product, one)
            if bias := bias_of(prepared.ready.view, product):
                _add(model, bias, shift)
        return model

    def check(self, attempt: Attempt[Prepared, LowRankDraft]) -> None:
        """Refuse noise."""
        require_signal(attempt.checked)
        require_smaller(attempt.prepared.source, attempt.nbytes)

    def inspect(self, attempt: Attempt[Prepared, LowRankDraft]) -> dict[str, Any]:
        """Time the file next to float; refuse it where it gains no time."""
        self.monitor.stage("Timing it next to float")
        with scratch() as folder:
            source = file_of(attempt.prepared.source, folder)
            ((ratio, interval),) = time_ratios([source, attempt.path], attempt.prepared.judged[:1])
        if ratio >= 1 or (interval is not None and interval.high >= 1):
            raise UnreachableError(
                f"No layer gains from a low rank: with {len(attempt.draft.plan.gains)} of them the model takes {ratio:.2f} of float's latency."
            )
        return {"speed": ratio}


def _is_matrix(product: Product, view: View) -> bool:
    """Say whether an operator multiplies by one matrix, which it alone has as it stands."""
    shape = product.layout.shape
    node = next(n for n in view.nodes if n.name == product.node)
    return (
        product.layout.group == 1
        and all(n == 1 for n in shape[2:])
        and node.inputs[1] == product.weight
    )


def _judged(prepared: Prepared, products: Iterable[Product]) -> dict[str, PatchMoments]:
    """Return the moments of what operators consume on the judged samples, by node."""
    found = {p.node: PatchMoments(p.window, _POSITIONS) for p in products}
    reads = {p.node: p.reads for p in products}
    with runnable(prepared.ready) as written:
        assert written.path is not None  # noqa: S101 - it was written
        for tensors in read_tensors(written.path, reads.values(), prepared.judged):
            for node, moments in found.items():
                if reads[node] in tensors:
                    moments.observe(tensors[reads[node]])
    return found


def _h(moments: PatchMoments, *, centred: bool) -> NDArray[np.float64]:
    seen = (moments.covariance if centred else moments.second)[0]
    return damped(seen, damping_share(len(seen), moments.count))


def _split(canvas: Canvas, node: ir.Node, product: Product, one: LowRank) -> None:
    """Let an operator be the second of two: a new one before it multiplies by the thin matrix of its inputs."""
    layout, graph = product.layout, canvas.model.graph
    weights = []
    for name, rows in (("right", one.right), ("left", one.left)):
        shape = list(layout.shape)
        shape[layout.channel], shape[layout.summed[-1]] = rows.shape
        thin = replace(layout, shape=tuple(shape)).shaped(rows[np.newaxis])
        array = np.ascontiguousarray(thin, np.float32)
        weights.append(canvas.constant(graph, array, f"{product.weight}_{name}"))
    right, left = weights
    source = node.inputs[0]
    assert source is not None  # noqa: S101 - it multiplies something
    (between,) = canvas.node(
        node.op_type,
        [source, right],
        before=node,
        attributes=dict(node.attributes),
        outputs=[f"{product.node}_low_rank"],
    )
    node.replace_input_with(0, between)
    node.replace_input_with(1, left)
    del graph.initializers[product.weight]
    for name in ("strides", "pads", "dilations", "auto_pad"):
        node.attributes.pop(name, None)


def _add(model: ir.Model, name: str, shift: NDArray[Any]) -> None:
    """Add to a constant."""
    value = model.graph.initializers[name]
    assert value.const_value is not None  # noqa: S101 - it is a constant
    array = value.const_value.numpy()
    value.const_value = ir.Tensor(
        (array + shift.reshape(array.shape)).astype(array.dtype), name=name
    )
