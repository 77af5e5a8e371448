"""The pages that users read: their links, headings and examples."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
        ROOT / "reports" / "README.md",
        ROOT / "quantkit" / "ort" / "README.md",
    }
)
GUIDES = [p for p in PAGES if p.parent == ROOT / "docs" or p == ROOT / "README.md"]
_FENCE = re.compile(
    r"^(?:<!-- needs: (?P<needs>[\w, ]+) -->\n)?```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """A block of code on a page.

    Attributes:
        place: Its file and first line.
        code: What it says.
        needs: Packages without which it cannot run, from a line ``<!-- needs: torch -->`` above it.
    """

    place: str
    code: str
    needs: tuple[str, ...] = ()


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def examples(page: Path, language: str) -> Iterator[Example]:
    text = page.read_text(encoding="utf-8")
    for block in _FENCE.finditer(text):
        if block["language"] == language:
            line = text.count("\n", 0, block.start("code")) + 1
            needs = tuple(re.findall(r"\w+", block["needs"] or ""))
            yield Example(f"{named(page)}:{line}", block["code"], needs)


def inline_code(page: Path) -> list[str]:
    return _CODE.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def links(text: str) -> list[str]:
    """The targets of all links and pictures that are not in code."""
    return _LINK.findall(_CODE.sub("code", _FENCE.sub("", text)))


def anchors(text: str) -> set[str]:
    """What the headings of a page can be reached by, where code is hosted and in the site alike."""
    found: Counter[str] = Counter()
    names = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def dead_links(page: Path, text: str | None = None) -> Iterator[str]:
    """Say of each link that leads nowhere; what is on other machines is not looked at."""
    text = page.read_text(encoding="utf-8") if text is None else text
    for link in links(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{named(page)}: {link}: there is no such file"
        elif anchor and target.suffix == ".md":
            inside = text if target == page else target.read_text(encoding="utf-8")
            if anchor not in anchors(inside):
                yield f"{named(page)}: {link}: there is no such heading"
