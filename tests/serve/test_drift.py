"""Two models on the same requests: what is counted, how it adds up, and when a candidate is sent back."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve_cases import Server, linear, serving, wait_for
from serve_drift import KINDS, LEVEL, simulate

from quantkit.api.gate import gate_live
from quantkit.cli.app import run
from quantkit.deploy.serve.drift import alarms, compared
from quantkit.errors import UsageError
from quantkit.evaluate.gate.judge import judge_live
from quantkit.numerics.rates import evidence, wilson
from quantkit.result import Rule
from quantkit.result.live import Live, Pairs, merged
from quantkit.settings import GateSettings

EMPTY = Live(reference="r", candidate="c")
FLIPS = Rule(key="max_flips", limit=0.02, confidence=0.95)
RNG = np.random.default_rng(3)


def seen(reference: Any, candidate: Any) -> Live:
    return compared(({"logits": reference}, 0.002), ({"logits": candidate}, 0.001), EMPTY)


def test_what_two_models_answer_is_counted() -> None:
    reference = np.array([[1.0, 0.0], [0.0, 2.0], [np.nan, 1.0]], np.float32)
    candidate = np.array([[0.0, 1.0], [0.0, 2.5], [1.0, 1.0]], np.float32)
    live = seen(reference, candidate)
    assert (live.decisions, live.flips, live.decider) == (2, 1, "logits")
    assert live.outputs[0].energies.a == pytest.approx(1 + 4 + 1)
    assert live.outputs[0].energies.b == pytest.approx(2 + 0.25)
    assert live.ratios.a == pytest.approx(math.log(0.5))
    broken = candidate.copy()
    broken[0, 0] = np.inf
    assert seen(reference, broken).outputs[0].db == -math.inf
    assert seen(reference[:2], reference[:2]).outputs[0].db == math.inf
    short = seen(reference[:2], reference[:1])  # a candidate that leaves out rows
    assert (short.decisions, short.flips, short.outputs[0].db) == (2, 2, -math.inf)


@given(st.lists(st.integers(0, 2**16), min_size=2, max_size=6), st.integers(1, 5))
def test_parts_add_up_in_any_order(seeds: list[int], cut: int) -> None:
    def part(seed: int) -> Live:
        rng = np.random.default_rng(seed)
        x = rng.integers(-4, 5, (rng.integers(1, 4), 3)).astype(np.float32)
        return seen(x, x + rng.integers(-1, 2, x.shape).astype(np.float32))

    parts = [part(seed) for seed in seeds]
    cut = min(cut, len(parts) - 1)
    whole = merged(parts)
    assert merged([merged(parts[cut:]), merged(parts[:cut])]).flips == whole.flips
    assert merged([merged(parts[:cut]), merged(parts[cut:])]).outputs == whole.outputs
    assert whole.requests == len(parts)


def test_a_reference_that_says_nothing_passes_nobody() -> None:
    nothing = np.full((3, 4), np.nan, np.float32)
    live = seen(nothing, nothing)
    rule = Rule(key="min_sqnr_db", limit=20.0)
    assert judge_live(live, [rule]).outcome == "undecided"
    zeros = np.zeros((3, 4), np.float32)
    live = seen(zeros, zeros)
    assert judge_live(live, [rule]).outcome == "pass"


def test_other_models_do_not_add_up() -> None:
    with pytest.raises(UsageError, match="do not add up"):
        merged([EMPTY, replace(EMPTY, candidate="d")])


def test_flips_are_judged_by_the_interval_of_evaluations() -> None:
    live = replace(EMPTY, decisions=1000, flips=5)
    (judged,) = judge_live(live, [FLIPS]).rules
    assert judged.outcome == "pass"
    assert judged.figure == pytest.approx(wilson(5, 1000)[1])
    assert judge_live(replace(EMPTY, decisions=50), [FLIPS]).outcome == "undecided"
    assert (
        "samples would settle it"
        in judge_live(replace(EMPTY, decisions=50), [FLIPS]).rules[0].sentence
    )
    assert judge_live(replace(EMPTY, decisions=50, flips=9), [FLIPS]).outcome == "fail"
    assert judge_live(EMPTY, [FLIPS]).outcome == "undecided"


def test_signal_to_noise_has_an_interval_that_holds() -> None:
    rule = Rule(key="min_sqnr_db", limit=20.0, confidence=0.95)
    held = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((200, 8))
        live = seen(x, x + 0.1 * rng.standard_normal(x.shape))
        (judged,) = judge_live(live, [rule]).rules
        assert judged.figure is not None
        assert judged.estimate is not None
        held += judged.figure <= 20.0 <= 2 * judged.estimate - judged.figure
    assert 180 <= held <= 198


@given(st.floats(0.01, 0.9), st.integers(0, 60))
def test_evidence_is_fair(limit: float, n: int) -> None:
    """While the rate is the limit, its mean is 1 after any number of samples: nobody gets rich by looking often."""
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(limit) + (n - k) * math.log1p(-limit)
        for k in range(n + 1)
    ]  # fmt: skip
    mean = sum(math.exp(log) * evidence(k, n, limit) for k, log in enumerate(logs))
    assert mean == pytest.approx(1.0, rel=1e-6)


def test_a_limit_of_none_takes_one_flip() -> None:
    rule = replace(FLIPS, limit=0.0)
    assert alarms(replace(EMPTY, decisions=500), [rule]) == {}
    assert alarms(replace(EMPTY, decisions=500, flips=1), [rule])


@pytest.mark.parametrize("key", list(KINDS))
def test_good_candidates_stay_and_bad_ones_are_found(key: str) -> None:
    """In small what benchmarks/serve_drift.py does in full: the limit itself is the worst that is good."""
    runs = 40
    found = dict(zip(KINDS[key][2], simulate(key, runs, 300), strict=True))
    good = found[KINDS[key][1]]
    assert good[0] <= LEVEL + 2 / runs
    bad = found[KINDS[key][2][-1]]
    assert bad[0] == 1.0
    assert max(bad[2]) <= 120


def asked(server: Server, count: int) -> list[int]:
    rng = np.random.default_rng(0)
    return [server.infer(rng.standard_normal((4, 8)).astype(np.float32))[0] for _ in range(count)]


def ask_until_compared(server: Server, rows: int) -> None:
    """Ask until enough was compared: on a busy machine some requests are not."""
    wait_for(lambda: set(asked(server, 5)) == {200} and drift(server)["live"]["decisions"] >= rows)


def drift(server: Server) -> Any:
    return server.json("GET", "/drift")[1]


def test_a_shadow_tells_a_good_model_from_a_bad_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = linear(tmp_path), linear(tmp_path, "bad", seed=7)
    for shadow, outcome in ((good, "pass"), (bad, "fail")):
        with serving(
            good, "--shadow", str(shadow), "--share", "100%", "--max-flips", "5%"
        ) as server:
            assert (
                run(["gate", "--live", f"http://127.0.0.1:{server.port}", "--max-flips", "10%"])
                == 1
            )
            assert "undecided" in capsys.readouterr().out
            ask_until_compared(server, 80)
            said = drift(server)
            assert said["mode"] == "shadow"
            assert said["verdict"]["outcome"] == outcome
            wanted = 0 if outcome == "pass" else 1
            address = f"http://127.0.0.1:{server.port}"
            assert run(["gate", "--live", address, "--max-flips", "10%"]) == wanted
            assert outcome in capsys.readouterr().out
            file = tmp_path / "drift.json"
            file.write_bytes(server.ask("GET", "/drift")[1])
            assert run(["gate", "--live", str(file), "--max-flips", "10%", "--json"]) == wanted
            assert json.loads(capsys.readouterr().out)["outcome"] == outcome
            assert b"quantkit_shadow_flips_total" in server.ask("GET", "/metrics")[1]
    assert gate_live([file, file], GateSettings(max_flips=0.1)).outcome == "fail"
    assert run(["gate", "--live", address]) == 2  # no rule
    assert run(["gate", "--live", address, "--max-flips", "1%"]) == 2  # nobody answers any more
    assert run(["gate", "--live", str(good), "--max-flips", "1%"]) == 2  # no such file
    capsys.readouterr()
    assert run(["gate", "--live", "http://a b", "--max-flips", "1%"]) == 2  # no address
    assert "does not answer" in capsys.readouterr().err


def test_a_bad_canary_is_sent_back_and_a_good_one_stays(tmp_path: Path) -> None:
    good, bad = linear(tmp_path), linear(tmp_path, "bad", seed=7)
    with serving(good, "--canary", str(bad), "--share", "50%", "--max-flips", "5%") as server:
        for _ in range(20):
            assert set(asked(server, 10)) == {200}
            if not drift(server)["active"]:
                break
        assert "decisions differ" in drift(server)["returned"]
        events = [line["event"] for line in server.lines()]
        assert events.count("canary returned") == 1
        assert b"quantkit_canary_active 0.0" in server.ask("GET", "/metrics")[1]
        before = sum(line.get("canary", False) for line in server.lines())
        asked(server, 20)
        assert sum(line.get("canary", False) for line in server.lines()) == before
    with serving(good, "--canary", str(good), "--share", "100%", "--max-flips", "5%") as server:
        ask_until_compared(server, 100)
        said = drift(server)
        assert said["active"]
        assert said["live"]["flips"] == 0


def test_a_canary_that_fails_is_sent_back_and_the_request_is_answered(tmp_path: Path) -> None:
    from builders import graph, model, node, save, weight

    fragile = model(
        graph(
            [node("MatMul", ["x", "w"], ["m"]), node("Reshape", ["m", "s"], ["logits"])],
            {"x": ["batch", 8]},
            {"logits": ["batch", 4]},
            {"w": weight(8, 4), "s": np.array([2, 4])},
        )
    )
    path = save(fragile, tmp_path / "fragile.onnx")
    with serving(
        linear(tmp_path), "--canary", str(path), "--share", "100%", "--max-flips", "50%"
    ) as server:
        assert asked(server, 1) == [200]  # of four rows, which the candidate cannot give
        said = drift(server)
        assert "does not run" in said["returned"]
        assert said["live"]["failed"] == 1


def test_pairs_know_means_and_variances() -> None:
    a, b = RNG.standard_normal((2, 50))
    pairs = Pairs(n=50, a=a.sum(), b=b.sum(), aa=(a * a).sum(), bb=(b * b).sum(), ab=(a * b).sum())
    assert pairs.mean(2, -3) == pytest.approx((2 * a - 3 * b).mean())
    assert pairs.variance(2, -3) == pytest.approx((2 * a - 3 * b).var())
