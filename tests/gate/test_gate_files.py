"""JUnit XML and the badge."""

from collections.abc import Iterable
from dataclasses import replace
from xml.etree.ElementTree import Element, fromstring

from result_cases import candidate, example_result

from quantkit.evaluate.gate import badge, judge, junit_xml, rules_of
from quantkit.result import Result, Verdict
from quantkit.settings import GateSettings

RULES = rules_of(GateSettings(max_drop=0.006, max_flips=0.02, min_int8_share=0.95, confidence=0.95))


def _read(text: str) -> Element:
    return fromstring(text)  # noqa: S314 - quantkit's own text


def _judged() -> tuple[Result, tuple[Verdict, ...]]:
    return example_result(), judge(example_result(), RULES)


def _counts(element: Element) -> list[int]:
    return [int(element.get(key, "-1")) for key in ("tests", "failures", "errors", "skipped")]


def _tags(cases: Iterable[Element]) -> list[list[str]]:
    return [[child.tag for child in case] for case in cases]


def test_junit_has_a_suite_a_candidate_and_a_test_a_rule() -> None:
    root = _read(junit_xml(*_judged()))
    assert root.tag == "testsuites"
    assert _counts(root) == [6, 3, 1, 0]
    assert [s.get("name") for s in root] == ["static", "ort default"]
    assert [_counts(s) for s in root] == [[3, 1, 1, 0], [3, 2, 0, 0]]
    assert root[0].get("timestamp") == "2026-11-16T12:00:00"
    cases = root[0].findall("testcase")
    assert [c.get("name") for c in cases] == [
        "max_drop <= 0.6 points",
        "min_int8_share >= 95 %",
        "max_flips <= 2 %",
    ]
    assert _tags(cases) == [["error"], ["failure"], ["system-out"]]
    assert "About 2,700 to 3,600 samples would settle it" in cases[0][0].get("message", "")
    assert cases[1][0].get("type") == "fail"
    facts = {p.get("name"): p.get("value") for p in root[0].iter("property")}
    assert facts["candidate.sha256"] == "b" * 64
    assert facts["samples"] == "2000"


def test_what_may_be_undecided_is_skipped() -> None:
    result, verdicts = _judged()
    root = _read(junit_xml(result, verdicts, allow_undecided=True))
    assert _counts(root) == [6, 3, 0, 1]
    assert _tags(root[0].findall("testcase"))[0] == ["skipped"]


def test_names_that_xml_cannot_hold_as_they_are() -> None:
    result = example_result()
    odd = replace(candidate('a<b> & "c"\x00\x1b\ud800'), warnings=())
    result = replace(result, models=(result.float_model, odd))
    text = junit_xml(result, judge(result, RULES))
    assert _read(text)[0].get("name") == 'a<b> & "c"\\x00\\x1b\\ud800'
    assert text.encode()


def test_same_verdicts_same_text() -> None:
    assert junit_xml(*_judged()) == junit_xml(*_judged())


def test_badge_of_one_candidate_tells_its_figures() -> None:
    result, verdicts = _judged()
    assert badge(result, verdicts[:1]) == (
        "quantkit gate: failed (static: drop 0.3 points (undecided), "
        "88.89 % in int8 (failed), 1.1 % flips)"
    )


def test_badge_of_several_names_the_culprits() -> None:
    result, verdicts = _judged()
    assert badge(result, verdicts) == (
        "quantkit gate: failed (failed static: min_int8_share; "
        "failed ort default: max_drop, min_int8_share)"
    )


def test_badge_of_success_of_what_is_missing_and_of_nothing() -> None:
    result = example_result()
    lenient = rules_of(GateSettings(max_drop=0.1, min_size_reduction=0.5, max_latency_ratio=1))
    verdicts = judge(result, lenient)
    assert badge(result, verdicts) == "quantkit gate: passed (passed static; passed ort default)"
    assert badge(result, verdicts[:1]) == (
        "quantkit gate: passed (static: drop 0.3 points, 73 % smaller, latency x0.65)"
    )
    bare = replace(result, models=(result.float_model, replace(candidate("a\nb"), latency=())))
    found = badge(bare, judge(bare, lenient[2:]), allow_undecided=True)
    assert found == "quantkit gate: passed (a b: max_latency_ratio undecided)"
    assert badge(result, ()) == "quantkit gate: undecided"
