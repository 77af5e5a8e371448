"""The minimum cut that decides by measured seconds: against trying everything, and on large graphs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.model.ops.view import Node, View
from quantkit.numerics.dtypes import UINT8
from quantkit.quantize.plan import ActivationPlan, Mode, NodePlan, Plan
from quantkit.quantize.plan.measured import Costs, Losses, choose, predict
from quantkit.reasons import Why, because

_PRODUCTS = frozenset({"Conv", "MatMul"})


def graph(ops: list[str], links: Sequence[tuple[int, ...]]) -> View:
    """Return a graph whose node i makes tensor t(i+1) of the tensors that are linked; t0 is fed, the last is the result."""
    nodes, producer, readers = [], {}, dict[str, tuple[int, ...]]()
    for i, (op, sources) in enumerate(zip(ops, links, strict=True)):
        inputs = tuple(f"t{s}" for s in sources)
        weights = {1: "w"} if op in _PRODUCTS else {}
        nodes.append(
            Node(
                name=f"n{i}",
                op_type=op,
                domain="",
                attributes={},
                inputs=(*inputs, *weights.values()),
                outputs=(f"t{i + 1}",),
                weights=weights,
            )
        )
        producer[f"t{i + 1}"] = i
        for name in inputs:
            readers[name] = (*readers.get(name, ()), i)
    return View(
        opset=13,
        nodes=tuple(nodes),
        names=frozenset(node.name for node in nodes),
        producer=producer,
        readers=readers,
        inputs=("t0",),
        outputs=frozenset({f"t{len(ops)}"}),
        weights={},
        constants={},
        initializers=frozenset({"w"}),
        not_float=frozenset(),
    )


def all_static(view: View) -> Plan:
    """Return the plan with every node in integers but Sigmoid."""
    static = {node.name: node.op_type != "Sigmoid" for node in view.nodes}
    nodes = tuple(
        NodePlan(
            node=node.name,
            op_type=node.op_type,
            mode=Mode.STATIC if static[node.name] else Mode.FLOAT,
            reason=because(Why.TIMED),
        )
        for node in view.nodes
    )
    quantized = [f"t{i}" for i in range(len(view.nodes) + 1)]
    activations = tuple(
        ActivationPlan(tensor=t, dtype=UINT8, scale=1.0, zero_point=0, reason=because(Why.TIMED))
        for t in quantized
    )
    return Plan(nodes=nodes, weights=(), min_opset=13, activations=activations, target="cpu")


def seconds(view: View, static: frozenset[str], costs: Costs) -> float:
    """Say what a choice takes, straight from the definition; what is not possible takes forever."""
    total = sum((costs.static if n.name in static else costs.floats)[n.name] for n in view.nodes)
    for i in range(len(view.nodes) + 1):
        tensor = f"t{i}"
        maker = view.nodes[i - 1] if i else None
        read_by = [view.nodes[r] for r in view.readers.get(tensor, ())]
        integer = [n for n in read_by if n.name in static]
        made = maker is not None and maker.name in static
        between = any(n.op_type not in _PRODUCTS for n in integer)
        if between and not made and maker is not None and maker.op_type != "Sigmoid":
            return float("inf")  # between products only what is made in integers is read so
        floats = len(integer) < len(read_by) or tensor in view.outputs
        joins = any(n.op_type not in _PRODUCTS | {"Sigmoid"} for n in read_by)
        if made and maker is not None and maker.op_type == "MatMul" and not joins:
            made = bool(read_by) and not floats  # else it hands on floats, at no cost
            floats = False
        total += costs.quantize[tensor] if integer and not made else 0.0
        total += costs.dequantize[tensor] if made and (floats or not read_by) else 0.0
    return total


@st.composite
def cases(draw: st.DrawFn) -> tuple[View, Costs]:
    """Draw a small graph, and what it takes."""
    count = draw(st.integers(1, 7))
    ops, links = [], []
    for i in range(count):
        op = draw(st.sampled_from(["Conv", "Conv", "MatMul", "Add", "MaxPool", "Sigmoid"]))
        sources = [draw(st.integers(max(0, i - 3), i)) for _ in range(2 if op == "Add" else 1)]
        ops.append(op)
        links.append(tuple(sources))
    view = graph(ops, links)
    figure = st.integers(1, 60).map(float)
    names = [node.name for node in view.nodes]
    tensors = [f"t{i}" for i in range(count + 1)]

    def of(keys: list[str]) -> dict[str, float]:
        return {key: draw(figure) for key in keys}

    return view, Costs(
        floats=of(names),
        static=of(names),
        quantize=of(tensors),
        dequantize=of(tensors),
        noise=0.0,
    )


@given(cases())
@settings(max_examples=150, deadline=None)
@pytest.mark.slow
def test_the_cut_is_as_good_as_trying_everything(case: tuple[View, Costs]) -> None:
    view, costs = case
    free = [node.name for node in view.nodes if node.op_type != "Sigmoid"]
    choices = (
        frozenset(name for name, chosen in zip(free, bits, strict=True) if chosen)
        for bits in product((True, False), repeat=len(free))
    )
    least = min(seconds(view, static, costs) for static in choices)
    left = choose(view, all_static(view), costs)
    assert seconds(view, frozenset(free) - left.keys(), costs) == pytest.approx(least, rel=1e-5)


@given(cases())
@settings(max_examples=50, deadline=None)
def test_a_plan_is_predicted_by_the_same_sum(case: tuple[View, Costs]) -> None:
    view, costs = case
    plan = all_static(view)
    static = frozenset(n.node for n in plan.nodes if n.mode is Mode.STATIC)
    expected = seconds(view, static, costs)
    if expected < float("inf"):
        assert predict(view, plan, costs) == pytest.approx(expected)


def chain(count: int, seed: int = 0) -> tuple[View, Plan, Costs]:
    """Return many layers with drawn figures."""
    draw = Random(seed)  # noqa: S311 - figures, no secrets
    ops = [draw.choice(["Conv", "Conv", "Add", "MaxPool"]) for _ in range(count)]
    links = [(i, max(0, i - 3)) if op == "Add" else (i,) for i, op in enumerate(ops)]
    view = graph(ops, links)
    names, tensors = [n.name for n in view.nodes], [f"t{i}" for i in range(count + 1)]
    costs = Costs(
        floats={n: draw.random() for n in names},
        static={n: draw.random() for n in names},
        quantize={t: draw.random() / 2 for t in tensors},
        dequantize={t: draw.random() / 2 for t in tensors},
    )
    return view, all_static(view), costs


@pytest.mark.slow
def test_work_grows_with_the_nodes_and_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    import quantkit.quantize.plan.measured as module

    sizes = []
    whole = module._source_side

    def counted(size: int, edges: dict[tuple[int, int], float], bound: list[object]) -> object:
        sizes.append(size + len(edges) + len(bound))
        return whole(size, edges, bound)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_source_side", counted)
    for count in (2_000, 20_000):
        assert choose(*chain(count))
    assert sizes[1] < 10.5 * sizes[0]


def test_what_differs_by_less_than_the_noise_of_measuring_stays_as_the_rules_have_it() -> None:
    view = graph(["Conv", "Conv"], [(0,), (1,)])
    floats = {"n0": 1.0, "n1": 1.0}
    costs = Costs(floats=floats, static={"n0": 1.02, "n1": 1.02}, noise=0.03)
    assert choose(view, all_static(view), costs) == {}
    assert choose(view, all_static(view), replace(costs, noise=0.01)).keys() == floats.keys()


def test_a_slow_node_between_fast_ones_goes_alone_and_says_what_it_would_cost() -> None:
    view = graph(["Conv", "Conv", "Conv"], [(0,), (1,), (2,)])
    names, tensors = ("n0", "n1", "n2"), [f"t{i}" for i in range(4)]
    costs = Costs(
        floats=dict.fromkeys(names, 1e-3),
        static={"n0": 0.2e-3, "n1": 9e-3, "n2": 0.2e-3},
        quantize=dict.fromkeys(tensors, 0.1e-3),
        dequantize=dict.fromkeys(tensors, 0.1e-3),
    )
    left = choose(view, all_static(view), costs)
    assert {name: (str(one.reason), one.mode) for name, one in left.items()} == {
        "n1": ("slower in int8: 8.00 ms alone, 7.80 ms with its conversions", Mode.STORED)
    }


def test_a_product_that_is_fastest_quantized_as_it_comes_is_left_to_that() -> None:
    view = graph(["MatMul"], [(0,)])
    costs = Costs(floats={"n0": 3.0}, static={"n0": 2.0}, dynamic={"n0": 1.0})
    assert choose(view, all_static(view), costs)["n0"].mode is Mode.INTEGER


def test_noise_that_is_worth_more_than_the_time_it_saves_leaves_a_node_out() -> None:
    view = graph(["Conv", "Conv"], [(0,), (1,)])
    costs = Costs(floats={"n0": 2.0, "n1": 2.0}, static={"n0": 1.0, "n1": 1.0})
    losses = Losses(outputs=("t2",), nodes={"n0": (0.1,), "n1": (0.001,)})
    assert choose(view, all_static(view), costs, losses, weight=1.0) == {}
    assert choose(view, all_static(view), costs, losses, weight=50.0).keys() == {"n0"}
