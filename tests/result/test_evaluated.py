"""What stands for a model: one latency, one output."""

from dataclasses import replace
from math import inf

from result_cases import candidate, float_model

from quantkit.result import Evaluated, OutputDrift


def with_outputs(*outputs: OutputDrift) -> Evaluated:
    model = candidate()
    assert model.drift is not None
    return replace(model, drift=replace(model.drift, outputs=outputs))


def test_the_smallest_batch_is_typical_whatever_the_order() -> None:
    model = candidate()
    turned = replace(model, latency=model.latency[::-1])
    assert turned.typical_latency == model.latency[0]
    assert replace(model, latency=()).typical_latency is None


def test_an_output_that_is_not_finite_is_worse_than_any_noise() -> None:
    exact = OutputDrift(output="exact", sqnr_db=None)
    noisy = OutputDrift(output="noisy", sqnr_db=-3.0)
    lost = OutputDrift(output="lost", sqnr_db=None, not_finite=7)
    assert (exact.db, noisy.db, lost.db) == (inf, -3.0, -inf)
    assert with_outputs(exact, noisy).worst_output == noisy
    assert with_outputs(exact, noisy, lost).worst_output == lost
    assert with_outputs().worst_output is None
    assert float_model().worst_output is None
