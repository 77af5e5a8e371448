"""`quantkit.ort.calibrate`: augmented models, ranges as onnxruntime's own calibraters find them, tables and caches."""

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as peer
import onnxruntime.quantization.calibrate as peer_calibrate
import pytest
from builders import conv_model, graph, model, node, rng, save, weight

from quantkit import ort
from quantkit.errors import DataError, OutputError, UsageError
from quantkit.ort import calibrate
from quantkit.ort.calibrate import CalibrationCacheEncoder, entropy

SAMPLES = 6


def samples(seed: int = 3) -> Any:
    return rng(seed).standard_normal((SAMPLES, 1, 3, 8, 8)).astype(np.float32) + 0.25


class Reader(ort.CalibrationDataReader):
    def __init__(self, seed: int = 3) -> None:
        self.rest = iter(samples(seed))
        self.given = 0

    def get_next(self) -> dict[str, Any] | None:
        found = next(self.rest, None)
        self.given += found is not None
        return None if found is None else {"x": found}


def test_a_reader_is_read_to_its_end(source: Path, tmp_path: Path) -> None:
    reader = Reader()
    reader.rest = iter(list(samples()) * 60)
    ort.quantize_static(source, tmp_path / "out.onnx", reader)
    assert reader.given == 60 * SAMPLES


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(conv_model(), tmp_path / "in.onnx")


def both(source: Path, folder: Path, method: str = "MinMax", **options: Any) -> list[Any]:
    """Return onnxruntime's calibrater and quantkit's, after the same two calls."""
    found = []
    for library in (peer, ort):
        made = library.create_calibrator(
            source,
            [],
            str(folder / f"{library.__name__}.onnx"),
            library.CalibrationMethod[method],
            extra_options=options,
        )
        made.collect_data(Reader())
        made.collect_data(Reader(4))
        found.append(made)
    return found


# --- augmented models ---


def test_an_augmented_model_gives_the_ends_of_each_tensor(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "augmented.onnx"
    calibrater = ort.create_calibrator(source, ["Relu"], path)
    augmented = calibrater.get_augment_model()
    onnx.checker.check_model(str(path), full_check=True)
    named = ["y", "m_ReduceMin", "m_ReduceMax", "a_ReduceMin", "a_ReduceMax"]
    assert [value.name for value in augmented.graph.output] == named
    assert [value.name for value in onnx.load(path).graph.output] == named
    assert calibrater.select_tensors_to_calibrate(calibrater.model)[0] == {"m", "a"}
    got = onnxruntime.InferenceSession(path).run(named[1:3], {"x": samples()[0]})
    assert [value.shape for value in got] == [(1,), (1,)]
    assert [v.name for v in calibrater.infer_session.get_outputs()] == named


def test_names_that_a_model_has_already_are_not_given_twice(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["x_ReduceMin"], "r"), node("Neg", ["x_ReduceMin"], ["y"], "n")]
    made = model(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]}))
    path = tmp_path / "augmented.onnx"
    calibrater = ort.create_calibrator(save(made, tmp_path / "in.onnx"), [], path)
    calibrater.collect_data([{"x": np.array([[1, 2, 3], [4, 5, -6]], np.float32)}])
    ends = {n: (e[0].item(), e[1].item()) for n, e in calibrater.compute_range().items()}
    assert ends == {"x": (-6, 5), "x_ReduceMin": (0, 5), "y": (-5, 0)}


@pytest.mark.parametrize("external", [False, True])
def test_weights_of_an_augmented_model_may_stand_beside_it(
    external: bool,  # noqa: FBT001
    source: Path,
    tmp_path: Path,
) -> None:
    big = conv_model()
    big.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.resize(weight(8, 3, 3, 3), (800, 3, 3, 3)), "w1")
    )
    big.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(weight(800), "b1"))
    big.graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(weight(4, 800, 1, 1), "w2"))
    save(big, source)
    path = tmp_path / "out" / "augmented.onnx"
    path.parent.mkdir()
    calibrater = ort.create_calibrator(source, [], path, use_external_data_format=external)
    calibrater.collect_data(Reader())
    assert len(list(path.parent.iterdir())) == 1 + external


def test_a_calibrater_of_its_own_leaves_no_file_behind(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calibrater = ort.MinMaxCalibrater(source)
    with pytest.raises(UsageError, match="augment_graph"):
        calibrater.create_inference_session()
    calibrater.collect_data(Reader())
    assert set(calibrater.compute_data()) == {"x", "m", "a", "y"}
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_the_model_itself_is_not_overwritten(source: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(UsageError, match="overwrite"):
        ort.create_calibrator(source, [], source)
    assert source.read_bytes() == before


def test_a_calibrater_can_be_written_by_others(source: Path, tmp_path: Path) -> None:
    class Largest(ort.CalibraterBase):
        def augment_graph(self) -> None:
            tensors, infos = self.select_tensors_to_calibrate(self.model)
            self.model.graph.output.extend(infos[t] for t in sorted(tensors - {"y"}))
            onnx.save(self.model, self.augmented_model_path)

        def collect_data(self, data_reader: Any) -> None:
            names = [output.name for output in self.infer_session.get_outputs()]
            runs = [self.infer_session.run(None, feeds) for feeds in data_reader]
            self.ends = {n: (np.float32(0), max(v.max() for v in c)) for n, *c in zip(names, *runs)}  # noqa: B905

        def compute_data(self) -> ort.TensorsData:
            return ort.TensorsData(ort.CalibrationMethod.MinMax, self.ends)

    made = Largest(source, ["Conv"], tmp_path / "augmented.onnx")
    made.augment_graph()
    made.create_inference_session()
    made.collect_data(Reader())
    assert made.compute_data()["x"].highest == samples().max()
    for call in (ort.CalibraterBase.augment_graph, ort.CalibraterBase.compute_data):
        with pytest.raises(NotImplementedError):
            call(made)
    with pytest.raises(NotImplementedError):
        ort.CalibraterBase.collect_data(made, Reader())


# --- ranges ---


@pytest.mark.filterwarnings("ignore")  # onnxruntime's own
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"symmetric": True},
        {"per_channel": True},
        {"moving_average": True, "averaging_constant": 0.25},
        {"moving_average": True, "symmetric": True, "per_channel": True},
    ],
)
def test_extremes_are_those_of_onnxruntimes_calibrater(
    options: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    if options.get("per_channel"):  # onnxruntime merges two calls of scalars only
        made = ort.create_calibrator(source, [], tmp_path / "a.onnx", extra_options=options)
        theirs = peer.create_calibrator(source, [], str(tmp_path / "b.onnx"), extra_options=options)
        made.collect_data(Reader())
        theirs.collect_data(Reader())
    else:
        theirs, made = both(source, tmp_path, **options)
    expected, found = theirs.compute_data(), made.compute_data()
    assert set(found.keys()) == set(expected.keys())
    for tensor in found:
        for ours, other in zip(
            found[tensor].range_value, expected[tensor].range_value, strict=True
        ):
            assert ours.dtype == other.dtype
            assert ours.shape == other.shape
            if options.get("moving_average"):
                np.testing.assert_allclose(ours, other, rtol=1e-6)
            else:
                np.testing.assert_array_equal(ours, other)


@pytest.mark.filterwarnings("ignore")
def test_a_distribution_has_onnxruntimes_mean_and_deviation(source: Path, tmp_path: Path) -> None:
    for scenario in ("same", "p3"):
        theirs, ours = both(source, tmp_path, "Distribution", scenario=scenario)
        expected, found = theirs.compute_data(), ours.compute_data()
        assert found.calibration_method is ort.CalibrationMethod.Distribution
        for tensor in found:
            mean, deviation = found[tensor].avg_std
            # The root of what shares a bin with 0 is lost in onnxruntime's.
            near = 0.03 if scenario == "same" else 0.2
            assert mean == pytest.approx(expected[tensor].avg_std[0], abs=near)
            assert deviation == pytest.approx(expected[tensor].avg_std[1], rel=near)
            assert found[tensor].hist.sum() == expected[tensor].hist.sum()
            assert found[tensor].highest == -found[tensor].lowest == found[tensor].hist_edges[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["Entropy", "Percentile"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_ranges_by_distribution_are_near_onnxruntimes(
    method: str,
    symmetric: bool,  # noqa: FBT001
    source: Path,
    tmp_path: Path,
) -> None:
    theirs, ours = both(source, tmp_path, method, symmetric=symmetric)
    expected, found = theirs.compute_data(), ours.compute_data()
    assert found.calibration_method is ort.CalibrationMethod[method]
    for tensor in found:
        low, high = found[tensor].range_value
        # Of few values the divergence says little; both leave out the same kind of tail.
        near = 0.25 if method == "Percentile" else 0.6
        assert high == pytest.approx(expected[tensor].range_value[1], rel=near)
        assert low.dtype == np.float32
        assert (low == -high) == (symmetric or (low == -high))
        assert found[tensor].hist.sum() == found[tensor].hist.astype(np.int64).sum() > 0


def test_half_floats_and_what_is_not_finite() -> None:
    nodes = [node("Log", ["x"], ["l"], "l"), node("Abs", ["l"], ["y"], "a")]
    made = model(graph(nodes, {"x": ["N", 2]}, {"y": ["N", 2]}))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    calibrater = ort.MinMaxCalibrater(made)
    calibrater.collect_data([{"x": np.array([[1, 4]], np.float16)}, {"x": np.zeros((1, 2), "e")}])
    found = calibrater.compute_data()
    assert found["l"].lowest.dtype == np.float16
    assert found["l"].range_value == (0, pytest.approx(np.log(4), rel=1e-3))


def test_parts_of_the_data_give_what_the_whole_gives(source: Path) -> None:
    for kind in (ort.MinMaxCalibrater, ort.EntropyCalibrater, ort.PercentileCalibrater):
        whole, parts = kind(source), kind(source)
        whole.collect_data(Reader())
        for array in samples():
            parts.collect_data([{"x": array}])
            parts.clear_collected_data()
        for ours, others in zip(
            whole.compute_range().values(), parts.compute_range().values(), strict=True
        ):
            assert ours == others


def test_what_is_wrong_is_said(source: Path, tmp_path: Path) -> None:
    made = ort.MinMaxCalibrater(source)
    with pytest.raises(UsageError, match="collect_data"):
        made.compute_data()
    with pytest.raises(UsageError, match="collect_data"):
        ort.EntropyCalibrater(source).compute_data()
    with pytest.raises(DataError, match="no samples"):
        made.collect_data(iter([]))
    with pytest.raises(DataError):
        made.collect_data([{"x": np.zeros((1, 4, 8, 8), np.float32)}])
    path = tmp_path / "a.onnx"
    with pytest.raises(UsageError, match="has no option 'bins'"):
        ort.create_calibrator(source, [], path, extra_options={"bins": 3})
    with pytest.raises(UsageError, match="Unknown calibration method"):
        ort.create_calibrator(source, [], path, "Median")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="averaging_constant"):
        ort.MinMaxCalibrater(source, moving_average=True, averaging_constant=2)
    with pytest.raises(UsageError, match="percentile"):
        ort.PercentileCalibrater(source, percentile=300)
    with pytest.raises(UsageError, match="512 bins"):
        ort.DistributionCalibrater(source, num_bins=100)
    with pytest.raises(UsageError, match="scenario"):
        ort.DistributionCalibrater(source, scenario="p4")
    with pytest.raises(UsageError, match="method"):
        ort.EntropyCalibrater(source, method="median")


def test_a_provider_that_is_not_there_is_said(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        made = ort.create_calibrator(
            source,
            [],
            tmp_path / "a.onnx",
            providers=["NoSuchExecutionProvider"],
            extra_options={"percentile": 99.0},
        )
        made.set_execution_providers(["CPUExecutionProvider"])
    assert "no NoSuchExecutionProvider here" in caplog.text
    assert "No effect on MinMaxCalibrater: percentile" in caplog.text
    made.collect_data(Reader())


@pytest.mark.parametrize(
    "name",
    [
        "CalibraterBase",
        "DistributionCalibrater",
        "EntropyCalibrater",
        "HistogramCalibrater",
        "MinMaxCalibrater",
        "PercentileCalibrater",
        "create_calibrator",
        "entropy",
        "save_tensors_data",
    ],
)
def test_parameters_are_onnxruntimes(name: str) -> None:
    ours = list(inspect.signature(getattr(calibrate, name)).parameters)
    theirs = list(inspect.signature(getattr(peer_calibrate, name)).parameters)
    assert ours == theirs


def test_divergence_is_that_of_scipy() -> None:
    from scipy import stats

    p, q = rng().random((2, 16))
    assert entropy(p, q) == pytest.approx(stats.entropy(p, q), rel=1e-5)
    assert entropy(p, q, base=2) == pytest.approx(stats.entropy(p, q, base=2), rel=1e-5)
    with pytest.raises(UsageError, match="base"):
        entropy(p, q, base=-1)


# --- readers ---


def test_readers_are_told_by_what_they_do() -> None:
    class Duck:
        def get_next(self) -> None:
            return None

    assert isinstance(Duck(), ort.CalibrationDataReader)
    assert not isinstance(3, ort.CalibrationDataReader)
    assert len(list(Reader())) == SAMPLES
    for kind in (TypeError, NotImplementedError):
        with pytest.raises(kind):
            len(Reader())
        with pytest.raises(kind):
            Reader().set_range(0, 2)


class Windows(ort.CalibrationDataReader):
    """Shows the first window of its samples until it is told to show another."""

    def __init__(self, shown: int) -> None:
        self.all = [{"x": array} for array in samples()]
        self.set_range(0, shown)
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self.all)

    def set_range(self, start_index: int, end_index: int) -> None:
        self.rest = iter(range(start_index, end_index))

    def get_next(self) -> dict[str, Any] | None:
        number = next(self.rest, None)
        if number is None:
            return None
        self.seen.append(number)
        return self.all[number]


@pytest.mark.parametrize("stride", [2, 4])
def test_a_reader_is_read_a_window_at_a_time(stride: int, source: Path, tmp_path: Path) -> None:
    reader, options = Windows(stride), {"CalibStridedMinMax": stride}
    result = ort.quantize_static(
        source,
        tmp_path / "o.onnx",
        reader,
        calibrate_method=ort.CalibrationMethod.MinMax,
        extra_options=options,
    )
    assert reader.seen == list(range(SAMPLES))
    assert result.plan.activation["x"].high == pytest.approx(samples().max(), rel=1e-2)
    with pytest.raises(UsageError, match="number of samples"):
        ort.quantize_static(
            source, tmp_path / "p.onnx", reader, extra_options={"CalibStridedMinMax": "2"}
        )
    with pytest.raises(UsageError, match="set_range"):
        ort.quantize_static(source, tmp_path / "p.onnx", samples(), extra_options=options)


# --- tables ---


@pytest.mark.skipif(not hasattr(peer, "save_tensors_data"), reason="an older onnxruntime")
@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile", "Distribution"])
def test_tables_are_read_by_either(method: str, source: Path, tmp_path: Path) -> None:
    made = ort.create_calibrator(
        source, [], tmp_path / "a.onnx", ort.CalibrationMethod[method], extra_options={}
    )
    made.collect_data(Reader())
    found = made.compute_data()
    ort.save_tensors_data(found, tmp_path / "new" / "folder" / "ours.json")
    theirs = peer.load_tensors_data(tmp_path / "new" / "folder" / "ours.json")
    assert theirs.calibration_method is peer.CalibrationMethod[method]
    peer.save_tensors_data(theirs, tmp_path / "theirs.json")
    again = ort.load_tensors_data(tmp_path / "theirs.json")
    assert again.calibration_method is ort.CalibrationMethod[method]
    for tensor, data in found.items():
        for name, value in vars(data).items():
            np.testing.assert_array_equal(getattr(again[tensor], name), value)
    text = json.dumps(found, cls=CalibrationCacheEncoder)
    assert set(ort.TensorsData.from_dict(json.loads(text))) == set(found)


def test_objects_of_onnxruntimes_own_are_written(source: Path, tmp_path: Path) -> None:
    theirs = peer.create_calibrator(source, [], str(tmp_path / "a.onnx"))
    theirs.collect_data(Reader())
    found = theirs.compute_data()
    ort.save_tensors_data(found, tmp_path / "k.json")
    assert ort.load_tensors_data(tmp_path / "k.json").calibration_method.name == "MinMax"
    ort.write_calibration_table(found, tmp_path)
    assert set(ort.load_tensors_data(tmp_path / "calibration.json")) == set(found.keys())


def test_tables_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(UsageError, match="no table"):
        ort.load_tensors_data(tmp_path / "bad.json")
    for kind in (UsageError, FileNotFoundError):
        with pytest.raises(kind, match="There is no table"):
            ort.load_tensors_data(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        ort.save_tensors_data(
            ort.TensorsData(ort.CalibrationMethod.MinMax, {}), tmp_path / "file" / "t.json"
        )


def test_what_a_tensor_can_be_made_of() -> None:
    with pytest.raises(ValueError, match="no 'median'"):
        ort.TensorData(median=1)
    with pytest.raises(ValueError, match="a number or an array"):
        ort.TensorData(lowest="low")
    with pytest.raises(TypeError, match="neither"):
        ort.TensorsData(ort.CalibrationMethod.MinMax, {"x": (1, 2, 3)})
    with pytest.raises(TypeError, match="names"):
        ort.TensorsData(ort.CalibrationMethod.MinMax, {1: (1, 2)})  # type: ignore[dict-item]
    edges = np.arange(4, dtype=np.float32)
    theirs = peer.TensorData(lowest=np.float32(1), highest=np.float32(2))
    table = ort.TensorsData(
        ort.CalibrationMethod.Entropy,
        {"x": (np.float64(0), np.float64(3), np.arange(3), edges), "y": theirs},
    )
    assert table["x"].highest.dtype == np.float32
    assert table["x"].bins is edges
    assert table["y"].range_value == (1, 2)
    with pytest.raises(AttributeError, match="avg"):
        _ = table["y"].avg_std
    with pytest.raises(UsageError, match="not dict"):
        ort.save_tensors_data({}, "k.json")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no ranges"):
        ort.write_calibration_table(None)
    with pytest.raises(RuntimeError, match="'z'"):
        table["z"] = table["x"]


# --- caches ---


def test_a_cache_is_a_table_that_is_used_the_second_time(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "k.json"
    first = ort.quantize_static(source, tmp_path / "a.onnx", Reader(), calibration_cache_path=path)
    table = ort.load_tensors_data(path)
    assert set(table) == {"x", "m", "a", "y"}
    assert table.calibration_method == "mse"
    assert peer.load_tensors_data(path).calibration_method == "mse"
    reader = Reader()
    second = ort.quantize_static(source, tmp_path / "b.onnx", reader, calibration_cache_path=path)
    assert reader.given == 0
    assert first.plan == second.plan
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert not any("another model" in warning for warning in second.warnings)


def test_a_cache_of_a_graph_that_is_asked_for_holds_extremes(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    for name, reader in (("a.onnx", Reader()), ("b.onnx", None)):
        ort.quantize_static(
            source, tmp_path / name, reader, ort.QuantFormat.QDQ, calibration_cache_path=path
        )
    assert peer.load_tensors_data(path).calibration_method == peer.CalibrationMethod.MinMax
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_cache_may_be_a_calibration_of_quantkits(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "k.calibration"
    methods = [None, ort.CalibrationMethod.Entropy, ort.CalibrationMethod.MinMax]
    for reader, method in zip([Reader(), None, None], methods, strict=True):
        ort.quantize_static(
            source,
            tmp_path / "o.onnx",
            reader,
            calibrate_method=method,
            calibration_cache_path=path,
        )


def test_a_cache_by_another_method_is_not_used(source: Path, tmp_path: Path) -> None:
    path, target = tmp_path / "k.json", tmp_path / "o.onnx"

    def call(reader: Any, method: str | None, **options: Any) -> None:
        ort.quantize_static(
            source,
            target,
            reader,
            calibrate_method=None if method is None else ort.CalibrationMethod[method],
            calibration_cache_path=path,
            extra_options=options,
        )

    call(Reader(), "MinMax")
    before = path.read_bytes()
    for reader in (Reader(), None):
        with pytest.raises(ValueError, match="by MinMax, and Entropy is asked for"):
            call(reader, "Entropy")
    call(None, "MinMax")
    call(None, None)
    assert path.read_bytes() == before
    path.unlink()
    call(Reader(), "Percentile", CalibPercentile=99.0)
    with pytest.raises(ValueError, match=r"Percentile \(keep 99.0\), and Percentile \(keep 99.9\)"):
        call(None, "Percentile", CalibPercentile=99.9)


def test_a_cache_of_another_model_is_said(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    ort.quantize_static(source, tmp_path / "a.onnx", Reader(), calibration_cache_path=path)
    other = conv_model()
    other.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(weight(8, 3, 3, 3, seed=9), "w1")
    )
    result = ort.quantize_static(other, tmp_path / "b.onnx", calibration_cache_path=path)
    assert any("another model" in warning for warning in result.warnings)


def test_a_cache_of_a_smoothed_model_is_made_anew(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, target = tmp_path / "k.json", tmp_path / "o.onnx"
    table = ort.TensorsData(ort.CalibrationMethod.MinMax, {"x": (-1.0, 1.0)})
    ort.save_tensors_data(table, path, smooth_quant=True)
    with pytest.raises(UsageError, match="calibration_data_reader"):
        ort.quantize_static(source, target, calibration_cache_path=path)
    ort.quantize_static(source, target, Reader(), calibration_cache_path=path)
    assert "smooth_quant" in caplog.text
    assert json.loads(path.read_text())["smooth_quant"] is False


def test_smoothing_needs_the_data_itself(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, options = tmp_path / "k.json", {"SmoothQuant": True}
    with pytest.raises(UsageError, match="SmoothQuant looks at channels"):
        ort.quantize_static(
            source, tmp_path / "o.onnx", calibration_cache_path=path, extra_options=options
        )
    ort.quantize_static(
        source, tmp_path / "o.onnx", Reader(), calibration_cache_path=path, extra_options=options
    )
    assert "is not used" in caplog.text
    assert not path.exists()


def test_caches_that_cannot_be(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    for kind in (UsageError, FileNotFoundError):
        with pytest.raises(kind, match="calibration_data_reader"):
            ort.quantize_static(source, target, calibration_cache_path=tmp_path / "no")
    with pytest.raises(UsageError, match="calibration_data_reader"):
        ort.quantize_static(source, target)
    with pytest.raises(UsageError, match="directory"):
        ort.quantize_static(source, target, Reader(), calibration_cache_path=tmp_path)
    with pytest.raises(UsageError, match="no table of ranges: it is no text"):
        ort.quantize_static(source, target, Reader(), calibration_cache_path=source)
    assert not target.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lowest": float("nan")}, "range of tensor 'x' is none: nan"),
        ({"highest": float("inf")}, "range of tensor 'x' is none"),
        ({"lowest": 5.0, "highest": -5.0}, "is none: 5 to -5"),
        ({"lowest": "low"}, "no table of ranges"),
        ({"lowest": None}, "no range of tensor 'x'"),
    ],
)
def test_a_cache_that_was_damaged_is_refused(
    change: dict[str, Any], said: str, source: Path, tmp_path: Path
) -> None:
    path, target = tmp_path / "k.json", tmp_path / "o.onnx"
    ort.quantize_static(source, target, Reader(), calibration_cache_path=path)
    target.unlink()
    table = json.loads(path.read_text())
    for key, value in change.items():
        if value is None:
            del table["data"]["x"][key]
        else:
            table["data"]["x"][key]["data"] = value
    path.write_text(json.dumps(table | {"model": 3, "settings": [1]}))
    with pytest.raises(UsageError, match=said):
        ort.quantize_static(source, target, calibration_cache_path=path)
    assert not target.exists()


def test_a_cache_is_not_the_output(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    with pytest.raises(UsageError, match="one file"):
        ort.quantize_static(source, target, Reader(), calibration_cache_path=target)
    assert not target.exists()


def test_a_tensor_without_values_has_no_extent() -> None:
    made = model(
        graph([node("Concat", ["x", "z"], ["y"], "c", axis=0)], {"x": [2], "z": [0]}, {"y": [2]})
    )
    feeds = {"x": np.array([1, 2], np.float32), "z": np.zeros(0, np.float32)}
    for kind in (ort.MinMaxCalibrater, ort.PercentileCalibrater, ort.DistributionCalibrater):
        calibrater: Any = kind(made)
        calibrater.collect_data([feeds])
        ends = calibrater.compute_range()["z"]
        assert [float(np.ravel(end)[0]) for end in ends] == [0, 0]


def test_a_table_of_onnxruntimes_is_a_cache(source: Path, tmp_path: Path) -> None:
    def array(value: float) -> dict[str, Any]:
        return {"data": value, "dtype": "float32", "CLS": "numpy.array"}

    ends = {"x": (-4.0, 4.0), "a": (0.0, 3.0), "y": (-2.0, 2.0)}
    table = {
        "CLS": "TensorsData",
        "data": {
            name: {"lowest": array(low), "highest": array(high), "CLS": "TensorData"}
            for name, (low, high) in ends.items()
        },
        "calibration_method": {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"},
    }
    (tmp_path / "table.json").write_text(json.dumps(table))
    result = ort.quantize_static(
        source, tmp_path / "o.onnx", calibration_cache_path=tmp_path / "table.json"
    )
    assert result.plan.activation["a"].high == pytest.approx(3.0)
    assert not any("another model" in warning for warning in result.warnings)
