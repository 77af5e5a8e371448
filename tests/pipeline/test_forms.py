"""A form of quantization that is not quantkit's own: the pipeline stages, verifies, repairs, records and commits it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph as graph_of
from builders import matmul_model, model, op_types, rng, run, save, sqnr
from builders import node as node_of

from quantkit.errors import NothingToQuantizeError, VerifyError
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.save import copy_of
from quantkit.model.provenance import content_digest, read_provenance
from quantkit.numerics.dtypes import INT8
from quantkit.pipeline.checks import require_change
from quantkit.pipeline.form import Attempt, Form, PlanDraft, Repair, run_form
from quantkit.pipeline.prepared import FloatModel, Job, Output, Prepared, float_copy, with_opset
from quantkit.quantize.plan import Mode, NodePlan, Plan, WeightPlan
from quantkit.reasons import Why, because
from quantkit.spec import PerTensor, QuantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSettings:
    """Weights are whole numbers of steps, from -steps to steps."""

    steps: int = 1
    least_db: float = 20.0
    repaired: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsDraft(PlanDraft):
    steps: int


class StepsForm(Form[Prepared, StepsDraft]):
    """Stores the weights of MatMul as int8 of a few steps; where that is too noisy, of all steps that int8 has."""

    kind = "steps"

    def prepare(self, source: LoadedModel) -> Prepared:
        ready, notes, _ = float_copy(source.model, keep_inputs=False)
        ready, raised = with_opset(ready, 13)
        found = FloatModel.of(ready, notes=(*notes, *raised))
        return Prepared(job=self.job, source=source, ready=found)

    def plan(self, prepared: Prepared) -> StepsDraft:
        spec = QuantSpec(dtype=INT8, granularity=PerTensor(), symmetric=True)
        products = prepared.ready.products
        nodes = (
            NodePlan(node=p.node, op_type="MatMul", mode=Mode.STORED, reason=because(Why.TIMED))
            for p in products
        )
        weights = (WeightPlan(tensor=p.weight, spec=spec) for p in products)
        plan = Plan(nodes=tuple(nodes), weights=tuple(weights), min_opset=13)
        require_change(plan, prepared.source)
        return StepsDraft(plan=plan, steps=self.job.options.steps)

    def emit(self, prepared: Prepared, draft: StepsDraft) -> ir.Model:
        result = copy_of(prepared.ready.model)
        values = result.graph.initializers
        for weight in draft.plan.weights:
            value = values[weight.tensor]
            assert value.const_value is not None
            floats = value.const_value.numpy()
            scale = np.abs(floats).max() / draft.steps
            codes = np.rint(floats / scale).astype(np.int8)
            read = ir.node(
                "DequantizeLinear",
                [
                    ir.val(f"{weight.tensor}/codes", const_value=ir.tensor(codes)),
                    ir.val(f"{weight.tensor}/scale", const_value=ir.tensor(scale)),
                ],
            )
            for one in read.inputs:
                assert one is not None
                result.graph.register_initializer(one)
            value.replace_all_uses_with(read.outputs[0])
            result.graph.insert_before(next(iter(result.graph)), read)
            del values[weight.tensor]
        return result

    def record(self, prepared: Prepared, draft: StepsDraft) -> dict[str, Any]:
        return {"steps": draft.steps, "external_data": self.output.external_data}

    def repairs(self, draft: StepsDraft) -> Sequence[Repair[Prepared, StepsDraft]]:
        allowed = self.job.options.repaired
        return (
            Repair(
                when=lambda tried: allowed and self.faults(tried) > 0, change=self.with_all_steps
            ),
        )

    def faults(self, attempt: Attempt[Prepared, StepsDraft]) -> float:
        worst = None if attempt.checked is None else attempt.checked.worst
        return 0.0 if worst is None else max(0.0, self.job.options.least_db - worst)

    def with_all_steps(self, attempt: Attempt[Prepared, StepsDraft]) -> StepsDraft:
        why = f"{attempt.draft.steps} steps were too noisy."
        return replace(attempt.draft, steps=127, warnings=(why,))


def written(source: Path, output: Path | None, *, verify: bool = True, **options: Any) -> Any:
    job = Job(source=source, options=StepsSettings(**options))
    return run_form(StepsForm(job, Output(path=output, verify=verify)))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(matmul_model(), tmp_path / "m.onnx")


def test_a_form_is_staged_verified_recorded_and_committed(source: Path) -> None:
    before, out = source.read_bytes(), source.with_name("q.onnx")
    result = written(source, out, steps=127)
    assert source.read_bytes() == before
    assert sorted(p.name for p in source.parent.iterdir()) == ["m.onnx", "q.onnx"]
    assert result.output_bytes == out.stat().st_size < result.input_bytes / 3
    assert result.verification.worst > 30
    assert result.warnings == ()
    says = read_provenance(out)
    assert says is not None
    assert (says.kind, says.options["steps"]) == ("steps", 127)
    assert says.content == content_digest(out)
    x = rng().standard_normal((4, 128)).astype(np.float32)
    assert sqnr(run(source, {"x": x})[0], run(out, {"x": x})[0]) > 30
    assert "DequantizeLinear" in op_types(onnx.load(out))


def test_what_misses_something_is_repaired(source: Path) -> None:
    out = source.with_name("q.onnx")
    result = written(source, out)
    assert result.warnings == ("1 steps were too noisy.",)
    assert result.verification.worst > 30
    says = read_provenance(out)
    assert says is not None
    assert says.options["steps"] == 127


def test_a_repair_that_is_not_needed_is_not_tried(source: Path) -> None:
    assert written(source, None, steps=15, least_db=10.0).warnings == ()


def test_a_repair_that_makes_it_worse_is_taken_back(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worse(_: Any, attempt: Attempt[Prepared, StepsDraft]) -> StepsDraft:
        return replace(attempt.draft, steps=1)

    monkeypatch.setattr(StepsForm, "with_all_steps", worse)
    out = source.with_name("q.onnx")
    written(source, out, steps=7, least_db=60.0)
    says = read_provenance(out)
    assert says is not None
    assert says.options["steps"] == 7


def test_without_an_output_nothing_is_written(source: Path) -> None:
    assert written(source, None, steps=127).output_bytes < 40_000
    assert [p.name for p in source.parent.iterdir()] == ["m.onnx"]


def test_what_changes_nothing_is_refused(tmp_path: Path) -> None:
    relu = graph_of([node_of("Relu", ["x"], ["y"])], {"x": [1, 4]}, {"y": None})
    source = save(model(relu), tmp_path / "m.onnx")
    with pytest.raises(NothingToQuantizeError, match=r"m\.onnx"):
        written(source, tmp_path / "q.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_result_that_does_not_run_is_not_written(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: StepsForm, prepared: Prepared, _: StepsDraft) -> ir.Model:
        found = copy_of(prepared.ready.model)
        next(iter(found.graph)).op_type = "NoSuchOperator"
        return found

    monkeypatch.setattr(StepsForm, "emit", broken)
    with pytest.raises(VerifyError):
        written(source, source.with_name("q.onnx"))
    assert [p.name for p in source.parent.iterdir()] == ["m.onnx"]
