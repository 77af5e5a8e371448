"""Static quantization keeps to its memory, and finds the same integers in one group of moments or in several."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, save, weight

import quantkit
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.solve.weights import in_groups, moment_requests
from quantkit.settings import DataSettings, RecoverSettings

pytestmark = pytest.mark.all_cores

WIDE = 1024
BRANCHES = 24
LIMIT = 350_000_000


def tower(layers: int, width: int) -> onnx.ModelProto:
    nodes, weights, last = [], {}, "x"
    for i in range(layers):
        weights[f"w{i}"] = weight(width, width, seed=i)
        nodes.append(node("MatMul", [last, f"w{i}"], [f"m{i}"], f"mm{i}"))
        nodes.append(node("Relu", [f"m{i}"], [f"r{i}"], f"r{i}"))
        last = f"r{i}"
    return model(graph(nodes, {"x": ["N", width]}, {last: ["N", width]}, weights))


def rows(count: int, width: int) -> Array:
    return rng().standard_normal((count, width)).astype(np.float32)


def integers(path: Path) -> dict[str, Array]:
    found = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    return {name: array for name, array in found.items() if array.dtype == np.int8}


def quantized(folder: Path, name: str, *, groups: bool) -> tuple[QuantizeResult, dict[str, Array]]:
    with pytest.MonkeyPatch.context() as patch:
        if groups:
            patch.setattr("quantkit.pipeline.prepare.memory_left", lambda *_: 2 * 3 * 40 * 40 * 8)
        target = folder / name
        recover = RecoverSettings(equalize=False)
        data = {"x": rows(64, 40)}
        result = quantkit.quantize_static(tower(5, 40), target, data, recover=recover, verify=False)
    return result, integers(target)


@pytest.mark.slow
def test_a_limit_below_the_model_itself_is_said_to_be_exceeded(tmp_path: Path) -> None:
    data, recover = {"x": rows(8, 512)}, RecoverSettings(equalize=False)
    for limit, said in ((1_000_000, True), (10_000_000, False)):
        target = tmp_path / "q.onnx"
        result = quantkit.quantize_static(
            tower(2, 512), target, data, recover=recover, memory=limit
        )
        assert any("cannot be kept" in text for text in result.warnings) is said


@pytest.mark.slow
def test_moments_in_groups_give_the_same_integers_and_say_so(tmp_path: Path) -> None:
    one, first = quantized(tmp_path, "one.onnx", groups=False)
    several, second = quantized(tmp_path, "several.onnx", groups=True)
    assert not any("groups" in note for note in one.notes)
    assert any("Moments in 3 groups: the data was run again" in note for note in several.notes)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def many_moments() -> onnx.ModelProto:
    """A model of few weights whose products read much: 110 MB of moments."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, Array] = {}
    for i in range(BRANCHES):
        weights |= {f"c{i}": weight(WIDE, seed=i), f"w{i}": weight(WIDE, 8, seed=i)}
        nodes.append(node("Add", ["x", f"c{i}"], [f"a{i}"], f"add{i}"))
        nodes.append(node("Tanh", [f"a{i}"], [f"t{i}"], f"tanh{i}"))
        nodes.append(node("MatMul", [f"t{i}", f"w{i}"], [f"y{i}"], f"mm{i}"))
    nodes.append(node("Sum", [f"y{i}" for i in range(BRANCHES)], ["y"], "sum"))
    return model(graph(nodes, {"x": ["N", WIDE]}, {"y": ["N", 8]}, weights))


def shared_out(pid: int) -> int:
    """Return the memory of a process and its children, in which what they share counts once."""
    total = 0
    for one in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="ascii").splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.slow
def test_a_limit_is_kept_by_all_processes_together(tmp_path: Path) -> None:
    save(many_moments(), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", rows(40, WIDE))
    code = "import sys; from quantkit.cli.app import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "quantize", "static", "m.onnx", "o.onnx", "--no-verify"]
    command += ["--data", "data", "--memory", f"{LIMIT}", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            with contextlib.suppress(OSError):
                peak = max(peak, shared_out(process.pid))
            time.sleep(0.02)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0
    assert "Moments in" in said
    assert peak < LIMIT


def test_moments_are_cut_into_groups_that_fit() -> None:
    from quantkit.model.graph.load import load
    from quantkit.model.graph.products import products_of
    from quantkit.model.graph.view import view_of

    loaded = load(tower(7, 16)).model
    asked = moment_requests(products_of(view_of(loaded)))
    nbytes = asked[0].statistic.nbytes  # type: ignore[attr-defined]
    assert [len(g) for g in in_groups(asked, 3 * nbytes)] == [3, 3, 1]
    assert [len(g) for g in in_groups(asked, 1)] == [1] * 7
    assert in_groups(asked, 100 * nbytes) == (asked,)
    assert in_groups((), 1) == ()
    assert DataSettings(memory=LIMIT).memory_limit == LIMIT
