"""How surely a canary is sent back: false alarms over many looks, and requests until a bad candidate is found.

    python benchmarks/serve_drift.py                    writes benchmarks/results/serve_drift.md

Rows are drawn as independent flips, errors and times; after each the server's rule (`quantkit.deploy.serve.drift.alarms`) is asked.
For comparison the usual interval (Wilson, 95 %) is asked as often: it holds for one look, and cries wolf.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantkit.deploy.serve.drift import alarms
from quantkit.numerics.rates import wilson
from quantkit.result import Rule
from quantkit.result.live import Live, LiveOutput, Pairs

LIMIT = 0.02  # of flips
DEMANDED = 20.0  # dB
SLOW = 1.2  # of the time before
LEVEL = 0.05
RESULTS = Path(__file__).parent / "results" / "serve_drift.md"

Numbers = NDArray[np.float64]


def cumulated(signal: Numbers, error: Numbers) -> list[Pairs]:
    """Return the sums after each pair."""
    table = np.cumsum(
        np.stack([signal, error, signal**2, error**2, signal * error]), axis=1
    ).T.tolist()
    return [
        Pairs(n=n, a=a, b=b, aa=aa, bb=bb, ab=ab) for n, (a, b, aa, bb, ab) in enumerate(table, 1)
    ]


def first_alarm(states: list[Live], rule: Rule) -> int:
    """Return after how many rows a candidate is sent back; 0: never."""
    return next((n for n, live in enumerate(states, 1) if alarms(live, [rule], LEVEL)), 0)


def flips(rate: float, rows: int, rng: np.random.Generator) -> list[Live]:
    """Return what is known after each of some rows that flip at a rate."""
    counts = np.cumsum(rng.random(rows) < rate).tolist()
    empty = Live(reference="a", candidate="b")
    return [replace(empty, decisions=n, flips=count) for n, count in enumerate(counts, 1)]


def noise(db: float, rows: int, rng: np.random.Generator) -> list[Live]:
    """Return what is known after each of some rows of a signal to noise; energies of rows are skewed."""
    signal = rng.gamma(4.0, 0.25, rows)
    error = rng.gamma(1.0, 1.0, rows) * 10 ** (-db / 10)
    empty = Live(reference="a", candidate="b")
    return [
        replace(empty, outputs=(LiveOutput(output="y", energies=pairs),))
        for pairs in cumulated(signal, error)
    ]


def times(ratio: float, rows: int, rng: np.random.Generator) -> list[Live]:
    """Return what is known after each of some rows that take a ratio of the time before."""
    ratios = np.log(ratio) + rng.standard_t(4, rows) * 0.25
    empty = Live(reference="a", candidate="b")
    return [replace(empty, ratios=pairs) for pairs in cumulated(ratios, np.zeros(rows))]


KINDS = {
    "max_flips": (flips, LIMIT, (0.01, 0.02, 0.03, 0.04, 0.06, 0.10, 0.30)),
    "min_sqnr_db": (noise, DEMANDED, (21.0, 20.0, 19.0, 17.0, 14.0, 10.0)),
    "max_latency_ratio": (times, SLOW, (1.0, 1.2, 1.3, 1.5, 2.0)),
}


def wolf(states: list[Live], rule: Rule) -> bool:
    """Say whether the usual interval, asked after every row, ever lies above the limit."""
    return any(wilson(live.flips, live.decisions, 1 - 2 * LEVEL)[0] > rule.limit for live in states)


def simulate(key: str, runs: int, rows: int, seed: int = 0) -> list[tuple[float, float, list[int]]]:
    """Return for each truth the share of runs with an alarm, that of the usual interval, and when the alarms came."""
    make, limit, truths = KINDS[key]
    rule = Rule(key=key, limit=limit, confidence=0.95)
    found = []
    for truth in truths:
        rng = np.random.default_rng([seed, round(truth * 1000)])
        came: list[int] = []
        usual = 0
        for _ in range(runs):
            states = make(truth, rows, rng)
            came.append(first_alarm(states, rule))
            usual += key == "max_flips" and wolf(states, rule)
        found.append((sum(n > 0 for n in came) / runs, usual / runs, [n for n in came if n]))
    return found


def main() -> None:
    """Simulate and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--rows", type=int, default=5000)
    chosen = parser.parse_args()
    lines = [
        "# When a canary is sent back",
        "",
        f"`benchmarks/serve_drift.py`: {chosen.runs} runs of {chosen.rows} compared rows each, asked after every row.",
        f"The level is {LEVEL:.0%} for all looks together.",
        "",
        "| rule | true value | sent back | median rows until then | 95 % within | Wilson's interval, asked as often |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for key, (_, limit, truths) in KINDS.items():
        for truth, (share, usual, came) in zip(
            truths, simulate(key, chosen.runs, chosen.rows), strict=True
        ):
            middle = f"{np.median(came):.0f}" if share > 2 * LEVEL else "-"
            most = f"{np.quantile(came, 0.95):.0f}" if share > 2 * LEVEL else "-"
            wilsons = f"{usual:.1%}" if key == "max_flips" else "-"
            lines.append(
                f"| {key} = {limit:g} | {truth:g} | {share:.1%} | {middle} | {most} | {wilsons} |"
            )
            print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
