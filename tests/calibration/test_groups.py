"""When not all activations fit into memory at once, the data is run in groups of tensors."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, weight
from hypothesis import given
from hypothesis import strategies as st

from quantkit.calibration import Calibration, MinMaxOf, Request, SketchOf
from quantkit.calibration import run as running
from quantkit.calibration.collect import CalibrateOptions, split_into_passes
from quantkit.calibration.run import Schedule
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.settings import DataSettings

K = 6
ROWS = rng().standard_normal((40, K)).astype(np.float32)


def deep(layers: int = 4) -> onnx.ModelProto:
    nodes, last = [], "x"
    for i in range(layers):
        nodes += [node("MatMul", [last, "w"], [f"m{i}"]), node("Relu", [f"m{i}"], [f"r{i}"])]
        last = f"r{i}"
    return model(graph(nodes, {"x": ["N", K]}, {last: ["N", K]}, {"w": weight(K, K, scale=0.5)}))


def calibrated(memory: int, target: Path) -> Calibration:
    options = CalibrateOptions(memory=memory, workers=2)
    return calibrate_model(deep(), {"x": ROWS}, target, options, DataSettings(batch=4))


def test_groups_see_what_one_group_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    real = Schedule

    def counted(*, groups: int, batches: int, workers: int) -> Schedule:
        seen.append(groups)
        return real(groups=groups, batches=batches, workers=workers)

    seen = groups
    monkeypatch.setattr(running, "Schedule", counted)
    one = calibrated(1 << 30, tmp_path / "one")
    several = calibrated(
        2 * 2 * 4 * K * 4, tmp_path / "several"
    )  # two tensors for each of two workers
    assert groups[0] == 1
    assert groups[1] >= 2
    assert several.tensors == one.tensors
    assert several.ranges() == one.ranges()
    expected, found = one.seen.to_arrays(), several.seen.to_arrays()
    assert all(found[k].tobytes() == expected[k].tobytes() for k in expected)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "several").read_bytes()


@pytest.mark.slow
def test_a_group_for_every_tensor(tmp_path: Path) -> None:
    one = calibrated(1 << 30, tmp_path / "one")
    assert calibrated(1, tmp_path / "many").ranges() == one.ranges()


@given(
    sizes=st.lists(st.integers(0, 100), min_size=1, max_size=20),
    both=st.lists(st.booleans(), min_size=20, max_size=20),
    memory=st.integers(1, 300),
)
def test_groups_keep_all_requests_in_order_and_fit(
    sizes: list[int], both: list[bool], memory: int
) -> None:
    nbytes = {f"t{i}": size for i, size in enumerate(sizes)}
    requests = [Request(tensor=t, statistic=SketchOf()) for t in nbytes]
    requests += [
        Request(tensor=t, statistic=MinMaxOf())
        for t, also in zip(nbytes, both, strict=False)
        if also
    ]
    groups = split_into_passes(requests, nbytes, memory=memory)
    assert [r for group in groups for r in group] == requests
    for group in groups:
        tensors = {r.tensor for r in group}
        assert len(tensors) == 1 or sum(nbytes[t] for t in tensors) <= memory
