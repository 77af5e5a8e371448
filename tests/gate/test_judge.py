"""What a rule makes of a figure: kept, broken, undecided; with margins and sentences."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_cases import candidate, example_result

from quantkit.errors import UsageError
from quantkit.evaluate.gate import judge, overall, rules_for, rules_of, with_verdicts
from quantkit.result import (
    Evaluated,
    Interval,
    Judged,
    Metric,
    Outcome,
    OutputDrift,
    Result,
    Rule,
    SampleSqnr,
    Verdict,
    result_from_json,
    result_text,
)
from quantkit.settings import GateSettings, Percent

PROPERTY = settings(max_examples=80, deadline=None)


def _result(*models: Evaluated) -> Result:
    found = example_result()
    return replace(found, models=(found.float_model, *models))


def _one(model: Evaluated, key: str, limit: float, confidence: float | None = None) -> Judged:
    rule = Rule(key=key, limit=limit, confidence=confidence)
    (verdict,) = judge(_result(model), [rule])
    assert verdict.outcome == verdict.rules[0].outcome
    return verdict.rules[0]


def _dropping(drop: float, half: float, *, name: str = "top-1", sure: float = 0.95) -> Evaluated:
    interval = Interval(low=drop - half, high=drop + half, confidence=sure)
    metric = Metric(name=name, value=0.9, drop=drop, drop_interval=interval, main=True)
    return replace(candidate(), metrics=(metric,))


@pytest.mark.parametrize(
    ("key", "limit", "figure", "margin"),
    [
        ("max_drop", 0.01, 0.003, 0.007),
        ("min_size_reduction", 0.7, 0.73, 0.03),
        ("max_latency_ratio", 0.8, 0.65, 0.15),
        ("min_int8_share", 0.8, 8 / 9, 8 / 9 - 0.8),
        ("max_flips", 0.02, 0.011, 0.009),
        ("min_sqnr_db", 30, 31.2, 1.2),
        ("min_sqnr_p1_db", 20, 24.1, 4.1),
    ],
)
def test_estimates_are_kept_or_broken(key: str, limit: float, figure: float, margin: float) -> None:
    kept = _one(candidate(), key, limit)
    assert kept.outcome == "pass"
    assert kept.figure == kept.estimate == pytest.approx(figure)
    assert kept.margin == pytest.approx(margin)
    assert "): margin " in kept.sentence
    tighter = limit - 2 * margin if key.startswith("max") else limit + 2 * margin
    broken = _one(candidate(), key, tighter)
    assert broken.outcome == "fail"
    assert broken.margin == pytest.approx(-margin)
    missed = "exceeds the limit by " if key.startswith("max") else " short"
    assert missed in broken.sentence


@pytest.mark.parametrize(
    ("drop", "half", "outcome"),
    [
        (0.003, 0.004, "pass"),
        (0.003, 0.008, "undecided"),
        (0.012, 0.001, "fail"),
        (0.012, 0.004, "fail"),  # the good end keeps the limit; the estimate does not
        (-0.002, 0.004, "pass"),
        (float("nan"), 0.001, "fail"),
    ],
)
def test_with_confidence_the_bad_end_decides(drop: float, half: float, outcome: Outcome) -> None:
    assert _one(_dropping(drop, half), "max_drop", 0.01, 0.95).outcome == outcome


def test_sentence_of_what_is_undecided_names_the_samples_needed() -> None:
    found = _one(_dropping(0.003, 0.008), "max_drop", 0.01, 0.95)
    assert found.figure == pytest.approx(0.011)
    assert found.margin == pytest.approx(-0.001)
    assert found.sentence == (
        "Measured drop of top-1: 0.3 points. With 2,000 samples it could be as high as 1.1 points (limit: 1 point). "
        "About 2,300 to 2,700 samples would settle it"
    )  # 2000 * (0.008 / 0.007) = 2286, 2000 * (0.008 / 0.007)^2 = 2612


def test_sentence_of_what_fails_with_confidence_is_about_the_estimate() -> None:
    found = _one(_dropping(0.05, 0.004), "max_drop", 0.01, 0.95)
    assert found.margin == pytest.approx(-0.044)
    assert found.sentence.endswith(
        "limit: 1 point): the estimate alone exceeds the limit by 4 points"
    )


def test_no_number_of_samples_decides_an_estimate_at_the_limit() -> None:
    found = _one(_dropping(0.01, 0.004), "max_drop", 0.01, 0.95)
    assert found.outcome == "undecided"
    assert found.sentence.endswith("more samples would not settle it")


def test_limits_are_met_despite_rounding() -> None:
    drop = 0.912 - 0.902
    assert drop > 0.01
    found = _one(_dropping(drop, 0.0), "max_drop", 0.01)
    assert (found.outcome, found.margin) == ("pass", 0.0)
    assert _one(_dropping(1e-17, 0.0), "max_drop", 0.0).outcome == "pass"


def test_counted_figures_need_no_interval() -> None:
    for key, limit in (("min_size_reduction", 0.7), ("min_int8_share", 0.8)):
        found = _one(candidate(), key, limit, 0.99)
        assert found.outcome == "pass"
        assert "confidence" not in found.sentence


def test_intervals_of_another_confidence_are_stretched() -> None:
    model = _dropping(0.003, 0.00196, sure=0.95)
    found = _one(model, "max_drop", 0.01, 0.99)
    assert found.figure == pytest.approx(0.003 + 0.002576, abs=1e-6)
    assert _one(model, "max_drop", 0.01, 0.95).figure == pytest.approx(0.00496)


def test_unknown_interval_is_undecided_unless_the_estimate_fails() -> None:
    model = replace(candidate(), metrics=(Metric(name="mse", value=1.0, drop=0.2, main=True),))
    found = _one(model, "max_drop", 0.3, 0.95)
    assert (found.outcome, found.figure, found.estimate) == ("undecided", None, 0.2)
    assert "Too few samples for an interval" in found.sentence
    assert _one(model, "max_drop", 0.1, 0.95).outcome == "fail"
    assert _one(model, "max_drop", 0.3).outcome == "pass"


def test_metrics_in_their_own_units() -> None:
    found = _one(_dropping(0.25, 0.5, name="mse"), "max_drop", 1.5, 0.95)
    assert found.outcome == "pass"
    assert found.sentence == (
        "drop of mse is 0.25 (at most 0.75 with 95 % confidence; limit: 1.5): margin 0.75"
    )


def test_a_limit_that_allows_everything_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.01 is one point"):
        _one(candidate(), "max_drop", 1.0)


@pytest.mark.parametrize(
    ("key", "bare", "advice"),
    [
        ("max_drop", {"metrics": ()}, "labelled data"),
        ("max_latency_ratio", {"latency": ()}, "--skip latency"),
        ("min_int8_share", {"runtime": None}, "--skip runtime"),
        ("max_flips", {"drift": None}, "remove max_flips"),
    ],
)
def test_what_was_not_measured_is_undecided(key: str, bare: dict[str, None], advice: str) -> None:
    found = _one(replace(candidate(), **bare), key, 0.5)  # type: ignore[arg-type]
    assert (found.outcome, found.figure, found.margin) == ("undecided", None, None)
    assert advice in found.sentence


def test_the_slowest_case_is_judged() -> None:
    first, second = candidate().latency
    slow = Interval(low=0.7, high=0.95)
    model = replace(
        candidate(),
        latency=(
            replace(first, ratio=0.8, ratio_interval=Interval(low=0.79, high=0.81)),
            replace(second, ratio=0.75, ratio_interval=slow, threads=4),
        ),
    )
    assert _one(model, "max_latency_ratio", 0.9).figure == 0.8
    sure = _one(model, "max_latency_ratio", 0.9, 0.95)
    assert sure.figure == pytest.approx(0.95)
    assert sure.outcome == "undecided"
    assert "at batch 8, 4 threads" in sure.sentence
    assert sure.sentence.endswith("About 360 runs would settle it")
    blind = replace(model, latency=(model.latency[0], replace(second, ratio_interval=None)))
    assert _one(blind, "max_latency_ratio", 0.9, 0.95).figure is None


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'max_drops' is unknown \(did you mean 'max_drop'\?\)"):
        _one(candidate(), "max_drops", 0.1)


def test_a_candidate_is_as_good_as_its_worst_rule() -> None:
    rules = rules_of(GateSettings(max_drop=0.01, max_flips=0.012, confidence=0.95))
    good, bad = judge(example_result(), rules)
    assert (good.candidate, good.outcome) == ("static", "undecided")
    assert [j.outcome for j in good.rules] == ["pass", "undecided"]
    assert (bad.candidate, bad.outcome) == ("ort default", "fail")


@pytest.mark.parametrize(
    ("outcomes", "allowed", "want"),
    [
        (["pass", "pass"], False, "pass"),
        (["pass", "undecided"], False, "undecided"),
        (["pass", "undecided"], True, "pass"),
        (["undecided", "fail"], True, "fail"),
        ([], False, "undecided"),
        ([], True, "undecided"),
    ],
)
def test_overall(outcomes: list[Outcome], allowed: bool, want: Outcome) -> None:  # noqa: FBT001
    verdicts = [Verdict(candidate=str(i), outcome=o, rules=()) for i, o in enumerate(outcomes)]
    assert overall(verdicts, allow_undecided=allowed) == want


def test_a_judged_result_is_written_and_read_again() -> None:
    rules = rules_of(GateSettings(max_drop=0.01, confidence=0.95))
    found = with_verdicts(example_result(), rules)
    assert (found.rules, len(found.verdicts)) == (rules, 2)
    assert result_from_json(result_text(found).encode(), "it") == found
    assert with_verdicts(found, ()) == example_result()


def test_rules_go_over_rules() -> None:
    base = rules_of(GateSettings(max_drop=0.01, max_flips=0.02, confidence=0.9))
    recipe = GateSettings(max_flips=0.5)
    over = GateSettings(max_latency_ratio=0.8, max_drop=0.005)
    assert {r.key for r in rules_for(base, recipe, over)} == {*recipe_keys(over), "max_flips"}
    found = rules_for(base, GateSettings(), over)
    assert [(r.key, r.limit) for r in found] == [
        ("max_drop", 0.005),
        ("max_latency_ratio", 0.8),
        ("max_flips", 0.02),
    ]
    assert {r.confidence for r in found} == {0.9}
    sure = replace(over, confidence=0.99)
    assert {r.confidence for r in rules_for(base, GateSettings(), sure)} == {0.99}
    assert {r.confidence for r in rules_for(base, GateSettings(estimate=True), over)} == {None}
    assert {r.confidence for r in rules_for((), GateSettings(), over)} == {0.95}


def recipe_keys(settings: GateSettings) -> set[str]:
    return {r.key for r in rules_of(settings)}


def test_a_rule_of_the_result_can_be_left_out() -> None:
    base = rules_of(GateSettings(max_drop=0.01, max_latency_ratio=0.5))
    nothing = GateSettings()
    (left,) = rules_for(base, nothing, nothing, ["max_latency_ratio"])
    assert left.key == "max_drop"
    with pytest.raises(
        UsageError, match=r"no rule 'max_latency'.*did you mean 'max_latency_ratio'"
    ):
        rules_for(base, nothing, nothing, ["max_latency"])


@PROPERTY
@given(st.floats(-0.05, 0.05), st.floats(0, 0.05), st.floats(0, 0.05), st.floats(0, 0.05))
def test_a_looser_limit_never_judges_worse(
    drop: float, half: float, one: float, more: float
) -> None:
    order = ["fail", "undecided", "pass"]
    model = _dropping(drop, half)
    tight = _one(model, "max_drop", one, 0.95)
    loose = _one(model, "max_drop", one + more, 0.95)
    assert order.index(tight.outcome) <= order.index(loose.outcome)
    # Judged with confidence is never kinder than judged by the estimate.
    assert order.index(tight.outcome) <= order.index(_one(model, "max_drop", one).outcome)
    assert tight.margin is not None
    assert (tight.outcome == "pass") == (tight.margin >= 0)


def _with_output(output: OutputDrift) -> Evaluated:
    model = candidate()
    assert model.drift is not None
    return replace(model, drift=replace(model.drift, outputs=(output,)))


@pytest.mark.parametrize("confidence", [None, 0.95])
def test_outputs_that_are_not_finite_fail_and_equal_ones_pass(confidence: float | None) -> None:
    lost = _one(
        _with_output(OutputDrift(output="y", sqnr_db=None, not_finite=40)),
        "min_sqnr_db",
        20,
        confidence,
    )
    assert (lost.outcome, lost.figure) == ("fail", -inf)
    assert lost.sentence == (
        "SQNR (40 values of 'y' are not finite) is -inf dB (required: 20 dB): too low"
    )
    same = _one(_with_output(OutputDrift(output="y", sqnr_db=None)), "min_sqnr_db", 20, confidence)
    assert same.outcome == "pass"
    assert same.sentence.endswith("(required: 20 dB): met")


@pytest.mark.parametrize("confidence", [None, 0.95])
def test_what_is_no_number_never_passes(confidence: float | None) -> None:
    metric = Metric(
        name="top-1",
        value=nan,
        drop=nan,
        drop_interval=Interval(low=nan, high=nan),
        main=True,
    )
    assert _one(replace(candidate(), metrics=(metric,)), "max_drop", 0.5, confidence).outcome == (
        "fail"
    )
    model = candidate()
    slow = replace(model.latency[1], ratio=nan, ratio_interval=Interval(low=nan, high=nan))
    timed = replace(model, latency=(model.latency[0], slow))
    assert _one(timed, "max_latency_ratio", 2, confidence).outcome == "fail"


def _with_quantiles(samples: int, p1: float, low: float | None, worst: float) -> Evaluated:
    found = SampleSqnr(samples=samples, median=30.0, p1=p1, p1_low=low, worst=worst)
    return _with_output(OutputDrift(output="y", sqnr_db=29.0, per_sample=found))


@pytest.mark.parametrize(
    ("samples", "p1", "low", "worst", "outcome", "said"),
    [
        (50, 18.0, None, 18.0, "undecided", "299 samples without a worse one would"),
        (50, 4.3, None, 4.3, "fail", "at the worst of 50 samples is 4.3 dB"),
        (298, 18.0, None, 16.0, "undecided", "at the 1st percentile of 298 samples: 18 dB"),
        (299, 18.0, 16.0, 16.0, "pass", "at least 16 dB with 95 % confidence"),
        (1000, 18.0, 14.0, 4.3, "undecided", "samples would settle it"),
        (1000, 18.0, 16.0, 4.3, "pass", "margin 1 dB"),
        (1000, 14.0, 13.0, 4.3, "fail", "the estimate alone is 1 dB short"),
    ],
)
def test_the_worst_percentile_is_judged_by_a_bound(
    samples: int, p1: float, low: float | None, worst: float, outcome: Outcome, said: str
) -> None:
    found = _one(_with_quantiles(samples, p1, low, worst), "min_sqnr_p1_db", 15, 0.95)
    assert found.outcome == outcome
    assert said in found.sentence


def test_a_bound_of_less_confidence_or_of_copies_gives_way_to_the_worst_sample() -> None:
    model = _with_quantiles(1000, 18.0, 16.0, 14.0)
    assert _one(model, "min_sqnr_p1_db", 15, 0.9).outcome == "pass"
    assert _one(model, "min_sqnr_p1_db", 15, 0.99).figure == 14.0
    rule = Rule(key="min_sqnr_p1_db", limit=12, confidence=0.95)
    for distinct, figure, outcome in (
        (1000, 16.0, "pass"),
        (600, 14.0, "pass"),
        (290, None, "undecided"),
    ):
        result = _result(model)
        data = replace(result.data, samples=1000, distinct=distinct)
        (verdict,) = judge(replace(result, data=data), [rule])
        assert (verdict.rules[0].figure, verdict.rules[0].outcome) == (figure, outcome)


def test_every_output_must_keep_the_worst_percentile() -> None:
    """The estimate is the lowest of all outputs, and so is the bound."""
    outputs = [
        OutputDrift(
            output=name,
            sqnr_db=29.0,
            per_sample=SampleSqnr(samples=400, median=30.0, p1=p1, p1_low=low, worst=low),
        )
        for name, p1, low in (("a", 18.0, 17.0), ("b", 19.0, 14.0))
    ]
    model = _with_output(outputs[0])
    assert model.drift is not None
    model = replace(model, drift=replace(model.drift, outputs=tuple(outputs)))
    found = _one(model, "min_sqnr_p1_db", 15, 0.95)
    assert (found.estimate, found.figure, found.outcome) == (18.0, 14.0, "undecided")


def test_samples_of_another_shape_and_older_results_are_undecided() -> None:
    apart = SampleSqnr(samples=400, median=30, p1=20, p1_low=19, worst=18, other_shape=3)
    for found, said in ((apart, "on 3 samples 'y' has another shape"), (None, "evaluate again")):
        model = _with_output(OutputDrift(output="y", sqnr_db=29.0, per_sample=found))
        judged = _one(model, "min_sqnr_p1_db", 15, 0.95)
        assert judged.outcome == "undecided"
        assert said in judged.sentence


def test_huge_figures_are_short() -> None:
    metric = Metric(name="mse", value=1e76, higher_is_better=False, drop=1e76, main=True)
    found = _one(replace(candidate(), metrics=(metric,)), "max_drop", 0.01)
    assert found.sentence == "drop of mse is 1e+76 (limit: 0.01): exceeds the limit by 1e+76"


def test_a_percentage_is_points_of_a_share_and_a_part_of_any_other_metric() -> None:
    (points,) = rules_of(GateSettings(max_drop=Percent(0.01)))
    (units,) = rules_of(GateSettings(max_drop=0.01))
    assert (points.relative, units.relative) == (True, False)
    share = _dropping(0.003, 0.004)
    for rule in (points, units):
        (verdict,) = judge(_result(share), [rule])
        assert verdict.rules[0].sentence.startswith("drop of top-1 is 0.3 points (at most 0.7 p")
    bounds = Interval(low=0.05, high=0.15)
    metric = Metric(
        name="mse", value=20.1, higher_is_better=False, drop=0.1, main=True, drop_interval=bounds
    )
    own = replace(metric, value=20.0, drop=None)
    reference = replace(example_result().float_model, metrics=(own,))
    result = replace(example_result(), models=(reference, replace(candidate(), metrics=(metric,))))
    (kept,), (broken,) = judge(result, [points]), judge(result, [units])
    assert kept.rules[0].sentence == (
        "drop of mse in parts of float's is 0.5 % (at most 0.75 % with 95 % confidence; limit: 1 %): margin 0.25 points"
    )
    assert (kept.outcome, broken.outcome) == ("pass", "fail")


def test_nothing_is_a_percentage_of_zero() -> None:
    (rule,) = rules_of(GateSettings(max_drop=Percent(0.01)))
    reference = replace(
        example_result().float_model, metrics=(Metric(name="mse", value=0.0, main=True),)
    )
    model = _dropping(0.25, 0.5, name="mse")
    (verdict,) = judge(replace(example_result(), models=(reference, model)), [rule])
    assert verdict.outcome == "undecided"
    assert "give max_drop in units of mse" in verdict.rules[0].sentence
