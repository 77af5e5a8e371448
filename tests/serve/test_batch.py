"""The line of requests: order, company, limits, and what becomes of those that fail or are given up."""

from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, save
from serve_cases import linear, picky, slow, wait_for

from quantkit.deploy.serve.batch import Answer, Job, Line, Rules
from quantkit.deploy.serve.engine import Engine, load_engine
from quantkit.deploy.serve.predict import Sent, predictor
from quantkit.deploy.serve.protocol import RequestError
from quantkit.settings import DataSettings


class Asked:
    """A request, and its answer when it is there."""

    def __init__(self, engine: Engine, x: Any) -> None:
        self.came = Event()
        self.answer: Answer | None = None
        self.job = Job(engine=engine, feeds={"x": x}, done=self._done)

    def _done(self, job: Job, answer: Answer) -> None:
        assert job is self.job
        assert self.answer is None, "answered twice"
        self.answer = answer
        self.came.set()

    def wait(self) -> Answer:
        assert self.came.wait(20)
        assert self.answer is not None
        return self.answer


def rows(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, 8)).astype(np.float32)


def test_requests_share_a_run_and_get_their_own_rows(tmp_path: Path) -> None:
    engine = load_engine(linear(tmp_path))
    line = Line(Rules(workers=1, rows=8, delay=5.0), engine.seconds)
    asked = [Asked(engine, rows(n, seed=n)) for n in (1, 2, 3, 2)]  # 8 rows: nobody waits for 5 s
    for one in asked:
        line.put(one.job)
    for one in asked:
        found = one.wait()
        assert found.rows == 8
        assert found.outputs is not None
        expected = engine.run(one.job.feeds)["logits"]
        assert np.allclose(found.outputs["logits"], expected, atol=1e-6)
    line.close()


def test_others_shapes_and_models_are_not_mixed(tmp_path: Path) -> None:
    one, other = load_engine(linear(tmp_path)), load_engine(linear(tmp_path, "b", seed=1))
    line = Line(Rules(workers=1, rows=4, delay=0.2), one.seconds)
    asked = [Asked(engine, rows(1)) for engine in (one, other, one, other)]
    for request in asked:
        line.put(request.job)
    for request in asked:
        found = request.wait()
        assert found.rows == 2
        assert found.outputs is not None
        expected = request.job.engine.run(request.job.feeds)["logits"]
        assert np.allclose(found.outputs["logits"], expected, atol=1e-6)
    line.close()


def test_requests_whose_inputs_differ_in_rows_run_alone(tmp_path: Path) -> None:
    """Together each input has three rows: divided by one of them, a caller would get what another sent."""
    made = model(
        graph([node("Add", ["x", "b"], ["y"])], {"x": ["n", 8], "b": ["m", 8]}, {"y": ["k", 8]})
    )
    engine = load_engine(save(made, tmp_path / "add.onnx"))
    assert not engine.unbatched
    line = Line(Rules(workers=1, rows=6, delay=0.2), engine.seconds)
    asked = [Asked(engine, rows(n)) for n in (1, 2)]
    for one, n in zip(asked, (2, 1), strict=True):
        one.job.feeds = {**one.job.feeds, "b": 10 * rows(n, seed=1)}
        line.put(one.job)
    for one in asked:
        found = one.wait()
        assert found.outputs is not None
        assert np.array_equal(found.outputs["y"], engine.run(one.job.feeds)["y"])
    line.close()


def test_outputs_without_a_row_for_each_are_not_divided(tmp_path: Path) -> None:
    """How many rows come out depends on the values, and those tried at the start had all of them."""
    nodes = [
        node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0),
        node("LessOrEqual", ["sum", "low"], ["small"]),
        node("Not", ["small"], ["kept"]),
        node("Compress", ["x", "kept"], ["y"], axis=0),
    ]
    constants = {"axis": np.array([1]), "low": np.array(-1e9, np.float32)}
    made = model(graph(nodes, {"x": ["batch", 8]}, {"y": ["kept", 8]}, constants))
    engine = load_engine(save(made, tmp_path / "kept.onnx"))
    assert not engine.unbatched
    line = Line(Rules(workers=1, rows=4, delay=5.0), engine.seconds)
    asked = [Asked(engine, np.full((2, 8), value, np.float32)) for value in (1.0, -1e9)]
    for one in asked:
        line.put(one.job)
    found = [one.wait().outputs for one in asked]
    assert [one["y"].shape for one in found if one is not None] == [(2, 8), (0, 8)]
    line.close()


def test_of_rows_that_run_together_only_the_bad_one_fails(tmp_path: Path) -> None:
    engine = load_engine(picky(tmp_path))
    line = Line(Rules(workers=1, rows=4, delay=5.0), 0.001)
    asked = [Asked(engine, np.array([i])) for i in (1, 99, 3, 4)]
    for one in asked:
        line.put(one.job)
    found = [one.wait() for one in asked]
    assert [answer.error is None for answer in found] == [True, False, True, True]
    assert found[1].error is not None
    assert found[1].error.status == 400
    assert "does not run on these inputs" in str(found[1].error)
    line.close()


def test_what_would_wait_too_long_is_refused_at_once(tmp_path: Path) -> None:
    engine = load_engine(slow(tmp_path))
    line = Line(Rules(workers=1, longest=0.5), 0.2)
    asked = [Asked(engine, rows(1)) for _ in range(6)]
    refused = 0
    for one in asked:
        try:
            line.put(one.job)
        except RequestError as e:
            refused += 1
            assert (e.status, e.retry_after) == (503, 1)  # noqa: PT017 - how many are refused depends on the machine
    assert refused
    line.close()  # answers those that wait
    assert sum(one.answer is not None for one in asked) == 6 - refused
    with pytest.raises(RequestError, match="stopping"):
        line.put(Asked(engine, rows(1)).job)


def test_what_was_given_up_is_not_run(tmp_path: Path) -> None:
    engine = load_engine(slow(tmp_path))
    line = Line(Rules(workers=1, longest=60.0), engine.seconds)
    first, second, third = (Asked(engine, rows(1)) for _ in range(3))
    for one in (first, second, third):
        line.put(one.job)
    second.job.give_up()
    assert third.wait().outputs is not None
    assert second.answer is None
    line.close()


def test_a_run_that_nobody_waits_for_is_stopped(tmp_path: Path) -> None:
    class Options:
        terminate = False

    engine = load_engine(linear(tmp_path))
    one, other = Asked(engine, rows(1)).job, Asked(engine, rows(1)).job
    options = Options()
    for job in (one, other):
        job.together, job.options = (one, other), options
    one.give_up()
    assert not options.terminate
    other.give_up()
    assert options.terminate


def test_a_single_number_is_an_input_like_others(tmp_path: Path) -> None:
    """It has no rows; a worker that counted them would end, and nobody would be answered any more."""
    made = model(
        graph([node("Mul", ["s", "x"], ["y"])], {"s": [], "x": ["batch", 8]}, {"y": ["batch", 8]})
    )
    engine = load_engine(save(made, tmp_path / "scaled.onnx"))
    line = Line(Rules(workers=1, rows=4), engine.seconds)
    for _ in range(2):
        one = Asked(engine, rows(2))
        one.job.feeds = {"s": np.array(2, np.float32), **one.job.feeds}
        line.put(one.job)
        found = one.wait()
        assert found.rows == 2
        assert found.outputs is not None
        assert np.array_equal(found.outputs["y"], 2 * rows(2))
    line.close()


def test_a_model_without_inputs_is_served(tmp_path: Path) -> None:
    made = model(graph([node("Identity", ["w"], ["y"])], {}, {"y": [3]}, {"w": np.ones(3, "f4")}))
    engine = load_engine(save(made, tmp_path / "constant.onnx"))
    assert (
        predictor(engine, DataSettings(), (), 1 << 20).feeds(
            Sent(kind="application/json", content=b'{"inputs": {}}')
        )
        == {}
    )
    assert engine.run({})["y"].tolist() == [1, 1, 1]


def test_workers_with_nothing_to_do_are_left_their_share(tmp_path: Path) -> None:
    engine = load_engine(linear(tmp_path))
    line = Line(Rules(workers=2, rows=64), engine.seconds)
    wait_for(lambda: line._idle == 2)
    asked = [Asked(engine, rows(1, seed=n)) for n in range(8)]
    with line._change:  # both are woken when all of them wait
        line._waiting.extend(one.job for one in asked)
        line._change.notify_all()
    found = [one.wait().rows for one in asked]
    line.close()
    assert max(found) <= 4
