"""What a search found: in the page, in Markdown, in the picture; and the gate judges what it chose."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from report_cases import NASTY, tuned_result
from result_cases import example_result

from quantkit import gate_result
from quantkit.errors import UsageError
from quantkit.evaluate.gate import rules_of, with_verdicts
from quantkit.evaluate.report import picture_svg
from quantkit.evaluate.report.frontier import frontier_chart
from quantkit.evaluate.report.html import render_html
from quantkit.evaluate.report.markdown import render_markdown
from quantkit.evaluate.report.numbers import lost_unit
from quantkit.evaluate.report.scatter import chart_svg
from quantkit.result import (
    Interval,
    Metric,
    Result,
    load_result,
    result_from_json,
    result_text,
    save_result,
)
from quantkit.settings import GateSettings, TuneSettings

BUDGET = TuneSettings(max_drop=0.01, max_latency=0.7, max_size=0.4)


def frontier(result: Result, *, width: int) -> str:
    chart = frontier_chart(result)
    assert chart is not None
    return chart_svg(chart, width=width)


def judged() -> Result:
    return with_verdicts(tuned_result(), rules_of(BUDGET.rules(GateSettings())))


def marks(svg: str) -> list[str]:
    """Return what the marks of a picture say."""
    root = ET.fromstring(svg)  # noqa: S314 - our own
    return [e.get("data-tip", "") for e in root.iter() if "mark" in (e.get("class") or "")]


# ---- result.json ----


def test_a_search_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    save_result(tuned_result(), tmp_path / "result.json")
    found = load_result(tmp_path)
    assert found == tuned_result()
    assert found.tuning is not None
    assert found.tuning.evaluations == pytest.approx((180 + 260 + 3 * 400 + 12) / 400)


def test_an_evaluation_is_written_without_a_word_of_searches() -> None:
    assert "tuning" not in result_text(example_result())


def test_what_is_no_search_is_refused_in_one_line() -> None:
    def changed(**values: Any) -> bytes:
        plain = msgspec.json.decode(result_text(tuned_result()).encode())
        return bytes(msgspec.json.encode(plain | {"tuning": plain["tuning"] | values}))

    for values, complaint in (
        ({"chosen": "99"}, "its search chose what it does not hold"),
        ({"trials": []}, "its search chose what it does not hold"),
        ({"measure": 3}, r"tuning\.measure"),
        ({"sentence": "it is perfect"}, "not as quantkit wrote it"),
    ):
        with pytest.raises(UsageError, match=complaint):
            result_from_json(changed(**values), "result.json")


# ---- the gate ----


def test_the_gate_judges_what_was_chosen_and_nothing_else(tmp_path: Path) -> None:
    save_result(judged(), tmp_path / "result.json")
    found = gate_result(tmp_path)
    assert [v.candidate for v in found.verdicts] == ["03"]
    assert {j.rule.key for j in found.verdicts[0].rules} == {
        "max_drop",
        "max_latency_ratio",
        "min_size_reduction",
    }
    assert found.passed
    tight = gate_result(tmp_path, GateSettings(max_latency_ratio=0.3))
    assert tight.outcome == "fail"
    assert [v.candidate for v in gate_result(tmp_path, candidates=["01"]).verdicts] == ["01"]


def test_a_search_that_chose_nothing_cannot_be_judged() -> None:
    with pytest.raises(UsageError, match="a search that chose nothing: name a candidate"):
        gate_result(_without_choice(), GateSettings(max_drop=0.01))


def _without_choice() -> Result:
    found = tuned_result()
    assert found.tuning is not None
    return replace(found, tuning=replace(found.tuning, chosen="", met=False))


def test_others_of_the_frontier_may_break_the_budget() -> None:
    found = judged()
    assert [v.candidate for v in found.verdicts] == ["03"]
    assert "All gate rules pass." in render_html(found)


# ---- page and Markdown ----


def test_the_page_shows_each_trial_and_what_was_chosen() -> None:
    page = render_html(judged())
    for trial in ("static, thorough recovery", "dynamic int8", "weights only", "no file"):
        assert trial in page
    assert "03 was chosen." in page
    assert "Allowing 0.4 points more would save 17 % of the run time." in page
    assert "7 trials, equal to 4.1 runs" in page
    assert "5 % error rate" in page


def test_the_page_opens_with_the_choice_where_nothing_is_judged() -> None:
    page = render_html(tuned_result())
    assert "03 chosen" in page
    assert "it exceeds the budget" in render_html(tuned_result(met=False))
    assert "Nothing chosen" in render_html(_without_choice())


def test_markdown_has_the_trials_in_a_table() -> None:
    text = render_markdown(judged())
    assert "| **03**, chosen | 0.30 | 0.40 (0.00 to 0.80) |" in text
    assert text.index("| 06 |") < text.index("| 02 |")  # the frontier first
    assert "chosen" not in render_markdown(example_result())


def test_pages_of_evaluations_do_not_speak_of_searches() -> None:
    assert "Search and frontier" not in render_html(example_result())


def test_foreign_words_do_no_harm() -> None:
    found = tuned_result()
    assert found.tuning is not None
    trials = tuple(replace(t, made=NASTY, note=NASTY) for t in found.tuning.trials)
    nasty = replace(found, tuning=replace(found.tuning, trials=trials, sentence=NASTY))
    assert "<script>alert" not in render_html(nasty)
    assert "<script>alert" not in render_markdown(nasty)
    assert len(marks(frontier(nasty, width=880))) > 0


def test_without_labels_decisions_and_noise_are_told_in_per_cent() -> None:
    found = tuned_result()
    assert found.tuning is not None
    models = tuple(replace(m, metrics=()) for m in found.models)
    flips = replace(found, models=models)
    assert flips.judged_drop("03") == (0.011, 0.0069, 0.0166)
    assert lost_unit(flips) == "%"
    plain = tuple(
        replace(m, drift=replace(m.drift, decision=None)) if m.drift else m for m in models
    )
    noise = replace(found, models=plain).judged_drop("03")
    assert noise is not None
    assert noise[1] < noise[0] < noise[2]
    assert noise[0] == pytest.approx(10**-3.12)
    assert flips.judged_drop("02") is None
    assert "lost against float: top-1, %" in render_html(flips)


def test_parts_of_float_s_own_figure_are_told_in_per_cent() -> None:
    found = tuned_result()
    assert found.tuning is not None
    metric = Metric(name="spearman", value=0.8, main=True)
    ends = Interval(low=0.0, high=0.008)
    lower = replace(metric, value=0.796, drop=0.004, drop_interval=ends)
    models = tuple(
        replace(m, metrics=(lower if m.role == "candidate" else metric,)) for m in found.models
    )
    parts = replace(found.tuning, measure="spearman in parts of float's")
    relative = replace(found, models=models, tuning=parts)
    assert relative.judged_drop("03") == pytest.approx((0.005, 0.0, 0.01))
    assert lost_unit(relative) == "%"
    plain = replace(relative, tuning=replace(parts, measure="spearman", is_fraction=False))
    assert plain.judged_drop("03") == (0.004, 0.0, 0.008)
    assert lost_unit(plain) == ""
    other = replace(plain, tuning=replace(parts, measure="f1"))
    assert other.judged_drop("03") is None


# ---- the picture ----


@pytest.mark.parametrize("width", [350, 880])
@pytest.mark.parametrize("timed", [True, False])
def test_the_picture_is_valid_and_stays_within_its_width(width: int, *, timed: bool) -> None:
    svg = frontier(tuned_result(timed=timed), width=width)
    assert svg == frontier(tuned_result(timed=timed), width=width)
    root = ET.fromstring(svg)  # noqa: S314 - our own
    assert root.get("width") == str(width)
    for element in root.iter():
        for key in ("x", "x1", "x2", "cx"):
            assert -1 <= float(element.get(key, "0")) <= width + 1


def test_the_picture_of_a_search_stands_alone() -> None:
    svg = picture_svg(tuned_result())
    ET.fromstring(svg)  # noqa: S314 - our own
    assert "var(" not in svg
    assert "prefers-color-scheme" in svg
    assert "budget: 0.50" in svg
    assert "budget: 0.50" not in picture_svg(example_result())


def test_every_trial_with_a_figure_is_a_mark_in_both_panels() -> None:
    tips = marks(frontier(tuned_result(), width=880))
    for name in ("01", "02", "03", "04", "05", "06"):
        assert sum(tip.startswith(f"{name}: ") for tip in tips) == 2
    assert not any(tip.startswith("07") for tip in tips)
    assert sum("samples of the final check" in tip for tip in tips) == 2
    stopped = next(tip for tip in tips if tip.startswith("05"))
    assert "run on 12 of 400, clear by then" in stopped


def test_trials_that_another_beats_are_faint_and_the_budget_is_drawn() -> None:
    svg = frontier(tuned_result(), width=880)
    assert svg.count('class="faint"') == 2 * 3 + 1  # 02, 04, 05 in two panels, and the key
    assert svg.count('class="limit"') == 4 + 1  # in two panels, and the key
    assert svg.count('class="chosen"') == 3
    assert "budget: 0.50" in svg
    assert "off the scale" in svg  # 60 points lost would flatten the rest


def test_marks_lie_where_figures_say() -> None:
    svg = frontier(tuned_result(), width=880)
    rings = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="10.5" class="chosen"/>', svg)
    assert len(rings) == 2
    (_, one), (_, other) = rings
    assert one == other  # both panels have the same scale of what is lost


def test_without_a_search_or_a_figure_there_is_no_picture() -> None:
    assert frontier_chart(example_result()) is None
    found = tuned_result()
    assert found.tuning is not None
    trials = tuple(replace(t, drop=None) for t in found.tuning.trials)
    assert frontier_chart(replace(found, tuning=replace(found.tuning, trials=trials))) is None


def test_a_search_in_which_nothing_is_lost_or_limited_can_be_drawn() -> None:
    found = tuned_result()
    assert found.tuning is not None
    trials = tuple(replace(t, drop=0.0, latency=1.0, size=1.0) for t in found.tuning.trials)
    tuning = replace(found.tuning, trials=trials, max_drop=None, max_latency=None, max_size=None)
    assert len(marks(frontier(replace(found, tuning=tuning), width=350))) > 0
