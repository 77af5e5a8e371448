"""Pictures: valid, deterministic, and their marks where the figures say."""

import re
from dataclasses import replace
from itertools import chain, combinations
from math import ulp
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import (
    bare,
    broken_outputs,
    hard_result,
    judged_result,
    regression,
    unlabelled_result,
    untimed,
    without_quantiles,
)
from result_cases import candidate, example_result, float_model

from quantkit.evaluate.report import picture_svg
from quantkit.evaluate.report.accuracy_size import accuracy_chart
from quantkit.evaluate.report.palette import look
from quantkit.evaluate.report.rows import (
    Dot,
    RowAxis,
    RowGroup,
    dots,
    forest,
    latency,
    runs,
    samples,
    scale_of,
    size_bars,
)
from quantkit.evaluate.report.scatter import apart, chart_svg, labels_for, shown_range
from quantkit.evaluate.report.svg import Scale, nice_step, shorten, text_width
from quantkit.result import Evaluated, Interval, Result, Rule

_SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - our own


def accuracy_size(result: Result, *, width: int) -> str:
    return chart_svg(accuracy_chart(result), width=width)


@pytest.mark.parametrize("width", [350, 860, 1200])
def test_picture_stands_alone(width: int) -> None:
    svg = chart_svg(accuracy_chart(hard_result()), width=width, alone=True)
    root = parsed(svg)
    assert root.get("width") == str(width)
    assert root.find(f"{_SVG}style") is not None
    assert "var(" not in svg
    assert "prefers-color-scheme" in svg
    assert svg == chart_svg(accuracy_chart(hard_result()), width=width, alone=True)


def test_picture_in_the_page_has_no_style_of_its_own() -> None:
    assert "<style" not in accuracy_size(example_result(), width=880)


@pytest.mark.parametrize("width", [350, 880])
@pytest.mark.parametrize("make", [example_result, hard_result, judged_result, unlabelled_result])
def test_the_scatter_is_valid_and_stays_within_its_width(make: object, width: int) -> None:
    result: Result = make()  # type: ignore[operator]
    for element in parsed(accuracy_size(result, width=width)).iter():
        for name in ("x", "x1", "x2", "cx"):
            assert -1 <= float(element.get(name, 0)) <= width + 1
        assert "nan" not in " ".join(element.attrib.values()).lower().split()


@pytest.mark.parametrize("make", [example_result, hard_result, judged_result, unlabelled_result])
def test_tracks_are_valid_and_stay_within_their_width(make: object) -> None:
    result: Result = make()  # type: ignore[operator]
    drawn = [tracks(draw(result)) for draw in (forest, latency, size_bars, runs, samples)]
    assert any(drawn)
    for element in (e for track in chain(*drawn) for e in track.iter()):
        for name in ("x", "x1", "x2", "width"):
            if (value := element.get(name, "")).endswith("%"):
                assert -0.1 <= float(value[:-1]) <= 100.1
        assert "nan" not in " ".join(element.attrib.values()).lower().split()


def tracks(groups: list[RowGroup]) -> list[ET.Element]:
    return [parsed(row.track) for group in groups for row in group.rows]


def share(element: ET.Element, name: str) -> float:
    """Return a coordinate in per cent."""
    return float(element.get(name, "0%").removesuffix("%"))


def figure(value: float, low: float | None = None, high: float | None = None) -> Dot:
    ends = (value if low is None else low, value if high is None else high)
    return Dot(name=f"{value}", look=look(1), value=value, low=ends[0], high=ends[1], words="")


def test_every_mark_can_be_reached_and_has_words() -> None:
    root = parsed(accuracy_size(example_result(), width=880))
    marks = [e for e in root.iter() if "mark" in e.get("class", "").split()]
    assert len(marks) == 2 * 3  # against size and against time
    for mark in marks:
        assert mark.get("tabindex") == "0"
        assert mark.get("aria-label") == mark.get("data-tip")


def test_whiskers_are_of_the_difference_in_pairs() -> None:
    found = accuracy_chart(example_result())
    static = found.marks[0]
    assert static.y == pytest.approx(90.9)
    assert static.interval == pytest.approx((91.2 - 0.7, 91.2 + 0.1))
    assert found.reference.interval == pytest.approx((90, 92.4))


def test_without_labels_height_is_signal_to_noise() -> None:
    found = accuracy_chart(unlabelled_result())
    assert found.reference.y is None
    assert [p.y for p in found.marks] == [31.2, 44.4, None]


def test_errors_point_the_other_way() -> None:
    models = (regression(untimed(float_model()), 0.01, None), regression(candidate(), 0.012, 0.002))
    found = accuracy_chart(replace(example_result(), models=models))
    assert not found.upwards
    assert found.marks[0].interval == pytest.approx((0.011, 0.013))
    parsed(picture_svg(replace(example_result(), models=models)))


def test_a_broken_candidate_goes_off_the_scale() -> None:
    found = accuracy_chart(hard_result())
    shown = shown_range(found)
    assert [found.is_beyond(p, *shown) for p in found.marks] == [False] * 5 + [True]
    assert "off the scale" in picture_svg(hard_result())
    near = accuracy_chart(replace(example_result(), models=example_result().models[:2]))
    assert not any(near.is_beyond(p, *shown_range(near)) for p in near.marks)


def test_band_of_float_is_drawn_only_if_both_ends_are_on_the_axis() -> None:
    """One that exceeds the axis painted the whole plot; float's mark then has a whisker with arrows."""
    narrow = replace(example_result(), models=tuple(map(_precise_float, example_result().models)))
    for result, band in ((example_result(), False), (narrow, True)):
        svg = accuracy_size(result, width=880)
        assert ('class="band"' in svg) == band
        assert ("its own interval exceeds the axis" in svg) == (not band)
        homes = [
            e for e in parsed(svg).iter() if e.get("data-tip", "").startswith("float32\ntop-1")
        ]
        upright = [
            e for e in homes[1] if e.get("class") == "whisker float" and e.get("x1") == e.get("x2")
        ]
        assert len(upright) == (0 if band else 1)


def _precise_float(model: Evaluated) -> Evaluated:
    if model.metric is None or model.role != "float":
        return model
    value = model.metric.value
    metric = replace(model.metric, interval=Interval(low=value - 0.0005, high=value + 0.0005))
    return replace(model, metrics=(metric, *model.metrics[1:]))


@pytest.mark.parametrize("ends", [(-0.002, 0.05), (0.001, 0.05), (-0.05, 0.0)])
def test_dot_of_a_lone_candidate_lies_on_its_axis(ends: tuple[float, float]) -> None:
    value = sum(ends) / 2
    scale = scale_of(
        RowAxis(title="F1", words="drop", reference=0.0), [figure(value, ends[0], ends[1])]
    )
    assert all(map(scale.holds, (value, *ends)))


def test_gate_is_drawn() -> None:
    found = accuracy_chart(judged_result())
    assert found.limit == pytest.approx(90.2)
    assert found.across[0].limit == pytest.approx(30)
    assert "gate: drop" in picture_svg(judged_result())


def test_samples_are_drawn_from_the_worst_to_the_median() -> None:
    plain = example_result()
    (group,) = samples(plain)
    assert len(group.rows) == len(plain.candidates)
    assert group.rows[0].words == "24.1\u00a0dB (19.4 to 31.6)"
    whisker = next(e for e in parsed(group.rows[0].track) if "whisker" in e.get("class", ""))
    assert share(whisker, "x1") < share(whisker, "x2")
    assert not samples(without_quantiles())  # a file of an older version


def test_what_breaks_a_rule_about_samples_lies_left_of_its_limit() -> None:
    ruled = replace(example_result(), rules=(Rule(key="min_sqnr_p1_db", limit=22.0),))
    track = tracks(samples(ruled))[0]
    beyond = next(e for e in track if e.get("class") == "beyond")
    limit = next(e for e in track if e.get("class") == "limit")
    end = share(beyond, "x") + share(beyond, "width")
    assert end == pytest.approx(share(limit, "x1"), abs=0.02)


@pytest.mark.parametrize("width", [350, 880])
def test_words_do_not_cover_each_other(width: int) -> None:
    """Six candidates, four of them in one heap, each with a label in both panels and a name in the legend."""
    svg = accuracy_size(hard_result(), width=width)
    boxes = []
    for element in parsed(svg).iter(f"{_SVG}text"):
        words = element.text or ""
        if element.get("class", "") in {"name", "figures", "figures fails"}:
            wide = text_width(words, 12) * 0.95
            part = {"middle": 0.5, "end": 1.0}.get(element.get("text-anchor", ""), 0.0)
            left, top = float(element.get("x", 0)) - part * wide, float(element.get("y", 0)) - 9
            boxes.append((left, top, left + wide, top + 10))
    assert len(boxes) == 2 * 6 + 2 * 7
    for one, other in combinations(boxes, 2):
        assert min(one[2], other[2]) <= max(one[0], other[0]) or min(one[3], other[3]) <= max(
            one[1], other[1]
        )


def test_labels_are_numbers_unless_all_names_are_short() -> None:
    assert labels_for(["01", "17"]) == ["01", "17"]
    assert labels_for(["01", "static"]) == ["1", "2"]


def test_parts_of_a_bar_add_up() -> None:
    (group,) = size_bars(example_result())
    lengths = [sum(share(e, "width") for e in parsed(r.track).iter()) - 100 for r in group.rows]
    assert lengths[1] / lengths[0] == pytest.approx(0.27, abs=0.005)
    assert "weights of Conv" in group.rows[0].track


def test_forest_cuts_off_what_is_far_and_says_the_figure() -> None:
    groups = forest(hard_result())
    assert any("41.00 (40.60 to 41.40)" in row.words for row in groups[0].rows)
    assert any(slanted(track) for track in tracks(groups))
    assert forest(unlabelled_result()) == []


def slanted(track: ET.Element) -> list[ET.Element]:
    """Return the lines of arrows."""
    lines = (e for e in track.iter("line") if "%" not in e.get("x1", ""))
    lines = (e for e in lines if e.get("x1") != e.get("x2") and e.get("y1") != e.get("y2"))
    return list(lines)


def test_latency_without_interval() -> None:
    model = candidate()
    bare = replace(model, latency=tuple(replace(x, ratio_interval=None) for x in model.latency))
    groups = latency(replace(example_result(), models=(float_model(), bare)))
    assert groups[0].rows[0].words.startswith("0.65")


def test_long_intervals_do_not_leave_the_picture() -> None:
    model = candidate()
    wide = replace(model.metrics[0], drop_interval=Interval(low=-0.9, high=0.9))
    result = replace(example_result(), models=(float_model(), replace(model, metrics=(wide,))))
    assert reach(parsed(accuracy_size(result, width=860))) <= 860


def reach(picture: ET.Element) -> float:
    """Return how far to the right lines and boxes go."""
    lines = [
        float(line.get(end, 0)) for line in picture.iter(f"{_SVG}line") for end in ("x1", "x2")
    ]
    boxes = (box for box in picture.iter(f"{_SVG}rect") if "%" not in box.get("width", ""))
    return max([*lines, *(float(b.get("x", 0)) + float(b.get("width", 0)) for b in boxes)])


@given(
    st.floats(-1e6, 1e6, allow_nan=False),
    st.floats(1e-6, 1e6, allow_nan=False),
    st.integers(2, 12),
)
def test_ticks_are_round_and_within(low: float, span: float, count: int) -> None:
    scale = Scale(low, low + span, 0, 100)
    ticks = scale.ticks(count)
    step = nice_step(span, count)
    assert re.fullmatch(r"[125]\.?0*e[+-]\d+", f"{step:.3e}")
    slack = span * 1e-6 + 4 * ulp(abs(low) + span)  # a multiple of the step is rounded, too
    assert all(low - slack <= v <= low + span + slack for v, _ in ticks)
    assert len(ticks) <= count + 2


@given(st.lists(st.floats(0, 50), min_size=1, max_size=6))
def test_marks_stand_apart(xs: list[float]) -> None:
    spots = [(x, 100.0) for x in xs]
    moved = apart(spots, [(90.0, 110.0)] * len(xs))
    assert [y for _, y in moved] == [100.0] * len(xs)
    assert all(abs(new - old) <= 5 * 12 + 1e-6 for (new, _), old in zip(moved, xs, strict=True))


def test_no_mark_is_moved_past_a_limit() -> None:
    spots, extents = [(100.0, 50.0)] * 3, [(40.0, 60.0)] * 3
    xs = [x for x, _ in apart(spots, extents, walls=(105.0,))]
    assert xs[0] == 100
    assert len(set(xs)) == 3
    assert max(xs) < 105


def test_long_names_keep_both_ends() -> None:
    name = "/encoder/layer.0/attention/self/query/MatMul"
    short = shorten(name, 150, 12)
    assert short.startswith("/enc")
    assert short.endswith("MatMul")
    assert text_width(short, 12) <= 150
    assert shorten("abc", 150) == "abc"


@given(st.text(max_size=60), st.floats(20, 300))
def test_cut_names_fit(name: str, width: float) -> None:
    short = shorten(name, width, 12)
    assert text_width(short, 12) <= width or len(short) <= 4
    assert short == name or len(short) < len(name)


def test_what_has_no_figure_is_not_drawn_as_equal_to_float() -> None:
    plain = example_result()
    labelled = replace(plain, models=(*plain.models, bare(candidate("not measured"))))
    found = accuracy_chart(labelled)
    assert [p.name for p in found.marks] == ["static", "ort default"]
    assert found.note.endswith(": not measured")
    assert "for want of a figure: not measured" in picture_svg(labelled)
    base = unlabelled_result()
    lost = broken_outputs(base.models[1])
    assert accuracy_chart(replace(base, models=(base.models[0], lost))).note.endswith(": static")


def test_a_row_near_the_reference_does_not_cut_off_the_others() -> None:
    axis = RowAxis(title="", words="", reference=1.0, floor=0.0)

    def cut_off(*values: float) -> bool:
        figures = [figure(v) for v in values]
        scale = scale_of(axis, figures)
        return not all(map(scale.holds, values))

    assert not cut_off(0.99, 0.63, 1.77, 1.5, 0.61)
    assert cut_off(0.99, 0.63, 30.0)


@pytest.mark.parametrize(("value", "drop"), [(0.999, 0.0), (0.004, 0.0), (1.0, 0.0)])
def test_the_scale_of_a_share_ends_at_nothing_and_at_all(value: float, drop: float) -> None:
    plain = example_result()
    wide = Interval(low=-0.05, high=0.05)
    metric = replace(plain.models[0].metrics[0], value=value, interval=None)
    own = replace(metric, drop=drop, drop_interval=wide)
    models = (
        replace(plain.models[0], metrics=(metric,)),
        replace(candidate(), metrics=(own,)),
    )
    found = replace(plain, models=models)
    low, high = shown_range(accuracy_chart(found))
    assert low >= 0
    assert high <= 100
    # The whisker goes on beyond the picture and has an arrow there, two lines that meet, instead of a bar.
    slanted = [
        e
        for e in parsed(picture_svg(found)).iter(f"{_SVG}line")
        if e.get("class") == "whisker s0"
        and e.get("x1") != e.get("x2")
        and e.get("y1") != e.get("y2")
    ]
    assert len(slanted) == 2 * 2  # in both panels


def test_a_whisker_that_leaves_its_scale_has_an_arrow() -> None:
    rows = [figure(v, v - w, v + w) for v, w in ((0.1, 0.1), (0.2, 0.1), (0.15, 0.1), (0.3, 50.0))]
    group = dots(RowAxis(title="t", words="a", reference=0.0), rows)
    assert [len(slanted(track)) for track in tracks([group])] == [0, 0, 0, 4]


def test_names_are_not_cut_where_there_is_room() -> None:
    name = "mobilenet_v2.static.per_channel.int8"
    result = judged_result(candidate(name))
    for draw in (forest, size_bars, runs):
        assert name in {row.name for group in draw(result) for row in group.rows}
    assert name in "".join(parsed(accuracy_size(result, width=880)).itertext())
