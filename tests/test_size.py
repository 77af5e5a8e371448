"""The size of the tree and how its modules hang together: limits that only fall.

A change that needs more than a limit says why in its commit.
"""

import ast
import io
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("quantkit", "calibrators")

MODULES = 414
LINES_OF_CODE = 60_603
OWN_IMPORTS = 44
NAMES_DEFINED_TWICE = 83
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@cache
def trees() -> dict[Path, ast.Module]:
    paths = [path for name in CODE for path in ROOT.glob(f"{name}/**/*.py")]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def code_lines(path: Path, tree: ast.Module) -> int:
    """Count the lines of a module that are neither docstring nor comment nor blank."""
    text = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def own_imports(tree: ast.Module) -> int:
    """Count the modules of the tree that a module imports."""
    named = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    named |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return sum(name.split(".")[0] in CODE for name in named)


def test_there_are_no_more_modules_and_lines_than_before() -> None:
    assert len(trees()) <= MODULES
    assert sum(code_lines(path, tree) for path, tree in trees().items()) <= LINES_OF_CODE


def test_no_module_imports_more_of_the_others_than_before() -> None:
    most = max(trees(), key=lambda path: own_imports(trees()[path]))
    assert own_imports(trees()[most]) <= OWN_IMPORTS, most


def test_no_more_public_names_have_two_definitions_than_before() -> None:
    defined = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )
    twice = sorted(name for name, count in defined.items() if count > 1)
    assert len(twice) <= NAMES_DEFINED_TWICE, twice
