"""Simplifying passes of other packages: run when asked for, proved like the built-in ones, named when they are wrong."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, model, node, op_types, save, weight
from onnx_ir.passes.common import AddInitializersToInputsPass, IdentityEliminationPass

import quantkit
from calibrators import plugins
from quantkit import check_pass, optimize, verify_file
from quantkit.cli.app import run
from quantkit.errors import UsageError, VerifyError
from quantkit.model.provenance import read_provenance
from quantkit.pipeline import optimize as optimization
from quantkit.quantize.rewrite.simplify import PASSES


def chain(*, decides: bool = False) -> onnx.ModelProto:
    """x -> MatMul -> Neg -> Neg -> y (-> ArgMax -> z)."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "product"),
        node("Neg", ["m"], ["n"], "first"),
        node("Neg", ["n"], ["y"], "second"),
    ]
    outputs: dict[str, Any] = {"y": ["N", 6]}
    if decides:
        nodes.append(node("ArgMax", ["y"], ["z"], "decision", axis=1))
        outputs = {"z": ["N", 1]}
    types = {"z": onnx.TensorProto.INT64} if decides else {}
    return model(graph(nodes, {"x": ["N", 4]}, outputs, {"w": weight(4, 6)}, types=types))


class NoDoubleNegation(ir.passes.InPlacePass):
    """Take out Neg(Neg(x)), where nobody else reads what is in between."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for second in model.graph:
            first = second.inputs[0].producer() if second.inputs and second.inputs[0] else None
            if second.op_type == "Neg" and first is not None and first.op_type == "Neg":
                second.op_type, modified = "Identity", True
                second.replace_input_with(0, first.inputs[0])
                model.graph.remove(first, safe=True)
        return ir.passes.PassResult(model, modified)


class Functional(ir.passes.FunctionalPass):
    """The same, in a new model."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return NoDoubleNegation()(model.clone())


def _changed(change: Callable[[ir.Node], None]) -> Callable[[ir.Model], ir.passes.PassResult]:
    def run_on(built: ir.Model) -> ir.passes.PassResult:
        for item in built.graph:
            change(item)
        return ir.passes.PassResult(built, True)

    return run_on


def _one_negation(item: ir.Node) -> None:
    if item.name == "second":
        item.op_type = "Relu"


def _unknown_operator(item: ir.Node) -> None:
    if item.name == "second":
        item.op_type = "Negate"


def _other_axis(item: ir.Node) -> None:
    if item.op_type == "ArgMax":
        item.op_type = "ArgMin"


def _renames(built: ir.Model) -> ir.passes.PassResult:
    built.graph.outputs[0].name = "z"
    return ir.passes.PassResult(built, True)


def _fails(built: ir.Model) -> ir.passes.PassResult:
    raise KeyError(f"nothing in {built.graph.name}")


class _NeedsMore(ir.passes.InPlacePass):
    def requires(self, model: ir.Model) -> None:
        raise ValueError(f"opset {model.opset_imports['']} is too old")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, False)


class _WithArguments(NoDoubleNegation):
    def __init__(self, depth: int) -> None:
        self.depth = depth


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that a package with passes of these names is installed."""

    def put(**chosen: object) -> None:
        points = [EntryPoint(name, f"fake_passes:{name}", "quantkit.passes") for name in chosen]
        ours = {"quantkit.passes": points}
        monkeypatch.setattr(plugins, "entry_points", lambda *, group: ours.get(group, []))
        module = ModuleType("fake_passes")
        module.__dict__.update(chosen)
        monkeypatch.setitem(sys.modules, "fake_passes", module)

    return put


@pytest.mark.parametrize("made", [NoDoubleNegation, NoDoubleNegation(), Functional])
def test_a_pass_runs_after_the_built_in_ones_when_it_is_asked_for(
    tmp_path: Path, install: Callable[..., None], made: object
) -> None:
    install(negations=made)
    source = save(chain(), tmp_path / "in.onnx")
    result = optimize(source, tmp_path / "out.onnx", extra_passes=["negations"])
    assert op_types(onnx.load(tmp_path / "out.onnx")) == ["MatMul", "Identity"]
    assert result.report.changes["negations"] == 1
    assert result.report.after["Identity"] == 1
    assert result.verification is not None
    assert result.verification.compared == {"y": float("inf")}
    assert list(result.report.changes)[-1] == "negations"


def test_an_installed_pass_alone_changes_nothing(
    tmp_path: Path, install: Callable[..., None]
) -> None:
    optimize(chain(), tmp_path / "before.onnx")
    install(negations=NoDoubleNegation)
    optimize(chain(), tmp_path / "after.onnx")
    assert (tmp_path / "after.onnx").read_bytes() == (tmp_path / "before.onnx").read_bytes()


def test_a_pass_by_module_and_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "onnx_ir.passes.common:IdentityEliminationPass"
    result = optimize(chain(), "o.onnx", passes=[], extra_passes=[name])
    assert result.report.changes == {name: 0}
    Path("own_pass.py").write_text(
        "from onnx_ir.passes import PassResult\ndef nothing(model):\n    return PassResult(model, False)\n"
    )
    optimize(chain(), "p.onnx", extra_passes=["own_pass.py:nothing", "own_pass:nothing"])
    sys.modules.pop("own_pass", None)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (_changed(_one_negation), r"broke the model: Output 'y' of the simplified model is -?\d"),
        (_changed(_unknown_operator), r"broke the model: The simplified model is not valid ONNX"),
        (
            _renames,
            r"changed the model's inputs or outputs \('output y: FLOAT', 'output z: FLOAT'\)",
        ),
        (_fails, r"failed: KeyError: 'nothing in"),
        (_NeedsMore, r"failed: PreconditionError: opset 17 is too old"),
        (lambda built: built, r"returned Model, not an onnx_ir.passes.PassResult"),
        (
            AddInitializersToInputsPass,
            r"changed the model's inputs or outputs \('input w: FLOAT'\)",
        ),
    ],
)
def test_a_pass_that_is_wrong_is_named_and_nothing_is_written(
    tmp_path: Path, install: Callable[..., None], wrong: object, says: str
) -> None:
    install(good=NoDoubleNegation, wrong=wrong)
    with pytest.raises(VerifyError, match=f"^The pass 'wrong' {says}") as e:
        optimize(chain(), tmp_path / "o.onnx", extra_passes=["wrong", "good"])
    assert "\n" not in str(e.value)
    assert "--skip" not in str(e.value)
    assert list(tmp_path.iterdir()) == []


def test_decisions_that_are_mostly_others_are_no_rounding(
    tmp_path: Path, install: Callable[..., None]
) -> None:
    install(wrong=_changed(_other_axis))
    sample = {"x": weight(50, 4, scale=1.0)}
    with pytest.raises(
        VerifyError, match="The pass 'wrong' broke the model: Output 'z' is not what"
    ):
        optimize(chain(decides=True), tmp_path / "o.onnx", extra_passes=["wrong"], sample=sample)


def test_an_output_that_was_zero_must_stay_zero(
    tmp_path: Path, install: Callable[..., None]
) -> None:
    part = graph(
        [node("Mul", ["x", "o"], ["y"], "product")],
        {"x": [3]},
        {"y": [3]},
        {"o": np.zeros(3, np.float32)},
    )

    def add(item: ir.Node) -> None:
        item.op_type = "Add"

    install(wrong=_changed(add))
    with pytest.raises(
        VerifyError, match="The pass 'wrong' broke the model: Output 'y' is not what"
    ):
        optimize(model(part), tmp_path / "o.onnx", passes=[], extra_passes=["wrong"])


def test_a_large_result_is_held_to_the_same_distance(
    tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimization, "LARGE", 4)  # bytes
    install(good=NoDoubleNegation, wrong=_changed(_one_negation))
    optimize(chain(), tmp_path / "o.onnx", extra_passes=["good"])
    with pytest.raises(VerifyError, match="The pass 'wrong' broke the model: Output 'y'"):
        optimize(chain(), tmp_path / "p.onnx", extra_passes=["wrong"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "negation",
            r"No pass 'negation' is installed \(did you mean 'negations'\?\): there are needs, neg",
        ),
        ("noops", "The pass 'noops' is built in, and runs unless it is skipped"),
        ("needs", "The pass 'needs' cannot be made without arguments: TypeError"),
        ("three", "The pass 'three' is none: it must be callable"),
        ("no_such:thing", "pass 'no_such:thing': the module 'no_such' cannot be imported"),
        ("onnx_ir:thing", "the module 'onnx_ir' has no pass 'thing'"),
        ("onnx_ir:", "pass 'onnx_ir:' is no pass: write module:pass"),
    ],
)
def test_a_name_that_makes_no_sense_is_one_sentence(
    tmp_path: Path, install: Callable[..., None], name: str, says: str
) -> None:
    install(negations=NoDoubleNegation, needs=_WithArguments, three=3)
    with pytest.raises(UsageError, match=says):
        optimize(chain(), tmp_path / "o.onnx", extra_passes=[name])
    assert list(tmp_path.iterdir()) == []


def test_nothing_installed_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="No pass 'mine' is installed: install its package, or write"
    ):
        optimize(chain(), tmp_path / "o.onnx", extra_passes=["mine"])


def test_the_command_lists_and_runs_them(
    tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(negations=NoDoubleNegation)
    assert run(["optimize", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [*PASSES, "negations"]
    assert listed[-1].endswith("Plug-in fake_passes:negations; runs with --pass negations.")
    source, target = save(chain(), tmp_path / "in.onnx"), tmp_path / "out.onnx"
    assert run(["optimize", str(source), str(target), "--pass", "negations"]) == 0
    assert "negations 1" in capsys.readouterr().out
    assert run(["optimize", str(source), str(target), "--pass", "mine"]) == 2
    assert "No pass 'mine' is installed" in capsys.readouterr().err


# --- the record ---


def test_a_plug_in_is_recorded_and_run_again(tmp_path: Path, install: Callable[..., None]) -> None:
    install(negations=NoDoubleNegation)
    source, target = save(chain(), tmp_path / "in.onnx"), tmp_path / "out.onnx"
    optimize(source, target, extra_passes=["negations"])
    record = read_provenance(target)
    assert record is not None
    assert record.options["extra_passes"] == ["negations"]
    found = verify_file(target, source, again=True)
    assert (found.checks[-1].name, found.checks[-1].outcome) == ("again", "ok")


def test_what_is_not_installed_is_not_run_again(
    tmp_path: Path, install: Callable[..., None]
) -> None:
    source, target = save(chain(), tmp_path / "in.onnx"), tmp_path / "out.onnx"
    install(negations=NoDoubleNegation)
    optimize(source, target, extra_passes=["negations"])
    install()
    check = verify_file(target, source, again=True).checks[-1]
    assert check.outcome == "unknown"
    assert "it ran the pass 'negations', which is not installed" in check.sentence


def test_verifying_a_file_imports_no_code_that_the_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("planted.py").write_text(
        "from onnx_ir.passes import PassResult\nfrom pathlib import Path\nPath('ran').touch()\n"
        "def nothing(model):\n    return PassResult(model, False)\n"
    )
    save(chain(), tmp_path / "in.onnx")
    optimize("in.onnx", "out.onnx", extra_passes=["planted.py:nothing"])
    Path("ran").unlink()
    check = verify_file("out.onnx", "in.onnx", again=True).checks[-1]
    assert check.outcome == "unknown"
    assert "'planted.py:nothing', code that only its maker names" in check.sentence
    assert not Path("ran").exists()


# --- the laws ---


@pytest.mark.parametrize("good", [NoDoubleNegation(), Functional(), IdentityEliminationPass()])
@pytest.mark.slow
def test_good_passes_pass(good: quantkit.ModelPass) -> None:
    check_pass(good, [chain()])


def _lies(built: ir.Model) -> ir.passes.PassResult:
    for item in built.graph:
        item.doc_string = f"{item.doc_string or ''} seen"
    return ir.passes.PassResult(built, False)


def _forgets_subgraphs(built: ir.Model) -> ir.passes.PassResult:
    """Take out nodes that nobody reads, without looking into branches."""
    read = {v for item in built.graph for v in item.inputs} | set(built.graph.outputs)
    gone = [item for item in built.graph if not any(v in read for v in item.outputs)]
    for item in gone:
        for branch in built.graph.all_nodes():
            for i, value in enumerate(branch.inputs):
                if value in item.outputs:
                    branch.replace_input_with(i, None)
        built.graph.remove(item, safe=True)
    return ir.passes.PassResult(built, bool(gone))


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (_lies, "what is not modified is the same"),
        (_forgets_subgraphs, "keeps what a model computes"),
        (_fails, "keeps what a model computes; The pass 'checked' failed"),
        (_renames, "changed the model's inputs or outputs"),
    ],
)
def test_a_broken_law_is_named(wrong: quantkit.ModelPass, law: str) -> None:
    with pytest.raises(AssertionError, match=f"Broken law: .*{law}"):
        check_pass(wrong)
