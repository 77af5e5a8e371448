"""The examples of CONTRIBUTING.md are run as they stand there: installed as a package, found by name, called."""

import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, op_types, rng, save, weight

from quantkit.cli.app import run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(
    re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
)
COMMANDS = [line.split()[1:] for line in re.findall(r"^quantkit .*$", TEXT, re.MULTILINE)]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package of the examples, installed: on the path, with the metadata that pip would write."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "site"
    for name, text in FILES.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    groups = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    info = home / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(home))
    yield home
    for name in [n for n in sys.modules if n.partition(".")[0] == "my_package"]:
        del sys.modules[name]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "ARCHITECTURE.md", "docs/design.md"])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py|/)?)`", text)
    known = [path for path in named if path.split("/")[0] not in {"my_package", "reports"}]
    assert len(known) > 20
    places = (ROOT, ROOT / "quantkit")
    assert [path for path in known if not any((place / path).exists() for place in places)] == []


def test_the_examples_are_found() -> None:
    assert {"my_package/negations.py", "my_package/margins.py", "pyproject.toml"} <= set(FILES)
    assert [c[0] for c in COMMANDS] == ["optimize", "evaluate"]


@pytest.mark.parametrize("name", ["tests/test_negations.py", "tests/test_margins.py"])
def test_the_tests_of_the_examples_pass(package: Path, name: str) -> None:
    found = runpy.run_path(str(package / name))
    tests = [value for key, value in found.items() if key.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


@pytest.mark.usefixtures("package")
def test_the_commands_of_the_examples_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Neg", ["m"], ["n"]),
        node("Neg", ["n"], ["y"]),
    ]
    proto = model(graph(nodes, {"x": ["N", 6]}, {"y": ["N", 4]}, {"w": weight(6, 4)}))
    save(proto, tmp_path / "model.onnx")
    x = rng().standard_normal((40, 6)).astype(np.float32)
    np.savez("samples.npz", x=x, label=np.arange(40) % 4)
    assert run(COMMANDS[0]) == 0
    assert op_types(onnx.load("small.onnx")) == ["MatMul", "Identity"]
    assert run([*COMMANDS[1], "--skip", "latency", "--skip", "memory"]) == 0
    shown = capsys.readouterr().out
    assert "no_double_negation 1" in shown
    assert "margin" in shown
