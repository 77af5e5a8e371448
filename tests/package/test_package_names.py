"""Names that come from users: in no file of a package are they more than names."""

import json
import re
from pathlib import Path

import pytest
from builders import graph, model, node, save, weight
from hypothesis import given
from hypothesis import strategies as st
from package_cases import files_of, packed
from serve_cases import linear

from quantkit import PackageSettings, ServeSettings
from quantkit.deploy.package.texts import slug
from quantkit.errors import UsageError

HOSTILE = (
    "a b$(rm -rf).onnx",
    "`reboot`; echo ${HOME} #.onnx",
    'x"\nRUN touch owned\n.onnx',
    "'; privileged: true.onnx",
    "-rf.onnx",
    "0.onnx",
    "\u202egnp.\u6a21\u578b.onnx",
)


@given(st.text(max_size=80))
def test_a_slug_is_a_name_everywhere(text: str) -> None:
    found = slug(text)
    assert re.fullmatch(r"[a-z](?:[a-z0-9]|-(?=[a-z0-9])){0,39}", found)
    assert slug(found) == found


def test_slugs_that_one_can_read() -> None:
    assert slug("ResNet_20 (int8)") == "resnet-20-int8"
    assert slug("Über.modell") == "uber-modell"
    assert slug("3d") == "model-3d"
    assert slug("模型") == "model"


@pytest.mark.parametrize("name", ["no", "on", "null", "true", "y", "nan"])
@pytest.mark.slow
def test_a_word_of_yaml_stays_a_name(tmp_path: Path, name: str) -> None:
    yaml = pytest.importorskip("yaml")
    packed(linear(tmp_path), tmp_path / "out", serve=ServeSettings(name=name))
    compose = yaml.safe_load((tmp_path / "out/compose.yaml").read_text())
    assert (compose["name"], *compose["services"]) == (name, name)
    for found in yaml.safe_load_all((tmp_path / "out/k8s.yaml").read_text()):
        labels = found["metadata"]["labels"]
        assert found["metadata"]["name"] == labels["app.kubernetes.io/name"] == name
        assert isinstance(labels["app.kubernetes.io/version"], str)


@pytest.mark.parametrize("form", ["docker", "kserve", "triton"])
@pytest.mark.slow
def test_a_hostile_file_name_is_a_name(tmp_path: Path, form: str) -> None:
    source = linear(tmp_path)
    for number, name in enumerate(HOSTILE):
        model_file = tmp_path / name
        model_file.write_bytes(source.read_bytes())
        packed(model_file, tmp_path / f"hostile {number}", form=form)
        plain = tmp_path / f"{slug(model_file.stem)}.onnx"
        plain.write_bytes(source.read_bytes())
        packed(plain, tmp_path / f"plain {number}", form=form)
        there, here = (
            files_of(tmp_path / f"hostile {number}"),
            files_of(tmp_path / f"plain {number}"),
        )
        record = json.loads(there.pop("deployment.json"))
        assert record["models"]["model"]["source"].isprintable()
        del here["deployment.json"]
        assert there == here, name


def test_a_hostile_name_of_the_model_is_text_alone(tmp_path: Path) -> None:
    name = 'n" $(id) `id`\\ # : {} é'
    packed(linear(tmp_path), tmp_path / "out", serve=ServeSettings(name=name))
    files = files_of(tmp_path / "out")
    for file in ("Dockerfile", "compose.yaml", "k8s.yaml", "README.md", "smoke"):
        assert b"$(id)" not in files[file]
        assert b"`id`" not in files[file]
    assert json.loads(files["answer.json"])["path"] == (
        "/v2/models/n%22%20%24%28id%29%20%60id%60%5C%20%23%20%3A%20%7B%7D%20%C3%A9/infer"
    )


@pytest.mark.parametrize(
    "base",
    [
        "",
        "a b",
        "python\nRUN x",
        "python:3$(id)",
        "python@sha256:12",
        "-x",
        "Python",
        "python:3\n",
        "a/../b:",
    ],
)
def test_a_base_that_is_no_image_is_refused(base: str) -> None:
    with pytest.raises(UsageError, match=r"is not an image reference|takes a text"):
        PackageSettings(base=base)


@pytest.mark.parametrize(
    "base",
    [
        "python:3.13-slim",
        f"registry.example.org:5000/team/py-thon_3:1.0@sha256:{'a' * 64}",
        "localhost/base",
    ],
)
def test_a_base_is_an_image(tmp_path: Path, base: str) -> None:
    made = packed(linear(tmp_path), tmp_path / "out", base=base)
    text = (tmp_path / "out/Dockerfile").read_text()
    assert f"\nARG BASE={base}\n" in f"\n{text}"
    assert ("a tag moves" in text) == ("@sha256" not in base)
    assert any("is a tag" in note for note in made.notes) == ("@sha256" not in base)


def test_hostile_names_of_tensors_and_labels(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("tritonclient.grpc.model_config_pb2")
    names = 'in"put\n} $(id)', "out'put]"
    net = graph(
        [node("MatMul", [names[0], "w"], [names[1]])],
        {names[0]: ["N", 8]},
        {names[1]: ["N", 4]},
        {"w": weight(8, 4)},
    )
    (tmp_path / "labels.txt").write_text('a"b\n$(id)\n\u202ec\nd: {}\n')
    serve = ServeSettings(labels=tmp_path / "labels.txt")
    packed(save(model(net), tmp_path / "net.onnx"), tmp_path / "out", form="triton", serve=serve)
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    text = (tmp_path / "out/models/net/config.pbtxt").read_text()
    found = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert (found.input[0].name, found.output[0].name) == names
    assert found.output[0].label_filename == "labels.txt"
    assert len((tmp_path / "out/models/net/labels.txt").read_text().splitlines()) == 4


@pytest.mark.parametrize("image", ["", "a b", "cats;id", "Cats", f"cats@sha256:{'0' * 64}"])
def test_an_image_that_cannot_be_pushed_to_is_refused(image: str) -> None:
    with pytest.raises(UsageError, match=r"is not a name to push to|takes a text"):
        PackageSettings(image=image)
