"""What the README and the docs say is so: links lead somewhere, examples run, the reference is what the code gives."""

import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from doc_pages import (
    GUIDES,
    PAGES,
    ROOT,
    Example,
    anchors,
    dead_links,
    examples,
    inline_code,
    named,
)

from quantkit.api.evaluate import _write_inputs
from quantkit.cli.app import app, run
from quantkit.samples import fashion_mnist
from quantkit.settings import load_recipe
from quantkit.targets import TARGETS

WORKFLOW = ROOT / "docs" / "ci" / "quantkit-gate.yml"
SITE = ROOT / "docs" / "mkdocs.yml"
MOST_LINES = 150  # of the README: what, two commands, the picture, five minutes, proof, links


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(dead_links(page)) == []


def test_dead_links_are_found() -> None:
    page = ROOT / "README.md"
    text = (
        "# A `b`, c\n\n[x](none.md) ![y](none.svg) [z](#a-b-c) [w](#d) [v](LICENSE) `[u](none)`\n"
    )
    found = [line.split(": ")[1] for line in dead_links(page, text)]
    assert found == ["none.md", "none.svg", "#d"]
    assert anchors("# A\n## A\n```sh\n# B\n```\n") == {"a", "a-1"}


def test_the_readme_stays_one_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def _pages_of(nav: Any) -> Iterator[str]:
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from _pages_of(value) if isinstance(value, list) else [value]


def test_every_guide_is_in_the_navigation_once() -> None:
    listed = list(_pages_of(yaml.safe_load(SITE.read_text(encoding="utf-8"))["nav"]))
    assert [page for page in listed if not (ROOT / page).is_file()] == []
    guides = {named(page) for page in PAGES if "docs" in page.relative_to(ROOT).parts}
    assert guides - set(listed) == set()
    assert len(listed) == len(set(listed))


def test_the_reference_is_what_the_code_gives() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "reference.py"))["pages"]()
    stale = [named(p) for p, text in made.items() if p.read_text(encoding="utf-8") != text]
    assert stale == [], "run: python docs/reference.py"


def test_every_extra_is_told_of() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    names = extras["optional-dependencies"].keys() - {"bench"}  # `make bench` installs it
    assert [name for name in sorted(names) if f"| `{name}` |" not in told] == []


def test_every_target_is_told_of() -> None:
    told = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
    assert [name for name in TARGETS if f"| `{name}`" not in told] == []


def _commands(text: str) -> list[list[str]]:
    """The command lines of quantkit in a script."""
    parts = [part.strip() for line in text.splitlines() for part in line.split(" && ")]
    return [shlex.split(part, comments=True)[1:] for part in parts if part.startswith("quantkit ")]


def _leaves(command: Any) -> Iterator[Any]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield command
    for one in (inner or {}).values():
        yield from _leaves(one)


@pytest.fixture(scope="module")
def parser() -> Any:
    """The command line, whose commands do nothing but take what they are given."""
    root: Any = typer.main.get_command(app)
    for command in _leaves(root):
        command.callback = lambda **_: None
    return root


SCRIPTS = [example for page in PAGES for example in examples(page, "sh")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.place)
def test_every_command_line_is_one(
    script: Example, parser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in _commands(script.code):
        if arguments[0] != "--install-completion":  # is read before the commands are
            parser.main(args=arguments, prog_name="quantkit", standalone_mode=False)


def test_command_lines_are_found_and_judged(parser: Any) -> None:
    assert sum(len(_commands(script.code)) for script in SCRIPTS) > 40
    usage_error: Any = typer.BadParameter.__base__  # typer's own, or click's in older ones
    with pytest.raises(usage_error, match="No such option"):
        parser.main(args=["gate", "report", "--junk"], standalone_mode=False)


def test_every_flag_in_the_text_exists(parser: Any) -> None:
    known = {
        name
        for command in _leaves(parser)
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
    } | {"--help", "--version", "--install-completion", "--directory"}
    told = {
        (named(page), word.strip("`,;"))
        for page in GUIDES
        for code in inline_code(page)
        for word in code.split()
        if word.strip("`").startswith("--")
    }
    assert [(page, flag) for page, flag in sorted(told) if flag.split("=")[0] not in known] == []


TABLES = [example for page in GUIDES for example in examples(page, "toml")]


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.place)
def test_every_table_loads(table: Example, tmp_path: Path) -> None:
    file = tmp_path / "quantkit.toml"
    file.write_text(table.code, encoding="utf-8")
    assert load_recipe(file).text == table.code


def test_the_workflow_is_one_and_its_commands_are_too(parser: Any) -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    steps = workflow["jobs"]["gate"]["steps"]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    assert workflow["env"] == {"QUANTKIT_MEASURE": "0"}
    assert not any(
        "cache" in step.get("with", {}) for step in steps
    )  # it needs a requirements file
    assert "QUANTKIT_SOURCE:?" in next(s["run"] for s in steps if s.get("name") == "Install")
    commands = [c for step in steps for c in _commands(step.get("run", ""))]
    assert [c[0] for c in commands] == ["quantize", "evaluate", "gate"]
    for arguments in commands:
        parser.main(args=arguments, prog_name="quantkit", standalone_mode=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what examples name: model.onnx, images/ to calibrate with, held-out/ to judge with."""
    sample = fashion_mnist()
    (tmp_path / "model.onnx").write_bytes(sample.model.read_bytes())
    for name, part in (("images", slice(0, 48)), ("held-out", slice(48, 400))):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "part.npz", image=sample.images[part], label=sample.labels[part])
    monkeypatch.chdir(tmp_path)
    return tmp_path


SCRIPTED = [page for page in GUIDES if list(examples(page, "python"))]


@pytest.mark.parametrize("page", SCRIPTED, ids=named)
@pytest.mark.usefixtures("project")
@pytest.mark.slow
def test_the_python_of_a_page_runs(page: Path) -> None:
    scope: dict[str, object] = {"__name__": "__main__"}
    for example in examples(page, "python"):
        for package in example.needs:
            pytest.importorskip(package, reason=f"{example.place} needs {package}")
        exec(compile(example.code, example.place, "exec"), scope)  # noqa: S102


def _first_steps(page: str) -> list[list[str]]:
    """The commands that a page runs in the folder of the demo."""
    found = [c for example in examples(ROOT / page, "sh") for c in _commands(example.code)]
    last = next(i for i, command in enumerate(found) if command[0] == "gate")
    return [command for command in found[: last + 1] if command != ["demo"]]


def test_the_first_five_minutes_are_as_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _first_steps("docs/first-model.md")
    assert [c[0] for c in commands] == ["inspect", "quantize", "evaluate", "gate"]
    assert commands == _first_steps("README.md")
    _write_inputs(tmp_path)  # what `quantkit demo` leaves to go on with; its own run has a test
    monkeypatch.chdir(tmp_path)
    for arguments in commands:
        assert run(arguments) == 0
    said = capsys.readouterr().out
    for told in ("5 of 5 layers", "1.1 MB -> 283.", "93.70%", "quantkit gate: passed"):
        assert told in said
        for page in ("README.md", "docs/first-model.md"):
            assert told in (ROOT / page).read_text(encoding="utf-8")
