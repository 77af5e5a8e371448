"""Verdicts as JUnit XML, as CI servers read it: a suite for each candidate, a test for each objection and each rule."""

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from quantkit.evaluate.gate.figures import unit_of
from quantkit.evaluate.gate.judge import bound_text
from quantkit.result import Evaluated, Objection, Result, Verdict
from quantkit.text import printable

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
