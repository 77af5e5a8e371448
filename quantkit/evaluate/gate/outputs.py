"""Verdicts for other tools: one line for a badge, and JUnit XML as CI servers read it.

JUnit has a suite for each candidate, a test for each objection and each rule.
"""

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from quantkit.evaluate.gate.figures import unit_of
from quantkit.evaluate.gate.judge import overall
from quantkit.evaluate.gate.wording import bound_text, figure_text
from quantkit.result import Evaluated, Judged, Objection, Outcome, Result, Verdict
from quantkit.text import printable

__all__ = ["badge", "junit_xml"]

_WORDS: dict[Outcome, str] = {
    "pass": "passed",
    "fail": "failed",
    "undecided": "undecided",
    "invalid": "invalid",
}
_SHORT = {
    "max_drop": "drop {}",
    "min_size_reduction": "{} smaller",
    "max_latency_ratio": "latency x{}",
    "min_int8_share": "{} in int8",
    "max_flips": "{} flips",
    "min_sqnr_db": "{}",
    "min_sqnr_p1_db": "1st percentile {}",
}


def badge(result: Result, verdicts: Sequence[Verdict], *, allow_undecided: bool = False) -> str:
    """Return the verdict in one line of text.

    One candidate: ``quantkit gate: passed (static: drop 0.3 points, 73 % smaller)``; the figures are estimates. Several:
    ``quantkit gate: failed (passed static; failed ort default: max_drop)``. Of figures that mean nothing none is
    shown: ``quantkit gate: invalid (static: Float itself is guessing)``.

    Args:
        result: What was measured.
        verdicts: One per candidate.
        allow_undecided: An undecided verdict passes.
    """
    outcome = _WORDS[overall(verdicts, allow_undecided=allow_undecided)]
    models = {m.name: m for m in result.candidates}
    if len(verdicts) == 1:
        told = _alone(verdicts[0], models[verdicts[0].candidate])
    else:
        told = "; ".join(_among_others(v) for v in verdicts)
    line = f"quantkit gate: {outcome}{f' ({told})' if told else ''}"
    return printable(" ".join(line.split()))


def _alone(verdict: Verdict, model: Evaluated) -> str:
    if verdict.outcome == "invalid":
        return f"{verdict.candidate}: {_objections(verdict)}"
    figures = ", ".join(_figure(j, model) for j in verdict.rules)
    return f"{verdict.candidate}: {figures}" if figures else verdict.candidate


def _figure(judged: Judged, model: Evaluated) -> str:
    if judged.estimate is None:
        return f"{judged.rule.key} {_WORDS[judged.outcome]}"
    text = _SHORT[judged.rule.key].format(figure_text(judged.estimate, unit_of(judged.rule, model)))
    return text if judged.outcome == "pass" else f"{text} ({_WORDS[judged.outcome]})"


def _objections(verdict: Verdict) -> str:
    return ", ".join(o.title for o in verdict.objections if not o.allowed)


def _among_others(verdict: Verdict) -> str:
    told = f"{_WORDS[verdict.outcome]} {verdict.candidate}"
    if verdict.outcome == "invalid":
        return f"{told}: {_objections(verdict)}"
    culprits = [j.rule.key for j in verdict.rules if j.outcome == verdict.outcome != "pass"]
    return f"{told}: {', '.join(culprits)}" if culprits else told


_TAGS = {"fail": "failure", "undecided": "error"}
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SECONDS = 19  # 2026-11-16T12:00:00; the schema knows no time zone


def junit_xml(result: Result, verdicts: Sequence[Verdict], *, allow_undecided: bool = False) -> str:
    """Return the verdicts as JUnit XML.

    A rule that fails is a ``failure``; one that is undecided an ``error``, or ``skipped`` where that is allowed. So is
    an objection to the evaluation. The same result and verdicts give the same text.

    Args:
        result: What was measured.
        verdicts: One per candidate.
        allow_undecided: An undecided rule is skipped, and no error.
    """
    tags = _TAGS | ({"undecided": "skipped"} if allow_undecided else {})
    models = {m.name: m for m in result.candidates}
    root = Element("testsuites", name=_clean(f"quantkit gate: {result.title}"))
    _count(root, verdicts, tags)
    for verdict in verdicts:
        _suite(root, result, verdict, models[verdict.candidate], tags)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _suite(
    root: Element, result: Result, verdict: Verdict, model: Evaluated, tags: dict[str, str]
) -> None:
    suite = SubElement(root, "testsuite", name=_clean(verdict.candidate))
    suite.set("timestamp", _clean(result.origin.created[:_SECONDS]))
    _count(suite, [verdict], tags)
    properties = SubElement(suite, "properties")
    facts = {
        "candidate": model.file.path,
        "candidate.sha256": model.file.sha256,
        "float": result.float_model.file.path,
        "float.sha256": result.float_model.file.sha256,
        "data": result.data.location,
        "samples": str(result.data.samples),
    }
    for name, value in facts.items():
        SubElement(properties, "property", name=name, value=_clean(value))
    classname = _clean(f"quantkit.gate.{verdict.candidate}")
    for objection in verdict.objections:
        case = SubElement(suite, "testcase", classname=classname, name=objection.title, time="0")
        _told(case, _tag(objection), objection.kind, objection.sentence)
    for judged in verdict.rules:
        name = f"{judged.rule.key} {bound_text(judged.rule, unit_of(judged.rule, model))}"
        case = SubElement(suite, "testcase", classname=classname, name=name, time="0")
        _told(case, tags.get(judged.outcome), judged.outcome, judged.sentence)


def _tag(objection: Objection) -> str:
    return "skipped" if objection.allowed else "error"


def _told(case: Element, tag: str | None, kind: str, sentence: str) -> None:
    """Say what came of a test; without a tag it passed."""
    if tag is None:
        SubElement(case, "system-out").text = _clean(sentence)
        return
    found = SubElement(case, tag, message=_clean(sentence))
    if tag != "skipped":
        found.set("type", kind)
        found.text = _clean(sentence)


def _count(element: Element, verdicts: Sequence[Verdict], tags: dict[str, str]) -> None:
    found = [tags.get(j.outcome) for v in verdicts for j in v.rules]
    found += [_tag(o) for v in verdicts for o in v.objections]
    element.set("tests", str(len(found)))
    element.set("failures", str(found.count("failure")))
    element.set("errors", str(found.count("error")))
    element.set("skipped", str(found.count("skipped")))
    element.set("time", "0")


def _clean(text: str) -> str:
    """Write what XML cannot hold as an escape, or leave it out."""
    return _NO_XML.sub("", printable(text, keep="\n\t"))
