"""Tampering is found, wrong sources are named, and a model can be made again."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight

import quantkit
from quantkit.api import verify as again
from quantkit.api.verify import reproduce
from quantkit.errors import ModelError, UsageError
from quantkit.model.provenance import KEY, Provenance, content_digest, read_entry, read_provenance
from quantkit.pipeline import verify_file as attestation
from quantkit.pipeline.verify_file import Check, attest
from quantkit.quantize.plan import read_plan, write_plan
from quantkit.quantize.rewrite.simplify import PASSES
from quantkit.settings import DataSettings, NodeRule, RecoverSettings, TensorRule


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return float_model(tmp_path / "m.onnx")


def float_model(path: Path, seed: int = 0) -> Path:
    nodes = [
        node("MatMul", ["x", "w1"], ["m"], "first"),
        node("Softmax", ["m"], ["r"], "soft", axis=-1),
        node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    held = {"w1": weight(64, 96, seed=seed), "w2": weight(96, 40, seed=2)}
    return save(model(graph(nodes, {"x": ["N", 64]}, {"y": ["N", 40]}, held)), path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return data_file(tmp_path / "x.npy")


def data_file(path: Path, seed: int = 3) -> Path:
    np.save(path, rng(seed).standard_normal((24, 64)).astype(np.float32))
    return path


@pytest.fixture
def quantized(source: Path, data: Path, tmp_path: Path) -> Path:
    quantkit.quantize_static(source, tmp_path / "q.onnx", data)
    return tmp_path / "q.onnx"


def outcomes(model: Path, **given: Any) -> dict[str, str]:
    return {c.name: c.outcome for c in attest(model, **given).checks}


def sentence(model: Path, name: str, **given: Any) -> str:
    return next(c.sentence for c in attest(model, **given).checks if c.name == name)


def test_all_is_well(quantized: Path, source: Path, data: Path) -> None:
    found = attest(quantized, float_model=source, data=data)
    assert found.ok
    assert {c.name: c.outcome for c in found.checks} == dict.fromkeys(
        ("content", "record", "float", "data", "runs", "software", "cpu"), "ok"
    )
    assert "samples that it was calibrated with: y " in sentence(
        quantized, "runs", float_model=source, data=data
    )
    plain = found.to_json()
    assert plain["ok"] is True
    assert json.loads(json.dumps(plain)) == plain


def test_printed_digests_are_those_of_sha256sum(quantized: Path, source: Path) -> None:
    for name, path in (("content", quantized), ("float", source)):
        digest = sha256(path.read_bytes()).hexdigest()
        assert f"(sha256 {digest[:12]})" in sentence(quantized, name, float_model=source)


def test_what_was_not_given_is_not_known(quantized: Path) -> None:
    found = outcomes(quantized)
    assert (found["float"], found["data"]) == ("unknown", "unknown")
    assert found["content"] == found["record"] == found["runs"] == "ok"


def test_dynamic_and_optimize_need_no_data(source: Path, data: Path, tmp_path: Path) -> None:
    quantkit.quantize_dynamic(source, tmp_path / "d.onnx")
    quantkit.optimize(source, tmp_path / "o.onnx")
    for name in ("d.onnx", "o.onnx"):
        assert set(outcomes(tmp_path / name, float_model=source).values()) == {"ok"}
        given = outcomes(tmp_path / name, float_model=source, data=data)
        assert given.pop("data") == "unknown"
        assert set(given.values()) == {"ok"}


def edited(path: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    proto = onnx.load(path)
    change(proto)
    return save(proto, path.with_name("edited.onnx"))


def flip_weight(proto: onnx.ModelProto) -> None:
    tensor = max(proto.graph.initializer, key=lambda t: len(t.raw_data))
    content = bytearray(tensor.raw_data)
    content[17] ^= 1
    tensor.raw_data = bytes(content)


def change_attribute(proto: onnx.ModelProto) -> None:
    soft = next(n for n in proto.graph.node if n.op_type == "Softmax")
    next(a for a in soft.attribute if a.name == "axis").i = 1


def rename_node(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].name += "x"


def edit_other_entry(proto: onnx.ModelProto) -> None:
    next(e for e in proto.metadata_props if e.key == "quantkit").value = "9.9 static"


def remove_other_entry(proto: onnx.ModelProto) -> None:
    kept = [e for e in proto.metadata_props if e.key != "quantkit"]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)


@pytest.mark.parametrize(
    "change", [flip_weight, change_attribute, rename_node, edit_other_entry, remove_other_entry]
)
@pytest.mark.slow
def test_changed_models_are_found(change: Any, quantized: Path) -> None:
    assert outcomes(edited(quantized, lambda _: None))["content"] == "ok"
    found = outcomes(edited(quantized, change))
    assert found["content"] == "wrong"
    assert found["record"] == "ok"


def with_record(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    def edit(proto: onnx.ModelProto) -> None:
        entry = next(e for e in proto.metadata_props if e.key == KEY)
        plain = json.loads(entry.value)
        change(plain)
        entry.value = json.dumps(plain, sort_keys=True, separators=(",", ":"))

    return edited(path, edit)


def test_edited_records_are_found(quantized: Path, source: Path) -> None:
    def other_float(plain: dict[str, Any]) -> None:
        plain["float"]["sha256"] = "0" * 64

    found = outcomes(with_record(quantized, other_float), float_model=source)
    assert (found["content"], found["record"], found["float"]) == ("ok", "wrong", "wrong")


def test_a_content_that_was_adapted_breaks_the_seal(quantized: Path) -> None:
    tampered = edited(quantized, flip_weight)
    now = content_digest(tampered)
    found = outcomes(with_record(tampered, lambda plain: plain.update(content=now)))
    assert (found["content"], found["record"]) == ("ok", "wrong")


def test_replaced_external_data_is_found(data: Path, tmp_path: Path) -> None:
    for name, seed in (("q", 0), ("other", 9)):
        made = float_model(tmp_path / f"f{seed}.onnx", seed)
        target = tmp_path / name / "q.onnx"
        target.parent.mkdir()
        quantkit.quantize_static(made, target, data, use_external_data_format=True)
    out = tmp_path / "q" / "q.onnx"
    assert outcomes(out)["content"] == "ok"
    (weights,) = out.parent.glob("q.onnx.*.data")
    (others,) = (tmp_path / "other").glob("q.onnx.*.data")
    good = weights.read_bytes()
    weights.write_bytes(others.read_bytes())
    assert outcomes(out)["content"] == "wrong"
    weights.write_bytes(good[:-1])
    found = outcomes(out)
    assert (found["content"], found["runs"]) == ("wrong", "wrong")
    weights.unlink()
    assert "cannot be read" in sentence(out, "content")


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -40])
def test_truncated_files_cannot_be_read(kept: float, quantized: Path, tmp_path: Path) -> None:
    content = quantized.read_bytes()
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(ModelError):
        attest(cut)


def test_without_the_entry_there_is_nothing_to_verify(quantized: Path, source: Path) -> None:
    text = read_entry(quantized)
    assert text is not None
    content = quantized.read_bytes()
    assert content.endswith(text.encode())  # it is last: cutting it off leaves a model
    bare = onnx.load(quantized)
    entry = next(e for e in bare.metadata_props if e.key == KEY)
    bare.metadata_props.remove(entry)
    for path in (save(bare, quantized.with_name("bare.onnx")), source):
        with pytest.raises(ModelError, match="before provenance"):
            attest(path)


def test_another_float_model(quantized: Path, data: Path, tmp_path: Path) -> None:
    other = float_model(tmp_path / "other.onnx", seed=8)
    found = outcomes(quantized, float_model=other, data=data)
    assert (found["float"], found["data"], found["runs"]) == ("wrong", "ok", "ok")
    assert "other.onnx" in sentence(quantized, "float", float_model=other)


def test_other_data(quantized: Path, source: Path, tmp_path: Path) -> None:
    other = data_file(tmp_path / "other.npy", seed=8)
    assert outcomes(quantized, float_model=source, data=other)["data"] == "wrong"


def images(folder: Path) -> Path:
    from PIL import Image

    folder.mkdir()
    for i in range(4):
        Image.fromarray(rng(i).integers(0, 256, (12, 12, 3), np.uint8)).save(folder / f"{i}.png")
    return folder


def test_the_same_files_prepared_otherwise(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("GlobalAveragePool", ["c"], ["y"], "pool"),
    ]
    built = graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 16, 1, 1]}, {"w": weight(16, 3, 3, 3)})
    source, folder = save(model(built), tmp_path / "m.onnx"), images(tmp_path / "images")
    halves = DataSettings(image=replace(DataSettings().image, mean=(0.5,), std=(0.5,), crop=8))
    out = tmp_path / "q.onnx"
    quantkit.quantize_static(source, out, folder, settings=halves)
    assert outcomes(out, data=folder)["data"] == "ok"  # as recorded
    assert outcomes(out, data=folder, settings=halves)["data"] == "ok"
    other = replace(halves, image=replace(halves.image, mean=(0.4,)))
    assert outcomes(out, data=folder, settings=other)["data"] == "wrong"
    assert "another way" in sentence(out, "data", data=folder, settings=other)
    assert reproduce(out, source, data=folder).outcome == "ok"
    assert reproduce(out, source, data=folder, settings=other).outcome == "wrong"


def test_iterables_have_no_name(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    rows = rng(1).standard_normal((8, 1, 64)).astype(np.float32)
    quantkit.quantize_static(source, out, ({"x": row} for row in rows))
    given = data_file(tmp_path / "x.npy")
    assert outcomes(out, data=given)["data"] == "unknown"
    assert "nothing identifies" in sentence(out, "data", data=given)


def test_other_versions_and_cpus_are_not_wrong(
    quantized: Path, source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attestation, "cpu_name", lambda: "abacus")
    monkeypatch.setattr(attestation, "software", lambda: {"onnxruntime": "0.1", "new": "2"})
    found = attest(quantized, float_model=source, data=data)
    assert found.ok
    by_name = {c.name: c for c in found.checks}
    assert by_name["cpu"].outcome == by_name["software"].outcome == "unknown"
    assert "here 0.1" in by_name["software"].sentence
    assert "new none, here 2" in by_name["software"].sentence


def remade(path: Path, source: Path, data: Path | None = None) -> Check:
    return reproduce(path, source, data=data)


def test_models_are_made_again(source: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.onnx"
    quantkit.quantize_dynamic(
        source, out, "int8", per_channel=False, nodes_to_exclude=["second"], verify=False
    )
    assert "same bytes" in remade(out, source).sentence
    quantkit.quantize_dynamic(source, out, use_external_data_format=True)
    assert "same bytes" in remade(out, source).sentence
    quantkit.optimize(source, out, exclude=[next(iter(PASSES))])
    assert "same bytes" in remade(out, source).sentence
    quantkit.quantize_static(
        source,
        out,
        data,
        quant_format="qoperator",
        target="arm64",
        activation_type="int8",
        symmetric_activations=True,
        percentile=99.5,
        nodes=[NodeRule(node="soft", mode="float")],
        tensors=[
            TensorRule(tensor="x", range=(-3.0, 3.5)),
            TensorRule(tensor="r", method="minmax"),
        ],
        recover=RecoverSettings(adaptive=True, smooth=False),
        limit=9,
    )
    assert "same bytes" in remade(out, source, data).sentence
    with pytest.raises(UsageError, match="give the data"):
        remade(out, source)


def test_a_model_made_from_a_calibration(source: Path, data: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "q.onnx", tmp_path / "m.calibration"
    quantkit.calibrate(source, data, file)
    quantkit.quantize_static(source, out, file, method="entropy")
    assert outcomes(out, float_model=source, data=file)["data"] == "ok"
    assert outcomes(out, float_model=source, data=data)["data"] == "ok"  # it says what it saw
    assert "same bytes" in remade(out, source, file).sentence
    assert "give that file" in remade(out, source, data).sentence
    quantkit.calibrate(source, data, file, limit=5)
    assert outcomes(out, float_model=source, data=file)["data"] == "wrong"
    quantkit.quantize_static(source, out, data)
    assert outcomes(out, float_model=source, data=file)["data"] == "wrong"
    assert "not from a calibration" in remade(out, source, file).sentence


def test_an_edited_plan_is_not_recorded(source: Path, data: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "q.onnx", tmp_path / "plan.json"
    result = quantkit.quantize_static(source, out, data)
    write_plan(result.plan, file)
    quantkit.quantize_static(source, out, data, plan=read_plan(file))
    found = remade(out, source, data)
    assert found.outcome == "unknown"
    assert "plan" in found.sentence


def test_made_from_something_else(quantized: Path, source: Path, data: Path) -> None:
    other = float_model(quantized.with_name("other.onnx"), seed=8)
    found = remade(quantized, other, data)
    assert found.outcome == "wrong"
    assert "the float model is another" in found.sentence
    found = remade(quantized, source, data_file(quantized.with_name("other.npy"), seed=8))
    assert found.outcome == "wrong"
    assert "the calibration data is another" in found.sentence


def test_a_tampered_model_is_not_what_comes_out(quantized: Path, source: Path, data: Path) -> None:
    found = remade(edited(quantized, flip_weight), source, data)
    assert found.outcome == "wrong"
    assert "another model" in found.sentence


def test_other_software_explains_a_difference(
    quantized: Path, source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(path: Path) -> Provenance | None:
        found = read_provenance(path)
        return found and replace(found, software={"onnxruntime": "0.1"}, cpu="abacus")

    monkeypatch.setattr(again, "read_provenance", elsewhere)
    renamed = quantized.with_name("renamed.onnx")
    renamed.write_bytes(quantized.read_bytes())
    assert "same bytes" in remade(renamed, source, data).sentence
    spaced = with_record(quantized, lambda plain: plain.update(note="x"))
    found = remade(spaced, source, data)
    assert found.outcome == "ok"
    assert "the record differs: made with" in found.sentence
    found = remade(edited(quantized, flip_weight), source, data)
    assert found.outcome == "unknown"
    assert "another CPU" in found.sentence


def test_records_of_another_version_are_refused(quantized: Path, source: Path, data: Path) -> None:
    other = with_record(quantized, lambda plain: plain["options"].pop("recover"))
    with pytest.raises(ModelError, match="not of this version"):
        remade(other, source, data)
