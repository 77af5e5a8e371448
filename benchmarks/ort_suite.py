"""onnxruntime's own quantization tests, run against quantkit.ort.

The tests are not part of this project: give the folder ``onnxruntime/test/python/quantization`` of a checkout of
microsoft/onnxruntime as ``--tests``. They are copied to a temporary folder, their imports of onnxruntime.quantization
become imports of quantkit.ort, and nothing else is changed. Every test has a time limit; a test that was not reported
(the import failed, the process died) counts as failed. ``--real`` leaves the imports alone, which is the base line.

The interpreter (``--python``) needs what the tests need: pytest, pytest-timeout, parameterized, onnx 1.21.
Writes ``results/ort_suite.json`` and ``results/ort_suite.md``; earlier runs of other labels are kept in both.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from measure import RESULTS, ROOT, first_line, table

_IMPORTS = (
    (r"^( *)from onnxruntime\.quantization", r"\1from quantkit.ort"),
    (r"^( *)import onnxruntime\.quantization as", r"\1import quantkit.ort as"),
    (r"^( *)from onnxruntime import quantization\b", r"\1from quantkit import ort as quantization"),
)
# Modules that users import from: the package's own names, and those of the modules that its guide names.
_PUBLIC = {
    "",
    "calibrate",
    "execution_providers.qnn",
    "preprocess",
    "qdq_loss_debug",
    "quantize",
    "shape_inference",
    "static_quantize_runner",
}
# Of quant_utils only what the package exports, or stands in signatures, is public; the rest are helpers.
_PUBLIC_UTILITIES = {
    "CalibrationDataReader",
    "CalibrationMethod",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "write_calibration_table",
}
_HELPERS = "quant_utils"
_PRIVATE_NAMES = {"entropy"}  # of calibrate
_RUNNER = "static_quantize_runner"
_TOOLS = {
    "test_calibration.py",
    "test_qdq_loss_debug.py",
    "test_qnn_preprocess_model.py",
    "test_quant_preprocess.py",
}
# How tests are counted, in the order of the table. The first three are those of public names.
_CLASSES = {
    "library": "quantize_static, quantize_dynamic, quantize, get_qdq_config, get_qnn_qdq_config",
    _RUNNER: "the command",
    "tools": "calibrators and their files, quant_pre_process, qnn_preprocess_model, qdq_loss_debug",
    "helpers": "functions of quant_utils that the package does not export, `calibrate.entropy`",
    "internal": "fusions, ONNXModel, ONNXQuantizer, cuda, MatMulNBits and bnb4 kernels, overrides' fixer",
}
_OUTCOMES = ("passed", "failed", "skipped")
_WIDTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one test."""

    test: str
    group: str
    outcome: str
    why: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests and write the results."""
    given = _arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        tests = collected(given.tests, given.python, given.root)
        copied(given.tests, copy, real=given.real)
        files = sorted({test.partition("::")[0] for test in tests})
        runs = [(copy, files[i :: given.jobs], given) for i in range(given.jobs)]
        with ThreadPoolExecutor(given.jobs) as pool:
            found = dict(pair for part in pool.map(_run, runs) for pair in part.items())
    groups = groups_of(given.tests, tests)
    outcomes = [_outcome(test, groups[test], found) for test in tests]
    print(_summary(outcomes))
    print(_failures(outcomes))
    if given.results is not None:
        _write(given.results, given.label, outcomes)
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", type=Path, required=True, help="folder of onnxruntime's tests")
    parser.add_argument("--real", action="store_true", help="test onnxruntime.quantization itself")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout of quantkit to test")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the tests")
    parser.add_argument("--timeout", type=int, default=120, help="seconds a test may take")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--label", help="the name of this run in the results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are written")
    parser.add_argument("--no-results", dest="results", action="store_const", const=None)
    given = parser.parse_args(argv)
    given.label = given.label or ("onnxruntime" if given.real else "quantkit")
    return given


def collected(tests: Path, python: str, root: Path) -> list[str]:
    """Return every test of the folder, as onnxruntime's own names let pytest find it."""
    command = [python, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tests, env=_environment(root), capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if "::" in line and " " not in line]
    if not found:
        raise SystemExit(f"No tests found in {tests}: {first_line(done.stdout + done.stderr)}")
    return found


def copied(tests: Path, target: Path, *, real: bool) -> None:
    """Copy the tests; unless `real`, with quantkit.ort in the place of onnxruntime.quantization."""
    for file in tests.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        for old, new in () if real else _IMPORTS:
            text = re.sub(old, new, text, flags=re.MULTILINE)
        (target / file.name).write_text(text, encoding="utf-8")


def _environment(root: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(root.resolve()), "PYTHONDONTWRITEBYTECODE": "1"}


def _run(run: tuple[Path, Sequence[str], argparse.Namespace]) -> dict[str, tuple[str, str]]:
    """Run some files; return by test what it came to and the first line of its error.

    If the process dies, each file is run alone.
    """
    folder, files, given = run
    report = folder / f"{files[0]}.xml"
    command = [given.python, "-m", "pytest", *files, "-q", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", f"--timeout={given.timeout}"]
    done = subprocess.run(
        [*command, f"--junitxml={report}"],
        cwd=folder,
        env=_environment(given.root),
        capture_output=True,
        text=True,
        check=False,
    )
    if report.is_file():
        return dict(_reported(case) for case in ET.parse(report).iter("testcase"))  # noqa: S314 - written by pytest
    if len(files) > 1:
        return dict(p for file in files for p in _run((folder, [file], given)).items())
    return {files[0]: ("failed", _error_line(done.stdout + done.stderr))}


def _reported(case: ET.Element) -> tuple[str, tuple[str, str]]:
    """Read one testcase: its name as pytest collects it, what it came to, and why.

    Where a file could not be imported there is one case without an owner, for the whole file.
    """
    module, _, owner = case.get("classname", "").partition(".")
    file = f"{module or case.get('name', '')}.py"
    name = "::".join(part for part in (file, *owner.split("."), case.get("name", "")) if part)
    for outcome, tags in (("failed", ("failure", "error")), ("skipped", ("skipped",))):
        for tag in tags:
            if (element := case.find(tag)) is not None:
                return (name if module else file), (outcome, _why(element))
    return name, ("passed", "")


def _why(element: ET.Element) -> str:
    text = element.text or ""
    message = element.get("message", "")
    return _error_line(text) if message.startswith("collection failure") else _short(message)


def _error_line(text: str) -> str:
    """Return the last line in which pytest shows an exception, else the first line there is."""
    shown = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return _short(shown[-1] if shown else text)


def _short(text: str) -> str:
    """Return a first line that fits a table and has no path of this machine in it."""
    plain = re.sub(rf"{re.escape(tempfile.gettempdir())}/(\S+/)?", "", first_line(text))
    return plain.replace("|", "\\|")[:_WIDTH]


def _outcome(test: str, group: str, found: Mapping[str, tuple[str, str]]) -> Outcome:
    file = test.partition("::")[0]
    unreported = ("failed", "the process died before this test ended")
    outcome, why = found.get(test) or found.get(file) or unreported
    return Outcome(test=test, group=group, outcome=outcome, why=why)


def groups_of(tests: Path, names: Iterable[str]) -> dict[str, str]:
    """Return by test how it is counted: by the names of onnxruntime.quantization that it uses."""
    uses: dict[str, dict[str, set[str]]] = {}
    for name in names:
        file = name.partition("::")[0]
        if file not in uses:
            uses[file] = _uses(ast.parse((tests / file).read_text(encoding="utf-8")))
    return {name: _group(name, uses[name.partition("::")[0]]) for name in names}


def _group(name: str, uses: Mapping[str, set[str]]) -> str:
    file, _, test = name.partition("::")
    # What is parameterized is named after its function, with a number and its values.
    known = [
        function for function in uses if function and test.split("::")[-1].startswith(function)
    ]
    used = uses[max(known, key=len)] if known else uses[""]
    if "internal" in used:
        return "internal"
    if "helpers" in used:
        return "helpers"
    if file == f"test_{_RUNNER}.py":
        return _RUNNER
    return "tools" if file in _TOOLS else "library"


def _uses(tree: ast.Module) -> dict[str, set[str]]:
    """Return by function the kinds of names that it uses, itself or through functions of its file.

    Under "" stands what the file imports of internal modules: it concerns each test of the file.
    """
    kinds = _imported(tree)
    functions = {f.name: f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}
    file_wide = {"internal"} if "internal" in kinds.values() else set()
    found = {"": file_wide}
    for name in functions:
        seen: set[str] = set()
        todo = [name]
        while todo:
            now = todo.pop()
            if now not in seen:
                seen.add(now)
                todo += [n for n in _identifiers(functions[now]) if n in functions]
        used = {n for f in seen for n in _identifiers(functions[f])}
        found[name] = {kinds[n] for n in used if n in kinds} | file_wide
    return found


def _identifiers(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {
        n.attr for n in nodes if isinstance(n, ast.Attribute)
    }


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return by imported name of onnxruntime.quantization whether it is a helper, internal, or public."""
    kinds = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        for each in node.names:
            full = f"{node.module}.{each.name}"
            if full.startswith("onnxruntime.capi._pybind_state.quantize"):
                kinds[each.asname or each.name] = "internal"
            elif full.startswith("onnxruntime.quantization."):
                module = node.module.removeprefix("onnxruntime.quantization").lstrip(".")
                kinds[each.asname or each.name] = _kind(module, each.name)
    return kinds


def _kind(module: str, name: str) -> str:
    if module == _HELPERS:
        return "public" if name in _PUBLIC_UTILITIES else "helpers"
    if name in _PRIVATE_NAMES:
        return "helpers"
    if module in _PUBLIC and not name.startswith("matmul_"):
        return "public"
    return "internal"


def _summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter((o.group, o.outcome) for o in outcomes)
    public = list(_CLASSES)[:3]
    rows = [[group, *(str(counts[group, o]) for o in _OUTCOMES)] for group in _CLASSES]
    total = ["public names", *(str(sum(counts[g, o] for g in public)) for o in _OUTCOMES)]
    return "\n".join(table(["tests of", *_OUTCOMES], [*rows[:3], total, *rows[3:]]))


def _passed(runs: Mapping[str, Sequence[Outcome]]) -> list[list[str]]:
    """Return by class of tests, and of all that use public names, how many each run passed."""
    counts = {k: Counter(o.group for o in run if o.outcome == "passed") for k, run in runs.items()}
    public = list(_CLASSES)[:3]
    rows = [[group, *(str(c[group]) for c in counts.values())] for group in _CLASSES]
    total = ["public names", *(str(sum(c[g] for g in public)) for c in counts.values())]
    return [*rows[:3], total, *rows[3:]]


def _failures(outcomes: Sequence[Outcome]) -> str:
    rows = [[o.group, f"`{o.test}`", o.why] for o in outcomes if o.outcome == "failed"]
    header = ["tests of", "test", "first line of the error"]
    return "\n".join(table(header, rows)) if rows else "None failed."


def _write(folder: Path, label: str, outcomes: Sequence[Outcome]) -> None:
    path = folder / "ort_suite.json"
    runs = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    runs[label] = {o.test: [o.group, o.outcome, o.why] for o in outcomes}
    text = json.dumps(runs, indent=0)
    text = re.sub(r"\[\n(.*),\n(.*),\n(.*)\n\]", r"[\1, \2, \3]", text)  # one line for each test
    path.write_text(text + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(_page(runs), encoding="utf-8")


def _page(runs: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    parts = [
        "# onnxruntime's quantization tests against quantkit.ort",
        "Made by `python benchmarks/ort_suite.py --tests DIR`. Tests are counted by the names that they use:",
        "\n".join(table(["tests of", "what they use"], [[k, v] for k, v in _CLASSES.items()])),
    ]
    read = {
        label: [Outcome(test=t, group=g, outcome=o, why=w) for t, (g, o, w) in run.items()]
        for label, run in runs.items()
    }
    parts.append("Passed:")
    parts.append("\n".join(table(["tests of", *read], _passed(read))))
    for label, outcomes in read.items():
        if label not in {"before", "onnxruntime"}:
            parts += [f"## {label}", _summary(outcomes), _failures(outcomes)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
