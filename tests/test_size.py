"""The size of the tree and how its modules hang together: limits that only fall.

Each limit is the value that was reached. A change that needs more than a limit says why in its commit.
"""

import ast
import io
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnx

from quantkit.model.ops.integer_ops import INTEGER_OPS

ROOT = Path(__file__).parents[1]
CODE = ("quantkit", "calibrators")

MODULES = 432
LINES_OF_CODE = 63_897
OWN_IMPORTS = 20
NAMES_DEFINED_TWICE = 76
BRANCHES_95 = 11
UNCONNECTED = 0
OPERATOR_TABLES = 24
LAYERS = 11

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PART = 25  # lines; smaller parts of a module may stand alone


@cache
def paths() -> dict[str, Path]:
    """Return the file of every module by its name."""
    found = [path for name in CODE for path in ROOT.glob(f"{name}/**/*.py")]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in found
    }


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths().items()}


def code_lines(module: str) -> int:
    """Count the lines of a module that are neither docstring nor comment nor blank."""
    tokens = tokenize.generate_tokens(io.StringIO(paths()[module].read_text("utf-8")).readline)
    lines = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def own_imports(module: str) -> set[str]:
    """Return the modules of the tree that a module imports."""
    found: set[str] = set()
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & trees().keys() or {node.module}
    return (found & trees().keys()) - {module}


def branches(function: ast.AST) -> int:
    """Count the ways through a function, without the functions inside it."""
    count, left = 1, list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        if isinstance(node, _FUNCTIONS):
            continue
        count += isinstance(node, _BRANCHES)
        count += len(node.ifs) if isinstance(node, ast.comprehension) else 0
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        left.extend(ast.iter_child_nodes(node))
    return count


def large_parts(tree: ast.Module) -> int:
    """Count the groups of functions and classes that never name each other."""
    defined = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    group = {name: frozenset({name}) for name in defined}
    for name, node in defined.items():
        for inner in ast.walk(node):
            used = getattr(inner, "id", getattr(inner, "value", None))
            if isinstance(used, str) and used in defined:
                merged = group[name] | group[used]
                group.update(dict.fromkeys(merged, merged))
    size = Counter[frozenset[str]]()
    for name, node in defined.items():
        size[group[name]] += (node.end_lineno or node.lineno) - node.lineno + 1
    return sum(lines >= _PART for lines in size.values())


def operator_tables(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of literals that list operators."""
    operators = {schema.name for schema in onnx.defs.get_all_schemas()} | INTEGER_OPS.keys()
    for node in ast.walk(tree):
        items: list[ast.expr | None] = getattr(node, "elts", [])
        if isinstance(node, ast.Dict):
            items = [*node.keys, *node.values]
        named = [i for i in items if isinstance(i, ast.Constant) and i.value in operators]
        if isinstance(node, ast.expr) and len(named) > 1:
            yield node.lineno


def test_there_are_no_more_modules_and_lines_than_before() -> None:
    assert len(trees()) <= MODULES
    assert sum(map(code_lines, trees())) <= LINES_OF_CODE


def test_no_module_imports_more_of_the_others_than_before() -> None:
    # `quantkit` itself names the home of every public name; the imports are for type checkers alone.
    most = max(trees().keys() - {"quantkit"}, key=lambda module: len(own_imports(module)))
    assert len(own_imports(most)) <= OWN_IMPORTS, most


def test_functions_do_not_branch_more_than_before() -> None:
    nodes = (node for tree in trees().values() for node in ast.walk(tree))
    counts = sorted(branches(node) for node in nodes if isinstance(node, _FUNCTIONS))
    assert counts[int(0.95 * len(counts))] <= BRANCHES_95


def test_every_module_is_about_one_thing() -> None:
    several = sorted(module for module, tree in trees().items() if large_parts(tree) > 1)
    assert len(several) <= UNCONNECTED, several


def test_operators_are_listed_in_ops_and_targets() -> None:
    homes = ("quantkit.model.ops", "quantkit.targets")
    found = [
        f"{module}:{line}"
        for module, tree in trees().items()
        if not module.startswith(homes)
        for line in operator_tables(tree)
    ]
    assert len(found) <= OPERATOR_TABLES, found


def test_there_are_no_more_layers_than_before() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    assert len(layers) <= LAYERS


def test_no_more_public_names_have_two_definitions_than_before() -> None:
    defined = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )
    twice = sorted(name for name, count in defined.items() if count > 1)
    assert len(twice) <= NAMES_DEFINED_TWICE, twice
