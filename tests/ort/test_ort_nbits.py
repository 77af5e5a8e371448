"""`quantkit.ort.matmul_nbits_quantizer`: onnxruntime's names, arguments and command, and what comes of them."""

import inspect
import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization.matmul_nbits_quantizer as peer
import pytest
from block_cases import layers
from builders import graph, model, node, rng, run, save, sqnr, weight
from onnx import TensorProto

from quantkit.errors import ModelError, QuantkitError, UnknownNodeError, UsageError
from quantkit.ort import QuantFormat
from quantkit.ort import matmul_nbits_quantizer as ours
from quantkit.ort.matmul_nbits_quantizer import settings_of

K, N = 256, 192
FEED = {"x": rng(7).standard_normal((32, K)).astype(np.float32)}
CONFIGS = (
    "WeightOnlyQuantConfig",
    "DefaultWeightOnlyQuantConfig",
    "RTNWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
)


class Reader:
    """A CalibrationDataReader, which can be read once."""

    def __init__(self, count: int = 24) -> None:
        self._left = iter([self.sample(seed) for seed in range(count)])

    @staticmethod
    def sample(seed: int) -> dict[str, Any]:
        return {"x": rng(100 + seed).standard_normal((16, K)).astype(np.float32)}

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return save(layers(K, N), folder / "f.onnx")


def made(given: Any, **options: Any) -> ours.MatMulNBitsQuantizer:
    quantizer = ours.MatMulNBitsQuantizer(given, **options)
    quantizer.process()
    return quantizer


def attributes(quantizer: Any, op_type: str = "MatMulNBits") -> list[dict[str, int]]:
    found = [n for n in quantizer.model.nodes() if n.op_type == op_type]
    return [{a.name: a.i for a in one.attribute} for one in found]


def quality(quantizer: Any, source: Path, folder: Path) -> float:
    quantizer.model.save_model_to_file(str(folder / "q.onnx"), False)
    return sqnr(run(source, FEED)[0], run(folder / "q.onnx", FEED)[0])


@pytest.mark.parametrize("name", [*CONFIGS, "MatMulNBitsQuantizer"])
def test_parameters_order_and_defaults_are_onnxruntimes(name: str) -> None:
    def shape(module: Any) -> list[tuple[str, str, str]]:
        found = inspect.signature(getattr(module, name).__init__).parameters.values()
        return [(p.name, str(p.kind), str(p.default)) for p in found]

    assert shape(ours) == shape(peer)


@pytest.mark.parametrize("name", CONFIGS[1:])
def test_attributes_are_onnxruntimes(name: str) -> None:
    found, theirs = (vars(getattr(module, name)()) for module in (ours, peer))
    assert {k: str(v) for k, v in found.items()} == {k: str(v) for k, v in theirs.items()}


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_default_is_what_onnxruntime_makes(
    bits: int,
    symmetric: bool,  # noqa: FBT001 - of pytest
    source: Path,
    tmp_path: Path,
) -> None:
    options = {"bits": bits, "is_symmetric": symmetric, "accuracy_level": 4}
    theirs = peer.MatMulNBitsQuantizer(layers(K, N), **options)
    theirs.process()
    mine = made(source, **options)
    assert attributes(mine) == attributes(theirs)
    assert len(attributes(mine)) == 2
    assert quality(mine, source, tmp_path) > quality(theirs, source, tmp_path) - 0.5


def test_a_model_in_memory_and_a_path_give_the_same_and_stay_as_they_are(source: Path) -> None:
    before, proto = source.read_bytes(), layers(K, N)
    whole = proto.SerializeToString()
    in_memory, read = made(proto), made(str(source))
    assert attributes(in_memory) == attributes(read)
    assert proto.SerializeToString() == whole
    assert source.read_bytes() == before
    assert [path.name for path in source.parent.iterdir()] == ["f.onnx"]


def test_the_model_is_float_before_and_changes_to_it_count(source: Path) -> None:
    quantizer = ours.MatMulNBitsQuantizer(str(source))
    (first,) = [n for n in quantizer.model.nodes() if n.name == "first"]
    first.name = "renamed"
    quantizer.nodes_to_exclude = {"renamed"}
    result = quantizer.process()
    assert result.plan.node["renamed"].why == "excluded"
    assert [one["K"] for one in attributes(quantizer)] == [N]


@pytest.mark.parametrize(
    ("config", "method"),
    [
        (ours.DefaultWeightOnlyQuantConfig(), "minmax"),
        (ours.DefaultWeightOnlyQuantConfig(is_symmetric=True), "mse"),
        (ours.RTNWeightOnlyQuantConfig(), "minmax"),
        (ours.HQQWeightOnlyQuantConfig(), "hqq"),
        (ours.KQuantWeightOnlyQuantConfig(), "mse"),
        (ours.GPTQWeightOnlyQuantConfig(Reader(1)), "mse"),
        (peer.HQQWeightOnlyQuantConfig(), "hqq"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_configurations_choose_the_method(config: Any, method: str, source: Path) -> None:
    quantizer = ours.MatMulNBitsQuantizer(source, bits=4, block_size=64)
    found = settings_of(config, quantizer)
    own = config.algorithm in {"DEFAULT", "HQQ"}
    assert (found.method, found.block, found.format) == (method, 128 if own else 64, "contrib")


def test_samples_of_a_reader_make_weights_better(source: Path, tmp_path: Path) -> None:
    found = {}
    for config in (ours.RTNWeightOnlyQuantConfig(), ours.GPTQWeightOnlyQuantConfig(Reader())):
        found[config.algorithm] = quality(made(source, algo_config=config), source, tmp_path)
    assert found["GPTQ"] > found["RTN"] + 0.5


def test_k_quant_is_better_than_rtn(source: Path, tmp_path: Path) -> None:
    configs = (ours.RTNWeightOnlyQuantConfig(), ours.KQuantWeightOnlyQuantConfig())
    plain, fitted = (quality(made(source, algo_config=c), source, tmp_path) for c in configs)
    assert fitted > plain + 0.3


def test_hqq_has_zero_points_whatever_is_said(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "quantkit.ort"):
        made(source, algo_config=ours.HQQWeightOnlyQuantConfig(), is_symmetric=True)
    assert "is_symmetric=True has no effect" in caplog.text


def test_qdq_is_plain_onnx(source: Path, tmp_path: Path) -> None:
    quantizer = made(source, quant_format=QuantFormat.QDQ, block_size=32)
    found = attributes(quantizer, "DequantizeLinear")
    assert found == [{"axis": 0, "block_size": 32}] * 2
    assert quality(quantizer, source, tmp_path) > 18


def test_a_level_that_is_slow_is_written_as_asked_and_said(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "quantkit.ort"):
        quantizer = made(source, bits=8, accuracy_level=0)
    assert [one["accuracy_level"] for one in attributes(quantizer)] == [0, 0]
    assert "2 nodes are far slower than float" in caplog.text


def table_model() -> onnx.ModelProto:
    """ids [N] -> Gather 'look_up' (300, 128) -> MatMul 'mm' (128, 96) -> y."""
    nodes = [
        node("Gather", ["table", "ids"], ["rows"], "look_up"),
        node("MatMul", ["rows", "w"], ["y"], "mm"),
    ]
    held = {"table": weight(300, 128), "w": weight(128, 96, seed=1)}
    types = {"ids": TensorProto.INT64}
    return model(graph(nodes, {"ids": ["N"]}, {"y": ["N", 96]}, held, types=types))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"Gather": 1, "MatMulNBits": 1}),
        ({"op_types_to_quantize": ("Gather",)}, {"GatherBlockQuantized": 1, "MatMul": 1}),
        (
            {"op_types_to_quantize": ("Gather", "MatMul")},
            {"GatherBlockQuantized": 1, "MatMulNBits": 1},
        ),
        (
            {"op_types_to_quantize": ("Gather",), "nodes_to_include": ["mm"]},
            {"GatherBlockQuantized": 1, "MatMulNBits": 1},
        ),
    ],
    ids=["MatMul", "Gather", "both", "included"],
)
def test_operators_that_are_named_are_quantized(
    options: dict[str, Any], expected: dict[str, int]
) -> None:
    found = Counter(n.op_type for n in made(table_model(), **options).model.nodes())
    kinds = ("Gather", "GatherBlockQuantized", "MatMul", "MatMulNBits")
    assert {kind: found[kind] for kind in kinds if found[kind]} == expected


def test_tables_have_the_bits_that_are_asked_for() -> None:
    quantizer = made(table_model(), op_types_to_quantize=("Gather",), block_size=32)
    (found,) = attributes(quantizer, "GatherBlockQuantized")
    assert (found["bits"], found["block_size"]) == (4, 32)


def test_nodes_are_excluded_by_name_and_unknown_ones_are_said(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "quantkit.ort"):
        quantizer = made(source, nodes_to_exclude=["first", "nobody"], nodes_to_include=["second"])
    assert [one["K"] for one in attributes(quantizer)] == [N]
    assert "no node 'nobody'" in caplog.text
    assert "nodes_to_include changes nothing" in caplog.text


def test_single_nodes_have_grids_of_their_own(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    custom = {"first": {"bits": 8, "group_size": 32, "scheme": "sym"}, "nobody": {}}
    config = ours.RTNWeightOnlyQuantConfig(customized_weight_config=custom)
    with caplog.at_level(logging.WARNING, "quantkit.ort"):
        first, second = attributes(made(source, algo_config=config, block_size=64))
    assert (first["bits"], first["block_size"]) == (8, 32)
    assert (second["bits"], second["block_size"]) == (4, 64)
    assert "'nobody' has no effect" in caplog.text


def test_products_of_activations_are_passed_over_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "layer"),
        node("Transpose", ["x"], ["t"], "turn", perm=[1, 0]),
        node("MatMul", ["t", "a"], ["y"], "product"),
    ]
    proto = model(graph(nodes, {"x": [4, 96]}, {"y": [96, 80]}, {"w": weight(96, 80)}))
    with caplog.at_level(logging.WARNING, "quantkit.ort"):
        assert len(attributes(made(proto))) == 1
    assert "product" not in caplog.text


def test_a_weight_too_small_to_save_anything_stays_float_and_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "large"),
        node("MatMul", ["a", "v"], ["y"], "small"),
    ]
    held = {"w": weight(96, 80), "v": weight(80, 4, seed=1)}
    proto = model(graph(nodes, {"x": [4, 96]}, {"y": [4, 4]}, held))
    with caplog.at_level(logging.WARNING, "quantkit.ort"):
        assert [one["K"] for one in attributes(made(proto))] == [96]
    assert "'small'" in caplog.text


def test_where_nothing_is_to_be_quantized_the_model_stays_float(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "quantkit.ort"):
        quantizer = made(source, op_types_to_quantize=("Gather",))
    assert Counter(n.op_type for n in quantizer.model.nodes())["MatMul"] == 2
    assert "The model stays float" in caplog.text


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"bits": 1}, ValueError, "at least 2 and at most 8"),
        ({"block_size": 48}, ValueError, "16, 32, 64"),
        ({"accuracy_level": 7}, ValueError, "at least 0 and at most 4"),
        ({"quant_format": "QQ"}, ValueError, "QuantFormat"),
        ({"channel_wised_quantize": True}, NotImplementedError, "block_size=128"),
        ({"quant_axes": (("MatMul", 1),)}, NotImplementedError, "axis 0"),
        ({"nodes_to_exclude": "first"}, ValueError, "list of names"),
        ({"algo_config": 3}, ValueError, "not int"),
        ({"algo_config": ours.HQQWeightOnlyQuantConfig(axis=0)}, NotImplementedError, "axis=1"),
        (
            {"algo_config": ours.RTNWeightOnlyQuantConfig(ratios={"w1": 0.9})},
            NotImplementedError,
            "KQuant",
        ),
        ({"algo_config": ours.GPTQWeightOnlyQuantConfig()}, ValueError, "calibration_data_reader"),
        (
            {"algo_config": ours.WeightOnlyQuantConfig("nvidia_awq", QuantFormat.QDQ)},
            NotImplementedError,
            "awq=True",
        ),
        (
            {
                "algo_config": ours.RTNWeightOnlyQuantConfig(
                    quant_format=QuantFormat.QDQ, customized_weight_config={"first": {"bits": 8}}
                )
            },
            NotImplementedError,
            "QOperator",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(
    options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        ours.MatMulNBitsQuantizer(layers(K, N), **options)
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("custom", "said"),
    [
        ({"first": 8}, "no dictionary"),
        ({"first": {"bit": 8}}, "'bit'"),
        ({"first": {"scheme": "x"}}, "asym"),
    ],
)
def test_grids_that_make_no_sense_are_refused(custom: dict[str, Any], said: str) -> None:
    config = ours.RTNWeightOnlyQuantConfig(customized_weight_config=custom)
    with pytest.raises(UsageError, match=said):
        made(layers(K, N), algo_config=config)


def test_a_model_that_is_not_there_is_an_error_and_a_failed_call_changes_nothing(
    source: Path, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        ours.MatMulNBitsQuantizer(str(tmp_path / "none.onnx"))
    assert isinstance(caught.value, ModelError)
    with pytest.raises(UsageError, match="not as list"):
        ours.MatMulNBitsQuantizer([])  # type: ignore[arg-type]
    quantizer = ours.MatMulNBitsQuantizer(str(source), nodes_to_include=["nobody"])
    with pytest.raises(UnknownNodeError):
        quantizer.process()
    assert attributes(quantizer) == []


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", ours.__name__, *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_it_is_a_command(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.onnx"
    done = command("--input_model", str(source), "--output_model", str(target), "--bits", "8")
    assert done.returncode == 0, done.stderr
    found = [n for n in onnx.load(target).graph.node if n.op_type == "MatMulNBits"]
    assert [next(a.i for a in n.attribute if a.name == "block_size") for n in found] == [32, 32]
    assert sqnr(run(source, FEED)[0], run(target, FEED)[0]) > 35
    again = command("--input_model", str(source), "--output_model", str(target))
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "there already" in again.stderr


@pytest.mark.parametrize(
    ("method", "said"), [("gptq", "--data SAMPLES"), ("nvidia_awq", "awq=True")]
)
def test_methods_that_need_samples_say_where_to_go(
    method: str, said: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--input_model", str(source), "--output_model", str(tmp_path / "q.onnx")]
    monkeypatch.setattr(sys, "argv", ["c", *words, "--quant_method", method, "--cache_dir", "x"])
    with pytest.raises(QuantkitError, match=said):
        ours.main()


@pytest.mark.parametrize(
    ("method", "symmetric"), [("default", True), ("rtn", False), ("k_quant", False), ("hqq", False)]
)
def test_the_command_makes_each_configuration(
    method: str,
    symmetric: bool,  # noqa: FBT001 - of pytest
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["c", "--input_model", "a", "--output_model", "b", "--quant_method", method]
    monkeypatch.setattr(sys, "argv", words)
    given = ours._flags()
    config = ours._config(given)
    assert config.algorithm.lower() == method
    assert getattr(config, "is_symmetric", bool(given.symmetric)) is symmetric
