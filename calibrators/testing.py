"""The laws of statistics and calibrators, for anyone's implementation.

    from calibrators.testing import check_calibrator

    def test_my_calibrator() -> None:
        check_calibrator(MyCalibrator)

A broken law is an AssertionError that names it. For a calibrator with channels pass a factory that sets its
axis: the built-in arrays all have the shape (4, 6, 5).
"""

from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators.protocol import Calibrator, State, Statistic

Array = NDArray[Any]
S = TypeVar("S", bound=Statistic)
_SHAPE = (4, 6, 5)


def check_calibrator(
    factory: Callable[[], Calibrator], *, arrays: Sequence[Array] | None = None
) -> None:
    """Check every law of a calibrator: those of a statistic, and that its ranges are safe.

    Args:
        factory: Makes a new calibrator, always with the same settings.
        arrays: At least three arrays to observe, instead of the built-in ones.

    Raises:
        AssertionError: A law is broken; the message names it.
    """
    check_statistic(factory, arrays=arrays)
    _check_range(factory(), [], "without arrays")
    for name, array in _edge_cases().items():
        _check_range(_saw(factory, [array]), [array], name)
        _check_range(_saw(factory, [array, *_arrays()[:1]]), [array, *_arrays()[:1]], name)
    for array in arrays or _arrays():
        _check_range(_saw(factory, [array]), [array], "given values")
    _check_same_range(factory, arrays or _arrays())


def check_statistic(
    factory: Callable[[], Statistic], *, arrays: Sequence[Array] | None = None
) -> None:
    """Check the laws that need no range: merging, states, and what is done to the arrays.

    Args:
        factory: Makes a new statistic, always with the same settings.
        arrays: At least three arrays to observe, instead of the built-in ones.

    Raises:
        AssertionError: A law is broken; the message names it.
    """
    given = list(arrays or _arrays())
    if len(given) < 3:  # associativity takes three
        raise ValueError(f"The laws need at least three arrays, not {len(given)}.")
    # The later checks rely on the laws of the earlier ones.
    for name, array in _saw(factory, [a.copy() for a in given]).state().items():
        plain = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
        _hold(plain, f"a state holds plain numeric arrays, but not so '{name}'")
    _check_arrays(factory, given)
    _check_state(factory, given)
    _check_aliases(factory, given)
    _check_empty(factory, given)
    _check_merging(factory, given)


def _check_merging(factory: Callable[[], Statistic], arrays: list[Array]) -> None:
    exact = factory().exact
    whole = _saw(factory, arrays).state()
    for cut in range(1, len(arrays)):
        left, right = arrays[:cut], arrays[cut:]
        merged = _merged(_saw(factory, left), _saw(factory, right))
        _same(merged, whole, "merging shards equals observing the whole", exact=exact)
        back = [
            type(one).from_state(one.state()) for one in (_saw(factory, left), _saw(factory, right))
        ]
        law = "merging shards that were saved and brought back equals observing the whole"
        _same(_merged(*back), whole, law, exact=exact)
        if not factory().ordered:
            swapped = _merged(_saw(factory, right), _saw(factory, left))
            _same(swapped, merged, "merge is commutative", exact=exact)
    if not factory().ordered:
        turned = _saw(factory, arrays[::-1]).state()
        _same(turned, whole, "the order of arrays does not matter", exact=exact)
    a, b, c = arrays[:1], arrays[1:2], arrays[2:]
    left_first, right_first = _saw(factory, a), _saw(factory, b)
    left_first.merge(_saw(factory, b))
    right_first.merge(_saw(factory, c))
    _same(
        _merged(left_first, _saw(factory, c)),
        _merged(_saw(factory, a), right_first),
        "merge is associative",
        exact=exact,
    )


def _check_empty(factory: Callable[[], Statistic], arrays: list[Array]) -> None:
    whole, exact = _saw(factory, arrays).state(), factory().exact
    law = "merging one that saw nothing changes nothing"
    _same(_merged(_saw(factory, arrays), factory()), whole, law, exact=exact)
    _same(_merged(factory(), _saw(factory, arrays)), whole, law, exact=exact)
    _same(_merged(factory(), factory()), factory().state(), law, exact=True)
    empty = np.zeros((0, *_SHAPE[1:]), np.float32)
    _same(_saw(factory, [empty]).state(), factory().state(), "an empty array says nothing")
    _same(_saw(factory, [*arrays, empty]).state(), whole, "an empty array says nothing")


def _check_aliases(factory: Callable[[], Statistic], arrays: list[Array]) -> None:
    """Nothing may be shared between statistics that were merged, nor with a state."""
    law = "merge leaves the other unchanged"
    for first in ([], arrays[:1]):
        mine, other = _saw(factory, first), _saw(factory, arrays[1:])
        before = _copied(other.state())
        mine.merge(other)
        _same(other.state(), before, law)
        mine.observe(arrays[0])
        _same(other.state(), before, law + ", also when more is observed")
        after = _copied(mine.state())
        other.observe(arrays[0])
        _same(mine.state(), after, "what the other observes after a merge is its own")


def _check_state(factory: Callable[[], Statistic], arrays: list[Array]) -> None:
    for seen in ([], arrays[:1], arrays):
        one = _saw(factory, seen)
        state = one.state()
        before = _copied(state)
        _same(one.state(), before, "reading the state changes nothing")
        back = type(one).from_state(state)
        _same(back.state(), before, "a state comes back as it was")
        one.observe(arrays[-1])
        _same(state, before, "a state does not change when more is observed")
        back.observe(arrays[-1])
        _same(back.state(), one.state(), "one brought back goes on like the first")
        _same(state, before, "one brought back does not change the state")


def _check_arrays(factory: Callable[[], Statistic], arrays: list[Array]) -> None:
    for array in arrays:
        given = array.copy()
        one = _saw(factory, [given])
        expected = _copied(one.state())
        _hold(given.tobytes() == array.tobytes(), "observing does not change the array")
        given[...] = 1
        _same(one.state(), expected, "observing keeps no reference to the array")
        given = array.copy()
        given.flags.writeable = False
        _same(_saw(factory, [given]).state(), expected, "a read-only array is taken")
        for laid_out in (np.asfortranarray(array), np.repeat(array, 2, axis=-1)[..., ::2]):
            found = _saw(factory, [laid_out]).state()
            _same(found, expected, "the memory layout does not matter")


def _check_same_range(factory: Callable[[], Calibrator], arrays: Sequence[Array]) -> None:
    one = _saw(factory, arrays)
    back = type(one).from_state(one.state())
    for end in ("low", "high"):
        mine, its = getattr(one.range(), end), getattr(back.range(), end)
        _hold(np.array_equal(mine, its), "one brought back has the same range")
        again = getattr(one.range(), end)
        _hold(np.array_equal(mine, again), "the range is the same when asked again")


def _check_range(calibrator: Calibrator, arrays: Iterable[Array], case: str) -> None:
    found = calibrator.range()
    floats = found.low.dtype == found.high.dtype == np.float32
    _hold(floats and found.low.shape == found.high.shape, f"a range is two float32 arrays ({case})")
    finite = np.isfinite(found.low).all() and np.isfinite(found.high).all()
    _hold(bool(finite), f"a range is finite ({case})")
    _hold(bool((found.low <= 0).all() and (found.high >= 0).all()), f"a range holds zero ({case})")
    with np.errstate(over="ignore"):
        flat = [np.asarray(a).astype(np.float32).ravel() for a in arrays]
    values = np.concatenate([np.zeros(1, np.float32), *flat])
    values = values[np.isfinite(values)]
    inside = (found.low >= values.min()).all() and (found.high <= values.max()).all()
    _hold(bool(inside), f"a range is inside the observed values ({case})")


def _saw(factory: Callable[[], S], arrays: Iterable[Array]) -> S:
    one = factory()
    for array in arrays:
        one.observe(array)
    return one


def _merged(mine: Statistic, other: Statistic) -> State:
    mine.merge(other)
    return mine.state()


def _copied(state: State) -> State:
    return {name: array.copy() for name, array in state.items()}


def _hold(condition: bool, law: str) -> None:  # noqa: FBT001 - an assertion with a name
    if not condition:
        raise AssertionError(f"Broken law: {law}.")


def _same(found: State, expected: State, law: str, *, exact: bool = True) -> None:
    _hold(found.keys() == expected.keys(), f"{law} (names in the state)")
    for name, array in found.items():
        other = expected[name]
        alike = array.dtype == other.dtype and array.shape == other.shape
        _hold(alike, f"{law} (dtype and shape of '{name}')")
        if exact or array.dtype.kind != "f":
            _hold(array.tobytes() == other.tobytes(), f"{law}, bit for bit ('{name}')")
            continue
        size = max(1e-300, float(np.abs(other[np.isfinite(other)]).max(initial=0)))
        close = np.allclose(array / size, other / size, rtol=1e-9, atol=1e-9)
        _hold(close, f"{law}, to rounding ('{name}')")


def _arrays() -> list[Array]:
    """Return arrays of unlike distributions and magnitudes, so that careless sums lose bits."""
    rng = np.random.default_rng(0)
    drawn = [
        rng.standard_normal(_SHAPE),
        rng.exponential(1e4, _SHAPE),
        rng.standard_cauchy(_SHAPE),
        rng.normal(-1e-5, 1e-6, _SHAPE),
        np.maximum(rng.standard_normal(_SHAPE), 0),
        -rng.lognormal(0, 8, _SHAPE),
    ]
    return [array.astype(np.float32) for array in drawn]


def _edge_cases() -> dict[str, Array]:
    base = _arrays()[0]
    broken = base.copy()
    broken.reshape(-1)[:7] = [np.nan, np.inf, -np.inf, 1, -1, 0, -0.0]
    cases: dict[str, Array] = {
        "empty array": base[:0],
        "zeros": np.zeros(_SHAPE, np.float32),
        "negative zeros": -np.zeros(_SHAPE, np.float32),
        "constant": np.full(_SHAPE, 2.5, np.float32),
        "negative constant": np.full(_SHAPE, -2.5, np.float32),
        "NaN and infinities among values": broken,
        "NaN only": np.full(_SHAPE, np.nan, np.float32),
        "infinities only": np.full(_SHAPE, -np.inf, np.float32),
        "tiny": base * np.float32(1e-40),
        "smallest": np.full(_SHAPE, 1e-45, np.float32),
        "huge": np.sign(base) * np.float32(3e38),
        "huge and positive": np.full(_SHAPE, 3.4e38, np.float32),
        "float16": base.astype(np.float16),
        "float64": base.astype(np.float64) * 1e300,
        "int8": (base * 10).astype(np.int8),
        "bool": base > 0,
    }
    if find_spec("ml_dtypes"):
        import ml_dtypes

        cases["bfloat16"] = base.astype(ml_dtypes.bfloat16)
    return cases
