"""Weights of few bits that make up for the error of the layers before them, and biases that keep the means."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_cases import pictures
from builders import Array, rng, run, save, sqnr
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import quantkit
from calibrators import Window
from quantkit import Prepared, StaticSettings
from quantkit.calibration.monitor import Silent
from quantkit.model.graph.protos import to_proto
from quantkit.numerics.blocks import from_rows
from quantkit.numerics.second_order import damped, damping_share
from quantkit.numerics.weights import dequantize_weight
from quantkit.pipeline import static_in_order
from quantkit.pipeline.plan_prepared import plan_of
from quantkit.pipeline.static_model import runnable
from quantkit.pipeline.static_solving import rounded
from quantkit.quantize.emit import Format
from quantkit.quantize.plan import Plan, SolvedIntegers
from quantkit.quantize.plan.blocks import with_bits
from quantkit.quantize.solve.block_moments import Moments
from quantkit.quantize.solve.blocks import BlockSettings
from quantkit.quantize.solve.in_order import solved_in_order

SAMPLES, UNSEEN = 60, 20  # what is given, of which some judge; and what nobody is given


@dataclass(frozen=True)
class Case:
    """A prepared model, its plan with few bits, what was solved for from the float model alone, and its samples."""

    prepared: Prepared
    plan: Plan
    start: SolvedIntegers
    inputs: Array

    def in_order(self, folder: Path, corrected: float = 1.0) -> SolvedIntegers:
        ready, folder = self.prepared.ready, folder / str(corrected)
        folder.mkdir()

        def feeds() -> Iterator[dict[str, Array]]:
            return ({"x": x[np.newaxis]} for x in self.inputs[:SAMPLES])

        with runnable(ready) as written:
            assert written.path is not None
            return solved_in_order(
                ready.model,
                written.path,
                ready.view,
                self.plan,
                ready.products,
                feeds,
                self.start,
                BlockSettings(corrected=corrected, damps=True),
                folder,
                Silent(),
            )

    def with_weights(self, solved: SolvedIntegers) -> Any:
        """Return the float model with what the integers stand for, and their biases."""
        proto = to_proto(self.prepared.ready.model)
        weights = {n: dequantize_weight(w.integers, w.qparams) for n, w in solved.weights.items()}
        biases = {n.name: n.input[2] for n in proto.graph.node if n.name in solved.biases}
        weights |= {tensor: solved.biases[node] for node, tensor in biases.items()}
        for tensor in proto.graph.initializer:
            if tensor.name in solved.blocks:
                codes = solved.blocks[tensor.name].dequantized()
                weights[tensor.name] = from_rows(codes, tuple(tensor.dims), 0)
            if tensor.name in weights:
                array = np.ascontiguousarray(weights[tensor.name].reshape(tuple(tensor.dims)))
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return proto

    def quality(self, solved: SolvedIntegers) -> float:
        """Return the SQNR on samples that nothing was fitted to."""
        feed = {"x": self.inputs[SAMPLES:]}
        exact = run(to_proto(self.prepared.ready.model), feed)[0]
        return sqnr(exact, run(self.with_weights(solved), feed)[0])


def made(folder: Path, bits: int = 3, samples: int = SAMPLES) -> Case:
    folder.mkdir(exist_ok=True)
    inputs = rng(3).standard_normal((samples + UNSEEN, 3, 12, 12)).astype(np.float32)
    np.save(folder / "x.npy", inputs[:samples])
    source = save(pictures(), folder / "m.onnx")
    static = StaticSettings(weight_bits=bits, measure=False)
    prepared = quantkit.prepare_static(source, folder / "x.npy", static)
    whole = plan_of(prepared)
    solved = rounded(prepared, whole, Silent(), lambda: prepared.moments.held)
    few = dict.fromkeys(("point_w", "wide_w", "head_w"), bits)
    plan = with_bits(whole, prepared.ready.view, few)
    packed = rounded(prepared, plan, Silent(), lambda: prepared.moments.held, packed=True)
    weights = {n: w for n, w in solved.weights.items() if n not in packed.blocks}
    start = replace(packed, weights=weights, biases={**solved.biases, **packed.biases})
    return Case(prepared, plan, start, inputs)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(tmp_path_factory.mktemp("in-order"))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_fitting_in_order_loses_less_on_other_samples(bits: int, tmp_path: Path) -> None:
    one = made(tmp_path / "case", bits)
    found = one.in_order(tmp_path)
    assert found.blocks.keys() == one.start.blocks.keys()
    assert one.quality(found) > one.quality(one.start) + 0.1


def test_every_channel_keeps_its_mean_behind_the_layers_before_it(
    case: Case, tmp_path: Path
) -> None:
    found = case.in_order(tmp_path)
    feed = {"x": case.inputs[:SAMPLES]}
    exact = run(to_proto(case.prepared.ready.model), feed)[0].mean(axis=0)
    moved = [
        np.abs(run(case.with_weights(solved), feed)[0].mean(axis=0) - exact).max()
        for solved in (found, case.start)
    ]
    assert moved[0] < moved[1] / 20


def test_weights_of_8_bits_stay_and_their_biases_are_refitted(case: Case, tmp_path: Path) -> None:
    found = case.in_order(tmp_path)
    assert found.weights == case.start.weights
    assert {"first", "depthwise"} <= found.biases.keys()
    assert (found.biases["depthwise"] != case.start.biases["depthwise"]).any()


def test_without_correction_the_error_that_comes_in_stays(case: Case, tmp_path: Path) -> None:
    whole, none = (case.in_order(tmp_path, share) for share in (1.0, 0.0))
    assert case.quality(whole) > case.quality(none)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([1, 3]), st.floats(0, 1))
def test_centred_moments_are_those_of_numpy(seed: int, groups: int, share: float) -> None:
    generator = rng(seed)
    exact = generator.standard_normal((7, 2 * groups, 5, 5)).astype(np.float32) + 2
    rough = exact + generator.standard_normal(exact.shape).astype(np.float32) / 4
    window = Window(kernel=(1, 1), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=groups)
    seen = Moments(window=window, centred=True)
    for x0, x in zip(exact[:, np.newaxis], rough[:, np.newaxis], strict=True):
        seen.add(x0, x, 100)
    means = seen.means
    cost = seen.cost(share, damps=True)
    assert cost is not None
    for g in range(groups):
        x0, x = (
            a[:, 2 * g : 2 * g + 2].transpose(0, 2, 3, 1).reshape(-1, 2).astype(np.float64)
            for a in (exact, rough)
        )
        np.testing.assert_allclose(means[:, g], [x0.mean(axis=0), x.mean(axis=0)], rtol=1e-5)
        h = damped(np.cov(x.T, bias=True), damping_share(2, len(x)))
        np.testing.assert_allclose(cost.second[g], h, rtol=1e-3, atol=1e-4)
        cross = (x0 - x - (x0 - x).mean(axis=0)).T @ (x - x.mean(axis=0)) / len(x)
        wanted = share * cross @ np.linalg.inv(h)
        np.testing.assert_allclose(cost.shift[g], wanted, rtol=1e-2, atol=1e-3)


def spoilt(solved: SolvedIntegers) -> SolvedIntegers:
    return replace(solved, biases={node: bias + 3 for node, bias in solved.biases.items()})


@pytest.mark.parametrize("spoil", [False, True])
def test_what_loses_more_on_held_out_samples_is_not_kept(
    case: Case, monkeypatch: pytest.MonkeyPatch, *, spoil: bool
) -> None:
    def changed(*given: Any) -> SolvedIntegers:
        found = solved_in_order(*given)
        return spoilt(found) if spoil else found

    monkeypatch.setattr(static_in_order, "solved_in_order", changed)
    found, note = static_in_order.fitted_in_order(
        case.prepared, case.plan, case.start, Format.QDQ, Silent()
    )
    assert (found is case.start) == spoil
    assert ("not kept" in note) == spoil
    assert "held-out samples" in note


def test_without_enough_samples_weights_stay_as_they_were(tmp_path: Path) -> None:
    one = made(tmp_path / "few", samples=20)
    found, note = static_in_order.fitted_in_order(
        one.prepared, one.plan, one.start, Format.QDQ, Silent()
    )
    assert found is one.start
    assert "40 samples" in note


def test_a_file_that_cannot_be_written_leaves_weights_as_they_were(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> SolvedIntegers:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(static_in_order, "solved_in_order", full)
    found, note = static_in_order.fitted_in_order(
        case.prepared, case.plan, case.start, Format.QDQ, Silent()
    )
    assert found is case.start
    assert "No space left" in note


def test_whoever_wants_biases_left_alone_gets_them_so(case: Case) -> None:
    recover = quantkit.RecoverSettings(bias=False)
    job = replace(case.prepared.job, options=replace(case.prepared.job.options, recover=recover))
    found, note = static_in_order.fitted_in_order(
        replace(case.prepared, job=job), case.plan, case.start, Format.QDQ, Silent()
    )
    assert found is case.start
    assert not note
