"""Builds the site of these pages: ``python docs/build.py`` writes it into site/.

The pages are copied to where they stand in the repository, README.md first: a link then leads to the same place in the site, in
a checkout and where the code is hosted, and none is rewritten. A dead link between pages, or to a heading, ends the build.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PAGES = (
    "*.md",
    "LICENSE",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "benchmarks/results/*.svg",
    "docs/**/*",
    "notebooks/*.ipynb",
    "quantkit/ort/README.md",
    "reports/**/*",
)


def build(folder: Path) -> Path:
    """Build the site in an empty folder; return where its pages are.

    Raises:
        subprocess.CalledProcessError: Something is wrong with a page; what it is has been printed.
    """
    for file in (file for pattern in PAGES for file in ROOT.glob(pattern) if file.is_file()):
        place = folder / "pages" / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    shutil.copyfile(ROOT / "docs" / "mkdocs.yml", folder / "mkdocs.yml")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file"]
    subprocess.run([*command, str(folder / "mkdocs.yml")], check=True, cwd=folder)  # noqa: S603
    return folder / "site"


def main() -> int:
    """Build the site into site/, in the place of the one that is there."""
    with TemporaryDirectory() as folder:
        try:
            built = build(Path(folder))
        except subprocess.CalledProcessError as e:
            return e.returncode
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        shutil.copytree(built, ROOT / "site")
    print("wrote site/: python -m http.server --directory site shows it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
