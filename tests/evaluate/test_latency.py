"""The arithmetic of timing, with a clock and sessions that are made up: no test waits, none asserts a duration."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import matmul_model, save

from quantkit.evaluate.latency import (
    Lab,
    Session,
    batch_of,
    batches_of,
    measure_latency,
)
from quantkit.numerics.statistics import median_interval
from quantkit.runtime.profile import Pace, timed_rounds
from quantkit.runtime.synthetic_inputs import Feeds

SECOND = 1.0
NEVER = -1.0  # no interval is that narrow


@dataclass
class World:
    """A clock that only moves when a model runs."""

    now: float = 0.0
    log: list[str] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    collected: list[bool] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def turn(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds(self.log.count(name))
            self.log.append(name)

        return run


@dataclass
class Fake:
    world: World
    name: str
    seconds: Callable[[int], float]
    leading: int | str = "N"
    largest: int = 1000

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="x", shape=[self.leading, 4], type="tensor(float)")]

    def run(self, _: None, feeds: dict[str, Any], /) -> object:
        if len(feeds["x"]) > self.largest:
            raise RuntimeError("too large\nsecond line")
        self.world.shapes.append(feeds["x"].shape)
        self.world.collected.append(gc.isenabled())
        self.world.turn(self.name, self.seconds)()
        return []


def lab(world: World, *models: Fake, **pace: Any) -> tuple[Lab, list[tuple[str, Path]]]:
    by_name: dict[str, Fake] = {model.name: model for model in models}

    def opened(path: Path, threads: int) -> Session:
        assert threads >= 0
        return by_name[path.name]

    settings = {"seconds": 1e9, "width": NEVER, "most": 40} | pace
    made = Lab(clock=world.clock, open=opened, pace=Pace(**settings))
    return made, [(model.name, Path(model.name)) for model in models]


def feeds(count: int = 3, rows: int = 1) -> list[Feeds]:
    return [{"x": np.full((rows, 4), i, np.float32)} for i in range(count)]


def test_ratio_median_and_interval_are_those_of_the_rounds() -> None:
    world = World()
    slow, fast = Fake(world, "float", lambda i: 2 + i % 5), Fake(world, "fast", lambda i: 1 + i % 3)
    bench, models = lab(world, slow, fast)
    found = measure_latency(models, feeds(), lab=bench).latency
    # One trial and three rounds of warm-up are not timed.
    a, b = ([f.seconds(i) for i in range(4, 44)] for f in (slow, fast))
    ratios = [y / x for x, y in zip(a, b, strict=True)]
    (base,), (row,) = found["float"], found["fast"]
    assert (base.ratio, base.ratio_interval, base.runs) == (1.0, None, 40)
    assert base.median_ms == pytest.approx(1e3 * median(a))
    assert row.median_ms == pytest.approx(1e3 * median(b))
    assert row.p90_ms == pytest.approx(1e3 * float(np.quantile(b, 0.9)))
    assert row.ratio == pytest.approx(median(ratios))
    assert row.throughput == pytest.approx(1 / median(b))
    assert row.ratio_interval is not None
    bounds = (row.ratio_interval.low, row.ratio_interval.high)
    assert bounds == pytest.approx(median_interval(ratios))


def test_everyone_runs_once_a_round_and_follows_everyone() -> None:
    world, names = World(), "abc"
    turns = [world.turn(name, lambda _: SECOND) for name in names]
    rows = timed_rounds(turns, Pace(seconds=1e9, width=NEVER, most=60), world.clock)
    assert rows == [[SECOND] * 3] * 60
    timed = world.log[9:]  # behind the warm-up
    rounds = ["".join(timed[i : i + 3]) for i in range(0, 180, 3)]
    assert all(sorted(r) == list(names) for r in rounds)
    assert len(set(rounds)) == 6


def test_fast_work_is_repeated_and_primed() -> None:
    world = World()
    tick = 0.06e-3
    turns = [world.turn("fast", lambda _: tick), world.turn("slow", lambda _: SECOND)]
    rows = timed_rounds(turns, Pace(seconds=1e9, width=NEVER, most=20), world.clock)
    assert world.log.count("slow") == 3 + 20
    assert world.log.count("fast") == 3 + 20 * (1 + 4)  # primed once, then four runs timed together
    assert all(row[0] == pytest.approx(tick, rel=1e-6) for row in rows)


@pytest.mark.parametrize(
    ("pace", "rounds"),
    [
        ({"seconds": 1e9, "width": 0.5}, 20),  # known well enough at once
        ({"seconds": 1e9, "width": NEVER, "most": 33}, 33),
        ({"seconds": 12.0, "width": NEVER}, 24),  # 12 s for each of two models
        ({"seconds": 0.5, "width": NEVER, "least": 20}, 10),  # ten times the budget: not even 20
        ({"seconds": 0.1, "width": NEVER, "least": 20}, 6),  # but as many as an interval needs
    ],
)
def test_when_it_is_enough(pace: dict[str, Any], rounds: int) -> None:
    world = World()
    # One second a round; ratios differ from round to round.
    turns = [world.turn("a", lambda _: 0.5), world.turn("b", lambda i: 0.5 + (i % 2) / 1e3)]
    assert len(timed_rounds(turns, Pace(**pace), world.clock)) == rounds


@pytest.mark.slow
def test_batches_and_threads_make_one_row_each() -> None:
    world = World()
    bench, models = lab(world, Fake(world, "float", lambda _: 2.0), Fake(world, "q", lambda _: 1.0))
    said: list[str] = []
    found = measure_latency(
        models, feeds(), batches=(1, 4), threads=(0, 2), progress=said.append, lab=bench
    )
    assert [(r.batch, r.threads) for r in found.latency["q"]] == [(1, 0), (4, 0), (1, 2), (4, 2)]
    assert [r.throughput for r in found.latency["q"]] == [1, 4, 1, 4]
    assert set(world.shapes) == {(1, 4), (4, 4)}
    assert said[-1] == "Timing 2 models, batch 4, 2 threads"
    assert found.notes == ()


def test_a_candidate_that_fails_at_a_batch_is_left_out_there() -> None:
    world = World()
    small = Fake(world, "q", lambda _: 1.0, largest=2)
    bench, models = lab(world, Fake(world, "float", lambda _: 2.0), small)
    found = measure_latency(models, feeds(), batches=(1, 8), lab=bench)
    assert [r.batch for r in found.latency["float"]] == [1, 8]
    assert [r.batch for r in found.latency["q"]] == [1]
    assert found.notes == ("q does not run at batch 8: too large",)


def test_a_model_with_a_fixed_batch_is_timed_at_that_one() -> None:
    world = World()
    bench, models = lab(world, Fake(world, "float", lambda _: 2.0, leading=4))
    found = measure_latency(models, feeds(), batches=(1, 2), lab=bench)
    assert [r.batch for r in found.latency["float"]] == [4]
    assert set(world.shapes) == {(4, 4)}
    assert len(found.notes) == 1


def test_garbage_is_not_collected_while_models_are_timed() -> None:
    world = World()
    bench, models = lab(world, Fake(world, "float", lambda _: 2.0))
    measure_latency(models, feeds(), lab=bench)
    assert world.collected == [True] + [False] * 43  # on in the trial, off while it is timed
    assert gc.isenabled()


def test_batches_are_made_of_different_samples_of_the_commonest_shape() -> None:
    mixed: list[Feeds] = [{"x": np.zeros((1, 9))}, *feeds(3)]
    assert batch_of(mixed, 5)["x"][:, 0].tolist() == [0, 1, 2, 0, 1]
    assert batch_of(feeds(2, rows=4), 6)["x"][:, 0].tolist() == [0, 0, 0, 0, 1, 1]


def test_samples_without_a_common_leading_axis_are_timed_one_by_one() -> None:
    state: list[Feeds] = [{"x": np.zeros((1, 4)), "h": np.zeros((2, 1, 8))}]
    assert batches_of(state, (1, 8), [])[0] == (1,)
    assert batch_of(state, 1)["h"].shape == (2, 1, 8)


def test_whole_samples_are_timed_one_by_one_and_not_cut() -> None:
    graphs: list[Feeds] = [{"x": np.zeros((9, 4)), "edges": np.zeros((9,))}]
    assert batches_of(graphs, (1, 8), [], whole=True)[0] == (1,)
    assert batch_of(graphs, 1)["x"].shape == (9, 4)


def test_real_sessions_are_timed(tmp_path: Path) -> None:
    path = save(matmul_model(), tmp_path / "m.onnx")
    real = [{"x": np.ones((1, 128), np.float32)}]
    bench = Lab(pace=Pace(seconds=0.0))
    found = measure_latency([("a", path), ("b", path)], real, batches=(1, 3), lab=bench)
    assert [r.batch for r in found.latency["b"]] == [1, 3]
    assert all(r.runs >= 6 and r.median_ms > 0 for r in found.latency["b"])
