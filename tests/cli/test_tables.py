"""Tables fit the terminal: columns go first, then the part of a name that tells nothing."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from builders import graph, model, node, weight
from hypothesis import given
from hypothesis import strategies as st
from report_cases import without_quantiles
from result_cases import example_result
from rich.console import Console

import quantkit
from quantkit.cli.calibrate import _table as calibration_table
from quantkit.cli.console import Column, fitted_table, shortened
from quantkit.cli.evaluate import evaluation_table, present
from quantkit.cli.progress import _print_description
from quantkit.data.model import Description
from quantkit.pipeline.split import Split
from quantkit.result import OutputDrift

LAYERS = [f"/encoder/layer.{i}/attention/self/{op}_output_0" for i in range(12) for op in ("MatMul", "MatMul_1", "Add")]  # fmt: skip


def printed(width: int, columns: list[Column], rows: list[list[str]]) -> list[str]:
    console = Console(width=width, file=StringIO())
    console.print(fitted_table("title", columns, rows, width=width))
    text = console.file
    assert isinstance(text, StringIO)
    return text.getvalue().splitlines()


def test_what_tells_names_apart_stays() -> None:
    found = shortened(LAYERS, 32)
    assert len(set(found)) == len(LAYERS)
    assert max(map(len, found)) <= 32
    assert found[0].startswith("…layer.0/")
    assert found[0].endswith("MatMul_output_0")


def test_names_are_cut_around_what_differs() -> None:
    names = [f"mobilenet_v2_{how}_calibrated_on_imagenet" for how in ("minmax", "entropy", "mse")]
    found = shortened(names, 16)
    assert max(map(len, found)) <= 16
    for text, how in zip(found, ("minmax", "entropy", "mse"), strict=True):
        assert how in text
        assert text.startswith("mobil")


def test_an_evaluation_shows_every_column_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = example_result()
    long = (replace(m, name=f"mobilenet_v2_of_a_paper_{m.name}") for m in result.models)
    console = Console(width=80, file=StringIO())
    console.print(evaluation_table(replace(result, models=tuple(long))))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if "model" in line)
    assert head.split() == ["model", "size", "top-1", "drop", "most", "flips", "dB", "time", "int8"]
    for shown in result.models:
        assert any(shown.name.split()[-1] in line for line in lines)


def test_quantiles_of_the_samples_fit_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    plain = example_result()
    model = plain.candidates[0]
    assert model.drift is not None
    outputs = [
        replace(o, output="/decoder/head/boxes/concat_output_0") for o in model.drift.outputs
    ]
    outputs.append(OutputDrift(output="scores", sqnr_db=40.0))
    drift = replace(model.drift, outputs=tuple(outputs))
    models = (plain.models[0], model, replace(model, name="second", drift=drift))
    present(replace(plain, models=models), [Path("result.json")] * 3)
    lines = [line for line in capsys.readouterr().out.splitlines() if "per sample" in line]
    assert lines[0] == "    SQNR per sample: median 31.6, 1 % below 24.1, worst 19.4 dB"
    assert lines[1].startswith("    SQNR per sample of '/dec")
    assert lines[1].endswith("': median 31.6, 1 % below 24.1, worst 19.4 dB")
    assert len(lines[1]) <= 80


def test_files_of_older_versions_have_no_line_about_samples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    present(without_quantiles(), [Path("result.json")] * 3)
    shown = capsys.readouterr().out
    assert "31.2" in shown
    assert "per sample" not in shown


def test_thousands_of_samples_are_written_as_in_reports(capsys: pytest.CaptureFixture[str]) -> None:
    _print_description(Description(kind="npz", location="x.npz", samples=1872), "")
    assert capsys.readouterr().out == "data      x.npz: npz, 1,872 samples, labels: none\n"
    parts = [tuple(range(count)) for count in (256, 646, 1970)]
    found = Split(calibration=parts[0], choosing=parts[1], judging=parts[2], available=2872)
    said = "2,872 samples: 256 for calibration, 646 for selection, 1,970 for the final check"
    assert str(found) == said


def test_short_names_stay_as_they_are() -> None:
    names = ["x", "logits", "/encoder/layer.1/very/long/name/of/a/tensor_output_0"]
    assert shortened(names, 20)[:2] == names[:2]
    assert shortened(LAYERS, 100) == LAYERS


@given(st.lists(st.text("ab/._0", min_size=1, max_size=60), max_size=8), st.integers(12, 40))
def test_a_name_never_gets_longer_than_there_is_room(names: list[str], width: int) -> None:
    found = shortened(names, width)
    assert all(len(text) <= width for text in found)
    for name, text in zip(names, found, strict=True):
        assert text == name or (len(name) > width and "…" in text)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_columns_go_before_names_are_cut_short(width: int) -> None:
    columns = [Column(title="tensor"), Column(title="range")]
    columns += [Column(title=f"clips {i}", drop=2) for i in range(4)] + [
        Column(title="differ", drop=1)
    ]
    rows = [[name, "-1.25 .. 3.75", "0.01%", "0.02%", "0.03%", "0.04%", "5.0%"] for name in LAYERS]
    lines = printed(width, columns, rows)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert ("clips" in text) == (width > 80)
    assert ("differ" in text) == (width > 40)
    assert text.count("-1.25 .. 3.75") == len(rows)  # what stays is whole
    firsts = {line.split()[0] for line in lines if "-1.25" in line}
    assert len(firsts) == len(rows)


def test_what_a_name_asks_of_a_terminal_is_shown_not_done() -> None:
    lines = printed(60, [Column(title="tensor"), Column(title="n")], [["[red]a[/]", "1"]])
    assert any("[red]a[/]" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_tensors_of_a_transformer_are_told_apart(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    nodes, weights, last = [], {}, "x"
    for i in range(8):
        name = f"/encoder/layer.{i}/intermediate/intermediate_act_fn/dense/MatMul_output_0"
        weights[f"w{i}"] = weight(16, 16, seed=i)
        nodes.append(node("MatMul", [last, f"w{i}"], [name], f"m{i}"))
        last = name
    proto = model(graph(nodes, {"x": ["N", 16]}, {last: ["N", 16]}, weights))
    data = {"x": np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)}
    console = Console(width=width, file=StringIO())
    console.print(calibration_table(quantkit.calibrate(proto, data), all_tensors=True))
    assert isinstance(console.file, StringIO)
    rows = [line for line in console.file.getvalue().splitlines() if "layer." in line]
    assert len({row.split()[0] for row in rows}) == len(rows) == 8
