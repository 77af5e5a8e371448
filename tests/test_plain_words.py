"""What users read is said as the field says it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What strangers stumbled over, and what is said instead: layers, weights only, fused into the layer before, equalized,
# weights that cannot saturate, the worst end of the interval, per tensor, per sample, per run.
PRIVATE = re.compile(
    r"pair-safe|evened|\bbad end\b|\bnobody behind\b|\bvanish|stored in 8 bits|\bproducts (run|in) (in|float)"
    r"|\bsamples a run\b|^Of the \w+\.$|\bone (scale|number|label|range|class) an? \w|\bare others than\b|, since of '"
    r"|\bsettings of weights are for\b|\blabels number the\b|\bsize by cause\b|\bmay it go out\b",
    re.IGNORECASE,
)


def texts() -> Iterator[tuple[str, str]]:
    """Yield every sentence in the code that is no docstring, and every line of the page, the README and the docs."""
    for path in (*ROOT.glob("quantkit/**/*.py"), *ROOT.glob("calibrators/**/*.py")):
        tree = ast.parse(path.read_text())
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for found in ast.walk(tree):
            text = found.value if isinstance(found, ast.Constant) else None
            if isinstance(text, str) and " " in text and id(found) not in docs:
                yield f"{path.relative_to(ROOT)}:{found.lineno}", text  # type: ignore[attr-defined]
    for path in (
        *ROOT.glob("quantkit/evaluate/report/templates/*.jinja"),
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
    ):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_no_private_words_where_users_read() -> None:
    assert [f"{place}: {text}" for place, text in texts() if PRIVATE.search(text)] == []
