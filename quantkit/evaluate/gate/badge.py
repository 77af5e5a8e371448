"""Verdicts in one line of text, for a badge."""

from collections.abc import Sequence

from quantkit.evaluate.gate.figures import unit_of
from quantkit.evaluate.gate.judge import figure_text, overall
from quantkit.result import Evaluated, Judged, Outcome, Result, Verdict
from quantkit.text import printable

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
