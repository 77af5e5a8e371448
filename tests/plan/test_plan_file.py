"""Plans as files: written, read, compared, edited and applied."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from builders import node, run, sqnr, weight
from hypothesis import given
from hypothesis import strategies as st
from static_cases import Ready, X, chain, matmuls, open_ranges, ready, write_plan_of

from quantkit.errors import UsageError
from quantkit.numerics.dtypes import INT8, INT16, UINT8, UINT16
from quantkit.quantize.emit.static import Format
from quantkit.quantize.plan import Mode, Plan, check_fits, diff_plans, read_plan, write_plan
from quantkit.quantize.plan.model import ActivationPlan, BlockFormat, NodePlan, WeightPlan
from quantkit.reasons import Why, because
from quantkit.settings import QdqSettings
from quantkit.spec import PerAxis, PerTensor, QuantSpec

NAMES = st.text(min_size=1, max_size=12)
TEXTS = st.text(max_size=20)
REASONS = st.one_of(
    st.builds(lambda text: because(Why.OTHER, text=text), TEXTS),
    st.builds(lambda name: because(Why.RANGE_NOT_KNOWN, tensor=name), NAMES),
    st.builds(
        lambda low, text: because(
            Why.RANGE, source=because(Why.OTHER, text=text), low=low, high=1.5
        ),
        st.floats(-1e9, 0.0),
        TEXTS,
    ),
)
_SAME = because(Why.EXCLUDED)
NODES = st.builds(
    NodePlan,
    node=NAMES,
    op_type=st.sampled_from(["Conv", "Gemm", "Relu"]),
    mode=st.sampled_from(Mode),
    reason=REASONS,
    float_output=st.booleans(),
)
ACTIVATIONS = st.sampled_from([UINT8, INT8, UINT16, INT16]).flatmap(
    lambda dtype: st.builds(
        ActivationPlan,
        tensor=NAMES,
        dtype=st.just(dtype),
        scale=st.floats(2.0**-100, 2.0**100, width=32),
        zero_point=st.integers(dtype.qmin, dtype.qmax),
        reason=REASONS,
    )
)
SPECS = st.builds(
    QuantSpec,
    dtype=st.sampled_from([UINT8, INT8]),
    granularity=st.one_of(st.just(PerTensor()), st.builds(PerAxis, st.integers(0, 3))),
    symmetric=st.just(value=True),
    pair_axes=st.sampled_from([(), ((2, 3, 1),), ((0,), (1,))]),
)
PLANS = st.builds(
    Plan,
    nodes=st.lists(NODES, unique_by=lambda n: n.node, max_size=4).map(tuple),
    weights=st.lists(
        st.builds(WeightPlan, tensor=NAMES, spec=SPECS, transposed=st.booleans()),
        unique_by=lambda w: w.tensor,
        max_size=4,
    ).map(tuple),
    min_opset=st.integers(7, 23),
    activations=st.lists(ACTIVATIONS, unique_by=lambda a: a.tensor, max_size=4).map(tuple),
    integer_bias=st.booleans(),
    target=st.sampled_from([None, "cpu", "mine"]),
    output_format=st.sampled_from([None, *Format]),
    block_format=st.sampled_from([None, *BlockFormat]),
    coverage=st.sampled_from(["gain", "all"]),
    qdq=st.builds(
        QdqSettings,
        weight_pairs=st.booleans(),
        float_outputs=st.sampled_from([(), ("Conv", "Gemm")]),
        channel_axes=st.sampled_from([(), (("MatMul", 0),)]),
    ),
)


@given(PLANS)
def test_a_plan_survives_its_file(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        write_plan(plan, Path(folder) / "plan.json")
        assert read_plan(Path(folder) / "plan.json") == plan


@given(PLANS, PLANS)
def test_equal_plans_do_not_differ_and_others_do(one: Plan, two: Plan) -> None:
    assert diff_plans(one, one) == []
    # The order of entries, and reasons, are no differences.
    plain = [replace(p, nodes=tuple(replace(n, reason=_SAME) for n in p.nodes)) for p in (one, two)]
    plain = [
        replace(p, activations=tuple(replace(a, reason=_SAME) for a in p.activations))
        for p in plain
    ]
    same = all(
        {getattr(e, key) for e in getattr(plain[0], part)}
        == {getattr(e, key) for e in getattr(plain[1], part)}
        for part, key in (("nodes", "node"), ("weights", "tensor"), ("activations", "tensor"))
    )
    if not same or one.min_opset != two.min_opset:
        assert diff_plans(one, two)


def base() -> tuple[Ready, Plan]:
    prepared = ready(chain(node("Relu", ["a"], ["b"], "relu")))
    return prepared, prepared.plan(open_ranges(prepared))


def test_a_difference_names_node_tensor_and_both_values() -> None:
    _, plan = base()
    nodes = tuple(replace(n, mode=Mode.FLOAT) if n.node == "c1" else n for n in plan.nodes)
    fewer = replace(plan, nodes=nodes, activations=plan.activations[1:], min_opset=21)
    assert diff_plans(plan, fewer) == [
        "min_opset: 13 -> 21",
        "node 'c1': mode static -> float",
        "tensor 'x': removed",
    ]
    assert "tensor 'x': added" in diff_plans(fewer, plan)


Edit = Callable[[dict[str, Any]], None]


def edited(plan: Plan, path: Path, edit: Edit) -> Plan:
    """Change a plan as a user does: in its file."""
    write_plan(plan, path)
    plain = json.loads(path.read_text())
    edit(plain)
    path.write_text(json.dumps(plain))
    return read_plan(path)


def entry(plain: dict[str, Any], part: str, name: str) -> dict[str, Any]:
    key = "node" if part == "nodes" else "tensor"
    found: dict[str, Any] = next(e for e in plain[part] if e[key] == name)
    return found


def change(part: str, name: str, **values: Any) -> Edit:
    return lambda plain: entry(plain, part, name).update(values)


def spec(name: str, **values: Any) -> Edit:
    return lambda plain: entry(plain, "weights", name)["spec"].update(values)


def drop(part: str, name: str) -> Edit:
    return lambda plain: plain[part].remove(entry(plain, part, name))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change("nodes", "c1", node="c9"), "names node 'c9', which the model does not have"),
        (change("nodes", "c1", op_type="Gemm"), "takes node 'c1' for Gemm; in the model it is Conv"),
        (change("weights", "c1_w", tensor="c1w"), "names weight 'c1w'.*did you mean 'c1_w'"),
        (change("activations", "b", tensor="bb"), "names tensor 'bb'"),
        (change("activations", "b", scale=0.0), "gives 'b' the scale 0.0"),
        (change("activations", "b", scale=-1.0), "gives 'b' the scale -1.0"),
        (change("activations", "b", zero_point=256), "zero point 256, which is no uint8: use 0 to 255"),
        (change("activations", "b", dtype="uint16"), "16 bits, which needs opset 21"),
        (drop("activations", "x"), "node 'c1' in integers, but has no scale for 'x'"),
        (drop("activations", "y"), "node 'c2' in integers, but has no scale for 'y'"),
        (drop("weights", "c2_w"), "node 'c2' in integers, but not its weight 'c2_w'"),
        (change("nodes", "c2", mode="integer"), "for which Conv has no kernel"),
        (spec("c1_w", granularity={"per": "axis", "axis": 4}), "axis 4 of weight 'c1_w', which has 4"),
        (spec("c1_w", granularity={"per": "block", "axis": 0, "size": 2}), "in blocks: use tensor"),
        (spec("c1_w", pair_axes=[[-5]]), "names axis -5 of weight"),
        (spec("c1_w", sum_axis=7), "names axis 7 of weight"),
        (spec("c1_w", dtype="uint16"), "the type uint16: use int8 or uint8"),
        (change("weights", "c1_w", transposed=True), "transposes weight 'c1_w', which is no matrix"),
        (lambda plain: plain["nodes"].append(plain["nodes"][0]), "decides twice about node 'c1'"),
        # Who takes an integer kernel away must give back the Relu that it did.
        (change("nodes", "c1", mode="float"), "leaves out node 'relu'"),
        (change("activations", "b", zero_point=128), "leaves out node 'relu'"),
    ],
)  # fmt: skip
def test_an_edit_that_does_not_fit_says_where(edit: Edit, message: str, tmp_path: Path) -> None:
    prepared, plan = base()
    wrong = edited(plan, tmp_path / "plan.json", edit)
    with pytest.raises(UsageError, match=message):
        check_fits(wrong, prepared.view)


def test_an_operand_without_a_scale_is_found(tmp_path: Path) -> None:
    prepared = ready(
        chain(
            node("Mul", ["a", "k"], ["b"], "mul"),
            constants={"k": np.full((1, 8, 6, 6), 2, np.float32) + weight(1, 8, 6, 6)},
        )
    )
    plan = prepared.plan(open_ranges(prepared))
    wrong = edited(plan, tmp_path / "plan.json", drop("activations", "k"))
    with pytest.raises(UsageError, match="no scale for 'k'"):
        check_fits(wrong, prepared.view)


def to_float(*names: str) -> Edit:
    def edit(plain: dict[str, Any]) -> None:
        for name in names:
            entry(plain, "nodes", name)["mode"] = "float"

    return edit


@pytest.mark.parametrize("output_format", Format)
def test_an_edited_plan_is_applied(output_format: Format, tmp_path: Path) -> None:
    proto = chain(node("Relu", ["a"], ["b"], "relu"))
    whole = write_plan_of(proto, tmp_path / "whole.onnx", {"x": X}, output_format)
    plan = edited(whole.plan, tmp_path / "plan.json", to_float("c1", "relu"))
    part = write_plan_of(proto, tmp_path / "part.onnx", {"x": X}, output_format, plan)
    expected = run(proto, {"x": X})[0]
    worse, better = (sqnr(expected, run(w.path, {"x": X})[0]) for w in (whole, part))
    assert better > worse > 25


@pytest.mark.parametrize("output_format", Format)
def test_float_output_can_be_switched_on(output_format: Format, tmp_path: Path) -> None:
    proto = matmuls(node("Transpose", ["a"], ["b"], "turn", perm=[1, 0, 2]))
    x = {"x": np.linspace(-1, 1, 96, dtype=np.float32).reshape(2, 3, 16)}
    whole = write_plan_of(proto, tmp_path / "whole.onnx", x, output_format)
    plan = edited(whole.plan, tmp_path / "plan.json", change("nodes", "m1", float_output=True))
    part = write_plan_of(proto, tmp_path / "part.onnx", x, output_format, plan)
    for optimize in (True, False):
        assert sqnr(run(proto, x)[0], run(part.path, x, optimize=optimize)[0]) > 25


def test_scales_that_a_move_does_not_keep_are_refused_where_they_would_be_wrong(
    tmp_path: Path,
) -> None:
    proto = matmuls(node("Transpose", ["a"], ["b"], "turn", perm=[1, 0, 2]))
    x = {"x": np.linspace(-1, 1, 96, dtype=np.float32).reshape(2, 3, 16)}
    whole = write_plan_of(proto, tmp_path / "whole.onnx", x)
    scale = whole.plan.activation["b"].scale * 2
    plan = edited(whole.plan, tmp_path / "plan.json", change("activations", "b", scale=scale))
    part = write_plan_of(proto, tmp_path / "part.onnx", x, Format.QDQ, plan)
    assert sqnr(run(proto, x)[0], run(part.path, x)[0]) > 25
    with pytest.raises(UsageError, match="moves 'a' to 'b', which has another scale"):
        write_plan_of(proto, tmp_path / "other.onnx", x, Format.QOPERATOR, plan)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a plan that this quantkit reads"),
        ("[" * 99999, "is nested too deeply"),
        ('{"format": NaN}', "NaN is no number of JSON"),
        ('{"format": "quantkit.plan.1", "nodes": [], "nodes": []}', "the key 'nodes' stands twice"),
        ('{"format": "quantkit.plan.1", "min_opset": "13", "nodes": [], "weights": []}', "got `str`"),
        ('{"format": "quantkit.plan.1", "min_opset": 13, "nodes": [], "weights": [], "more": 1}', "more"),
        ('{"format": "quantkit.quantize.plan.0"}', "is not a plan that this quantkit reads"),
        ('{"format": "quantkit.plan.1"}', "is wrong: Object missing required field `nodes`"),
        ('{"format": "quantkit.plan.1", "min_opset": 13, "nodes": [{"mode": "fast"}]}', "is wrong"),
        (('{"format": "quantkit.plan.1", "min_opset": 13, "nodes": [], "weights": [], "activations": '
         '[{"tensor": "x", "dtype": "int9", "scale": 1, "zero_point": 0, "why": ""}]}'), "int9"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_plan_says_so(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_plan(path)


def test_files_that_cannot_be_read_or_written_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read plan"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"folder .* does not exist"):
        write_plan(base()[1], tmp_path / "none" / "plan.json")


def test_a_plan_that_an_editor_marked_as_utf8_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(base()[1], path)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert read_plan(path) == base()[1]
    path.write_text(path.read_text(encoding="utf-8-sig"), encoding="utf-16")
    with pytest.raises(UsageError, match="is no UTF-8 text"):
        read_plan(path)
