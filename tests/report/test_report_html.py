"""The page without a browser: well formed, self-contained, complete, small, safe with any name."""

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import (
    NASTY,
    bare,
    broken_outputs,
    hard_result,
    huge_result,
    judged_result,
    regression,
    unlabelled_result,
    untimed,
    without_quantiles,
)
from result_cases import candidate, example_result, float_model

from quantkit.errors import OutputError
from quantkit.evaluate.report import picture_svg, render_html, render_markdown, write_pages
from quantkit.result import (
    SCHEMA,
    Evaluated,
    Interval,
    Objection,
    Result,
    load_result,
    result_from_json,
    result_text,
)

REPORTS = Path(__file__).parents[2] / "reports"
_VOID = {"meta", "br", "input", "link", "img", "hr"}


class Page(HTMLParser):
    """Reads a page, and complains of what is not closed."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"script", "style"}:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).replace("\u00a0", " ").split())

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


CASES: dict[str, Callable[[], Result]] = {
    "example": example_result,
    "judged": judged_result,
    "hard": hard_result,
    "unlabelled": unlabelled_result,
    "one": lambda: judged_result(candidate()),
    "float alone": lambda: replace(example_result(), models=(float_model(),)),
    "error": lambda: replace(
        example_result(),
        models=(
            regression(untimed(float_model()), 0.01, None),
            regression(untimed(candidate()), 0.012, 0.002),
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_page_is_well_formed_and_needs_nothing_else(case: str) -> None:
    content = render_html(CASES[case]())
    page = Page(content)
    ids = page.values("id")
    assert [i for i, count in Counter(ids).items() if count > 1] == []
    for name in ("for", "aria-controls", "aria-labelledby", "data-copy"):
        assert set(page.values(name)) <= set(ids)
    assert {href[1:] for href in page.values("href")} <= set(ids)
    assert all(href.startswith("#") for href in page.values("href"))
    assert page.values("src") == []
    assert page.values("style") == []
    without_namespace = content.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", without_namespace)


@pytest.mark.parametrize("case", CASES)
def test_every_field_has_a_label_and_every_button_a_name(case: str) -> None:
    page = Page(render_html(CASES[case]()))
    labelled = set(page.values("for"))
    assert {a["id"] for tag, a in page.tags if tag == "input"} == labelled
    assert all(a.get("type") == "button" for tag, a in page.tags if tag == "button")
    assert all(
        a.get("aria-label") for _, a in page.tags if a.get("tabindex") == "0" and "role" in a
    )


def test_policy_names_exactly_our_style_and_script() -> None:
    content = render_html(example_result())
    policy = next(a["content"] for t, a in Page(content).tags if "http-equiv" in a)
    for tag in ("style", "script"):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
        assert inside is not None
        hashed = b64encode(sha256(inside[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{hashed}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_same_result_same_bytes_also_from_json() -> None:
    result = hard_result()
    again = result_from_json(result_text(result).encode(), "again")
    assert render_html(result) == render_html(result) == render_html(again)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "judged",
            ["Fail", "1 of 2 candidates fails the gate: ort default.", "static passes every"],
        ),
        ("example", ["No gate set", "static is nearest to float of 2 candidates"]),
        ("one", ["Pass", "All gate rules pass"]),
        ("float alone", ["Only the float model was measured"]),
        ("unlabelled", ["identical", "Layers were not measured", "Latency was not measured"]),
        ("error", ["mse", "less is better", "0.00200 (0.00100 to 0.00300)"]),
    ],
)
def test_opens_with_the_verdict(case: str, words: list[str]) -> None:
    shown = Page(render_html(CASES[case]())).words
    for expected in words:
        assert expected in shown


def test_undecided_is_its_own_outcome() -> None:
    shown = Page(render_html(judged_result(candidate(drop=0.008)))).words
    assert "Not enough samples" in shown


def test_a_rule_that_cannot_be_decided_is_not_said_to_be_broken() -> None:
    shown = Page(render_html(judged_result(candidate(drop=0.008)))).words
    assert "1 of 2 rules cannot be decided" in shown
    assert "rules fail" not in shown


def test_nothing_green_stands_beside_an_objection() -> None:
    judged = judged_result(candidate())
    doubt = Objection(kind="guessing", title="Float itself is guessing", sentence="check `--mean`")
    verdict = replace(judged.verdicts[0], outcome="invalid", objections=(doubt,))
    page = render_html(replace(judged, verdicts=(verdict,)))
    top = page[page.index('id="verdict"') : page.index('id="picture"')]
    assert '<h2 id="verdict-title">Float itself is guessing</h2>' in top
    assert "check <code>--mean</code>" in top
    assert not re.search(r'class="[^"]*\bpass\b', top)
    assert "✓" not in top
    assert "Pass" not in top


def test_nearest_to_float_is_told_by_the_outputs_not_by_a_lucky_metric() -> None:
    plain = example_result()
    lucky = with_sqnr(candidate("lucky", drop=-0.02), 12.0)
    near = with_sqnr(candidate("near", drop=0.001), 40.0)
    found = replace(plain, models=(plain.models[0], lucky, near))
    assert "near is nearest to float of 2 candidates" in Page(render_html(found)).words


def with_sqnr(model: Evaluated, db: float) -> Evaluated:
    assert model.drift is not None
    outputs = tuple(replace(output, sqnr_db=db) for output in model.drift.outputs)
    return replace(model, drift=replace(model.drift, outputs=outputs))


def test_a_gain_is_called_a_gain() -> None:
    plain = example_result()
    found = replace(plain, models=(plain.models[0], candidate(drop=-0.004)))
    shown = Page(render_html(found)).words
    assert "top-1 gain 0.40 points gain 0.80 to 0.00" in shown
    assert "0.40 points of top-1 gained" in shown
    assert "\N{MINUS SIGN}0.40" not in shown


def slow(ratio: float, kind: str = "static") -> Evaluated:
    model = candidate()
    interval = Interval(low=ratio - 0.04, high=ratio + 0.05)
    latency = tuple(replace(x, ratio=ratio, ratio_interval=interval) for x in model.latency)
    file = replace(model.file, provenance={"kind": kind})
    return replace(model, latency=latency, file=file)


def test_a_candidate_slower_than_float_is_told_wherever_one_looks() -> None:
    plain = example_result()
    for kind, what in (
        ("static", "quantize dynamic"),
        ("dynamic", "quantize static"),
        ("", "int8"),
    ):
        found = replace(plain, models=(plain.models[0], slow(1.3, kind)))
        said = "It runs slower than float: 1.30 times float's time."
        page = render_html(found)
        assert said.replace("'", "&#39;") in page[: page.index('id="picture"')]
        assert said in render_markdown(found)
        assert what in found.models[1].slowness
    for ratio in (0.7, 1.02):
        assert slow(ratio).slowness == ""


def test_what_would_help_stands_at_the_top_and_once() -> None:
    page = render_html(judged_result())
    said = "Keep /features/0/conv/Conv in float: +2.4 dB (measured)"
    assert page.index(said) < page.index('id="picture"')
    top = page[: page.index('id="picture"')]
    assert top.count(said) == 1
    assert "about 6 % slower, 1 % larger" in top


def test_what_stands_between_backticks_is_code() -> None:
    plain = example_result()
    noisy = replace(candidate(), warnings=("use `quantkit <x>` now", "an odd ` stays"))
    page = render_html(replace(plain, models=(plain.models[0], noisy)))
    assert "use <code>quantkit &lt;x&gt;</code> now" in page
    assert "an odd ` stays" in page


def test_everything_measured_is_shown() -> None:
    shown = Page(render_html(judged_result())).words
    for expected in (
        "0.30 (gain 0.10 to drop 0.70) points",
        "27 %",
        "0.65\N{MULTIPLICATION SIGN}",
        "8 of 9",
        "22",
        "p = 0.24",
        "class 6",
        "images.npz row 17",
        "cannot be told from none",
        "108,000",
        "97,200",
        "weights of Conv",
        "8.0 MB",
        "1.30 ms",
        "769",
        "/features/0/conv/Conv",
        "Keep it in float",
        "its output is not quantized",
        "QLinearConv",
        "no pair of weights can saturate",
        "mse",
        "BatchNormalization folded",
        "24 nodes became 41",
        "b" * 64,
        "d" * 64,
        "onnxruntime 1.31.1",
        "quantkit evaluate model.onnx static.onnx --data images/",
        "Everything here is made up.",
        "Something is odd.",
    ):
        assert expected in shown, expected


def test_single_samples_are_shown_beside_all_of_them() -> None:
    shown = Page(render_html(judged_result())).words
    assert "31.2 dB 1 % of samples below 24.1" in shown  # the card
    assert "31.2 dB 30.8 to 31.7 31.6 dB 24.1 dB 19.4 dB" in shown  # the table
    assert "24.1 dB (19.4 to 31.6)" in shown  # the plot
    older = Page(render_html(without_quantiles())).words
    assert "31.2 dB 30.8 to 31.7" in older
    assert "sample below" not in older
    assert "worst sample" not in older.lower()


def test_size_table_sums() -> None:
    result = example_result()
    for model in result.models:
        assert sum(p.nbytes for p in model.size.parts) == model.size.disk
    shown = Page(render_html(result)).words
    assert "total on disk 400,000 108,000 104,000" in shown


def test_names_are_texts_not_markup() -> None:
    content = render_html(hard_result())
    page = Page(content)
    assert NASTY in " ".join(page.text)
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert "<script>alert" not in content


def test_all_rows_are_in_the_page() -> None:
    content = render_html(hard_result())
    data = json.loads(re.findall(r'id="tables">(.*?)</script>', content, re.DOTALL)[0])
    rows = data["rows"]["layers-1"]
    assert len(rows) == 300
    assert data["texts"][rows[0][1]].startswith("<script>alert")
    assert content.count("<tbody>") > 10
    assert not re.search(r"<tbody>\s*</tbody>", content)


@pytest.mark.parametrize(("letters", "whole"), [(120, True), (390, False)])
def test_stays_under_five_megabytes(letters: int, whole: bool) -> None:  # noqa: FBT001 - a parameter
    content = render_html(huge_result(5, 2000, letters))
    assert len(content.encode()) < 5_000_000
    data = json.loads(re.findall(r'id="tables">(.*?)</script>', content, re.DOTALL)[0])
    assert (len(data["rows"]["layers-1"]) == 2000) == whole
    assert ("all are in result.json" in content) != whole


@settings(max_examples=12, deadline=None)
@given(name=st.text(min_size=1, max_size=80), title=st.text(max_size=40))
def test_any_name_leaves_the_page_whole(name: str, title: str) -> None:
    result = replace(judged_result(candidate(name)), title=title)
    page = Page(render_html(result))
    assert sum(tag == "h1" for tag, _ in page.tags) == 1


def test_write_pages(tmp_path: Path) -> None:
    page, text = write_pages(example_result(), tmp_path / "new" / "folder")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert text.read_text(encoding="utf-8").startswith("## ")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Cannot make the folder"):
        write_pages(example_result(), tmp_path / "file")


def test_nothing_but_files() -> None:
    """No metric, no drift, no latency, no layers, no runtime: every section says so, and none is empty."""
    plain = example_result()
    content = render_html(replace(plain, models=tuple(bare(m) for m in plain.models)))
    for words in (
        "No labels, so no metric",
        "Latency was not measured.",
        "Memory was not measured.",
        "Layers were not measured.",
        "What onnxruntime runs was not looked at.",
        "Fidelity was not checked.",
        "No candidate says that it was calibrated.",
        "The graphs were not compared.",
        "not in the picture, for want of a figure: static, ort default",
    ):
        assert words in content


def test_one_candidate_with_less_than_the_others() -> None:
    content = render_html(judged_result(candidate("whole"), untimed(candidate("not timed"))))
    assert "not timed" in content
    plain = example_result()
    render_html(replace(plain, models=(*plain.models, bare(candidate("bare")))))


def test_twenty_candidates() -> None:
    models = [
        candidate(f"Kandidat Nr. {i} ü", drop=i / 5000, ratio=0.25 + i / 500) for i in range(20)
    ]
    content = render_html(judged_result(*models))
    assert all(f"Kandidat Nr. {i} ü" in content for i in range(20))
    assert len(content.encode()) < 1_500_000


def test_outputs_that_are_not_finite_are_not_called_identical() -> None:
    base = unlabelled_result()
    content = render_html(replace(base, models=(base.models[0], broken_outputs(base.models[1]))))
    assert "not finite" in content
    assert "identical" not in Page(content).text


def test_readme_of_the_reports_names_the_formats() -> None:
    names = re.findall(r"quantkit\.result/\d+", (REPORTS / "README.md").read_text(encoding="utf-8"))
    own = {load_result(file).schema for file in REPORTS.glob("*/result.json")}
    assert set(names) == {SCHEMA, *own}


@pytest.mark.parametrize("folder", sorted(REPORTS.glob("*/")), ids=lambda folder: folder.name)
def test_committed_reports_are_what_their_results_give(folder: Path) -> None:
    """Where this fails: quantkit report reports/NAME/result.json --picture reports/NAME/picture.svg."""
    result = load_result(folder)
    assert (folder / "report.html").read_text(encoding="utf-8") == render_html(result)
    assert (folder / "report.md").read_text(encoding="utf-8") == render_markdown(result)
    assert (folder / "picture.svg").read_text(encoding="utf-8") == picture_svg(result)
