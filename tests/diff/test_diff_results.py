"""This release against the last."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_cases import candidate, example_result

from quantkit.evaluate.diff import ResultDiff, compare_results
from quantkit.evaluate.diff.results import CandidateDiff, Figure, judge
from quantkit.result import (
    Evaluated,
    Interval,
    Judged,
    Layers,
    Memory,
    Outcome,
    Result,
    Rule,
    Verdict,
)


def with_candidate(result: Result, changed: Evaluated) -> Result:
    models = tuple(changed if m.name == changed.name else m for m in result.models)
    return replace(result, models=models)


def of(found: ResultDiff, name: str = "static") -> CandidateDiff:
    return next(c for c in found.candidates if c.name == name)


def verdicts(found: ResultDiff, name: str = "static") -> dict[str, str]:
    return {f.figure: f.verdict for f in of(found, name).figures}


def test_a_result_is_itself() -> None:
    found = compare_results(example_result(), example_result())
    assert found.same
    assert not found.worse
    assert [c.name for c in found.candidates] == ["float", "static", "ort default"]
    assert set(verdicts(found).values()) == {"same"}


def test_every_figure_is_there() -> None:
    names = set(verdicts(compare_results(example_result(), example_result())))
    assert names == {
        "top-1",
        "drop of top-1",
        "top-5",
        "drop of top-5",
        "flips",
        "SQNR of logits",
        "size",
        "latency ratio, batch 1",
        "latency ratio, batch 8",
        "int8 share",
        "resident memory",
        "peak memory",
    }


def test_a_small_drop_is_noise_and_a_large_one_is_worse() -> None:
    before = example_result()
    small = compare_results(before, with_candidate(before, candidate(drop=0.005)))
    assert verdicts(small)["drop of top-1"] == "within noise"
    assert not small.same
    assert not small.worse
    large = compare_results(before, with_candidate(before, candidate(drop=0.05)))
    assert verdicts(large)["drop of top-1"] == "worse"
    assert [(name, f.figure) for name, f in large.worse] == [
        ("static", "top-1"),
        ("static", "drop of top-1"),
    ]
    back = compare_results(with_candidate(before, candidate(drop=0.05)), before)
    assert verdicts(back)["drop of top-1"] == "better"


def test_size_is_exact() -> None:
    before = example_result()
    found = compare_results(before, with_candidate(before, candidate(ratio=0.271)))
    assert verdicts(found)["size"] == "worse"


def test_memory_moves_by_itself() -> None:
    before = example_result()
    own = candidate()
    for resident, expected in ((8_200_000, "within noise"), (9_000_000, "worse")):
        moved = replace(own, memory=Memory(resident=resident, peak=11_000_000))
        assert (
            verdicts(compare_results(before, with_candidate(before, moved)))["resident memory"]
            == expected
        )


def test_figures_that_came_and_went() -> None:
    before = example_result()
    bare = replace(candidate(), latency=(), runtime=None)
    assert verdicts(compare_results(before, with_candidate(before, bare)))["int8 share"] == "gone"
    assert verdicts(compare_results(with_candidate(before, bare), before))["int8 share"] == "new"


def test_candidates_that_came_and_went() -> None:
    before = example_result()
    after = replace(before, models=(*before.models[:2], candidate("third")))
    found = compare_results(before, after)
    assert found.only_a == ("ort default",)
    assert found.only_b == ("third",)
    assert not found.same


def test_warnings_that_came_and_went() -> None:
    before = example_result()
    after = with_candidate(before, replace(before.models[2], warnings=("It is worse.",)))
    found = of(compare_results(before, after), "ort default")
    assert found.warnings_new == ("It is worse.",)
    assert found.warnings_gone == ("Something is odd.",)


def test_layers_that_got_worse() -> None:
    before = example_result()
    own = candidate()
    assert own.layers is not None
    first, second, *rest = own.layers.layers
    layers = Layers(
        layers=(
            replace(first, alone_db=20.0),
            replace(second, alone_db=40.0),
            replace(rest[0], alone_db=(rest[0].alone_db or 0) - 0.5),
            *rest[1:],
        ),
        samples=8,
    )
    found = of(compare_results(before, with_candidate(before, replace(own, layers=layers))))
    assert [(c.node, c.a, c.b) for c in found.layers_worse] == [(first.node, 25.0, 20.0)]
    assert found.layers_better == 1


def judged(outcome: Outcome, limit: float = 0.01) -> Judged:
    return Judged(
        rule=Rule(key="max_drop", limit=limit),
        outcome=outcome,
        figure=0.003,
        estimate=0.003,
        margin=limit - 0.003,
        sentence="",
    )


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (judged("pass"), judged("pass"), False),
        (judged("pass"), judged("fail"), True),
        (judged("pass"), judged("undecided"), True),
        (judged("pass"), judged("pass", 0.02), True),
        (None, judged("pass"), True),
        (judged("fail"), None, True),
    ],
)
def test_rules_that_changed(before: Judged | None, after: Judged | None, changed: bool) -> None:  # noqa: FBT001
    def gated(rule: Judged | None) -> Result:
        if rule is None:
            return example_result()
        verdict = Verdict(candidate="static", outcome=rule.outcome, rules=(rule,))
        return replace(example_result(), rules=(rule.rule,), verdicts=(verdict,))

    found = of(compare_results(gated(before), gated(after)))
    assert bool(found.rules) == changed
    outcomes = [j.outcome if j else "" for j in (before, after)]
    if outcomes[0] != outcomes[1]:
        assert found.outcome is not None
        assert [found.outcome.a, found.outcome.b] == outcomes
    else:
        assert found.outcome is None


def test_what_does_not_compare_is_said() -> None:
    before = example_result()
    file = replace(before.float_model.file, sha256="e" * 64)
    after = replace(
        before,
        data=replace(before.data, fingerprint="f" * 64, samples=100),
        origin=replace(
            before.origin, cpu="arm64", software={"quantkit": "1.0", "onnxruntime": "2"}
        ),
        models=(replace(before.models[0], file=file), *before.models[1:]),
    )
    found = {c.what: c for c in compare_results(before, after).caveats}
    assert list(found) == ["float model", "data fingerprint", "samples", "CPU", "onnxruntime"]
    assert "other samples" in found["data fingerprint"].spoils
    assert "latency" in found["CPU"].spoils


def test_json_is_strict() -> None:
    found = compare_results(
        example_result(), with_candidate(example_result(), candidate(drop=0.05))
    )
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["kind"] == "results"
    assert plain["same"] is False
    assert plain["candidates"][1]["figures"][1]["verdict"] == "worse"


def figure(value: float | None, spread: float | None, *, up: bool) -> Figure:
    known = value is not None and spread is not None
    return Figure(
        name="f",
        value=value,
        unit="metric",
        higher_is_better=up,
        interval=Interval(low=value - spread, high=value + spread) if known else None,  # type: ignore[operator]
    )


_VALUES = st.none() | st.floats(-1, 1)
_SPREADS = st.none() | st.floats(0, 1)


@given(_VALUES, _VALUES, _SPREADS, _SPREADS, st.booleans())
def test_swapping_swaps_better_and_worse(
    a: float | None,
    b: float | None,
    p: float | None,
    q: float | None,
    up: bool,  # noqa: FBT001 - drawn
) -> None:
    forth = judge(figure(a, p, up=up), figure(b, q, up=up))
    back = judge(figure(b, q, up=up), figure(a, p, up=up))
    assert back == {"better": "worse", "worse": "better"}.get(forth, forth)
    assert (forth == "same") == (a == b)


def test_a_candidate_may_be_called_float() -> None:
    base = example_result()
    named = replace(base, models=(base.models[0], candidate("float"), candidate("other")))
    found = compare_results(named, replace(named, models=named.models[:2]))
    assert [c.name for c in found.candidates] == ["float", "float"]
    assert found.only_a == ("other",)
    assert all(c.same for c in found.candidates)


def test_results_without_a_candidate_in_common() -> None:
    base = example_result()
    a = replace(base, models=(base.models[0], candidate("old"), candidate("older")))
    b = replace(base, models=(base.models[0], candidate("new")))
    found = compare_results(a, b)
    assert (found.only_a, found.only_b) == (("old", "older"), ("new",))
    assert not found.same
    assert not found.worse


def test_the_only_candidates_are_compared_under_any_name() -> None:
    base = example_result()
    a, b = (
        replace(base, models=(base.models[0], candidate(name, drop=drop)))
        for name, drop in (("old", 0.003), ("new", 0.05))
    )
    found = compare_results(a, b)
    assert (found.only_a, found.only_b) == ((), ())
    assert found.candidates[1].name == "old -> new"
    assert found.is_worse
    assert not compare_results(b, a).is_worse


def test_an_output_that_is_no_longer_finite_is_worse() -> None:
    base = example_result()
    model = base.models[1]
    assert model.drift is not None
    lost = replace(model.drift.outputs[0], sqnr_db=None, not_finite=3)
    broken = with_candidate(base, replace(model, drift=replace(model.drift, outputs=(lost,))))
    found = compare_results(base, broken)
    assert verdicts(found)["SQNR of logits"] == "worse"
    assert verdicts(compare_results(broken, base))["SQNR of logits"] == "better"
    json.dumps(found.to_json(), allow_nan=False)
