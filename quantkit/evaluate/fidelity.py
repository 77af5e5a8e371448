"""Whether a file means the same wherever it runs: with and without optimization, on this CPU and on others.

The default session against one that optimizes nothing: does the file mean what onnxruntime makes of it?
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.evaluate.accuracy.drift import floored_db
from quantkit.evaluate.integer_layers import clips, layers_among, worst_db
from quantkit.evaluate.match import LARGE, SharedModel
from quantkit.model.graph.mapping import mapped_model
from quantkit.numerics.pairs import PAIR_LIMIT, pair_peak
from quantkit.result import Fidelity
from quantkit.runtime.saturation import IntegerProduct, integer_products
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, make_session, readable_ir_version
from quantkit.runtime.synthetic_inputs import Feeds
from quantkit.targets import this_machine

_DECISIONS = 2  # axes of an output that holds scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """How far the two are apart.

    Attributes:
        db: SQNR of the worst output, over all samples; None: equal, or not compared.
        largest: The largest absolute difference.
        flips: Rows of scores with another maximum; None without scores.
        samples: How many were compared.
        note: What could not be compared, and why.
    """

    db: float | None = None
    largest: float = 0.0
    flips: int | None = None
    samples: int = 0
    note: str = ""


@dataclass(slots=True)
class _Sums:
    """Of one output: power of signal and of difference, and what `Plain` says of it."""

    signal: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    flips: int | None = None
    other_shape: bool = False
    broken: int = 0  # values that one of the two alone has finite

    def add(self, plain: NDArray[Any], usual: NDArray[Any]) -> None:
        """Take in one sample; values that are not finite in either are left out of the sums."""
        if plain.shape != usual.shape:
            self.other_shape = True
            return
        if plain.dtype.kind not in "biuf":
            return
        expected, actual = plain.astype(np.float64), usual.astype(np.float64)
        finite = np.isfinite(expected) & np.isfinite(actual)
        self.broken += int((np.isfinite(expected) != np.isfinite(actual)).sum())
        difference = expected[finite] - actual[finite]
        self.signal += float(np.square(expected[finite]).sum())
        self.noise += float(np.square(difference).sum())
        self.largest = max(self.largest, float(np.abs(difference).max(initial=0)))
        if plain.dtype.kind == "f" and plain.ndim == _DECISIONS and plain.shape[1] > 1:
            changed = int((expected.argmax(axis=1) != actual.argmax(axis=1)).sum())
            self.flips = (self.flips or 0) + changed

    @property
    def db(self) -> float | None:
        """The SQNR; None if there is no difference."""
        return floored_db(self.signal / self.noise) if self.noise else None


def _compare_plain(model: SharedModel, samples: Sequence[Feeds]) -> Plain:
    """Run both on the samples, one after the other, keeping sums only.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: the default session does not load or run.
    """
    usual = _usual(model)
    try:
        plain = model.inner(model.structure.outputs)
        if samples:
            plain.run(samples[0])
    except RUNTIME_ERRORS as e:
        return Plain(
            note=f"It does not run with optimization off, so that was not compared: {first_line(e)}."
        )
    names = list(plain.outputs)
    sums = {name: _Sums() for name in names}
    for sample in samples:
        pairs = zip(plain.run(sample).values(), usual.run(names, dict(sample)), strict=True)
        for one, (expected, actual) in zip(sums.values(), pairs, strict=True):
            if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
                one.add(expected, actual)
    return _joined(sums, len(samples))


def _joined(sums: Mapping[str, _Sums], samples: int) -> Plain:
    found = [one.db for one in sums.values()]
    flips = [one.flips for one in sums.values() if one.flips is not None]
    return Plain(
        db=min((db for db in found if db is not None), default=None),
        largest=max((one.largest for one in sums.values()), default=0.0),
        flips=sum(flips) if flips else None,
        samples=samples,
        note=next(filter(None, (_note(name, one) for name, one in sums.items())), ""),
    )


def _note(output: str, found: _Sums) -> str:
    if found.other_shape:
        return f"Output '{output}' has another shape with optimization off."
    if found.broken:
        return f"Output '{output}': {found.broken} values are finite in only one of the two sessions (default, optimization off)."
    return ""


def _usual(model: SharedModel) -> Any:
    """Return a session as users make it; of a large file one that maps its weights and goes with its user."""
    if model.loaded.nbytes < LARGE:
        return model.session
    mapped = mapped_model(model.path, readable_ir_version)
    return make_session(mapped.structure, folder=mapped.folder, prepack=False)


_MOST = 8  # products that are computed by the reference
_POSITIONS = 32  # of each sample
_WORK = 1 << 27  # multiplications per product
_PROBE = (16, 64)  # rows and summands: enough for the kernel that real products get
# Rounding once more or less in an integer kernel leaves more than this; so does another order of sums.
_ROUNDING_DB = 20.0
_FIX = "Fix: `quantkit quantize static`, or reduce_range=True in onnxruntime.quantization."


def fidelity_of(
    model: SharedModel,
    samples: Sequence[Feeds],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Fidelity:
    """Compare the default session with optimization off, and integer products with saturating sums.

    Of the products that could saturate at most 8 are computed, those with the largest pairs, on 32 positions of each
    sample or fewer.

    Args:
        model: The model.
        samples: What to run; fewer are faster, and none only reads the weights.
        progress: Is told what is being done.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load or run the model as users do.
    """
    progress("Running with optimization off")
    plain = _compare_plain(model, samples)
    products = list(integer_products(model.unpacked))
    unsafe = [p for p in products if clips(p)]
    worst = _Worst()
    if unsafe and samples:
        progress("Computing integer layers as other CPUs do")
        worst = _worst(model.path, unsafe, samples)
    return Fidelity(
        plain_db=plain.db,
        plain_max=plain.largest,
        plain_flips=plain.flips,
        samples=plain.samples,
        products=len(products),
        unsafe=tuple(p.node.name or "" for p in unsafe),
        saturated_db=worst.db,
        this_cpu=_this_cpu(),
        portable=not unsafe,
        sentence=" ".join(
            filter(None, (_optimization_text(plain), _sentence(len(products), len(unsafe), worst)))
        ),
    )


@cache
def saturates_here() -> bool:
    """Multiply the largest integers by MatMulInteger and see whether their sums are clipped."""
    rows, k = _PROBE
    weight = ir.tensor(np.full((k, rows), 127, np.int8), name="w")
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape([rows, k]))
    w = ir.Value(
        name="w", type=ir.TensorType(weight.dtype), shape=ir.Shape([k, rows]), const_value=weight
    )
    product = ir.node("MatMulInteger", [x, w])
    product.outputs[0].name = "y"
    product.outputs[0].type = ir.TensorType(ir.DataType.INT32)
    opsets = {"": 13}
    graph = ir.Graph(
        [x], product.outputs, nodes=[product], initializers=[w], opset_imports=opsets, name="probe"
    )
    proto = ir.serde.serialize_model(ir.Model(graph, ir_version=8))
    (sums,) = make_session(proto.SerializeToString(), threads=1).run(
        None, {"x": np.full((rows, k), 255, np.uint8)}
    )
    return bool((sums != k * 255 * 127).any())


def _this_cpu() -> str:
    does = "saturates sums of two products at 16 bits"
    if not saturates_here():
        does = "accumulates without saturation"
    return f"{this_machine()}: {does}"


@dataclass(frozen=True, slots=True)
class _Worst:
    """What saturation would do to the worst product.

    Attributes:
        db: SQNR of its sums, saturated against exact; None: they are equal.
        computed: How many products were computed.
        note: Why they were not.
    """

    db: float | None = None
    computed: int = 0
    note: str = ""


def _worst(path: Path, unsafe: Sequence[IntegerProduct], samples: Sequence[Feeds]) -> _Worst:
    chosen = sorted(unsafe, key=_excess, reverse=True)[:_MOST]
    try:
        layers = layers_among(path, chosen, samples, _POSITIONS, _WORK)
    except RUNTIME_ERRORS as e:
        return _Worst(note=f"it does not run with optimization off ({first_line(e)})")
    noise = worst_db(layers)
    computed = sum(layer.sums > 0 for layer in layers)
    return _Worst(None if noise is None else -noise, computed)


def _excess(product: IntegerProduct) -> float:
    """Return by how much the largest pair of each channel exceeds what fits, on average."""
    peaks = pair_peak(product.columns.astype(np.int32))
    return float(np.maximum(peaks - PAIR_LIMIT, 0).mean())


def _optimization_text(plain: Plain) -> str:
    """Say what optimization changed, if that is more than rounding."""
    if plain.note or plain.db is None or plain.db >= _ROUNDING_DB:
        return plain.note
    flips = f" and {plain.flips} decisions differ" if plain.flips else ""
    return f"Optimization changes the outputs: they are {plain.db:.1f} dB from those without it{flips}."


def _sentence(products: int, unsafe: int, worst: _Worst) -> str:
    if not products:
        return "No Conv, Gemm or MatMul with constant int8 weights: nothing can saturate."
    if not unsafe:
        return (
            "Layers give the same integers on AVX2, VNNI and ARM, as none can saturate; Add and Mul in integers may differ by one "
            "step on ARM."
        )
    count = f"{unsafe} of {products} layers can saturate on x86 without VNNI"
    if not worst.computed:
        why = worst.note or "what they read was not to be seen"
        return f"{count}; by how much was not measured: {why}. {_FIX}"
    among = "" if worst.computed == unsafe else f" of the {worst.computed} likeliest"
    if worst.db is None:
        return f"{count}; on these samples none{among} does. {_FIX}"
    where = "there" if not saturates_here() else "as here,"
    other = "from what this CPU computes" if not saturates_here() else "from the exact sums"
    return f"{count}: {where} the worst{among} is {worst.db:.1f} dB {other}. {_FIX}"
