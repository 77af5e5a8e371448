"""Which nodes read blocks, which get their weight back at load, and why; the kernel's slow path is never planned unasked."""

from typing import Any

import numpy as np
import pytest
from block_cases import language_model, layers, planned
from builders import graph, model, node, weight
from onnx import TensorProto

from quantkit.errors import UnknownNodeError, UsageError
from quantkit.model.graph.view import view_of
from quantkit.quantize.plan import Kept, Mode, plan_blocks
from quantkit.quantize.plan.blocks import packed_bytes, slow_path
from quantkit.reasons import Why, because
from quantkit.settings import WeightsSettings


def test_products_and_large_tables_read_blocks() -> None:
    _, plan = planned(language_model())
    assert {n.node: n.mode for n in plan.nodes} == dict.fromkeys(
        ("look_up", "layer", "head"), Mode.BLOCKS
    )
    assert set(plan.weight) == {"table", "layer"}  # the head is the table
    assert plan.weight["table"].blocks.bits == 8  # type: ignore[union-attr]
    assert plan.weight["layer"].blocks.bits == 4  # type: ignore[union-attr]
    assert "fast path" in plan.node["layer"].why


@pytest.mark.parametrize(
    ("op_types", "mode"), [((), Mode.STORED), (("Gather",), Mode.BLOCKS)], ids=["all", "named"]
)
def test_a_small_table_is_looked_up_in_blocks_where_gather_is_named(
    op_types: tuple[str, ...], mode: Mode
) -> None:
    nodes = [node("Gather", ["table", "ids"], ["y"], "look_up")]
    types = {"ids": TensorProto.INT64}
    proto = graph(
        nodes, {"ids": ["N"]}, {"y": ["N", 128]}, {"table": weight(300, 128)}, types=types
    )
    _, plan = planned(model(proto), op_types=op_types)
    assert plan.node["look_up"].mode is mode


@pytest.mark.parametrize(
    ("options", "mode", "said"),
    [
        ({"bits": 8, "accuracy_level": 0}, Mode.STORED, "no fast path for 8 bits"),
        ({"bits": 2, "accuracy_level": 1}, Mode.STORED, "no fast path for 2 bits"),
        ({"bits": 2, "block": 16}, Mode.STORED, "2 bits in blocks of 16"),
        ({"bits": 5, "accuracy_level": 0}, Mode.STORED, "no fast path for 8 bits"),
        ({"bits": 4, "accuracy_level": 0}, Mode.BLOCKS, "fast path"),
        ({"bits": 8, "accuracy_level": 0, "force": True}, Mode.BLOCKS, "slow path, as asked for"),
        ({"bits": 5}, Mode.BLOCKS, "fast path"),
        ({"bits": 3, "format": "onnx"}, Mode.STORED, "no type of 3 bits"),
        ({"bits": 8, "format": "onnx"}, Mode.BLOCKS, "DequantizeLinear"),
    ],
)
def test_the_path_of_each_node_is_said(options: dict[str, Any], mode: Mode, said: str) -> None:
    _, plan = planned(layers(), **options)
    assert plan.node["first"].mode is mode
    assert said in plan.node["first"].why


def test_slow_paths_are_those_of_the_kernel() -> None:
    assert not any(slow_path(4, block, level) for block in (16, 256) for level in range(5))
    assert not any(slow_path(8, block, 4) for block in (16, 256))
    assert all(slow_path(bits, 32, level) for bits in (2, 8) for level in range(4))


def test_what_has_no_kernel_becomes_float_at_load() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv"),
        node("MatMul", ["left", "a"], ["y"], "left_product"),
    ]
    held = {"w": weight(64, 32, 3, 3), "left": weight(200, 30)}
    proto = graph(nodes, {"x": [1, 32, 32, 32]}, {"y": None}, held)
    _, plan = planned(model(proto))
    assert plan.node["conv"].mode is Mode.STORED
    assert plan.node["left_product"].mode is Mode.STORED
    assert "left operand" in plan.node["left_product"].why


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (node("Gemm", ["a", "w2"], ["y"], "second", transA=1), "does not transpose"),
        (node("Einsum", ["a", "w2"], ["y"], "second", equation="ij,jk->ik"), "no kernel"),
    ],
)
def test_forms_that_kernels_do_not_take(reader: Any, said: str) -> None:
    proto = layers(80, 80)
    proto.graph.node[2].CopyFrom(reader)
    _, plan = planned(proto)
    assert plan.node["second"].mode is Mode.STORED
    assert said in plan.node["second"].why


def test_a_weight_that_two_read_along_different_axes_becomes_float_for_both() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "one"),
        node("Gemm", ["m", "w"], ["y"], "other", transB=1),
    ]
    proto = graph(nodes, {"x": ["N", 96]}, {"y": None}, {"w": weight(96, 80)})
    _, plan = planned(model(proto))
    assert [n.mode for n in plan.nodes] == [Mode.STORED, Mode.STORED]
    assert "along another axis" in plan.nodes[0].why


def test_an_excluded_reader_keeps_a_shared_weight_float() -> None:
    _, plan = planned(language_model(), exclude=("head",))
    assert plan.node["head"].mode is Mode.FLOAT
    assert plan.node["look_up"].mode is Mode.FLOAT
    assert "table" not in plan.weight


def test_measured_to_be_slower_is_stored() -> None:
    built, _ = planned(layers())
    kept = {"first": Kept(because(Why.SLOWER_IN_BLOCKS, times="2.00"), Mode.STORED)}
    plan = plan_blocks(view_of(built), kept=kept)
    assert plan.node["first"].mode is Mode.STORED
    assert "measured to be slower" in plan.node["first"].why
    assert plan.node["second"].mode is Mode.BLOCKS


def test_bits_of_single_weights_count_over_all_others() -> None:
    built, _ = planned(language_model())
    plan = plan_blocks(view_of(built), WeightsSettings(bits=4), bits={"layer": 6, "table": 5})
    assert {w.tensor: w.blocks.bits for w in plan.weights} == {"layer": 6, "table": 5}  # type: ignore[union-attr]


def test_depthwise_weights_keep_eight_bits() -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], "depthwise", group=512)]
    proto = graph(nodes, {"x": [1, 512, 9, 9]}, {"y": None}, {"w": weight(512, 1, 3, 3)})
    _, plan = planned(model(proto), bits=4)
    assert plan.weight["w"].blocks.bits == 8  # type: ignore[union-attr]
    assert plan.weight["w"].blocks.size == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(("inputs", "size"), [(96, 32), (288, 32), (80, 16), (100, 16), (4000, 32)])
def test_blocks_that_would_be_filled_up_much_are_smaller(inputs: int, size: int) -> None:
    _, plan = planned(layers(inputs, 96))
    assert plan.weight["w1"].blocks.size == size  # type: ignore[union-attr]


def test_sizes_are_those_of_the_file() -> None:
    _, plan = planned(layers(96, 80))
    grid = plan.weight["w1"].blocks
    assert grid is not None
    codes, blocks = 96 * 80 // 2, 3 * 80
    zeros, multipliers, scales = blocks / 2, blocks, 80 * 4
    assert packed_bytes(grid, 80, 96) == codes + zeros + multipliers + scales


def test_nan_and_tiny_weights_stay_float() -> None:
    proto = layers(96, 80)
    held = np.array(weight(96, 80))
    held[0, 0] = np.nan
    proto.graph.initializer[0].raw_data = held.tobytes()
    nodes = [*proto.graph.node, node("MatMul", ["x", "tiny"], ["z"], "small")]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    tiny = graph([], {}, {}, {"tiny": weight(96, 4)}).initializer[0]
    proto.graph.initializer.append(tiny)
    proto.graph.output.add(name="z")
    _, plan = planned(proto)
    assert "NaN" in plan.node["first"].why
    assert "too small" in plan.node["small"].why


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"bits": 9}, "at least 2 and at most 8"),
        ({"bits": 1}, "at least 2 and at most 8"),
        ({"embedding_bits": 16}, "at least 2 and at most 8"),
        ({"block": 48}, "use one of 16, 32"),
        ({"accuracy_level": 5}, "at least 0 and at most 4"),
        ({"target_bits": 4.5, "target_size": 0.2}, "twice"),
        ({"target_bits": 1.0}, "at least 2 and at most 9"),
        ({"format": "qdq"}, "unknown"),
        ({"method": "gptq"}, "unknown"),
        ({"bits": "4"}, "whole number"),
    ],
)
def test_settings_that_make_no_sense_are_one_error(bad: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        WeightsSettings(**bad)  # type: ignore[arg-type]


def test_a_rule_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(UnknownNodeError, match="no node"):
        planned(layers(), exclude=("nowhere",))
