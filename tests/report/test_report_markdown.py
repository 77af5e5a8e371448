"""Markdown for a pull request: short, complete, safe with any name."""

import re
from dataclasses import replace
from html import unescape

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_cases import (
    NASTY,
    bare,
    broken_outputs,
    hard_result,
    huge_result,
    judged_result,
    unlabelled_result,
    without_quantiles,
)
from result_cases import candidate, example_result

from quantkit.evaluate.report import render_markdown
from quantkit.result import OutputDrift, SampleSqnr

_LIMIT = 60_000


def rows(text: str) -> list[list[str]]:
    lines = [line[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line) for line in lines]


def rendered(text: str) -> str:
    return str(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))


def test_verdict_first_then_one_table() -> None:
    text = render_markdown(judged_result()).replace("\u00a0", " ")
    lines = text.splitlines()
    assert lines[0] == "## ❌ FAIL: Fashion-MNIST classifier"
    assert "static passes every rule" in lines[2]
    table = rows(text)
    assert [c.strip() for c in table[3]] == [
        "✅ static",
        "108.0 kB (27 %)",
        "90.90 %",
        "0.30 (gain 0.10 to drop 0.70)",
        "1.10 %",
        "31.2 dB",
        "median 31.6, 1 % below 24.1, worst 19.4 dB",
        "0.65\N{MULTIPLICATION SIGN}",
        "8 of 9",
    ]
    for expected in (
        "| ❌ fail |",
        "| ✅ pass |",
        "`max_drop = 0.01`",
        "may be 5.40 points",
        "What would help",
        "Please note",
    ):
        assert expected in text
    assert text.count("<details>") == text.count("</details>") == 3
    assert "b" * 64 in text
    assert "quantkit evaluate model.onnx static.onnx --data images/" in text


def test_a_file_of_an_older_version_has_no_column_of_samples() -> None:
    text = render_markdown(without_quantiles())
    assert "per sample" not in text
    assert len({len(row) for row in rows(text.split("<details>")[0])}) == 1


def test_of_several_outputs_the_one_with_the_worst_samples_is_named() -> None:
    plain = example_result()
    model = plain.candidates[0]
    assert model.drift is not None
    low = SampleSqnr(samples=90, median=30.0, p1=-3.0, p1_low=None, worst=-3.0)
    outputs = (*model.drift.outputs, OutputDrift(output="boxes|2", sqnr_db=35.0, per_sample=low))
    other = replace(model, drift=replace(model.drift, outputs=outputs))
    text = render_markdown(replace(plain, models=(plain.models[0], other))).replace("\u00a0", " ")
    assert r"| boxes\|2: median 30.0, worst −3.0 dB |" in text  # noqa: RUF001 - a minus


def test_without_gate_and_labels() -> None:
    text = render_markdown(unlabelled_result())
    assert text.startswith("## ℹ️ NO GATE SET")  # noqa: RUF001 - a sign
    assert "identical" in text
    assert "top-1" not in text


def test_names_cannot_break_the_table_or_call_people() -> None:
    text = render_markdown(judged_result(candidate(NASTY + " @someone | `x` **b**\n# h")))
    page = rendered(text)
    assert "<script" not in page
    assert "@someone" not in re.sub("<code>.*?</code>", "", page)  # no mention in code
    assert "<strong>b" not in page
    assert {len(row) for row in rows(text.split("<details>")[0])} == {9, 4}  # models, rules
    assert not re.search(r"^# ", text, re.MULTILINE)


@settings(max_examples=25, deadline=None)
@given(st.text(min_size=1, max_size=60))
def test_any_name_stays_in_its_cell(name: str) -> None:
    text = render_markdown(
        replace(example_result(), models=(example_result().models[0], candidate(name)))
    )
    assert {len(row) for row in rows(text.split("<details>")[0])} == {9}


def test_it_reads_well_as_text_and_as_a_page() -> None:
    said = "fix: `quantkit quantize static`, for x86_64 and __init__ [a] 5 < 6 & <b>"
    model = replace(candidate("int8_per_channel"), warnings=(said, "# no heading", "a|b"))
    text = render_markdown(judged_result(model))
    assert "&#" not in text
    assert "- **int8_per_channel**: fix: `quantkit quantize static`, for x86_64 and" in text
    page = rendered(text)
    assert (
        "<code>quantkit quantize static</code>, for x86_64 and __init__ [a] 5 &lt; 6 &amp; &lt;b"
        in page
    )
    assert "# no heading" in page
    assert "a|b" in page


@settings(deadline=None)  # the first example compiles the template
@given(
    st.text(
        alphabet=st.characters(exclude_categories=["C", "Z"], exclude_characters="`"),
        min_size=1,
        max_size=40,
    )
)
def test_any_text_is_shown_as_it_is(said: str) -> None:
    plain = example_result()
    page = rendered(render_markdown(replace(plain, notes=(f"a {said} z",))))
    shown = re.search("<li>(.*)</li>", page[page.index("Please note") :])
    assert shown is not None
    assert unescape(shown[1]).replace("\u2060", "") == f"a {said} z"


def test_short_enough_for_a_comment() -> None:
    assert len(render_markdown(hard_result()).encode()) < _LIMIT
    many = huge_result(60, 20, 390)
    text = render_markdown(many)
    assert len(text.encode()) < _LIMIT
    assert "20 more" in text


def test_short_even_if_everything_is_long() -> None:
    odd = "|`*_@" * 80
    models = [replace(candidate(f"{i}{odd}"), warnings=(odd,) * 40) for i in range(60)]
    text = render_markdown(judged_result(*models))
    assert len(text.encode()) < _LIMIT
    assert text.startswith("## ")


def test_the_confidence_is_that_of_the_intervals() -> None:
    model = candidate()
    metric = model.metrics[0]
    assert metric.drop_interval is not None
    sure = replace(metric, drop_interval=replace(metric.drop_interval, confidence=0.99))
    assert "points (99 %)" in render_markdown(judged_result(replace(model, metrics=(sure,))))
    bare_metric = replace(metric, drop_interval=None)
    plain = example_result()
    alone = replace(plain, models=(plain.models[0], replace(model, metrics=(bare_metric,))))
    assert "| drop, points |" in render_markdown(alone)


def test_lines_that_are_left_out_are_counted() -> None:
    noisy = replace(candidate(), warnings=tuple(f"warning {i}" for i in range(60)))
    text = render_markdown(judged_result(noisy))
    assert "warning 30" in text
    assert "more in result.json" in text


def test_bare_and_broken_candidates() -> None:
    plain = example_result()
    models = (plain.models[0], bare(candidate("bare")), broken_outputs(candidate("broken")))
    table = rows(render_markdown(replace(plain, models=models)))
    assert [c.strip() for c in table[3]][2:] == ["—"] * 6
    assert "not finite" in [c.strip() for c in table[4]]
