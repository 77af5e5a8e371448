"""Names are shown and never obeyed: in the terminal, on the page, in Markdown, JUnit, pictures and badges."""

import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from builders import graph, model, node, rng, save, weight
from hypothesis import given
from hypothesis import strategies as st
from result_cases import example_result
from rich.table import Table

from quantkit import quantize_dynamic
from quantkit.cli.app import run
from quantkit.cli.console import errors, output, write_json_text
from quantkit.evaluate.gate import badge, judge, junit_xml
from quantkit.evaluate.report import picture_svg, render_html, render_markdown
from quantkit.result import Result
from quantkit.text import printable

# Clears the screen, rings, sets a colour by C1, turns the direction, makes a line of its own, is markup of rich, an emoji, HTML.
NASTY = (
    "\x1b[2J\x07\x9b31m\u202egnp\u2066\x7f\nerror: fake\r[red]:smile:[/]|`<script>alert(1)</script>"
)
K = 16


def unfit(text: str) -> set[str]:
    found = {c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    return found - {"\n"}


def shown_safely(text: str) -> None:
    assert not unfit(text), sorted(map(repr, unfit(text)))
    assert not any(line.lstrip("│ ").startswith("error: fake") for line in text.splitlines())


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    nodes = [
        node("MatMul", [f"x{NASTY}", f"w{NASTY}"], ["m"], f"mm{NASTY}"),
        node("Relu", ["m"], [f"y{NASTY}"], f"r{NASTY}"),
    ]
    held = {f"w{NASTY}": weight(K, K)}
    proto = model(graph(nodes, {f"x{NASTY}": ["N", K]}, {f"y{NASTY}": ["N", K]}, held))
    save(proto, tmp_path / "m.onnx")
    name = NASTY.replace("/", "")
    save(proto, tmp_path / f"{name}.onnx")
    arrays: dict[str, Any] = {f"z{name}": rng().standard_normal((40, K))}
    np.savez(tmp_path / "d.npz", **arrays)
    np.save(tmp_path / f"{name}.npy", rng().standard_normal((40, K)).astype(np.float32))
    return tmp_path


FILE = NASTY.replace("/", "")
COMMANDS = {
    "inspect": ["inspect", f"{FILE}.onnx", "--nodes", "--weights", "2"],
    "inspect-json": ["inspect", "m.onnx", "--json"],
    "dynamic": ["quantize", "dynamic", "m.onnx", f"{FILE}.int8.onnx"],
    "static": ["quantize", "static", "m.onnx", "o.onnx", "--data", f"{FILE}.npy"],
    "static-npz": ["quantize", "static", "m.onnx", "o.onnx", "--data", "d.npz"],
    "optimize": ["optimize", "m.onnx", f"{FILE}.o.onnx"],
    "calibrate": ["calibrate", "m.onnx", "--data", f"{FILE}.npy", "-o", f"{FILE}.c", "--all"],
    "calibrate-json": ["calibrate", "m.onnx", "--data", f"{FILE}.npy", "-o", "c", "--json"],
    "plan": ["plan", "m.onnx", "--data", f"{FILE}.npy", "--nodes"],
    "evaluate": ["evaluate", "m.onnx", "q.onnx", "--data", f"{FILE}.npy", "--title", NASTY],
    "evaluate-json": ["evaluate", "m.onnx", f"{FILE}=q.onnx", "--data", f"{FILE}.npy", "--json"],
    "diff": ["diff", "m.onnx", "q.onnx"],
    "verify": ["verify", "q.onnx", "--float", "m.onnx"],
    "no-such-model": ["inspect", f"{FILE}.none"],
    "no-such-flag": ["inspect", "m.onnx", f"--{NASTY}"],
    "no-such-command": [NASTY],
    "no-such-node": ["quantize", "dynamic", "m.onnx", "o.onnx", "--exclude", NASTY],
}
REFUSED = {"no-such-model", "no-such-flag", "no-such-command", "no-such-node"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.slow
def test_no_command_lets_a_name_reach_the_terminal(
    command: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantize_dynamic(work / "m.onnx", work / "q.onnx")
    arguments = COMMANDS[command]
    if arguments[0] == "evaluate":
        arguments = [*arguments, "--skip", "latency", "--skip", "memory", "--skip", "fidelity"]
    code = run(arguments)
    said = capsys.readouterr()
    assert code == 2 * (command in REFUSED), said.err
    for text in (said.out, said.err):
        shown_safely(text)
    if command in {"inspect", "dynamic", "optimize", "plan"}:
        assert "[red]:smile:[/]" in said.out


def test_consoles_show_what_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.markup import escape

    table = Table(title=escape(NASTY))
    table.add_column(escape(NASTY))
    table.add_row(escape(NASTY))
    for console in (output(), errors()):
        console.print(table, width=300)
        console.print(escape(NASTY), width=300)
        console.print(NASTY, markup=False, width=300)
    write_json_text('{"a": "\x9b\u202e\x7f"}')
    said = capsys.readouterr()
    for text in (said.out, said.err):
        shown_safely(text)
        assert text.count("[red]:smile:[/]") >= 4
    assert said.out.endswith('{"a": "\\u009b\\u202e\\u007f"}\n')


def hostile() -> Result:
    result = example_result()
    models = [replace(m, name=f"{m.name}{NASTY}", warnings=(NASTY,)) for m in result.models]
    return replace(result, title=NASTY, models=tuple(models), notes=(NASTY,), verdicts=())


def test_views_of_a_result_hold_nothing_that_acts() -> None:
    result = hostile()
    verdicts = judge(result, result.rules)
    page, junit = render_html(result), junit_xml(result, verdicts)
    for text in (page, render_markdown(result), junit, picture_svg(result)):
        assert not unfit(text), sorted(map(repr, unfit(text)))
        assert "<script>alert" not in text
    ET.fromstring(junit)  # noqa: S314 - our own
    ET.fromstring(picture_svg(result))  # noqa: S314 - our own
    assert not unfit(badge(result, verdicts))
    assert "\n" not in badge(result, verdicts)


@given(st.text())
def test_printable_text_is_printable_and_stays(text: str) -> None:
    shown = printable(text)
    assert not unfit(shown) - {"\u200c", "\u200d"}
    assert "\n" not in shown
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text
    shown.encode()
