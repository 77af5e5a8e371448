"""Dockerfile, manifests, SBOM and Triton's configuration, as those who read them see them."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import graph, model, node, save
from package_cases import packed
from serve_cases import linear, picky

from quantkit import ServeSettings
from quantkit.errors import ModelError
from quantkit.settings import BatchSettings, LimitSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("docker")
    packed(linear(place), place / "out")
    return place / "out"


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kserve")
    packed(linear(place), place / "out", form="kserve")
    return place / "out"


def tool(name: str) -> str:
    """Return a program's path: beside Python, else where the system looks."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install 'quantkit-onnx[manifests]'")
    return found


def accepted(name: str, *words: str | Path) -> None:
    done = subprocess.run(
        [tool(name), *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def documents(file: Path) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(file.read_text()))


def instructions(file: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, continued lines put together."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined if line.strip()]


def test_hadolint_has_nothing_to_say(folder: Path) -> None:
    accepted("hadolint", folder / "Dockerfile")


def test_the_dockerfile_is_what_a_platform_engineer_accepts(folder: Path) -> None:
    found = instructions(folder / "Dockerfile")
    last = [i for i, (word, _) in enumerate(found) if word == "FROM"][-1]
    final = found[last:]
    text = (folder / "Dockerfile").read_text()
    assert [word for word, _ in found].count("FROM") == 2
    assert ("USER", "10001:10001") in final
    assert ("STOPSIGNAL", "SIGTERM") in final
    assert json.loads(dict(final)["CMD"])[:3] == ["python", "-m", "quantkit.deploy.serve"]
    health = dict(final)["HEALTHCHECK"]
    assert json.loads(health[health.index("[") :])[:2] == ["python", "-c"]
    assert "ORT_DISABLE_TELEMETRY=1" in dict(final)["ENV"]
    assert "--only-binary :all:" in text
    assert "pip uninstall --yes pip" in text
    assert "apt-get" not in text
    assert "ADD " not in text


def test_what_the_dockerfile_copies_is_there_and_not_ignored(folder: Path) -> None:
    ignored = (folder / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for word, rest in instructions(folder / "Dockerfile"):
        words = [w for w in shlex.split(rest) if not w.startswith("--")]
        if word != "COPY" or "--from=" in rest:
            continue
        for source in words[:-1]:
            assert (folder / source).exists()
            assert f"!{source.rstrip('/')}" in ignored


def test_compose_is_valid_and_hardened(folder: Path) -> None:
    service = documents(folder / "compose.yaml")[0]["services"]["linear"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["deploy"]["resources"]["limits"]["memory"].endswith("M")
    accepted("check-jsonschema", "--builtin-schema", "vendor.compose-spec", folder / "compose.yaml")


def test_kubernetes_accepts_the_manifest(folder: Path) -> None:
    accepted("kubernetes-validate", "--strict", folder / "k8s.yaml")


def hardened(pod: Any) -> None:
    container = pod["containers"][0]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    assert set(container["resources"]) == {"requests", "limits"}


def test_pods_are_hardened_and_found_by_the_service(folder: Path) -> None:
    deployment, service = documents(folder / "k8s.yaml")
    hardened(deployment["spec"]["template"]["spec"])
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels


def test_pods_run_where_their_packages_do_and_are_given_time(tmp_path: Path) -> None:
    made = packed(linear(tmp_path), tmp_path / "out", arch="arm64")
    pod = documents(tmp_path / "out/k8s.yaml")[0]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert pod["containers"][0]["readinessProbe"]["failureThreshold"] == 3
    assert made.commands[0].startswith("docker build --platform linux/arm64 -t linear:")


@pytest.mark.parametrize("name", ["registry.example.com:5000/team/cats", "team/cats:v1"])
@pytest.mark.slow
def test_an_image_with_a_registry_is_built_and_pushed_and_deployed(
    tmp_path: Path, name: str
) -> None:
    made = packed(linear(tmp_path), tmp_path / "out", image=name)
    tagged = name.endswith(":v1")
    assert made.image == name if tagged else made.image.startswith(f"{name}:")
    container = documents(tmp_path / "out/k8s.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == made.image
    assert [command.split()[:2] for command in made.commands] == [
        ["docker", "build"],
        ["docker", "run"],
        ["./smoke"],
        ["docker", "push"],
        ["kubectl", "apply"],
    ]
    assert made.commands[3] == f"docker push {made.image}"
    assert not any("registry" in note for note in made.notes)
    assert any("--image" in note for note in packed(linear(tmp_path), tmp_path / "plain").notes)


def test_a_required_token_cannot_be_forgotten(tmp_path: Path) -> None:
    made = packed(linear(tmp_path), tmp_path / "out", serve=ServeSettings(require_token=True))
    container = documents(tmp_path / "out/k8s.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
    secret = container["env"][0]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": "linear-token", "key": "token", "optional": False}
    service = documents(tmp_path / "out/compose.yaml")[0]["services"]["linear"]
    assert ":?set QUANTKIT_TOKEN}" in service["environment"]["QUANTKIT_TOKEN"]
    assert "-e QUANTKIT_TOKEN " in made.commands[1]
    assert "require_token = true" in (tmp_path / "out/config/quantkit.toml").read_text()
    accepted("kubernetes-validate", "--strict", tmp_path / "out/k8s.yaml")


def test_stopping_has_more_time_than_draining_takes(tmp_path: Path) -> None:
    limits = LimitSettings(drain_s=17.5, timeout_s=60)
    packed(linear(tmp_path), tmp_path / "out", serve=ServeSettings(limits=limits))
    deployment, _ = documents(tmp_path / "out/k8s.yaml")
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 83
    service = documents(tmp_path / "out/compose.yaml")[0]["services"]["linear"]
    assert service["stop_grace_period"] == "83s"


def test_an_inference_service_is_a_hardened_pod(kserve: Path, tmp_path: Path) -> None:
    (found,) = documents(kserve / "inferenceservice.yaml")
    assert (found["apiVersion"], found["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    pod = dict(found["spec"]["predictor"])
    assert pod["containers"][0]["name"] == "kserve-container"  # KServe looks for this name
    hardened(pod)
    # All but three of a predictor's fields are a pod's, which has a schema.
    own = {name: pod.pop(name) for name in ("minReplicas", "timeout")}
    assert all(isinstance(value, int) for value in own.values())
    plain = {"apiVersion": "v1", "kind": "Pod", "metadata": found["metadata"], "spec": pod}
    (tmp_path / "pod.json").write_text(json.dumps(plain))
    accepted("kubernetes-validate", "--strict", tmp_path / "pod.json")
    assert not (kserve / "k8s.yaml").exists()


def test_the_bill_of_materials_is_valid(folder: Path) -> None:
    text = (folder / "sbom.json").read_text()
    plain = json.loads(text)
    refs = {part["bom-ref"] for part in plain["components"]} | {
        plain["metadata"]["component"]["bom-ref"]
    }
    assert len(refs) == len(plain["components"]) + 1
    assert {ref for one in plain["dependencies"] for ref in (one["ref"], *one["dependsOn"])} <= refs
    assert {"onnxruntime", "quantkit-onnx", "uvicorn"} <= {
        part["name"] for part in plain["components"]
    }
    schema = pytest.importorskip("cyclonedx.schema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    pytest.importorskip("jsonschema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    assert validator.validate_str(text) is None


def triton_config(text: str) -> Any:
    pytest.importorskip("grpc")
    config = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    text_format = pytest.importorskip("google.protobuf.text_format")
    return text_format.Parse(text, config.ModelConfig())


def test_triton_gets_a_model_repository(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\n")
    batches = BatchSettings(batch=8, batch_delay_ms=2)
    serve = ServeSettings(labels=tmp_path / "labels.txt", batches=batches, threads=3)
    made = packed(linear(tmp_path), tmp_path / "out", form="triton", serve=serve)
    home = tmp_path / "out/models/linear"
    assert {p.relative_to(home).as_posix() for p in home.rglob("*") if p.is_file()} == {
        *("config.pbtxt", "labels.txt", "1/model.onnx"),
    }
    found = triton_config((home / "config.pbtxt").read_text())
    assert (found.name, found.backend, found.max_batch_size) == ("linear", "onnxruntime", 8)
    assert (list(found.input[0].dims), list(found.output[0].dims)) == ([8], [4])
    assert found.output[0].label_filename == "labels.txt"
    assert found.dynamic_batching.max_queue_delay_microseconds == 2000
    assert found.parameters["intra_op_thread_count"].string_value == "3"
    assert not made.packages
    assert not (tmp_path / "out/Dockerfile").exists()
    assert (
        json.loads((tmp_path / "out/answer.json").read_text())["path"] == "/v2/models/linear/infer"
    )


def test_triton_gets_whole_shapes_where_requests_run_alone(tmp_path: Path) -> None:
    packed(picky(tmp_path), tmp_path / "out", form="triton")
    found = triton_config((tmp_path / "out/models/picky/config.pbtxt").read_text())
    assert found.max_batch_size == 0
    assert (list(found.input[0].dims), list(found.output[0].dims)) == ([-1], [-1, 3])


def test_triton_gives_single_numbers_and_takes_none(tmp_path: Path) -> None:
    total = graph([node("ReduceSum", ["x"], ["y"], keepdims=0)], {"x": ["N", 3]}, {"y": []}, {})
    packed(save(model(total), tmp_path / "total.onnx"), tmp_path / "out", form="triton")
    found = triton_config((tmp_path / "out/models/total/config.pbtxt").read_text())
    assert list(found.output[0].dims) == [1]
    assert found.output[0].HasField("reshape")
    single = graph([node("Identity", ["x"], ["y"])], {"x": []}, {"y": []}, {})
    file = save(model(single), tmp_path / "single.onnx")
    with pytest.raises(ModelError, match="'x' says none"):
        packed(file, tmp_path / "two", form="triton")
    packed(file, tmp_path / "three")
