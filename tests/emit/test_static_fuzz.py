"""Random graphs of operators with and without kernels: what is emitted loads, and computes nearly the same."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from builders import Array, run
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import ONE, TWO, Grower
from static_cases import X, write

from quantkit.quantize.emit.static import Format
from quantkit.quantize.plan import Mode
from quantkit.runtime.kernels import fusion_of
from quantkit.settings import StaticSettings

STEPS = st.lists(
    st.tuples(st.sampled_from(ONE + TWO), st.integers(0, 99), st.integers(0, 99)),
    min_size=3,
    max_size=14,
)
OPTIONS = st.builds(
    StaticSettings,
    activation_type=st.sampled_from([None, "uint8", "int8"]),
    per_channel=st.booleans(),
    symmetric_activations=st.sampled_from([None, True]),
)


def noise(expected: Array, actual: Array) -> float:
    """The error, as a share of the largest value; what cancels out is as exact as what it is the difference of, which is about 1."""
    return float(np.abs(expected - actual).max() / max(float(np.abs(expected).max()), 0.1))


@settings(max_examples=40, deadline=None)
@given(STEPS, OPTIONS)
@pytest.mark.slow
def test_random_graphs(steps: list[tuple[str, int, int]], options: StaticSettings) -> None:
    grower = Grower()
    for op, first, second in steps:
        grower.add(op, first, second)
    proto = grower.model()
    expected = run(proto, {"x": X})
    with TemporaryDirectory() as folder:
        for output_format in Format:
            path = Path(folder) / f"{output_format}.onnx"
            written = write(proto, path, {"x": X}, output_format, options)
            for optimize in (True, False):
                actual = run(written.path, {"x": X}, optimize=optimize)
                for one, two in zip(expected, actual, strict=True):
                    assert noise(one, two) < 0.25


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(0, 9))
@pytest.mark.slow
def test_what_is_planned_in_integers_runs_in_integers_and_nothing_else_does(
    steps: list[tuple[str, int, int]], left: int
) -> None:
    grower = Grower()
    for op, first, second in steps:
        grower.add(op, first, second)
    proto = grower.model()
    products = [n.name for n in proto.graph.node if n.op_type in {"Conv", "MatMul"}]
    exclude = tuple(products[left : left + 1])
    with TemporaryDirectory() as folder:
        for output_format in Format:
            path = Path(folder) / f"{output_format}.onnx"
            options = StaticSettings(exclude=exclude)
            written = write(proto, path, {"x": X}, output_format, options)
            static = {
                n.node
                for n in written.plan.nodes
                if n.mode is Mode.STATIC and n.op_type in {"Conv", "Gemm", "MatMul"}
            }
            fusion = fusion_of(path)
            assert fusion.integer_count == len(static), fusion
            assert not static & {*fusion.float_products}
