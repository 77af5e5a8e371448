"""Zeros in weights: as many as asked for, where they are asked for, and made up for by the other weights."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from block_cases import pictures
from builders import rng, save
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from calibrators import PatchMoments, Window
from quantkit import quantize_static
from quantkit.model.graph.products import Layout, Product
from quantkit.numerics.second_order import carries_of, damped, output_error, round_carried
from quantkit.reduce.prune.sparse import Sparsity, sparse_rows, sparsified, zipped_bytes

Array = NDArray[Any]
PROPERTY = settings(deadline=None, max_examples=30)
SEEDS = st.integers(0, 10_000)


def problem(seed: int, n: int, k: int) -> tuple[Array, Array]:
    """Return a weight, and the moments of correlated inputs."""
    generator = rng(seed)
    x = np.maximum(generator.normal(size=(4 * k, k)) @ generator.normal(size=(k, k)), 0)
    return generator.standard_t(4, size=(n, k)), damped(np.cov(x.T, bias=True))


def error(weight: Array, other: Array, h: Array) -> Array:
    return output_error(weight - other, h)


@PROPERTY
@given(
    SEEDS, st.integers(1, 6), st.integers(1, 6), st.sampled_from([(0.5, 4), (0.25, 4), (0.5, 2)])
)
def test_every_group_has_as_many_zeros_as_its_pattern_asks_for(
    seed: int, n: int, groups: int, pattern: tuple[float, int]
) -> None:
    share, size = pattern
    weight, h = problem(seed, n, groups * size)
    found = sparse_rows(weight, h, Sparsity(share=share, group=size))
    zeros = (found.reshape(n, groups, size) == 0).sum(axis=-1)
    assert (zeros >= share * size).all()


@PROPERTY
@given(SEEDS, st.integers(1, 6), st.integers(2, 24), st.floats(0.05, 0.95))
def test_every_row_has_its_share_of_zeros(seed: int, n: int, k: int, share: float) -> None:
    weight, h = problem(seed, n, k)
    found = sparse_rows(weight, h, Sparsity(share=share))
    assert ((found == 0).sum(axis=-1) >= round(share * k)).all()


@PROPERTY
@given(SEEDS, st.integers(1, 6), st.sampled_from([8, 16, 24]), st.sampled_from([0, 4]))
def test_no_row_has_more_error_than_with_its_smallest_weights_at_zero(
    seed: int, n: int, k: int, group: int
) -> None:
    weight, h = problem(seed, n, k)
    sparsity = Sparsity(group=group)
    cut = np.abs(weight).reshape(n, -1, group or k)
    limit = np.sort(cut, axis=-1)[..., (group or k) // 2 - 1, np.newaxis]
    plain = np.where(cut > limit, weight.reshape(cut.shape), 0).reshape(n, k)
    found = sparse_rows(weight, h, sparsity)
    assert (error(weight, found, h) <= error(weight, plain, h) * (1 + 1e-9)).all()


@PROPERTY
@given(SEEDS, st.integers(8, 20))
def test_the_weights_that_stay_are_the_best_ones_for_their_places(seed: int, k: int) -> None:
    weight, h = problem(seed, 3, k)
    found = sparse_rows(weight, h, Sparsity(share=0.5))
    for row, own in zip(weight, found, strict=True):
        kept = own != 0
        best = np.zeros(k)
        best[kept] = np.linalg.solve(h[np.ix_(kept, kept)], h[kept] @ row)
        (least,) = error(row[np.newaxis], best[np.newaxis], h)
        (lost,) = error(row[np.newaxis], own[np.newaxis], h)
        assert lost <= least * 1.01 + 1e-12


def conv(shape: tuple[int, ...], bias: str = "b") -> Product:
    layout = Layout(shape=shape, channel=0, summed=(2, 3, 1))
    window = Window.of_conv(shape[2:], {})
    return Product(
        node="conv", reads="x", weight="w", bias=bias, biased=True, layout=layout, window=window
    )


def seen(product: Product, x: Array) -> PatchMoments:
    moments = PatchMoments(product.window, 1000)
    moments.observe(x.astype(np.float32))
    moments.flush()
    return moments


def test_a_bias_keeps_the_mean_and_groups_run_along_channels() -> None:
    generator = rng(0)
    product = conv((6, 8, 3, 3))
    x = np.maximum(generator.standard_normal((4, 8, 10, 10)), 0)
    tensors = {
        "w": generator.standard_normal((6, 8, 3, 3)).astype(np.float32),
        "b": generator.standard_normal(6).astype(np.float32),
    }
    moments = seen(product, x)
    found, report = sparsified(
        [product], lambda p: p.bias, tensors, lambda _: moments, Sparsity(group=4)
    )
    by_group = found["w"].transpose(0, 2, 3, 1).reshape(-1, 4)
    assert ((by_group == 0).sum(axis=-1) == 2).all()
    patches = product.window.patches(x.astype(np.float32), 1000)[0].astype(np.float64)
    means = [
        (patches @ product.layout.rows(w)[0].T.astype(np.float64) + b).mean(axis=0)
        for w, b in ((tensors["w"], tensors["b"]), (found["w"], found["b"]))
    ]
    np.testing.assert_allclose(means[0], means[1], atol=1e-5)
    assert report[0].zeros == 0.5
    assert report[0].error < report[0].plain


@pytest.mark.parametrize(
    ("shape", "group"), [((8, 3, 3, 3), 0), ((8, 1, 5, 5), 0), ((8, 30, 3, 3), 4)]
)
def test_weights_with_few_inputs_or_no_whole_groups_stay_dense(
    shape: tuple[int, ...], group: int
) -> None:
    assert not Sparsity(group=group).fits(conv(shape))
    found, report = sparsified([conv(shape)], lambda _: "", {}, lambda _: None, Sparsity())
    assert not found
    assert not report


@PROPERTY
@given(SEEDS, st.integers(1, 5), st.integers(2, 20))
def test_zeros_stay_zeros_in_int8(seed: int, n: int, k: int) -> None:
    weight, h = problem(seed, n, k)
    sparse = sparse_rows(weight, h, Sparsity())[np.newaxis]
    scale = np.abs(sparse).max(axis=-1) / 64 + 1e-9
    q = round_carried(sparse, scale, carries_of(h[np.newaxis]), keep_zeros=True)
    assert (q[sparse == 0] == 0).all()
    nearest = np.abs(q - sparse / scale[..., np.newaxis])
    assert nearest.max() < 64


def test_the_zipped_size_is_that_of_deflate(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(rng(0).integers(0, 9, 3_000_000).astype(np.uint8).tobytes())
    whole = zlib.compressobj(9)
    assert zipped_bytes(path) == len(whole.compress(path.read_bytes()) + whole.flush())


def test_a_pattern_is_named_as_its_users_do() -> None:
    assert str(Sparsity(group=4)) == "2:4"
    assert str(Sparsity(share=0.6)) == "60% zeros"


def test_a_model_with_zeros_keeps_them_in_static_int8(tmp_path: Path) -> None:
    proto = pictures()
    held = {t.name: t for t in proto.graph.initializer}
    wide = numpy_helper.to_array(held["wide_w"]).copy()
    zeros = rng(4).permutation(wide.size).reshape(wide.shape) < wide.size // 2
    wide[zeros] = 0
    held["wide_w"].CopyFrom(numpy_helper.from_array(wide, "wide_w"))
    images = rng(3).standard_normal((16, 3, 12, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", images)
    quantize_static(
        save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx", tmp_path / "x.npy", measure=False
    )
    found = [numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer]
    (stored,) = (a for a in found if a.shape == wide.shape)
    assert (stored[zeros] == 0).all()
    assert (stored[~zeros] != 0).mean() > 0.9
