"""Weights in blocks in a file: what comes out is what float computes with the numbers that the codes stand for."""

from typing import Any

import numpy as np
import onnx
import pytest
from block_cases import (
    branches,
    codes_of,
    emitted,
    feeds,
    language_model,
    layers,
    loop,
    planned,
    with_floats,
)
from builders import Array, graph, initializers, model, node, op_types, run, sqnr, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.quantize.plan import Mode, Plan

EXACT = 100.0  # dB: sums are added up in another order, no more
ROUNDED = 36.0  # dB: the kernel rounds activations to 8 bits, block by block
PROPERTY = settings(max_examples=30, deadline=None)


def check(
    proto: onnx.ModelProto, given_: dict[str, Array], least: float, **options: Any
) -> tuple[onnx.ModelProto, Plan]:
    """Emit a model and compare it with float, as it is optimized by default (`least` dB) and as it stands (exactly)."""
    built, plan = planned(proto, **options)
    codes = codes_of(built, plan)
    expected = with_floats(proto, plan, codes)
    assert sqnr(run(expected, given_)[0], run(proto, given_)[0]) < EXACT  # codes are others
    result = emitted(built, plan, codes)
    wanted = run(expected, given_)[0]
    assert sqnr(wanted, run(result, given_)[0]) > least
    plain = run(result, given_, optimize=False)[0]
    assert sqnr(wanted, plain) > (EXACT if options.get("format") == "onnx" else least)
    return result, plan


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("k", [96, 100], ids=["whole", "ragged"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_float_activations_give_what_codes_stand_for(
    *, bits: int, block: int, k: int, symmetric: bool
) -> None:
    proto = layers(k, 80)
    options = {"bits": bits, "block": block, "symmetric": symmetric, "accuracy_level": 0}
    result, _ = check(proto, feeds(proto), EXACT, **options, force=True)
    assert op_types(result).count("MatMulNBits") == 2


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("k", [96, 100], ids=["whole", "ragged"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_rounded_activations_stay_near_it(
    *, bits: int, block: int, k: int, symmetric: bool
) -> None:
    proto = layers(k, 80)
    result, _ = check(proto, feeds(proto), ROUNDED, bits=bits, block=block, symmetric=symmetric)
    assert op_types(result).count("MatMulNBits") == 2


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("k", "n"), [(48, 24), (64, 33), (150, 90), (260, 130)])
def test_codes_that_fill_no_planes_are_not_constant_either(*, bits: int, k: int, n: int) -> None:
    """Constant codes are packed by the kernel before steps are known, and the product is zero."""
    proto = layers(k, n)
    check(proto, feeds(proto), ROUNDED, bits=bits, symmetric=False)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("k", [96, 100], ids=["whole", "ragged"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_plain_onnx_is_dequantized_blocks(
    *, bits: int, block: int, k: int, symmetric: bool
) -> None:
    proto = layers(k, 80)
    options = {"bits": bits, "block": block, "symmetric": symmetric, "format": "onnx"}
    result, _ = check(proto, feeds(proto), ROUNDED, **options)
    assert op_types(result) == ["DequantizeLinear", "MatMul", "Relu", "DequantizeLinear", "MatMul"]
    assert {o.domain: o.version for o in result.opset_import}[""] == 21
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 7])
def test_bits_that_plain_onnx_lacks_become_float_at_load(bits: int) -> None:
    proto = layers(100, 120)
    result, plan = check(proto, feeds(proto), EXACT, bits=bits, format="onnx")
    assert {n.mode for n in plan.nodes} == {Mode.STORED}
    assert {item.domain for item in result.graph.node} == {""}
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("form", ["contrib", "onnx"])
@pytest.mark.parametrize(
    "gemm",
    [
        {},
        {"transB": 1},
        {"alpha": 0.5},
        {"beta": 2.0},
        {"alpha": -1.5, "beta": 0.25, "transB": 1},
        {"beta": 0.0},
    ],
    ids=["plain", "transB", "alpha", "beta", "all", "no bias"],
)
@pytest.mark.parametrize("k", [96, 100], ids=["whole", "ragged"])
def test_gemm_keeps_its_factors_and_bias(form: str, gemm: dict[str, Any], k: int) -> None:
    proto = layers(k, 80, gemm=gemm)
    level, least = (0, EXACT) if form == "contrib" else (None, ROUNDED)
    result, _ = check(proto, feeds(proto), least, format=form, accuracy_level=level)
    assert op_types(result).count("Gemm") == (form == "onnx")


@pytest.mark.parametrize(
    ("shape", "added"),
    [((80,), 0), ((1, 80), 0), ((1,), 1), ((7, 1), 1), ((7, 80), 1)],
    ids=["vector", "row", "one", "column", "matrix"],
)
def test_a_bias_that_the_kernel_does_not_take_is_added(shape: tuple[int, ...], added: int) -> None:
    held = {"w": weight(96, 80), "b": weight(*shape, seed=1, scale=3.0)}
    gemm = node("Gemm", ["x", "w", "b"], ["y"], "gemm", alpha=0.5, beta=1.5)
    proto = model(graph([gemm], {"x": [7, 96]}, {"y": [7, 80]}, held))
    result, _ = check(proto, feeds(proto), EXACT, accuracy_level=0)
    assert op_types(result).count("Add") - _adds_of_steps(result) == added


def _adds_of_steps(result: onnx.ModelProto) -> int:
    """Return how many Adds put a weight together, not a product."""
    made = {n.output[0] for n in result.graph.node if n.op_type == "MatMulNBits"}
    return sum(n.op_type == "Add" and n.input[0] not in made for n in result.graph.node)


def test_a_bias_that_is_computed_is_added() -> None:
    nodes = [
        node("Relu", ["x"], ["r"], "relu"),
        node("Gemm", ["x", "w", "r"], ["y"], "gemm", beta=0.5),
    ]
    proto = model(graph(nodes, {"x": ["N", 96]}, {"y": ["N", 96]}, {"w": weight(96, 96)}))
    check(proto, feeds(proto), EXACT, accuracy_level=0)


@pytest.mark.parametrize("form", ["contrib", "onnx"])
@pytest.mark.parametrize("shape", [(2, 5, 100), (1, 1, 100), (2, 3, 4, 100), (100,)])
def test_products_of_any_rank(form: str, shape: tuple[int, ...]) -> None:
    held = {"w": weight(100, 80)}
    nodes = [node("MatMul", ["x", "w"], ["y"], "mm")]
    proto = model(graph(nodes, {"x": shape}, {"y": (*shape[:-1], 80)}, held))
    given_ = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    level, least = (0, EXACT) if form == "contrib" else (None, ROUNDED)
    check(proto, given_, least, format=form, accuracy_level=level)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_a_head_that_is_its_table_is_stored_once(bits: int) -> None:
    proto = language_model()
    options = {"embedding_bits": bits, "bits": 4, "accuracy_level": 0, "force": True}
    result, _ = check(proto, feeds(proto), EXACT, **options)
    assert op_types(result).count("GatherBlockQuantized") == 1
    assert op_types(result).count("MatMulNBits") == 2
    table = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    stored = {n: a for n, a in initializers(result).items() if a.size > table.size / 16}
    codes = sum(a.nbytes for n, a in stored.items() if n.startswith("table"))
    assert codes == table.size * bits // 8
    assert not any(n.startswith("head") for n in stored)


@pytest.mark.parametrize("bits", [4, 5])
def test_tables_of_ragged_rows(bits: int) -> None:
    width = 40
    nodes = [node("Gather", ["table", "ids"], ["y"], "look_up")]
    held = {"table": weight((1 << 20) // width + 1, width)}
    types = {"ids": onnx.TensorProto.INT64}
    proto = model(graph(nodes, {"ids": ["N"]}, {"y": ["N", width]}, held, types=types))
    result, plan = check(proto, feeds(proto), EXACT, embedding_bits=bits, symmetric=True)
    assert plan.node["look_up"].mode is Mode.BLOCKS
    assert "GatherBlockQuantized" in op_types(result)


def test_two_products_of_one_weight_read_the_same_codes() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "one"),
        node("Gemm", ["a", "w"], ["y"], "two", alpha=0.5),
    ]
    proto = model(graph(nodes, {"x": ["N", 96]}, {"y": ["N", 96]}, {"w": weight(96, 96)}))
    result, _ = check(proto, feeds(proto), EXACT, accuracy_level=0)
    products = [n for n in result.graph.node if n.op_type == "MatMulNBits"]
    assert len(products) == 2
    assert len({n.input[1] for n in products}) == 1


@pytest.mark.parametrize(("form", "mode"), [("contrib", Mode.BLOCKS), ("onnx", Mode.STORED)])
@pytest.mark.parametrize("taken", [True, False])
def test_weights_of_branches(form: str, mode: Mode, *, taken: bool) -> None:
    """Inside of a subgraph onnxruntime does not load a DequantizeLinear of blocks whose codes are outside of it."""
    proto = branches()
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    level, least = (0, EXACT) if form == "contrib" else (None, ROUNDED)
    given_ = {"x": x, "c": np.array(taken)}
    _, plan = check(proto, given_, least, format=form, accuracy_level=level)
    assert [n.mode for n in plan.nodes if n.node != "outside"] == [mode, mode]
    assert plan.node["outside"].mode is Mode.BLOCKS


@pytest.mark.parametrize(("form", "mode"), [("contrib", Mode.BLOCKS), ("onnx", Mode.STORED)])
def test_weights_of_loops(form: str, mode: Mode) -> None:
    proto = loop()
    x = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    _, plan = check(proto, {"x": x}, EXACT, format=form, accuracy_level=0)
    assert plan.node["inside"].mode is mode


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_without_a_kernel_are_float_again_at_load(*, bits: int, symmetric: bool) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv", pads=[1] * 4),
        node("ConvTranspose", ["a", "v"], ["y"], "back"),
    ]
    held = {"w": weight(24, 13, 3, 3), "v": weight(24, 20, 2, 2, seed=1)}
    proto = model(graph(nodes, {"x": [1, 13, 6, 6]}, {"y": [1, 20, 7, 7]}, held))
    given_ = {"x": np.random.default_rng(0).standard_normal((1, 13, 6, 6)).astype(np.float32)}
    _, plan = check(proto, given_, EXACT, bits=bits, symmetric=symmetric)
    assert {n.mode for n in plan.nodes} == {Mode.STORED}


@PROPERTY
@given(
    bits=st.integers(2, 8),
    k=st.integers(64, 200),
    n=st.integers(64, 120),
    symmetric=st.booleans(),
    block=st.sampled_from([16, 32, 64, 128]),
    rows=st.integers(1, 5),
)
def test_any_layer_computes_what_its_codes_stand_for(
    *, bits: int, k: int, n: int, symmetric: bool, block: int, rows: int
) -> None:
    proto = layers(k, n)
    options = {"bits": bits, "block": block, "symmetric": symmetric, "accuracy_level": 0}
    check(proto, feeds(proto, rows), EXACT, **options, force=True)
