"""Numbers as people read them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.evaluate.report import numbers
from quantkit.result import Interval, Metric, OutputDrift, SampleSqnr


def plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\N{MINUS SIGN}", "-")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (1234567.0, "1234567"),
        (0.012345, "0.0123"),
        (-3.14159, "-3.14"),
        (1e-9, "1.00e-9"),
        (2.5e12, "2.50e12"),
        (None, "—"),
        (math.nan, "—"),
    ],
)
def test_significant(value: float | None, expected: str) -> None:
    assert plain(numbers.significant(value)) == expected


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999_949, "999.9 kB"),
        (999_999, "1.0 MB"),
        (22_900_000, "22.9 MB"),
        (3_210_000_000, "3.21 GB"),
        (None, "—"),
    ],
)
def test_size(nbytes: int | None, expected: str) -> None:
    assert plain(numbers.size(nbytes)) == expected


def test_fractions_and_ratios() -> None:
    assert plain(numbers.percent(0.27)) == "27 %"
    assert plain(numbers.percent(0.0123)) == "1.2 %"
    assert plain(numbers.percent(0)) == "0 %"
    assert plain(numbers.percent(None)) == "—"
    assert plain(numbers.ratio(0.654)) == "0.65\N{MULTIPLICATION SIGN}"
    assert plain(numbers.decibel(31.24)) == "31.2 dB"
    assert numbers.decibel(None) == "identical"
    assert plain(numbers.p_value(0.00001)) == "p < 0.001"
    assert plain(numbers.p_value(1.0)) == "p = 1.0"
    assert plain(numbers.integer(1234567)) == "1,234,567"
    shown = {0.4: "0 s", 59.4: "59 s", 59.7: "1 min 0 s", 75: "1 min 15 s", 119.8: "2 min 0 s"}
    assert {value: numbers.seconds(value) for value in shown} == shown
    assert [numbers.threads(n) for n in (0, 1, 4)] == ["default threads", "1 thread", "4 threads"]


def test_signal_to_noise_of_an_output() -> None:
    output = OutputDrift(output="y", sqnr_db=31.24)
    assert plain(numbers.sqnr(output)) == "31.2 dB"
    assert numbers.sqnr(replace(output, sqnr_db=None)) == "identical"
    assert numbers.sqnr(replace(output, not_finite=1)) == "not finite"
    assert numbers.sqnr(None) == "—"


def test_quantiles_of_single_samples() -> None:
    found = SampleSqnr(samples=101, median=200.0, p1=24.06, p1_low=None, worst=-1.25)
    shown = plain(numbers.per_sample(found))
    assert shown == "median identical, 1 % below 24.1, worst -1.2 dB"
    assert str(replace(found, samples=100, median=9.0)) == "median 9.0, worst -1.2 dB"
    assert str(replace(found, p1=200.0, worst=200.0)) == "all identical"
    assert numbers.per_sample(None) == numbers.ABSENT
    assert numbers.decibel(found.median) == "identical"


def test_metrics_in_their_units() -> None:
    spread = Interval(low=-0.001, high=0.007)
    top1 = Metric(name="top-1", value=0.909, drop=0.003, drop_interval=spread)
    assert plain(numbers.metric_value(top1)) == "90.90 %"
    assert plain(numbers.drop(top1)) == "0.30 (gain 0.10 to drop 0.70)"
    assert numbers.drop_unit(top1) == "points"
    mse = Metric(name="mse", value=0.0123456, drop=0.0002, interval=Interval(low=0.01, high=0.02))
    assert plain(numbers.metric_value(mse)) == "0.01235"
    assert plain(numbers.drop(mse)) == "0.000200"
    assert plain(numbers.value_interval(mse)) == "0.01000 to 0.02000"
    spearman = replace(
        mse, name="spearman", drop=0.00096, drop_interval=Interval(low=-0.000153, high=0.00213)
    )
    assert plain(numbers.drop(spearman)) == "0.00096 (gain 0.00015 to drop 0.00213)"
    huge = replace(mse, drop=1.2e30, drop_interval=Interval(low=1e30, high=2e30))
    assert numbers.drop(huge) == "1.20e30 (1.00e30 to 2.00e30)"
    assert numbers.drop(None) == numbers.metric_value(None) == "—"


@given(st.floats(-1e6, 1e6), st.integers(0, 4))
def test_no_negative_nothing(value: float, digits: int) -> None:
    text = plain(numbers.decimals(value, digits))
    assert abs(float(text) - value) <= 0.5 * 10**-digits * (1 + 1e-9) + 1e-9
    assert not (text.startswith("-") and float(text) == 0)
