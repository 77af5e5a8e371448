"""What stands in a model: complete, without times and folders, readable, hard to change unseen."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
import pytest
from builders import save
from provenance_cases import WAYS, data_file, float_model, write
from result_cases import example_result

import quantkit
from quantkit.errors import ModelError
from quantkit.model.graph.load import load
from quantkit.model.provenance import (
    KEY,
    Provenance,
    calibrated_of,
    content_digest,
    is_sealed,
    provenance_from_text,
    read_entry,
    read_provenance,
)
from quantkit.pipeline.inspect import inspect_model
from quantkit.result import DataSource
from quantkit.settings import DataSettings, ImageSettings, TextSettings
from quantkit.settings.record import data_settings_of, to_record


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path]:
    return float_model(tmp_path / "m.onnx"), data_file(tmp_path / "x.npy")


def record(path: Path) -> Provenance:
    found = read_provenance(path)
    assert found is not None
    return found


@pytest.mark.parametrize("way", WAYS)
def test_every_model_carries_its_record(
    way: str, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = write(way, *inputs, tmp_path / "q.onnx")
    text, found = read_entry(out), record(out)
    assert text is not None
    assert is_sealed(text)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert found.content == content_digest(out)
    assert found.float.sha256 == sha256(inputs[0].read_bytes()).hexdigest()
    assert found.float.name == "m.onnx"
    assert found.float.bytes == inputs[0].stat().st_size
    assert found.kind in {"dynamic", "static", "optimize"}
    assert set(found.software) == {"quantkit", "onnxruntime", "onnx", "numpy"}
    assert str(tmp_path) not in text
    assert found == record(out)
    assert read_provenance(load(out).model) == found
    assert provenance_from_text(json.dumps(found.to_json()), "it") == found
    onnx.checker.check_model(str(out))


@pytest.mark.parametrize("ways", [("dynamic", "dynamic external"), ("qdq", "qdq external")])
def test_the_content_does_not_depend_on_where_weights_are(
    ways: tuple[str, str], inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    one, two = (record(write(way, *inputs, tmp_path / f"{way}.onnx")) for way in ways)
    assert one.content == two.content


def test_calibration_data_is_told(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    data = record(write("qdq", *inputs, tmp_path / "q.onnx")).data
    assert data is not None
    assert (data.kind, data.name, data.samples, data.method) == ("npy", "x.npy", 24, "mse")
    assert data.order["seed"] == 0
    assert len(data.fingerprint) == 64
    assert record(write("dynamic", *inputs, tmp_path / "d.onnx")).data is None


def test_a_calibration_that_was_given_is_named(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "m.calibration"
    quantkit.calibrate(*inputs, file, percentile=99.9)
    found = []
    for given in (file, quantkit.calibrate(*inputs, percentile=99.9)):
        quantkit.quantize_static(inputs[0], tmp_path / "q.onnx", given)
        found.append(record(tmp_path / "q.onnx"))
    assert found[0] == found[1]
    assert found[0].calibration is not None
    assert found[0].calibration.model == found[0].float.sha256
    assert found[0].data is not None
    assert found[0].data.method == "percentile (keep 99.9)"
    assert found[0].options["calibrate"]["method"]["name"] == "percentile"


def test_a_model_made_of_one_of_ours_has_one_record(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    first = write("optimize", *inputs, tmp_path / "o.onnx")
    assert "quantized already" not in " ".join(inspect_model(first).hazards)
    out = write("qdq", first, inputs[1], tmp_path / "q.onnx")
    assert record(out).float.sha256 == sha256(first.read_bytes()).hexdigest()
    assert record(out).kind == "static"
    assert record(out).content == content_digest(out)


def test_without_a_record(inputs: tuple[Path, Path]) -> None:
    assert read_provenance(inputs[0]) is None
    assert read_provenance(load(inputs[0]).model) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "schema is 'None'"),
        ('{"schema":"quantkit.provenance/9"}', "not of this version"),
        ('{"schema":"quantkit.provenance/1"}', "missing required field"),
    ],
)
def test_damaged_records(
    text: str, message: str, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    proto = onnx.load(inputs[0])
    proto.metadata_props.add(key=KEY, value=text)
    with pytest.raises(ModelError, match=message):
        read_provenance(save(proto, tmp_path / "n.onnx"))


def test_two_records_are_one_too_many(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    proto = onnx.load(inputs[0])
    for _ in range(2):
        proto.metadata_props.add(key=KEY, value="{}")
    with pytest.raises(ModelError, match="holds 2 provenances"):
        read_provenance(save(proto, tmp_path / "n.onnx"))


def test_the_seal_breaks_with_every_edit(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    text = read_entry(write("qdq", *inputs, tmp_path / "q.onnx"))
    assert text is not None
    for key, value in json.loads(text).items():
        edited = {**json.loads(text), key: {"other": value}}
        assert not is_sealed(json.dumps(edited)), key
    assert not is_sealed(json.dumps({**json.loads(text), "added": 1}))
    assert is_sealed(json.dumps(json.loads(text), indent=2))  # spaces say nothing


def _on(fingerprint: str, **other: Any) -> DataSource:
    return replace(example_result().data, fingerprint=fingerprint, kind="npy", **other)


def test_how_the_report_tells_shared_data(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    found = record(write("qdq", *inputs, tmp_path / "q.onnx"))
    assert found.data is not None
    for fingerprint, shared in ((found.data.fingerprint, True), ("other", False), ("", None)):
        told = calibrated_of(found, _on(fingerprint))
        assert told is not None
        assert told.shared is shared
        assert (told.samples, told.method, told.data) == (24, "mse", "x.npy (npy)")
    nameless = replace(found, data=replace(found.data, fingerprint=""))
    told = calibrated_of(nameless, _on("other"))
    assert told is not None
    assert told.shared is None
    assert calibrated_of(None, _on("other")) is None
    assert calibrated_of(replace(found, data=None), _on("other")) is None


def test_the_record_tells_how_samples_were_prepared(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    found = record(write("qdq", *inputs, tmp_path / "q.onnx"))
    assert found.data is not None
    assert len(found.data.digests) == 24 * 8
    told = replace(found.data, settings={"pixels": "0-1", "mean": "0"}, values={})
    alike = _on("x", settings={"pixels": "0-1", "mean": "0"})
    other = _on("x", settings={"pixels": "0-255", "mean": "0"})
    for evaluated, differs in (
        (alike, ()),
        (other, ("pixels: calibrated with 0-1, evaluated with 0-255",)),
        (_on("x"), ()),
    ):
        seen = calibrated_of(replace(found, data=told), evaluated)
        assert seen is not None
        assert seen.differs == differs


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        ((-2.1, 0.0, 2.6), (0.0, 120.0, 255.0), True),
        ((0.0, 0.5, 1.0), (0.0, 0.4, 0.9), False),
        ((0.0, 0.5, 1.0), (3.0, 3.5, 4.0), True),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0), False),
    ],
)
def test_values_tell_where_no_setting_does(
    inputs: tuple[Path, Path],
    tmp_path: Path,
    before: tuple[float, float, float],
    now: tuple[float, float, float],
    *,
    differs: bool,
) -> None:
    found = record(write("qdq", *inputs, tmp_path / "q.onnx"))
    assert found.data is not None
    told = replace(found, data=replace(found.data, settings={}, values={"x": before}))
    seen = calibrated_of(told, _on("x", values={"x": now}))
    assert seen is not None
    assert bool(seen.differs) == differs


def test_data_settings_come_back_without_their_folders() -> None:
    settings = DataSettings(
        path=Path("/far/data"),
        limit=7,
        seed=3,
        image=ImageSettings(resize=(20, 30), crop=12, mean=(0.5, 0.25, 0.125), layout="NHWC"),
        text=TextSettings(column=("a", "b"), tokenizer=Path("/far/tokenizer.json"), max_length=9),
    )
    recorded = to_record({"data": settings})
    assert "/far" not in json.dumps(recorded)
    bare = replace(settings, path=None, text=replace(settings.text, tokenizer=None))
    assert data_settings_of(json.loads(json.dumps(recorded))) == bare
    with pytest.raises(ModelError, match="not of this version"):
        data_settings_of({})


def test_a_record_takes_plain_things_only() -> None:
    with pytest.raises(TypeError, match="object has no place"):
        to_record({"x": object()})
