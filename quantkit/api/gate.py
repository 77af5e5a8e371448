"""`gate_result`: may these candidates be released?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from quantkit.api.arguments import checked_kinds, checked_names, read_result
from quantkit.errors import UsageError, as_os_error
from quantkit.evaluate.gate import badge as badge_text
from quantkit.evaluate.gate import (
    bound_text,
    figure_text,
    judge,
    junit_xml,
    overall,
    room_text,
    rules_for,
    rules_of,
    unit_of,
)
from quantkit.evaluate.gate.judge import judge_live
from quantkit.files import check_outputs, replace_text
from quantkit.result import Outcome, Result, Verdict
from quantkit.result.live import live_from_json, merged
from quantkit.settings import GateSettings, closest, load_recipe
from quantkit.settings.gate import LIVE_RULES
from quantkit.text import printable

__all__ = ["GateVerdict", "bound_text", "figure_text", "gate_live", "gate_result", "room_text"]
__all__ += ["unit_of"]

_PATIENCE = 30.0  # seconds for a server's answer
_LONGEST = 1 << 22  # bytes of it

_EXAMPLE = "[gate] with a line such as max_drop = 0.01 in quantkit.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """What came of the rules, for all candidates together.

    Attributes:
        outcome: Of all: "pass" only if every candidate passes.
        verdicts: One per candidate: what came of each rule, and the objections to the evidence.
        allow_undecided: Whether too few samples to decide passed.
        result: What was judged: the float model and the candidates that were chosen.
    """

    outcome: Outcome
    verdicts: tuple[Verdict, ...]
    allow_undecided: bool
    result: Result

    @property
    def passed(self) -> bool:
        """Whether all candidates may be released."""
        return self.outcome == "pass"

    def __str__(self) -> str:
        """Say it in one line, as a badge does."""
        return badge_text(self.result, self.verdicts, allow_undecided=self.allow_undecided)

    def __repr__(self) -> str:
        return f"<GateVerdict: {self}>"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "outcome": self.outcome,
            "allow_undecided": self.allow_undecided,
            "verdicts": msgspec.json.decode(msgspec.json.encode(self.verdicts)),  # no NaN
        }


@checked_kinds
def gate_result(  # noqa: PLR0913 - one parameter per question
    result: Result | str | Path,
    gate: GateSettings | None = None,
    *,
    candidates: Sequence[str] = (),
    drop_rules: Sequence[str] = (),
    recipe: str | Path | None = None,
    junit: str | Path | None = None,
    badge: str | Path | None = None,
) -> GateVerdict:
    """Judge the candidates of an evaluation by the rules of a release.

        verdict = gate_result("report/", GateSettings(max_drop=0.01, min_size_reduction=0.7))
        if not verdict.passed:
            sys.exit(str(verdict))

    Args:
        result: What `evaluate_models` returned, its result.json, or the folder of that.
        gate: The rules, over those of `recipe`, which are over those that the result holds.
        candidates: Only these, by name; all if none is named, of a search the one that it chose.
        drop_rules: Rules to leave out, such as "max_latency_ratio".
        recipe: A quantkit.toml whose table [gate] is read; None: none is.
        junit: Where to write JUnit XML for CI.
        badge: Where to write the verdict as one line of text.

    Returns:
        The outcome, and for each candidate every rule with its figure and margin, and what stands against the
        evidence.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do: no such candidate or rule, no rule at all,
            a result that cannot be read. Nothing is written then.
    """
    found, file = read_result(result)
    written = [None if path is None else Path(path) for path in (junit, badge)]
    check_outputs(written, [file, None if recipe is None else Path(recipe)])
    shown = "The result" if file is None else f"'{result}'"
    held = _chosen(found, checked_names(candidates, "candidates"), shown)
    base = _recipe_rules(recipe)
    given = gate or GateSettings()
    rules = rules_for(held.rules, base, given, checked_names(drop_rules, "drop_rules"))
    if not rules:
        raise UsageError(f"There is no rule to judge by: add --max-drop 0.01, or {_EXAMPLE}.")
    # What the evaluation was told to allow goes with the rules that it was told.
    stored = () if rules_of(base) else held.allowed
    verdicts = judge(held, rules, {*stored, *base.allow, *given.allow})
    allowed = given.allow_undecided or base.allow_undecided
    verdict = GateVerdict(
        outcome=overall(verdicts, allow_undecided=allowed),
        verdicts=verdicts,
        allow_undecided=allowed,
        result=held,
    )
    if written[0] is not None:
        replace_text(written[0], junit_xml(held, verdicts, allow_undecided=allowed))
    if written[1] is not None:
        replace_text(written[1], f"{verdict}\n")
    return verdict


def gate_live(
    sources: Sequence[str | Path],
    gate: GateSettings | None = None,
    *,
    recipe: str | Path | None = None,
) -> Verdict:
    """Judge what a running server counted of two models, by the rules that live requests can decide.

    Args:
        sources: Addresses of servers, or files with what their /drift said; of several the sum.
        gate: The rules, over those of `recipe`.
        recipe: A quantkit.toml whose table [gate] is read; None: none is.

    Raises:
        QuantkitError: No server answers, what it says cannot be read, or there is no rule.
    """
    base = _recipe_rules(recipe)
    rules = [r for r in rules_for((), base, gate or GateSettings()) if r.key in LIVE_RULES]
    if not rules:
        raise UsageError(
            "There is no rule that live requests can decide: add --max-flips 0.02, --min-sqnr-db 20 or --max-latency-ratio 1."
        )
    parts = [live_from_json(_drift_of(str(source)), source) for source in sources]
    return judge_live(merged(parts), rules)


def _recipe_rules(recipe: str | Path | None) -> GateSettings:
    return GateSettings() if recipe is None else load_recipe(Path(recipe)).gate


def _drift_of(source: str) -> bytes:
    """Return what a server's /drift says, or what it once said."""
    import os
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    if not source.startswith(("http://", "https://")):
        try:
            return Path(source).read_bytes()
        except OSError as e:
            said = f"Cannot read '{source}': {e.strerror}; give a server's address, or a file with what its /drift said."
            raise as_os_error(UsageError(said), e) from e
    address = source if source.rstrip("/").endswith("/drift") else f"{source.rstrip('/')}/drift"
    token = os.environ.get("QUANTKIT_TOKEN", "").strip()  # a secret's file ends with a line break
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(address, headers=headers), timeout=_PATIENCE) as answer:  # noqa: S310 - http alone, see above
            content: bytes = answer.read(_LONGEST)
            return content
    except HTTPError as e:
        said = e.read(_LONGEST).decode(errors="replace")
        raise UsageError(f"'{address}' answers {e.code}: {printable(said)[:300]}") from e
    except (URLError, OSError, ValueError, HTTPException) as e:
        reason = e.reason if isinstance(e, URLError) else e
        said = printable(str(reason) or type(reason).__name__)
        raise UsageError(f"'{printable(address)}' does not answer: {said}.") from e


def _chosen(result: Result, names: Sequence[str], shown: str) -> Result:
    """Return the result with only the candidates named, if any are; messages call it `shown`."""
    known = [m.name for m in result.candidates]
    if not known:
        raise UsageError(f"{shown} holds no candidate: evaluate one against the float model.")
    for name in names:
        if name not in known:
            raise UsageError(
                f"{shown} holds no candidate '{name}'{closest(name, known)}: "
                f"it holds {', '.join(known)}."
            )
    if not names and result.tuning is not None:
        if not result.tuning.chosen:
            raise UsageError(f"{shown} is of a search that chose nothing: name a candidate.")
        names = [result.tuning.chosen]
    wanted = tuple(m for m in result.candidates if not names or m.name in names)
    return replace(result, models=(result.float_model, *wanted))
