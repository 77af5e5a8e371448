"""Fewer bits in the file for weights that kernels read as int8: a smaller file, and the graph that runs is the same."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_cases import chain, data_file, pictures
from builders import Array, fused_ops, rng, run, save, sqnr

from quantkit.api.quantize import Task, quantize
from quantkit.api.verify import reproduce
from quantkit.cli.app import run as quantkit_command
from quantkit.errors import UsageError
from quantkit.model.provenance import read_provenance
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Plan, check_target_of
from quantkit.settings import DynamicSettings, StaticSettings
from quantkit.targets import target

MODELS = ("pictures", "layers")
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "4 bits": {"weight_bits": 4},
    "5 bits": {"weight_bits": 5},
    "size": {"target_size": 0.2},
}
PACKED = [way for way in WAYS if way != "plain"]


@dataclass(frozen=True)
class Made:
    """A float model, samples, and what was made of them, by way."""

    folder: Path
    source: Path
    data: Path
    results: Mapping[str, QuantizeResult]

    def path(self, way: str) -> Path:
        return self.folder / f"{way}.onnx"

    @property
    def feeds(self) -> dict[str, Array]:
        return {"x": np.load(self.data)[:8]}


def call(*arguments: str | Path) -> int:
    return quantkit_command([str(a) for a in arguments])


def sources(name: str, folder: Path) -> tuple[Path, Path]:
    proto = pictures() if name == "pictures" else chain(3, 128)
    source, data = save(proto, folder / "m.onnx"), folder / "x.npy"
    if name == "pictures":
        np.save(data, rng(3).standard_normal((16, 3, 12, 12)).astype(np.float32))
    else:
        data_file(proto, data, 16)
    return source, data


def statically(source: Path, data: Path, out: Path, **options: Any) -> QuantizeResult:
    return quantize(Task(source=source, data=data, how=StaticSettings(**options)), out)


def dynamically(source: Path, _: Path, out: Path, **options: Any) -> QuantizeResult:
    return quantize(Task(source=source, how=DynamicSettings(**options)), out)


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Static models in every way."""
    return every_way(request.param, tmp_path_factory.mktemp("static"), statically)


@pytest.fixture(scope="module", params=MODELS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Dynamic models in every way."""
    return every_way(request.param, tmp_path_factory.mktemp("dynamic"), dynamically)


def every_way(name: str, folder: Path, quantize: Any) -> Made:
    source, data = sources(name, folder)
    found = {way: quantize(source, data, folder / f"{way}.onnx", **o) for way, o in WAYS.items()}
    return Made(folder, source, data, found)


def check_packed(one: Made, way: str, folder: Path) -> None:
    """Check what holds of a packed model beside the plain one."""
    plain, packed = one.results["plain"], one.results[way]
    assert packed.output_bytes == one.path(way).stat().st_size < 0.82 * plain.output_bytes
    assert way != "size" or packed.output_bytes <= 0.2 * packed.input_bytes
    assert packed.plan.nodes == plain.plan.nodes
    assert any(w.blocks is not None for w in packed.plan.weights)
    ops = [Counter(fused_ops(one.path(w), folder)) for w in ("plain", way)]
    assert ops[0] == ops[1]
    optimized, as_it_stands = (run(one.path(way), one.feeds, optimize=o)[0] for o in (True, False))
    assert sqnr(optimized, as_it_stands) > 50  # a tie here and there is rounded the other way
    assert sqnr(run(one.source, one.feeds)[0], optimized) > 15


@pytest.mark.parametrize("way", PACKED)
def test_static_models_are_smaller_and_run_the_same_graph(
    made: Made, way: str, tmp_path: Path
) -> None:
    check_packed(made, way, tmp_path)
    result = made.results[way]
    assert result.verification is not None
    assert any("Weights in the file: " in text for text in result.notes)


@pytest.mark.parametrize("way", PACKED)
def test_dynamic_models_are_smaller_and_run_the_same_graph(
    stored: Made, way: str, tmp_path: Path
) -> None:
    check_packed(stored, way, tmp_path)


def test_more_bits_are_larger_and_better(made: Made) -> None:
    size = {way: one.output_bytes for way, one in made.results.items()}
    assert size["4 bits"] < size["5 bits"] < size["plain"]
    expected = run(made.source, made.feeds)[0]
    quality = {way: sqnr(expected, run(made.path(way), made.feeds)[0]) for way in WAYS}
    assert quality["4 bits"] < quality["5 bits"] < quality["plain"]


def bits_of(plan: Plan) -> dict[str, int]:
    return {w.tensor: 8 if w.blocks is None else w.blocks.bits for w in plan.weights}


def test_the_first_and_the_depthwise_layer_keep_eight_bits(
    made: Made, request: pytest.FixtureRequest
) -> None:
    if "pictures" not in request.node.name:
        pytest.skip("it has no Conv")
    bits = bits_of(made.results["4 bits"].plan)
    assert bits["first_w"] == bits["depthwise_w"] == 8
    assert bits["wide_w"] == 4


@pytest.mark.parametrize("way", ["size"])  # what was measured is in the record
def test_the_record_suffices_to_make_it_again(made: Made, way: str) -> None:
    says = read_provenance(made.path(way))
    assert says is not None
    assert says.options.get("bits")
    check = reproduce(made.path(way), made.source, data=made.data)
    assert check.outcome == "ok"
    assert "same bytes" in check.sentence


def test_a_dynamic_record_suffices_too(stored: Made) -> None:
    for way in PACKED:
        assert reproduce(stored.path(way), stored.source).outcome == "ok"


def test_a_plan_with_packed_weights_is_followed(made: Made, tmp_path: Path) -> None:
    plan = made.results["4 bits"].plan
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    job = Task(source=made.source, data=made.data, how=StaticSettings())
    result = quantize(job, tmp_path / "o.onnx", plan=again)
    assert bits_of(result.plan) == bits_of(plan)
    assert result.output_bytes < 0.82 * made.results["plain"].output_bytes


@pytest.mark.parametrize("quantize", [statically, dynamically])
def test_a_size_out_of_reach_is_one_clear_error(quantize: Any, tmp_path: Path) -> None:
    source, data = sources("layers", tmp_path)
    with pytest.raises(UsageError, match="out of reach"):
        quantize(source, data, tmp_path / "o.onnx", target_size=0.02)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "x.npy"]


@pytest.mark.parametrize("flags", [("--weight-bits", "4"), ("--target-size", "20%")])
@pytest.mark.parametrize("name", ["openvino", "tensorrt", "qnn"])
def test_other_runtimes_get_no_packed_weights(
    name: str, flags: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, data = sources("layers", tmp_path)
    line = ("quantize", "static", source, tmp_path / "o.onnx", "--data", data, *flags)
    assert call(*line, "--target", name) == 2
    said = capsys.readouterr().err
    assert f"{name} (" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "o.onnx").exists()


def test_a_plan_with_packed_weights_is_refused_for_another_runtime(made: Made) -> None:
    plan = replace(made.results["4 bits"].plan, target=None)
    check_target_of(plan, target("cpu"))
    with pytest.raises(UsageError, match="openvino"):
        check_target_of(plan, target("openvino"))


@pytest.mark.parametrize("kind", [StaticSettings, DynamicSettings])
@pytest.mark.parametrize(
    "bad",
    [
        {"weight_bits": 1},
        {"weight_bits": 9},
        {"target_size": 0},
        {"weight_bits": 4, "target_size": 0.2},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(kind: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        kind(**bad)


def test_eight_bits_are_the_plain_weights(stored: Made, tmp_path: Path) -> None:
    quantize(Task(source=stored.source, how=DynamicSettings(weight_bits=8)), tmp_path / "o.onnx")
    outputs = [run(path, stored.feeds)[0] for path in (stored.path("plain"), tmp_path / "o.onnx")]
    np.testing.assert_array_equal(outputs[0], outputs[1])


# ------------------------------------------------------------------------------- commands on a result


@pytest.mark.parametrize("way", PACKED)
def test_diff_of_int8_and_packed_shows_weights_not_the_nodes_that_make_them(
    made: Made, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("diff", made.path("plain"), made.path(way)) == 0
    out = capsys.readouterr().out
    assert "BitShift" not in out
    assert "weights: " in out
    assert call("diff", made.source, made.path(way)) == 0
    assert call("diff", made.path(way), made.path(way)) == 0


def test_evaluate_measures_a_packed_model(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("evaluate", made.source, made.path("5 bits"), "--data", made.data)
    assert call(*line, "-o", tmp_path / "r", "--json") == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("way", ["4 bits", "size"])
def test_inspect_and_verify(made: Made, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", made.path(way), "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert sum(part["nbytes"] for part in plain["size"]) == made.path(way).stat().st_size
    assert call("verify", made.path(way), "--float", made.source, "--data", made.data) == 0
    assert "verified" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["static", "dynamic"])
@pytest.mark.parametrize("flags", [("--weight-bits", "4"), ("--target-size", "20%")])
def test_the_command_lines(
    command: str, flags: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, data = sources("layers", tmp_path)
    more = ("--data", data) if command == "static" else ()
    assert call("quantize", command, source, tmp_path / "o.onnx", *flags, *more) == 0
    captured = capsys.readouterr()
    assert "bits per value on average" in " ".join(f"{captured.out} {captured.err}".split())
    assert (tmp_path / "o.onnx").stat().st_size < 0.21 * source.stat().st_size


@pytest.mark.parametrize("command", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--weight-bits", "9"), "weight"),
        (("--target-size", "1%"), "out of reach"),
        (("--weight-bits", "4", "--target-size", "20%"), "give one"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    command: str,
    flags: tuple[str, ...],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, data = sources("layers", tmp_path)
    more = ("--data", data) if command == "static" else ()
    assert call("quantize", command, source, tmp_path / "o.onnx", *flags, *more) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert says in last
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "x.npy"]
