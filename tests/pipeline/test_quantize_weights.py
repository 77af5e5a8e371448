"""Weights in blocks from a file to a file: what is written, what is refused, what is made again, what a killed run leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from block_cases import branches, chain, data_file, language_model, loop
from builders import Array, graph, initializers, model, node, op_types, run, save, sqnr, weight

import quantkit
from quantkit import quantize_weights
from quantkit.api.verify import reproduce
from quantkit.cli.app import run as quantkit_command
from quantkit.errors import (
    DataError,
    ModelError,
    NothingToQuantizeError,
    QuantkitError,
    UsageError,
    VerifyError,
)
from quantkit.model.provenance import read_provenance
from quantkit.numerics.blocks import BlockCodes
from quantkit.pipeline import block_times
from quantkit.pipeline.forms import weights as workflow
from quantkit.pipeline.verify_file import attest
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.solve.codes_folder import CodesFolder
from quantkit.settings import WeightsSettings
from quantkit.settings.record import recorded_settings

LAYERS = ("w0", "w1", "w2")
TIMED = WeightsSettings(measure=True)


def filled(folder: Path) -> Path:
    """Write m.onnx, three layers, and x.npy, samples for it."""
    save(chain(3, 96), folder / "m.onnx")
    data_file(chain(3, 96), folder / "x.npy")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def bits_of(plan: Plan) -> dict[str, int]:
    return {w.tensor: w.blocks.bits for w in plan.weights if w.blocks is not None}


def unseen() -> Array:
    return np.random.default_rng(9).standard_normal((16, 96)).astype(np.float32)


# ---------------------------------------------------------------------------------------- what is written


def test_a_smaller_file_that_was_verified(folder: Path) -> None:
    source, out = folder / "m.onnx", folder / "o.onnx"
    before = source.read_bytes()
    result = quantize_weights(source, out, folder / "x.npy")
    assert source.read_bytes() == before
    assert names(folder) == ["m.onnx", "o.onnx", "x.npy"]
    assert result.output_bytes == out.stat().st_size < 0.25 * result.input_bytes
    assert {n.mode for n in result.plan.nodes} == {Mode.BLOCKS}
    assert bits_of(result.plan) == dict.fromkeys(LAYERS, 4)
    assert result.verification is not None
    assert result.verification.compared["y"] > 20
    assert op_types(onnx.load(out)).count("MatMulNBits") == 3
    for optimize in (True, False):
        assert (
            sqnr(run(source, {"x": unseen()})[0], run(out, {"x": unseen()}, optimize=optimize)[0])
            > 12
        )


def test_more_bits_make_a_better_and_larger_file(folder: Path) -> None:
    found = [
        quantize_weights(folder / "m.onnx", folder / "o.onnx", bits=b, accuracy_level=4)
        for b in (2, 3, 4, 6, 8)
    ]
    quality = [one.verification.compared["y"] for one in found if one.verification is not None]
    assert len(quality) == len(found)
    assert quality == sorted(quality)
    sizes = [one.output_bytes for one in found]
    assert sizes == sorted(sizes)


def test_data_makes_it_better(folder: Path) -> None:
    x = {"x": np.load(folder / "x.npy")}
    quality = []
    for data in (None, folder / "x.npy"):
        quantize_weights(folder / "m.onnx", folder / "o.onnx", data, bits=3)
        quality.append(sqnr(run(folder / "m.onnx", x)[0], run(folder / "o.onnx", x)[0]))
    assert quality[1] > quality[0] + 2


def test_a_file_and_a_model_in_memory_give_the_same_weights(folder: Path) -> None:
    made = []
    for source in (folder / "m.onnx", chain(3, 96)):
        quantize_weights(source, folder / "o.onnx", folder / "x.npy")
        made.append(initializers(onnx.load(folder / "o.onnx")))
    for other in made[1:]:
        assert other.keys() == made[0].keys()
        for name, array in made[0].items():
            np.testing.assert_array_equal(array, other[name])


@pytest.mark.parametrize(
    "kind", ["rows", "generator", "folder"], ids=["list of feeds", "generator", "folder"]
)
def test_data_of_every_kind(kind: str, folder: Path) -> None:
    x = np.load(folder / "x.npy")
    data: object = [{"x": row[None]} for row in x]
    if kind == "generator":
        data = ({"x": row[None]} for row in x)
    elif kind == "folder":
        (folder / "data").mkdir()
        (folder / "x.npy").rename(folder / "data" / "x.npy")
        data = folder / "data"
    result = quantize_weights(folder / "m.onnx", folder / "o.onnx", data)
    assert result.verification is not None
    assert "samples" in str(result)


@pytest.mark.parametrize("form", ["contrib", "onnx"])
@pytest.mark.parametrize("source", [branches(), loop(), language_model(rows=300, width=64)])
def test_models_with_subgraphs_and_tables(
    source: onnx.ModelProto, form: str, tmp_path: Path
) -> None:
    result = quantize_weights(source, tmp_path / "o.onnx", quant_format=form)
    assert result.verification is not None
    assert result.output_bytes < 0.5 * result.input_bytes
    assert names(tmp_path) == ["o.onnx"]


def test_external_data_is_written_and_read(folder: Path) -> None:
    one = quantize_weights(
        folder / "m.onnx", folder / "o.onnx", folder / "x.npy", use_external_data_format=True
    )
    assert one.external_data
    assert len(names(folder)) == 4
    assert len(list(folder.glob("o.onnx.*.data"))) == 1
    again = quantize_weights(folder / "m.onnx", folder / "p.onnx", folder / "x.npy")
    x = {"x": unseen()}
    np.testing.assert_array_equal(run(folder / "o.onnx", x)[0], run(folder / "p.onnx", x)[0])
    assert not again.external_data


def test_nan_in_one_weight_leaves_that_one_float(folder: Path) -> None:
    proto = chain(3, 96)
    spoilt = np.array(initializers(proto)["w1"])
    spoilt[3, 4] = np.nan
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(spoilt, "w1"))
    result = quantize_weights(proto, folder / "o.onnx")
    assert result.plan.node["layer1"].mode is Mode.FLOAT
    assert "NaN" in result.plan.node["layer1"].why
    assert set(bits_of(result.plan)) == {"w0", "w2"}


def test_nodes_that_are_asked_for_and_left_out(folder: Path) -> None:
    source, out = folder / "m.onnx", folder / "o.onnx"
    result = quantize_weights(source, out, nodes_to_exclude=["layer1"])
    assert [n.mode for n in result.plan.nodes] == [Mode.BLOCKS, Mode.FLOAT, Mode.BLOCKS]
    result = quantize_weights(source, out, nodes_to_quantize=["layer[01]"])
    assert [n.mode for n in result.plan.nodes] == [Mode.BLOCKS, Mode.BLOCKS, Mode.FLOAT]


def test_awq_is_for_rounding_to_nearest_and_keeps_what_comes_out(folder: Path) -> None:
    nodes = [
        node("LayerNormalization", ["x", "g"], ["n"], "norm"),
        node("MatMul", ["n", "w"], ["y"], "mm"),
    ]
    gain = np.ones(96, np.float32)
    gain[[5, 50]] = 30
    held = {"g": gain, "w": weight(96, 160)}
    proto = model(graph(nodes, {"x": ["N", 96]}, {"y": ["N", 160]}, held))
    quality = []
    for awq in (False, True):
        options = WeightsSettings(bits=3, rounding=False, awq=awq)
        result = quantize_weights(proto, folder / "o.onnx", folder / "x.npy", weights=options)
        assert any("(AWQ)" in text for text in result.notes) == awq
        quality.append(
            sqnr(run(proto, {"x": unseen()})[0], run(folder / "o.onnx", {"x": unseen()})[0])
        )
    assert quality[1] > quality[0] + 1


# -------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(("share", "with_data"), [("14%", True), (0.2, False), ("26kB", True)])
def test_the_file_keeps_to_its_target(share: float | str, folder: Path, *, with_data: bool) -> None:
    source = folder / "m.onnx"
    data = folder / "x.npy" if with_data else None
    result = quantize_weights(source, folder / "o.onnx", data, target_size=share, verify=False)
    whole = source.stat().st_size
    limit = {"14%": 0.14 * whole, 0.2: 0.2 * whole, "26kB": 26_000}[share]
    assert 0.75 * limit < (folder / "o.onnx").stat().st_size == result.output_bytes <= limit
    assert any("Weights in the file: " in text for text in result.notes)


@pytest.mark.parametrize(("depth", "samples"), [(6, 30), (2, 600)])
def test_what_the_record_takes_is_part_of_the_target(
    depth: int, samples: int, tmp_path: Path
) -> None:
    """Names of many weights, and digests of many samples, are in it."""
    proto = chain(depth, 64)
    new = {
        t.name: f"a_long_name_of_a_weight_in_some_encoder/{t.name}" for t in proto.graph.initializer
    }
    for tensor in proto.graph.initializer:
        tensor.name = new[tensor.name]
    for item in proto.graph.node:
        if item.op_type == "MatMul":
            item.input[1] = new[item.input[1]]
    data = data_file(chain(1, 64), tmp_path / "x.npy", samples)
    for share in (0.35, 0.5):
        options = WeightsSettings(target_size=share, rounding=False)
        source = save(proto, tmp_path / "m.onnx")
        result = quantize_weights(source, tmp_path / "o.onnx", data, weights=options, verify=False)
        assert result.output_bytes <= share * result.input_bytes


def test_more_room_gives_better_files(folder: Path) -> None:
    found = [
        quantize_weights(folder / "m.onnx", folder / "o.onnx", folder / "x.npy", target_bits=mean)
        for mean in (4.0, 8.0)
    ]
    sizes = [one.output_bytes for one in found]
    quality = [one.verification.compared["y"] for one in found if one.verification is not None]
    assert sizes == sorted(sizes)
    assert quality == sorted(quality)
    for one, mean in zip(found, (4.0, 8.0), strict=True):
        assert sum(bits_of(one.plan).values()) / 3 <= mean


@pytest.mark.parametrize(
    "target", [{"target_size": "1%"}, {"target_size": 5000}, {"target_bits": 2.0}]
)
def test_a_target_out_of_reach_is_one_clear_error(target: dict[str, Any], folder: Path) -> None:
    with pytest.raises(UsageError, match="out of reach"):
        quantize_weights(folder / "m.onnx", folder / "o.onnx", **target)
    assert names(folder) == ["m.onnx", "x.npy"]


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"bits": 1}, UsageError, "at least 2 and at most 8"),
        ({"bits": 9}, UsageError, "at least 2 and at most 8"),
        ({"block": 48}, UsageError, "use one of 16, 32"),
        ({"nodes_to_exclude": ["nowhere"]}, QuantkitError, "nowhere"),
        ({"target_size": "much"}, UsageError, "target_size"),
        ({"quant_format": "qdq"}, UsageError, "qdq"),
        ({"data": "{t}/none.npy"}, DataError, "none.npy"),
        ({"data": "{t}/nan.npy"}, DataError, "NaN"),
        ({"data": "{t}/wide.npy"}, DataError, "wide.npy"),
        ({"model_output": "{t}/none/o.onnx"}, UsageError, "none"),
        ({"model_output": "{t}/m.onnx"}, UsageError, "overwrite"),
        ({"model_input": "{t}/none.onnx"}, ModelError, "does not exist"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    options: dict[str, Any], error: type[Exception], said: str, folder: Path
) -> None:
    np.save(folder / "wide.npy", np.zeros((4, 100), np.float32))
    spoilt = np.load(folder / "x.npy")
    spoilt[:, 3] = np.nan
    np.save(folder / "nan.npy", spoilt)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    call: dict[str, Any] = {"model_input": folder / "m.onnx", "model_output": folder / "o.onnx"}
    call |= {k: v.format(t=folder) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(error, match=said) as caught:
        quantize_weights(**call)
    assert "\n" not in str(caught.value)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    proto = model(graph([node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]}))
    with pytest.raises(NothingToQuantizeError):
        quantize_weights(proto, tmp_path / "o.onnx")
    assert names(tmp_path) == []


def test_noise_on_real_samples_is_refused(tmp_path: Path) -> None:
    """The difference of two near numbers: rounding of their weights is all that is left of it."""
    w = weight(96, 160) + 10
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["x", "v"], ["b"]),
        node("Sub", ["a", "b"], ["y"]),
    ]
    held = {"w": w, "v": w + weight(96, 160, seed=1, scale=1e-3)}
    proto = model(graph(nodes, {"x": ["N", 96]}, {"y": ["N", 160]}, held))
    with pytest.raises(VerifyError, match="which is noise"):
        quantize_weights(proto, tmp_path / "o.onnx", [{"x": row[None]} for row in unseen()])
    assert names(tmp_path) == []


# ------------------------------------------------------------------------------------------------ plans


def test_a_plan_that_was_saved_makes_the_same_weights(folder: Path) -> None:
    source, data = folder / "m.onnx", folder / "x.npy"
    chosen = WeightsSettings(bits=5, exclude=("layer1",))
    plan = quantkit.plan_weights(source, data, chosen)
    first = quantize_weights(source, folder / "a.onnx", data, weights=chosen)
    assert first.plan == plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    second = quantize_weights(source, folder / "b.onnx", data, plan=plan)
    assert second.plan == plan
    one, other = (initializers(onnx.load(folder / name)) for name in ("a.onnx", "b.onnx"))
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


def test_a_target_makes_the_same_plan_whether_or_not_it_is_written(folder: Path) -> None:
    chosen = WeightsSettings(target_size=0.2)
    plan = quantkit.plan_weights(folder / "m.onnx", folder / "x.npy", chosen)
    result = quantize_weights(
        folder / "m.onnx", folder / "o.onnx", folder / "x.npy", weights=chosen
    )
    assert bits_of(result.plan) == bits_of(plan)


def test_an_edited_plan_is_followed_and_one_of_another_model_refused(folder: Path) -> None:
    plan = quantkit.plan_weights(folder / "m.onnx")
    first, *rest = plan.weights
    assert first.blocks is not None
    edited = replace(plan, weights=(replace(first, blocks=replace(first.blocks, bits=7)), *rest))
    result = quantize_weights(folder / "m.onnx", folder / "o.onnx", plan=edited)
    assert bits_of(result.plan) == {"w0": 7, "w1": 4, "w2": 4}
    with pytest.raises(QuantkitError):
        quantize_weights(language_model(rows=300, width=64), folder / "p.onnx", plan=plan)
    assert names(folder) == ["m.onnx", "o.onnx", "x.npy"]


# ----------------------------------------------------------------------------------------- made again


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bits": 3, "block": 64, "symmetric": True, "quant_format": "onnx"},
        {"target_size": "20%"},
        {"target_bits": 5.0},
        {"data": None, "bits": 6, "nodes_to_exclude": ["layer1"]},
    ],
    ids=str,
)
def test_the_record_tells_all_that_is_needed_to_make_it_again(
    options: dict[str, Any], folder: Path
) -> None:
    source, out = folder / "m.onnx", folder / "o.onnx"
    given: dict[str, Any] = {"data": folder / "x.npy", **options}
    quantize_weights(source, out, **given)
    says = read_provenance(out)
    assert says is not None
    assert says.kind == "weights"
    assert (says.data is None) == (given["data"] is None)
    settings = recorded_settings(says.options, WeightsSettings)
    assert settings.bits == options.get("bits", 4)
    assert settings.exclude == tuple(options.get("nodes_to_exclude", ()))
    check = reproduce(out, source, data=given["data"])
    assert check.outcome == "ok"
    assert "same bytes" in check.sentence
    attested = attest(out, float_model=source, data=given["data"])
    assert not [c for c in attested.checks if c.outcome == "wrong"]


# ---------------------------------------------------------------------------------- a run that is killed

# Ends itself when so many weights are solved: in the middle, whatever the machine.
KILLED = """
import os, signal, sys
from quantkit.quantize.solve.codes_folder import CodesFolder
from quantkit import quantize_weights
put, count, limit = CodesFolder.__setitem__, 0, int(sys.argv[1])
def counted(self, tensor, codes):
    global count
    put(self, tensor, codes)
    count += 1
    if count == limit:
        os.kill(os.getpid(), signal.SIGKILL)
CodesFolder.__setitem__ = counted
quantize_weights("m.onnx", "o.onnx", "x.npy")
"""


def kill(folder: Path, after: int) -> None:
    (folder / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(after)],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    shutil.rmtree(folder / "tmp")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run was killed when two of three weights were solved."""
    made = filled(tmp_path_factory.mktemp("killed"))
    kill(made, 2)
    return made


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The weights that are solved for from now on."""
    found: list[str] = []
    put = CodesFolder.__setitem__

    def noted(self: CodesFolder, tensor: str, codes: BlockCodes) -> None:
        found.append(tensor)
        put(self, tensor, codes)

    monkeypatch.setattr(CodesFolder, "__setitem__", noted)
    return found


@pytest.fixture
def work(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `killed`, as the working directory."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_killed_run_goes_on_where_it_was(work: Path, solved: list[str]) -> None:
    assert names(work) == [".o.onnx.lock", "m.onnx", "o.onnx.partial", "x.npy"]
    assert len(list((work / "o.onnx.partial").glob("*.npz"))) == 2
    quantize_weights("m.onnx", "o.onnx", "x.npy")
    assert solved == ["w2"]
    quantize_weights("m.onnx", "whole.onnx", "x.npy")
    assert (work / "o.onnx").read_bytes() == (work / "whole.onnx").read_bytes()
    assert names(work) == ["m.onnx", "o.onnx", "whole.onnx", "x.npy"]


@pytest.mark.parametrize("what", ["settings", "model", "data", "plan"])
def test_what_another_run_has_left_is_not_used(what: str, work: Path, solved: list[str]) -> None:
    options: dict[str, Any] = {}
    if what == "settings":
        options = {"block": 16}
    elif what == "model":
        save(chain(3, 96, seed=7), work / "m.onnx")
    elif what == "data":
        np.save(work / "x.npy", np.load(work / "x.npy")[:20])
    else:
        options = {"plan": quantkit.plan_weights("m.onnx", "x.npy")}
    quantize_weights("m.onnx", "o.onnx", "x.npy", **options)
    assert solved == [*LAYERS]
    assert "o.onnx.partial" not in names(work)


@pytest.mark.parametrize(
    ("damaged", "left"),
    [("*.npz", LAYERS), ("decided.json", LAYERS), ("job.json", LAYERS)],
    ids=["codes", "decisions", "head"],
)
def test_what_is_damaged_of_a_killed_run_is_solved_again(
    damaged: str, left: tuple[str, ...], work: Path, solved: list[str]
) -> None:
    """Each file is there as a whole or not at all, unless the machine lost power as well."""
    for path in (work / "o.onnx.partial").glob(damaged):
        path.write_bytes(path.read_bytes()[:20])
    if damaged == "job.json":  # it could be anybody's
        with pytest.raises(UsageError, match="not quantkit's"):
            quantize_weights("m.onnx", "o.onnx", "x.npy")
        return
    quantize_weights("m.onnx", "o.onnx", "x.npy")
    assert solved == [*left]
    quantize_weights("m.onnx", "w.onnx", "x.npy")
    assert (work / "o.onnx").read_bytes() == (work / "w.onnx").read_bytes()


# Ends itself at one of the calls that change the disk: mkdir, open for writing, rename, remove.
KILLED_ANYWHERE = """
import os, signal, sys
from quantkit import quantize_weights
count, limit = 0, int(sys.argv[1])
def heard(event, arguments):
    global count
    changes = event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir"} or (
        event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    )
    if changes:
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(heard)
quantize_weights("m.onnx", "o.onnx", "x.npy")
print(count)
"""


@pytest.mark.parametrize("share", [i / 8 for i in range(9)])
@pytest.mark.slow
def test_a_run_killed_anywhere_does_not_block_the_next(share: float, folder: Path) -> None:
    def run_and_kill(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", KILLED_ANYWHERE, str(at)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

    whole = run_and_kill(10**9)
    (folder / "o.onnx").rename(folder / "whole.onnx")
    done = run_and_kill(max(1, round(share * int(whole.stdout))))
    assert done.returncode == -signal.SIGKILL, done.stderr
    quantize_weights(folder / "m.onnx", folder / "o.onnx", folder / "x.npy")
    assert names(folder) == ["m.onnx", "o.onnx", "whole.onnx", "x.npy"]


@pytest.mark.parametrize("left", [[], [".quantkit-00000000-1-00000000-abc"]])
def test_what_older_versions_left_when_they_were_killed_is_removed(
    left: list[str], folder: Path
) -> None:
    partial = folder / "o.onnx.partial"
    partial.mkdir()
    for name in left:
        (partial / name).write_text("")
        os.utime(partial / name, (0, 0))
    quantize_weights(folder / "m.onnx", folder / "o.onnx", folder / "x.npy")
    assert names(folder) == ["m.onnx", "o.onnx", "x.npy"]


def test_two_runs_do_not_write_one_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noted, said = CodesFolder.__setitem__, list[str]()
    line = [str(folder / "m.onnx"), str(folder / "o.onnx"), "--data", str(folder / "x.npy")]

    def meanwhile(self: CodesFolder, tensor: str, codes: BlockCodes) -> None:
        noted(self, tensor, codes)
        if not said:
            assert quantkit_command(["quantize", "weights", *line, "--block", "16"]) == 2
            said.append(capsys.readouterr().err)

    monkeypatch.setattr(CodesFolder, "__setitem__", meanwhile)
    quantize_weights(folder / "m.onnx", folder / "o.onnx", folder / "x.npy")
    assert "Another run is writing" in said[0]
    assert said[0].count("\n") == 1
    monkeypatch.undo()
    quantize_weights(folder / "m.onnx", folder / "alone.onnx", folder / "x.npy")
    assert (folder / "o.onnx").read_bytes() == (folder / "alone.onnx").read_bytes()
    assert names(folder) == ["alone.onnx", "m.onnx", "o.onnx", "x.npy"]


def test_a_folder_of_that_name_that_is_not_ours_is_refused_and_kept(folder: Path) -> None:
    own = folder / "o.onnx.partial"
    own.mkdir()
    (own / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not quantkit's"):
        quantize_weights(folder / "m.onnx", folder / "o.onnx")
    assert (own / "thesis.txt").read_text() == "mine"
    assert "o.onnx" not in names(folder)


@pytest.mark.parametrize(("last", "left"), [("w0", ["w1", "w2"]), ("w2", [])])
def test_an_interrupted_run_can_be_taken_up(
    last: str, left: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, solved: list[str]
) -> None:
    noted = CodesFolder.__setitem__

    def interrupted(self: CodesFolder, tensor: str, codes: BlockCodes) -> None:
        noted(self, tensor, codes)
        if tensor == last:
            raise KeyboardInterrupt

    line = (folder / "m.onnx", folder / "o.onnx", folder / "x.npy")
    with monkeypatch.context() as patched:
        patched.setattr(CodesFolder, "__setitem__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quantize_weights(*line)
    assert names(folder) == ["m.onnx", "o.onnx.partial", "x.npy"]
    solved.clear()
    quantize_weights(*line)
    assert solved == left
    assert names(folder) == ["m.onnx", "o.onnx", "x.npy"]


def test_bits_of_weights_inside_branches_follow_from_their_own_errors(tmp_path: Path) -> None:
    draw = np.random.default_rng(0).standard_normal((24, 64)).astype(np.float32)
    data = [{"x": row[None], "c": np.array(i % 2 == 0)} for i, row in enumerate(draw)]
    result = quantize_weights(branches(), tmp_path / "o.onnx", data, target_bits=6.5)
    assert result.verification is not None
    assert {w.blocks.bits for w in result.plan.weights if w.blocks is not None} <= set(range(2, 9))


def timed_as(
    monkeypatch: pytest.MonkeyPatch, ratios: list[float | None], layers: tuple[float, float]
) -> None:
    """Let whole results take these shares of float's time, one after the other, and layers these with 1 row and with 128."""
    left, rows = iter(ratios), iter(layers * 100)
    monkeypatch.setattr(workflow, "ratio_to_float", lambda *_: next(left))
    monkeypatch.setattr(block_times, "time_models", lambda *_, **__: [1.0, next(rows)])


def modes_of(plan: Plan) -> set[Mode]:
    return {n.mode for n in plan.nodes if n.op_type == "MatMul"}


def test_a_result_that_is_slower_than_float_is_written_without_its_slow_layers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed_as(monkeypatch, [1.12, 1.0], (1.0, 1.2))
    result = quantize_weights(folder / "m.onnx", folder / "q.onnx", weights=TIMED)
    assert modes_of(result.plan) == {Mode.STORED}
    assert "MatMulNBits" not in op_types(onnx.load(folder / "q.onnx"))
    assert any("took 1.12x float's time" in note for note in result.notes)
    assert not any("float's time" in warning for warning in result.warnings)
    check = reproduce(folder / "q.onnx", folder / "m.onnx")
    assert (check.outcome, "same bytes" in check.sentence) == ("ok", True)


def test_a_result_that_stays_slower_than_float_has_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed_as(monkeypatch, [1.12], (0.3, 1.2))  # with one row they gain: they stay in blocks
    result = quantize_weights(folder / "m.onnx", folder / "q.onnx", weights=TIMED)
    assert modes_of(result.plan) == {Mode.BLOCKS}
    assert any("takes 1.12x float's time" in warning for warning in result.warnings)


def test_times_that_cannot_be_decide_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed_as(monkeypatch, [None], (58102.0, 58102.0))
    result = quantize_weights(folder / "m.onnx", folder / "q.onnx", weights=TIMED)
    assert modes_of(result.plan) == {Mode.BLOCKS}
    assert not any("58102" in text for text in (*result.notes, *result.warnings))
    assert any("timings are unstable" in warning for warning in result.warnings)
