"""Writing: complete or not at all, the same bytes every time, one tensor in memory at a time."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, matmul_model, model, node, run, save, weight
from graph.cases import (
    BIG,
    MODELS,
    anonymous_memory,
    assert_same,
    feeds_for,
    if_model,
    plain,
    staging_folders,
    tensors_of,
    written,
)

from quantkit import quantize_dynamic
from quantkit.errors import OutputError, QuantkitError, VerifyError
from quantkit.model.graph import save as saving
from quantkit.model.graph.load import load, model_files
from quantkit.model.graph.save import Stage, skeleton, staged, weightless

EXTERNAL = pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
OLD = b"what was there before"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def many(count: int = 8, side: int = 1024) -> onnx.ModelProto:
    """A chain of products; 4 MB a weight unless told otherwise."""
    names = [f"w{i}" for i in range(count)]
    values = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    nodes = [node("MatMul", [values[i], n], [values[i + 1]]) for i, n in enumerate(names)]
    weights: dict[str, Array] = {n: weight(side, side, seed=i) for i, n in enumerate(names)}
    return model(graph(nodes, {"x": ["N", side]}, {"y": ["N", side]}, weights))


# --- what is written ---------------------------------------------------------------------------


@EXTERNAL
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_the_result_runs_and_means_the_same(
    build: Callable[[], onnx.ModelProto],
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    proto = build()
    path = written(load(proto).model, tmp_path / "out.onnx", external=external)
    feeds = feeds_for(proto)
    assert_same(run(proto, feeds, optimize=False), run(path, feeds, optimize=False))
    assert len(model_files(path)) == 1 + external
    assert set(tmp_path.iterdir()) == set(model_files(path))
    onnx.checker.check_model(path)


def test_external_tensors_are_aligned_and_do_not_overlap(tmp_path: Path) -> None:
    path = written(load(many(5, 30)).model, tmp_path / "out.onnx", external=True)
    proto = onnx.load(path, load_external_data=False)
    notes = [{e.key: e.value for e in t.external_data} for t in tensors_of(proto)]
    spans = sorted((int(n["offset"]), int(n["length"])) for n in notes)
    (data,) = model_files(path)[1:]
    assert {n["location"] for n in notes} == {data.name}
    assert all(offset % 4096 == 0 for offset, _ in spans)
    assert [length for _, length in spans] == [3600] * 5
    ends = [offset + length for offset, length in spans]
    assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
    assert data.stat().st_size == ends[-1]


def test_small_tensors_stay_in_the_model(tmp_path: Path) -> None:
    path = written(load(plain()).model, tmp_path / "out.onnx", external=True)
    proto = onnx.load(path, load_external_data=False)
    assert {t.name: bool(t.external_data) for t in tensors_of(proto)} == {"w": True, "b": False}


@EXTERNAL
def test_writing_twice_gives_the_same_bytes(external: bool, tmp_path: Path) -> None:  # noqa: FBT001
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        written(load(if_model()).model, folder / "out.onnx", external=external)
    assert files(folders[0]) == files(folders[1])


@EXTERNAL
def test_quantizing_twice_gives_the_same_bytes(
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        quantize_dynamic(matmul_model(), folder / "q.onnx", use_external_data_format=external)
    assert files(folders[0]) == files(folders[1])


@EXTERNAL
def test_the_size_counts_every_file(external: bool, tmp_path: Path) -> None:  # noqa: FBT001
    with staged(tmp_path / "out.onnx") as stage:
        size = stage.write(load(plain()).model, external=external)
        stage.commit()
    assert size == sum(len(contents) for contents in files(tmp_path).values())


def test_a_model_above_the_limit_of_protobuf_is_written_with_external_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_PROTOBUF_LIMIT", 2000)
    feeds = {"x": weight(3, 128, seed=9)}
    quantize_dynamic(matmul_model(), tmp_path / "big.onnx")
    monkeypatch.undo()
    quantize_dynamic(matmul_model(), tmp_path / "small.onnx")
    (data,) = model_files(tmp_path / "big.onnx")[1:]
    assert set(files(tmp_path)) == {"big.onnx", data.name, "small.onnx"}
    assert_same(run(tmp_path / "small.onnx", feeds), run(tmp_path / "big.onnx", feeds))


def test_a_second_attempt_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    with staged(tmp_path / "out.onnx") as stage:
        stage.write(load(plain()).model, external=True)
        size = stage.write(load(plain()).model)
        stage.commit()
    assert list(files(tmp_path)) == ["out.onnx"]
    assert size == (tmp_path / "out.onnx").stat().st_size


def test_a_graph_that_is_not_valid_is_not_written(tmp_path: Path) -> None:
    proto = plain()
    proto.graph.node[0].op_type = "NoSuchOperator"
    with (
        pytest.raises(onnx.checker.ValidationError, match="NoSuchOperator"),
        staged(tmp_path / "out.onnx") as stage,
    ):
        stage.write(load(proto).model)
    assert files(tmp_path) == {}


# --- memory ------------------------------------------------------------------------------------


def test_neither_structure_nor_check_holds_the_weights() -> None:
    structure, tensors = skeleton(load(many()).model)
    assert len(tensors) == 8
    assert structure.ByteSize() < 4000
    assert weightless(structure).ByteSize() < 4000


def test_a_skeleton_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    built = load(save(if_model(), tmp_path / "m.onnx")).model
    before = [v.const_value for g in built.graphs() for v in g.initializers.values()]
    skeleton(built)
    after = [v.const_value for g in built.graphs() for v in g.initializers.values()]
    assert all(a is b for a, b in zip(before, after, strict=True))


def test_weights_in_branches_become_inputs_for_the_check() -> None:
    proto = weightless(skeleton(load(if_model()).model)[0])
    assert [value.name for value in proto.graph.input] == ["c", "x", "w", "w_1"]
    assert not list(tensors_of(proto))
    onnx.checker.check_model(proto)


@EXTERNAL
def test_one_tensor_is_in_memory_at_a_time(
    external: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peak = 0

    def measured(tensor: Any) -> memoryview | bytes:
        nonlocal peak
        contents = original(tensor)
        peak = max(peak, anonymous_memory())
        return contents

    original = saving._contents
    monkeypatch.setattr(saving, "_contents", measured)
    save(many(), tmp_path / "m.onnx")  # 32 MB
    loaded = load(tmp_path / "m.onnx")
    before = anonymous_memory()
    written(loaded.model, tmp_path / "out.onnx", external=external)
    assert peak > 0
    assert peak - before < 12 << 20


# --- all or nothing ----------------------------------------------------------------------------


def test_the_staging_folder_is_beside_the_target_and_gone_afterwards(tmp_path: Path) -> None:
    with staged(tmp_path / "out.onnx") as stage:
        stage.write(load(plain()).model)
        assert stage.folder.parent == tmp_path
        assert staging_folders(tmp_path) == [stage.folder.name]
        stage.commit()
    assert list(files(tmp_path)) == ["out.onnx"]


def test_without_a_commit_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "out.onnx").write_bytes(OLD)
    with staged(tmp_path / "out.onnx") as stage:
        stage.write(load(plain()).model, external=True)
    assert files(tmp_path) == {"out.onnx": OLD}


@pytest.mark.parametrize(
    "error",
    [VerifyError("bad"), KeyboardInterrupt(), MemoryError(), ZeroDivisionError()],
    ids=lambda e: type(e).__name__,
)
def test_an_exception_leaves_the_target_untouched(error: BaseException, tmp_path: Path) -> None:
    def fail(stage: Stage) -> None:
        stage.write(load(plain()).model, external=True)
        raise error

    (tmp_path / "out.onnx").write_bytes(OLD)
    with pytest.raises(type(error)), staged(tmp_path / "out.onnx") as stage:
        fail(stage)
    assert files(tmp_path) == {"out.onnx": OLD}


def test_an_existing_target_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(OLD)
    with target.open("rb") as reader, staged(target) as stage:
        stage.write(load(plain()).model)
        assert target.read_bytes() == OLD
        stage.commit()
        assert reader.read() == OLD  # who had it open still reads the old one, complete
    assert run(target, feeds_for(plain()))[0].shape == (3, 20)


def test_data_is_in_place_before_the_model_that_points_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    original = Path.replace

    def replace(self: Path, target: Path) -> Path:
        moved.append(target.name)
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    path = written(load(plain()).model, tmp_path / "out.onnx", external=True)
    assert moved == [model_files(path)[1].name, "out.onnx"]


@pytest.mark.parametrize(
    "target",
    [Path("/proc/out.onnx"), Path("/nowhere/at/all/out.onnx"), Path("/etc/hostname/out.onnx")],
    ids=["not-writable", "no-folder", "folder-is-a-file"],
)
def test_a_folder_that_cannot_be_written_to_is_an_error(target: Path) -> None:
    why = "nothing was written|does not exist"
    with pytest.raises(QuantkitError, match=why) as caught, staged(target):
        pass
    assert str(target.parent) in str(caught.value)
    assert "None" not in str(caught.value)


def full_disk(*arguments: Any, **_: Any) -> Any:
    mode = arguments[1] if len(arguments) > 1 else "r"
    if "w" in mode:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return ORIGINAL_OPEN(*arguments)


ORIGINAL_OPEN = Path.open


@EXTERNAL
def test_a_full_disk_is_an_output_error_and_leaves_everything_as_it_was(
    external: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = save(matmul_model(), tmp_path / "m.onnx")
    (tmp_path / "q.onnx").write_bytes(OLD)
    before = files(tmp_path)
    monkeypatch.setattr(Path, "open", full_disk)
    with pytest.raises(OutputError, match="No space left on device; nothing was written"):
        quantize_dynamic(source, tmp_path / "q.onnx", use_external_data_format=external)
    monkeypatch.undo()
    assert files(tmp_path) == before


def test_a_disk_that_fills_up_while_weights_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(saving, "_contents", fail)
    with pytest.raises(OutputError, match="No space left"):
        quantize_dynamic(matmul_model(), tmp_path / "q.onnx")
    assert files(tmp_path) == {}


def test_an_os_error_without_a_reason_still_reads_well(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="out of luck"), staged(tmp_path / "out.onnx"):
        raise OSError("out of luck")


@EXTERNAL
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077], ids=oct)
def test_permissions_follow_the_umask(
    umask: int,
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    before = os.umask(umask)
    try:
        written(load(plain()).model, tmp_path / "out.onnx", external=external)
        assert os.umask(umask) == umask  # and the process still has it
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_relative_target_is_written_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quantize_dynamic(matmul_model(), "q.onnx", use_external_data_format=True)
    assert set(files(tmp_path)) == {path.name for path in model_files(tmp_path / "q.onnx")}
    assert len(files(tmp_path)) == 2
    assert np.isfinite(run(tmp_path / "q.onnx", {"x": weight(2, 128)})[0]).all()


def test_weights_of_any_alignment_in_the_source_are_written_right(tmp_path: Path) -> None:
    for padding in range(8):
        proto = plain()
        proto.producer_name = "p" * (padding + 1)
        path = written(load(save(proto, tmp_path / "m.onnx")).model, tmp_path / "out.onnx")
        (tensor,) = (t for t in onnx.load(path).graph.initializer if t.name == "w")
        assert tensor.raw_data == weight(*BIG).tobytes()


def test_the_model_that_was_there_reads_its_own_data_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "q.onnx"
    feeds = {"x": weight(3, 128, seed=9)}
    quantize_dynamic(matmul_model(), target, use_external_data_format=True)
    before, answer = files(tmp_path), run(target, feeds)
    original = Path.replace

    def fails(self: Path, to: Path) -> Path:
        if to == target:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(self, to)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OutputError, match="Input/output error; nothing was written"):
        quantize_dynamic(matmul_model(n=160), target, use_external_data_format=True)
    monkeypatch.undo()
    assert files(tmp_path) == before
    assert_same(run(target, feeds), answer)


@EXTERNAL
def test_data_of_a_replaced_model_goes_with_it(external: bool, tmp_path: Path) -> None:  # noqa: FBT001
    target = tmp_path / "q.onnx"
    quantize_dynamic(matmul_model(), target, use_external_data_format=True)
    quantize_dynamic(matmul_model(n=160), target, use_external_data_format=external)
    assert set(tmp_path.iterdir()) == set(model_files(target))
    assert len(model_files(target)) == 1 + external


def test_data_that_another_model_uses_stays(tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    quantize_dynamic(matmul_model(), target, use_external_data_format=True)
    (tmp_path / "copy.onnx").write_bytes(target.read_bytes())
    quantize_dynamic(matmul_model(n=160), target)
    feeds = {"x": weight(3, 128, seed=9)}
    assert np.isfinite(run(tmp_path / "copy.onnx", feeds)[0]).all()


def test_data_of_somebody_elses_model_stays(tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    onnx.save(matmul_model(), target, save_as_external_data=True, location="q.onnx.data")
    quantize_dynamic(matmul_model(n=160), target)
    assert (tmp_path / "q.onnx.data").exists()


def test_a_link_as_output_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "q.onnx"
    link.symlink_to("real/model.onnx")
    quantize_dynamic(matmul_model(), link)
    assert link.is_symlink()
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["model.onnx"]
    with pytest.raises(OutputError, match="is a link, and weights in a file of their own"):
        quantize_dynamic(matmul_model(), link, use_external_data_format=True)
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["model.onnx"]


def test_a_result_that_is_written_again_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    quantize_dynamic(matmul_model(), target)
    target.chmod(0o600)
    quantize_dynamic(matmul_model(n=160), target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
