import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import quantkit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = "quantkit-onnx"  # "quantkit" on PyPI is somebody else's
TEXTS = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".html", ".ipynb", ".cfg", ".sh", ""}


def tracked() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().splitlines()]


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["name"] == NAME
    assert PROJECT["scripts"] == {"quantkit": "quantkit.cli:main"}


def test_extras_that_name_the_distribution_name_this_one() -> None:
    extras = [need for needs in PROJECT["optional-dependencies"].values() for need in needs]
    own = [need for need in extras if need.startswith("quantkit")]
    assert own
    assert all(need.startswith(f"{NAME}[") for need in own)


def test_nobody_is_told_to_install_the_other_quantkit() -> None:
    # README.md names the wrong command once, to say that it is wrong.
    wrong = re.compile(r"quantkit\[|(?<!\*\*Not\*\* `)pip install '?quantkit(?!-onnx)")
    found = [
        path.relative_to(ROOT)
        for path in tracked()
        if path.suffix in TEXTS and path.is_file() and path != Path(__file__)
        if wrong.search(path.read_text(errors="replace"))
    ]
    assert found == []


def test_installation_is_the_first_section_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    first = text.split("\n## ")[1]
    assert first.startswith("Installation\n")
    assert NAME in first
    assert "pip install ." in first


def test_the_version_is_known_whatever_is_installed() -> None:
    code = (
        "import importlib.metadata as m\n"
        "def version(name):\n"
        "    raise m.PackageNotFoundError(name) if name.startswith('quantkit') else AssertionError\n"
        "known, m.version = m.version, lambda n: version(n) if n.startswith('quantkit') else known(n)\n"
        "import quantkit, quantkit.model.provenance as e\n"
        "print(quantkit.__version__, e.software()['quantkit'])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [quantkit.__version__] * 2
