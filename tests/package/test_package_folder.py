"""What `quantkit package` writes, and what it refuses."""

import json
import os
import re
import shlex
import stat
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, save
from data.makers import picture
from package_cases import files_of, packed
from serve_cases import linear

from quantkit import GateSettings, ServeSettings
from quantkit.cli.app import run
from quantkit.errors import DataError, ModelError, OutputError, QuantkitError, UsageError
from quantkit.settings import ShadowSettings, load_recipe

WRITTEN = {
    *(
        ".dockerignore",
        "Dockerfile",
        "README.md",
        "answer.json",
        "compose.yaml",
        "config/quantkit.toml",
    ),
    *(
        "deployment.json",
        "k8s.yaml",
        "model/model.onnx",
        "requirements.lock",
        "sample.json",
        "sbom.json",
    ),
    "smoke",
}


def test_a_package_has_all_that_an_image_is_built_from(tmp_path: Path) -> None:
    made = packed(linear(tmp_path), tmp_path / "out")
    files = files_of(tmp_path / "out")
    assert {name for name in files if not name.startswith("app/")} == WRITTEN
    assert "app/quantkit/deploy/serve/__main__.py" in files
    assert set(made.files) == set(files) - {"deployment.json"}
    assert made.image.startswith("linear:")
    assert len(made.commands) == 4
    assert not made.hashed
    assert any("no hashes" in note for note in made.notes)
    assert stat.S_IMODE((tmp_path / "out/smoke").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_deployment_json_has_the_digest_of_every_file(tmp_path: Path) -> None:
    packed(linear(tmp_path), tmp_path / "out")
    files = files_of(tmp_path / "out")
    record = json.loads(files.pop("deployment.json"))
    assert record["kind"] == "quantkit package"
    assert {n: about["sha256"] for n, about in record["files"].items()} == {
        name: sha256(content).hexdigest() for name, content in files.items()
    }
    assert record["models"]["model"]["sha256"] == sha256(files["model/model.onnx"]).hexdigest()
    assert record["models"]["model"]["source"] == "linear.onnx"
    assert "onnxruntime" in record["packages"]
    assert set(record["versions"]) >= {"quantkit", "onnxruntime", "numpy", "python"}


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    model = linear(tmp_path)
    packed(model, tmp_path / "one")
    before = files_of(tmp_path / "one")
    os.utime(model, (0, 0))
    packed(model, tmp_path / "two/deep")
    assert files_of(tmp_path / "two/deep") == before
    packed(model, tmp_path / "one")  # over its own
    assert files_of(tmp_path / "one") == before


def test_the_tag_tells_packages_apart(tmp_path: Path) -> None:
    model = linear(tmp_path)
    plain = packed(model, tmp_path / "a").image
    more = ServeSettings(workers=3)
    assert packed(model, tmp_path / "b", serve=more).image != plain
    assert packed(linear(tmp_path, seed=1), tmp_path / "c").image != plain


def test_an_older_package_is_replaced_as_a_whole(tmp_path: Path) -> None:
    model = linear(tmp_path)
    shadow = ServeSettings(second=ShadowSettings(shadow=model, share=0.5))
    packed(model, tmp_path / "out", serve=shadow)
    assert (tmp_path / "out/shadow/model.onnx").is_file()
    packed(model, tmp_path / "out")
    assert not (tmp_path / "out/shadow").exists()


@pytest.mark.parametrize("what", ["foreign", "more", "changed", "link", "record"])
@pytest.mark.slow
def test_a_folder_that_is_not_its_own_is_left_alone(tmp_path: Path, what: str) -> None:
    model, out = linear(tmp_path), tmp_path / "out"
    if what == "foreign":
        out.mkdir()
        (out / "thesis.tex").write_text("years of work")
    else:
        packed(model, out)
    if what == "more":
        (out / "app/mine.py").write_text("mine")
    elif what == "changed":
        (out / "Dockerfile").write_text("FROM scratch")
    elif what == "link":
        (out / "link").symlink_to(tmp_path)
    elif what == "record":
        (out / "deployment.json").write_text("[]")
    before = files_of(tmp_path)
    with pytest.raises(UsageError, match="is not a package as quantkit wrote it"):
        packed(model, out)
    assert files_of(tmp_path) == before


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    packed(linear(tmp_path), tmp_path / "out")
    assert (tmp_path / "out/Dockerfile").is_file()


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    packed(linear(tmp_path), tmp_path / "out")
    with pytest.raises(UsageError, match="which is read"):
        packed(tmp_path / "out/model/model.onnx", tmp_path / "out")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        packed(linear(tmp_path), tmp_path / "out")
    with pytest.raises(OutputError, match="is a file"):
        packed(linear(tmp_path), tmp_path / "out/deeper")
    assert (tmp_path / "out").read_text() == "mine"


def test_bad_inputs_leave_nothing_behind(tmp_path: Path) -> None:
    model = linear(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    (tmp_path / "sample.pdf").write_bytes(b"%PDF")
    (tmp_path / "sample.txt").write_text("a text")
    (tmp_path / "sample.npz").write_bytes(b"no arrays")
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "empty.txt").write_text("\n")
    before = files_of(tmp_path)
    bad: list[tuple[type[QuantkitError], str, Path, dict[str, object]]] = [
        (ModelError, "does not exist", tmp_path / "absent.onnx", {}),
        (ModelError, "not an ONNX model", tmp_path / "bad.onnx", {}),
        (UsageError, "must be an image", model, {"sample": tmp_path / "sample.pdf"}),
        (UsageError, "Texts are not taken", model, {"sample": tmp_path / "sample.txt"}),
        (UsageError, "holds no report", model, {"report": tmp_path}),
        (UsageError, "Cannot read the sample", model, {"sample": tmp_path / "absent.png"}),
        (UsageError, "labels", model, {"serve": ServeSettings(labels=tmp_path / "absent.txt")}),
        (UsageError, "no arrays of numbers", model, {"sample": tmp_path / "sample.npz"}),
        (UsageError, "no arrays of numbers", model, {"sample": tmp_path / "zip.npz"}),
        (UsageError, "are empty", model, {"serve": ServeSettings(labels=tmp_path / "empty.txt")}),
        (UsageError, "needs root", model, {"serve": ServeSettings(port=80)}),
        (UsageError, "any that is free", model, {"serve": ServeSettings(port=0)}),
    ]
    for kind, said, source, how in bad:
        with pytest.raises(kind, match=said):
            packed(source, tmp_path / "new/deep/out", **how)
        assert files_of(tmp_path) == before
        assert not (tmp_path / "new").exists()


def test_a_failure_keeps_the_older_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = linear(tmp_path), tmp_path / "out"
    packed(model, out)
    before = files_of(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quantkit.api.package.texts_of", full)
    with pytest.raises(OutputError, match="No space left on device; nothing was changed"):
        packed(model, out)
    assert files_of(tmp_path) == before


def test_external_data_goes_with_the_model(tmp_path: Path) -> None:
    onnx.save(
        matmul_model(),
        tmp_path / "large.onnx",
        save_as_external_data=True,
        location="my weights.bin",
        size_threshold=0,
    )
    packed(tmp_path / "large.onnx", tmp_path / "out")
    assert (tmp_path / "out/model/my weights.bin").stat().st_size == (128 + 1) * 192 * 4
    (tmp_path / "my weights.bin").unlink()
    with pytest.raises(ModelError, match="missing"):
        packed(tmp_path / "large.onnx", tmp_path / "again")


def test_external_data_may_not_take_the_models_name(tmp_path: Path) -> None:
    onnx.save(
        matmul_model(),
        tmp_path / "large.onnx",
        save_as_external_data=True,
        location="model.onnx",
        size_threshold=0,
    )
    with pytest.raises(ModelError, match="under another name"):
        packed(tmp_path / "large.onnx", tmp_path / "out")


def test_a_token_is_never_written(tmp_path: Path) -> None:
    secret = "hunter2-very-secret"  # noqa: S105 - that is the test
    made = packed(linear(tmp_path), tmp_path / "out", serve=ServeSettings(token=secret))
    assert any("QUANTKIT_TOKEN" in note for note in made.notes)
    assert not [
        name for name, content in files_of(tmp_path / "out").items() if secret.encode() in content
    ]


def test_a_second_model_and_its_rules_go_into_the_settings(tmp_path: Path) -> None:
    model, shadow = linear(tmp_path), linear(tmp_path, "float", scale=0.21)
    serve = ServeSettings(second=ShadowSettings(shadow=shadow, share=0.1))
    packed(model, tmp_path / "out", serve=serve, rules=GateSettings(max_flips=0.02, max_drop=0.5))
    found = load_recipe(tmp_path / "out/config/quantkit.toml")
    assert found.serve.second.shadow is not None
    assert found.serve.second.shadow.read_bytes() == shadow.read_bytes()
    assert found.serve.second.share == 0.1
    assert found.gate == GateSettings(max_flips=0.02)
    assert "COPY shadow/ /srv/shadow/" in (tmp_path / "out/Dockerfile").read_text()
    assert "!shadow" in (tmp_path / "out/.dockerignore").read_text()
    with pytest.raises(UsageError, match="Triton compares no two models"):
        packed(model, tmp_path / "triton", form="triton", serve=serve)


def test_the_report_goes_with_it(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.mkdir()
    for name in ("result.json", "report.html", "notes.txt"):
        (report / name).write_text(name)
    packed(linear(tmp_path), tmp_path / "out", report=report)
    assert {p.name for p in (tmp_path / "out/report").iterdir()} == {"result.json", "report.html"}


def test_a_model_that_no_inputs_can_be_made_up_for_needs_a_sample(tmp_path: Path) -> None:
    made = matmul_model()
    made.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    made.graph.node.clear()
    made.graph.node.append(onnx.helper.make_node("Identity", ["x"], ["y"]))
    made.graph.output[0].CopyFrom(made.graph.input[0])
    made.graph.output[0].name = "y"
    del made.graph.initializer[:]
    onnx.save(made, tmp_path / "texts.onnx")
    with pytest.raises(DataError, match="give a sample by --sample"):
        packed(tmp_path / "texts.onnx", tmp_path / "out")


def test_a_shape_that_is_left_open_is_served_and_so_packaged(tmp_path: Path) -> None:
    net = graph([node("Relu", ["x"], ["y"])], {"x": ["N"]}, {"y": ["N"]}, {})
    for value in (*net.input, *net.output):
        value.type.tensor_type.ClearField("shape")
    save(model(net), tmp_path / "open.onnx")
    np.save(tmp_path / "one.npy", np.arange(-3, 3, dtype=np.float32).reshape(2, 3))
    packed(tmp_path / "open.onnx", tmp_path / "made-up")
    packed(tmp_path / "open.onnx", tmp_path / "out", sample=tmp_path / "one.npy")
    answer = json.loads((tmp_path / "out/answer.json").read_text())
    assert answer["values"] == {"y": [0, 0, 0, 0, 1, 2]}
    with pytest.raises(ModelError, match="how many dimensions"):
        packed(tmp_path / "open.onnx", tmp_path / "triton", form="triton")


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = linear(tmp_path)
    words = ["package", str(model), "-o", str(tmp_path / "out"), "--no-lock"]
    assert run([*words, "--name", "My Net", "--batch", "8", "--max-flips", "2%"]) == 0
    said = capsys.readouterr()
    assert " -t my-net:" in said.out
    assert "kubectl apply -f k8s.yaml" in said.out
    assert "made up" in said.err
    recipe = load_recipe(tmp_path / "out/config/quantkit.toml")
    assert (recipe.serve.name, recipe.serve.batches.batch) == ("My Net", 8)
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["form"] == "docker"
    assert run(["package", "-o", str(tmp_path / "none")]) == 2
    assert "Which model?" in capsys.readouterr().err
    assert run([*words, "--wheels"]) == 2
    assert "wheels needs hashes" in capsys.readouterr().err


def test_flags_say_how_inputs_are_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = [node("GlobalAveragePool", ["x"], ["p"]), node("Flatten", ["p"], ["y"])]
    save(model(graph(pool, {"x": ["N", 3, 8, 8]}, {"y": ["N", 3]}, {})), tmp_path / "net.onnx")
    words = ["package", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "out"), "--no-lock"]
    assert run(words) == 0
    assert "set --mean and --std, or --preset" in capsys.readouterr().err
    assert run([*words, "--preset", "imagenet", "--crop", "8"]) == 0
    assert "preset" not in capsys.readouterr().err
    image = load_recipe(tmp_path / "out/config/quantkit.toml").data.image
    assert (image.preset, image.crop) == ("imagenet", 8)


def test_a_tokenizer_that_is_set_must_be_there(tmp_path: Path) -> None:
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["N", 4])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, ["N", 4])
    made = onnx.helper.make_graph([node("Identity", ["input_ids"], ["y"])], "g", [ids], [out])
    save(model(made), tmp_path / "net.onnx")
    notes = packed(tmp_path / "net.onnx", tmp_path / "out").notes
    assert any("will take no texts" in note for note in notes)
    words = ["package", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "new"), "--no-lock"]
    assert run([*words, "--tokenizer", str(tmp_path / "absent.json")]) == 2
    assert not (tmp_path / "new").exists()


def test_quantkit_toml_says_the_same_as_flags(tmp_path: Path) -> None:
    linear(tmp_path)
    (tmp_path / "quantkit.toml").write_text(
        'model = "linear.onnx"\n[package]\nformat = "kserve"\nhashes = false\ntolerance = 0.05\n'
        "[serve.limits]\ndrain_s = 20\n"
    )
    words = ["--recipe", str(tmp_path / "quantkit.toml"), "-o", str(tmp_path / "out")]
    assert run(["package", *words]) == 0
    assert json.loads((tmp_path / "out/answer.json").read_text())["tolerance"] == 0.05
    assert (
        "terminationGracePeriodSeconds: 30" in (tmp_path / "out/inferenceservice.yaml").read_text()
    )


@pytest.mark.slow
def test_the_page_says_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = graph(
        [node("GlobalAveragePool", ["x"], ["p"]), node("Flatten", ["p"], ["logits"])],
        {"x": ["N", 3, 8, 8]},
        {"logits": ["N", 3]},
        {},
    )
    save(model(net), tmp_path / "model.int8.onnx")
    save(model(net), tmp_path / "model.onnx")
    picture(tmp_path / "cat.png")
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/package.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("quantkit package")]
    assert len(lines) > 4
    for line in lines:
        words = shlex.split(line.replace("@sha256:...", f"@sha256:{'0' * 64}"), comments=True)
        assert run([*words[1:], "--no-lock"]) == 0, line
    code = re.search(r"```py\n(.*?)```", page, re.DOTALL)
    assert code is not None
    exec(code[1])  # noqa: S102 - the page's own example
    assert (tmp_path / "deploy/sample.png").is_file()
