"""Figures that mean nothing do not pass, however good they are; each reason has its own sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from result_cases import candidate, example_result, float_model

from quantkit.cli.app import run
from quantkit.errors import UsageError
from quantkit.evaluate.gate import badge, judge, junit_xml, overall, rules_of, with_verdicts
from quantkit.evaluate.report.html import render_html
from quantkit.evaluate.report.markdown import render_markdown
from quantkit.evaluate.report.verdicts import cards, headline
from quantkit.result import (
    Calibrated,
    Decision,
    Evaluated,
    Interval,
    Metric,
    OutputDrift,
    Result,
    Runtime,
    Verdict,
    save_result,
)
from quantkit.settings import GateSettings, objections

RULES = rules_of(GateSettings(max_drop=0.01))


def _result(model: Evaluated, reference: Evaluated | None = None, **other: Any) -> Result:
    return replace(example_result(), models=(reference or float_model(), model), **other)


def _float(metric: Metric) -> Evaluated:
    return replace(float_model(), metrics=(metric,))


def _drifting(**other: Any) -> Evaluated:
    model = candidate()
    assert model.drift is not None
    return replace(model, drift=replace(model.drift, **other))


def _calibrated(**other: Any) -> Evaluated:
    made = Calibrated(method="mse", samples=128, data="images", fingerprint="f", **other)
    return replace(candidate(), calibration=made)


def _decision(flips: int) -> Decision:
    rate = flips / 2000
    interval = Interval(low=rate, high=rate)
    return Decision(output="y", samples=2000, flips=flips, flip_rate=rate, interval=interval)


def _top(value: float, low: float, chance: float) -> Metric:
    bounds = Interval(low=low, high=2 * value - low)
    return Metric(name="top-1", value=value, interval=bounds, main=True, chance=chance)


FOOLED: dict[str, tuple[str, Result, str]] = {
    "float is no better than a lot": (
        "guessing",
        _result(candidate(), _float(_top(0.02, 0.01, 0.02))),
        "that preprocessing is right",
    ),
    "float on three samples": (
        "guessing",
        _result(candidate(), _float(_top(0.6, 0.2, 0.34))),
        "evaluate more samples",
    ),
    "one class": (
        "guessing",
        _result(candidate(), _float(_top(1.0, 0.99, 1.0))),
        "all labels are one class",
    ),
    "no correlation": (
        "guessing",
        _result(
            candidate(),
            _float(
                Metric(
                    name="spearman",
                    value=0.05,
                    interval=Interval(low=-0.1, high=0.2),
                    main=True,
                    chance=0.0,
                )
            ),
        ),
        "cannot be told from",
    ),
    "an error as large as the labels": (
        "guessing",
        _result(
            candidate(),
            _float(
                Metric(
                    name="mse",
                    value=9.0,
                    interval=Interval(low=8, high=10),
                    higher_is_better=False,
                    main=True,
                    chance=4.0,
                )
            ),
        ),
        "is no better than",
    ),
    "most decisions differ": (
        "contradiction",
        _result(_drifting(decision=_decision(1940))),
        "97 % of the decisions are not float's (1940 of 2000)",
    ),
    "noise": (
        "contradiction",
        _result(_drifting(outputs=(OutputDrift(output="y", sqnr_db=-0.1, compared=9),))),
        "'y' is more noise than signal (-0.1 dB SQNR)",
    ),
    "not finite": (
        "contradiction",
        _result(_drifting(outputs=(OutputDrift(output="y", sqnr_db=40.0, not_finite=3),))),
        "3 values of 'y' are NaN or infinite",
    ),
    "calibrated with all": (
        "calibrated",
        _result(_calibrated(seen=2000, shared=True)),
        "--hold-out",
    ),
    "calibrated with half": ("calibrated", _result(_calibrated(seen=1000)), "on other data"),
    "three samples a hundred times": (
        "copies",
        _result(candidate(), data=replace(example_result().data, distinct=3)),
        "only 3 of the 2,000 samples are different",
    ),
    "prepared otherwise": (
        "preprocessing",
        _result(_calibrated(differs=("pixels: calibrated with 0-1, evaluated with 0-255",))),
        "calibrated with 0-1, evaluated with 0-255",
    ),
    "nothing compared": (
        "incomparable",
        _result(_drifting(outputs=(OutputDrift(output="y", sqnr_db=None, compared=0),))),
        "no value of 'y'",
    ),
    "the float file": (
        "identical",
        _result(replace(candidate(), file=float_model().file)),
        "evaluate the model that is to go out",
    ),
    "swapped": (
        "swapped",
        _result(
            candidate(),
            replace(
                float_model(),
                runtime=Runtime(integer=9, products=9, share=1.0, kernels={}, conversions=0),
            ),
        ),
        "give the float model first",
    ),
    "an older version": (
        "outdated",
        _result(candidate(), schema="quantkit.result/1"),
        "evaluate again",
    ),
}


def _judged(result: Result, *allow: str) -> Verdict:
    (verdict,) = judge(result, RULES, allow)
    return verdict


def test_a_sound_evaluation_has_no_objection() -> None:
    found = _judged(_result(candidate(), _float(_top(0.9, 0.88, 0.1))))
    assert (found.outcome, found.objections) == ("pass", ())
    few = _judged(_result(_calibrated(seen=100)))
    assert few.outcome == "pass"


@pytest.mark.parametrize("case", FOOLED)
def test_what_proves_nothing_does_not_pass(case: str) -> None:
    kind, result, sentence = FOOLED[case]
    found = _judged(result)
    assert found.outcome == "invalid"
    assert [j.outcome for j in found.rules] == [
        "pass"
    ]  # so that only the objection stands in the way
    (objection,) = found.objections
    assert objection.kind == kind
    assert sentence in objection.sentence
    assert overall([found], allow_undecided=True) == "invalid"


@pytest.mark.parametrize("case", FOOLED)
def test_every_view_says_what_stands_against_it(case: str) -> None:
    result = with_verdicts(FOOLED[case][1], RULES)
    (verdict,) = result.verdicts
    (objection,) = verdict.objections
    assert badge(result, result.verdicts) == f"quantkit gate: invalid (static: {objection.title})"
    suite = fromstring(junit_xml(result, result.verdicts))  # noqa: S314 - our own
    assert suite.get("errors") == "1"
    assert [e.get("message") for e in suite.iter("error")] == [objection.sentence]
    assert [e.get("type") for e in suite.iter("error")] == [objection.kind]
    assert headline(result).word == objection.title
    assert headline(result).state == cards(result)[0].state == "invalid"
    assert objection.title in render_html(result)
    assert "Pass" not in headline(result).word
    assert "Why these figures prove nothing" in render_markdown(result)


@pytest.mark.parametrize("case", FOOLED)
def test_an_objection_that_is_allowed_is_told_and_does_not_count(case: str) -> None:
    kind, result, _ = FOOLED[case]
    found = _judged(result, kind)
    assert found.outcome == "pass"
    assert [o.allowed for o in found.objections] == [True]
    assert "(allowed)" in render_markdown(with_verdicts(result, RULES, [kind]))
    suite = fromstring(junit_xml(result, [found]))  # noqa: S314 - our own
    assert (suite.get("errors"), suite.get("skipped")) == ("0", "1")


def test_noise_that_a_rule_fails_is_a_failure() -> None:
    noise = _drifting(outputs=(OutputDrift(output="y", sqnr_db=-0.1, compared=9),))
    (found,) = judge(_result(noise), rules_of(GateSettings(min_sqnr_db=20)))
    assert (found.outcome, found.objections) == ("fail", ())


def test_one_that_fails_goes_before_one_that_is_invalid() -> None:
    bad = replace(candidate("bad", drop=0.2))
    result = replace(example_result(), models=(float_model(), _calibrated(seen=2000), bad))
    found = judge(result, RULES)
    assert [v.outcome for v in found] == ["invalid", "fail"]
    assert overall(found) == "fail"


def test_three_samples_do_not_pass_by_default() -> None:
    wide = Metric(
        name="top-1",
        value=0.667,
        drop=0.0,
        drop_interval=Interval(low=-0.5615, high=0.5615),
        main=True,
    )
    result = _result(replace(candidate(), metrics=(wide,)))
    (found,) = judge(result, rules_of(GateSettings(max_drop=0.01)))
    assert found.outcome == "undecided"
    (estimated,) = judge(result, rules_of(GateSettings(max_drop=0.01, estimate=True)))
    assert estimated.outcome == "pass"


def test_settings_name_objections_and_how_rules_are_judged() -> None:
    assert GateSettings(allow=objections()).allow == objections()
    with pytest.raises(UsageError, match=r"allow 'guess' is unknown \(did you mean 'guessing'\?\)"):
        GateSettings(allow=("guess",))
    with pytest.raises(UsageError, match="leave out one of the two"):
        GateSettings(estimate=True, confidence=0.9)


def test_the_command_says_it_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    save_result(FOOLED["prepared otherwise"][1], Path("result.json"))
    assert run(["gate", "result.json", "--max-drop", "1%"]) == 1
    shown = capsys.readouterr().out
    assert "invalid preprocessing: pixels: calibrated with 0-1" in shown
    assert shown.splitlines()[-1].startswith("quantkit gate: invalid (static: Other preprocessing")
    assert run(["gate", "result.json", "--max-drop", "1%", "--allow", "preprocessing"]) == 0
    assert "allowed preprocessing" in capsys.readouterr().out
    assert run(["gate", "result.json", "--max-drop", "1%", "--allow", "all"]) == 2
    Path("quantkit.toml").write_text('[gate]\nmax_drop = 0.01\nallow = ["preprocessing"]\n')
    assert run(["gate", "result.json"]) == 0
    assert run(["gate", "result.json", "--drop-rule", "max_drop"]) == 2
