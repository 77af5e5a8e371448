"""Vocabularies cut to a corpus: sizes in every form, equality on covered text, coverage of other text, time.

    python benchmarks/trim.py --minilm FOLDER --sts FOLDER --llama src/llama2.data --lab LAB

MiniLM has a WordPiece tokenizer of 30,522 tokens. The second model is the Llama of `benchmarks/llama.py`: byte-pair encoding with bytes to
fall back to, 32,000 tokens, and a head of its own. Corpora: the sentences of STS (dev and calibration), and, as the texts of a product, sentences out
of the documentation of numpy and scipy. Writes benchmarks/results/trim.md. Times are CPU times of one thread, both models in turn.
"""

import argparse
import ast
import csv
import json
import random
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama
import numpy as np
import onnx
import onnxruntime as ort
import scipy
from tokenizers import Tokenizer

import quantkit
from quantkit.numerics.rates import wilson

RESULTS = Path(__file__).parent / "results" / "trim.md"
_TIMED, _ROUNDS = 24, 5
_PLAIN = ("normalized", "single_word", "lstrip", "rstrip")
_BOTH = ("float", "static int8")  # forms that are trimmed with old ids too


def sts_sentences(folder: Path) -> list[str]:
    """Return the sentences of STS: dev pairs and calibration texts."""
    found = []
    with (folder / "dev.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found += [row["sentence1"], row["sentence2"]]
    with (folder / "calibration.csv").open(encoding="utf-8") as file:
        found += [row["text"] for row in csv.DictReader(file)]
    return list(dict.fromkeys(found))


def documentation(most: int) -> list[str]:
    """Return sentences out of the docstrings of numpy and scipy, mixed."""
    found: list[str] = []
    for package in (np, scipy):
        for file in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            if "tests" not in file.parts:
                found += _sentences(file)
    found = list(dict.fromkeys(found))
    random.Random(0).shuffle(found)  # noqa: S311 - the same order each time
    return found[:most]


def _sentences(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = " ".join((ast.get_docstring(node) or "").partition("Examples")[0].split())
            for sentence in re.split(r"(?<=[.!?]) ", text):
                if 30 <= len(sentence) <= 300 and sentence.isascii():
                    yield sentence


def llama_tokenizer(tokens: llama.Tokenizer) -> dict[str, Any]:
    """Return the tokenizer.json of a Llama: merges in the order of the scores of what they make."""
    pieces = [text.decode(errors="replace").replace(" ", "\u2581") for text in tokens.texts]
    pieces[:3] = ["<unk>", "<s>", "</s>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for i in sorted(range(259, len(pieces)), key=lambda i: -tokens.scores[i]):
        halves = ((pieces[i][:at], pieces[i][at:]) for at in range(1, len(pieces[i])))
        merges += [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
    special = [
        {"id": i, "content": c, "special": True, **dict.fromkeys(_PLAIN, False)}
        for i, c in enumerate(pieces[:3])
    ]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    start = {"type": "Prepend", "prepend": "\u2581"}
    model: dict[str, Any] = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": [list(m) for m in merges],
    }
    model |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [start, space]},
        "model": model,
    }


def forms(float_model: Path, texts: list[str], folder: Path) -> dict[str, Path]:
    """Quantize a model in every form; return the files."""
    found = {"float": float_model}
    settings = quantkit.DataSettings(limit=64)
    sample = _table(texts[:200], folder / "sample.csv")
    for name in ("static int8", "dynamic int8", "weights 8 bits", "weights 4 bits"):
        out = float_model.with_name(f"{name.replace(' ', '-')}.onnx")
        found[name] = out
        if out.exists():
            continue
        if name == "static int8":
            quantkit.quantize_static(float_model, out, sample, settings=settings)
        elif name == "dynamic int8":
            quantkit.quantize_dynamic(float_model, out, verify=False)
        else:
            quantkit.quantize_weights(float_model, out, bits=int(name.split()[1]), verify=False)
    return found


def _table(texts: Sequence[str], file: Path) -> Path:
    with file.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([["text"], *([text] for text in texts)])
    return file


def time_ratio(
    full: Path, small: Path, tokenizers: tuple[Path, Path], texts: Sequence[str]
) -> float:
    """Return the median ratio of CPU times, small to full, run in turn."""
    sessions, feeds = [], []
    for model, file in zip((full, small), tokenizers, strict=True):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        tokenizer.enable_truncation(128)
        rows = [[tokenizer.encode(text).ids] for text in texts]
        names = [one.name for one in session.get_inputs()]
        fill = {n: np.zeros_like if "type" in n else np.ones_like for n in names}
        feeds.append(
            [
                {n: x if n == "input_ids" else fill[n](x) for n in names}
                for x in (np.array(row, np.int64) for row in rows)
            ]
        )
        sessions.append(session)
    ratios = []
    for _ in range(_ROUNDS):
        for one, other in zip(*feeds, strict=True):
            spent = []
            for session, feed in ((sessions[0], one), (sessions[1], other)):
                started = time.process_time()
                session.run(None, feed)
                spent.append(time.process_time() - started)
            ratios.append(spent[1] / spent[0])
    return statistics.median(ratios)


def covered_elsewhere(tokenizer: Path, kept: set[int], texts: Sequence[str]) -> tuple[int, int]:
    """Return how many other texts use kept tokens alone, of how many."""
    full = Tokenizer.from_file(str(tokenizer))
    full.no_padding()
    return sum(set(full.encode(text).ids) <= kept for text in texts), len(texts)


def measure(
    name: str, folder: Path, corpora: dict[str, list[str]], lab: Path
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the row of each form, and the row of coverage of each corpus."""
    first = next(iter(corpora.values()))
    files = forms(folder / "model.onnx", first, lab)
    whole = files["float"].stat().st_size
    for corpus, texts in corpora.items():
        data = _table(texts, lab / f"{corpus}.csv")
        others = next(other for key, other in corpora.items() if key != corpus)
        for form, file in files.items():
            for keep in (False, True) if form in _BOTH else (False,):
                out = lab / f"{name}-{corpus}-{form}-{keep}".replace(" ", "_") / "model.onnx"
                out.parent.mkdir(exist_ok=True)
                started = time.process_time()
                result = quantkit.trim(file, out, data, keep_tokenizer=keep, min_coverage=0)
                spent = time.process_time() - started
                outputs = "" if result.verification is None else result.verification.figures()
                tokenizers = (folder / "tokenizer.json",) * 2
                if not keep:
                    tokenizers = (tokenizers[0], out.with_name("tokenizer.json"))
                ratio = time_ratio(file, out, tokenizers, texts[:_TIMED])
                coverage, plan = result.plan.coverage, result.plan
                row = [name, corpus, form, "old ids" if keep else "new ids"]
                row += [f"{len(plan.kept.ids):,} of {plan.kept.rows:,}"]
                row += [f"{file.stat().st_size / whole:.3f}", f"{result.output_bytes / whole:.3f}"]
                row += [outputs, f"{ratio:.2f}", f"{spent:.1f}"]
                print(*row, flush=True)
                cosine = "" if result.cosine is None else f"{result.cosine:.3f}"
                elsewhere = []
                if form == "float":
                    inside, of = covered_elsewhere(
                        folder / "tokenizer.json", set(plan.kept.ids), others
                    )
                    low, high = wilson(inside, of)
                    elsewhere = [name, corpus, row[3], f"{coverage.texts:,}"]
                    elsewhere += [f"{coverage.share:.1%} [{coverage.low:.1%}, {coverage.high:.1%}]"]
                    elsewhere += [f"{inside / of:.1%} [{low:.1%}, {high:.1%}] of {of:,}", cosine]
                    print(*elsewhere, flush=True)
                yield row, elsewhere


def main() -> None:
    """Measure both models, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--sts", type=Path, required=True)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--lab", type=Path, required=True)
    given = parser.parse_args()
    given.lab.mkdir(exist_ok=True)
    corpora = {"documentation": documentation(20_000), "STS": sts_sentences(given.sts)}
    models = {"MiniLM": given.lab / "minilm"}
    models["MiniLM"].mkdir(exist_ok=True)
    for file in ("model.onnx", "tokenizer.json"):
        (models["MiniLM"] / file).write_bytes((given.minilm / file).read_bytes())
    if given.llama is not None:
        models["Llama"] = given.lab / "llama"
        models["Llama"].mkdir(exist_ok=True)
        checkpoint, tokens = llama.read(given.llama)
        onnx.save(llama.build(checkpoint), models["Llama"] / "model.onnx")
        plain = json.dumps(llama_tokenizer(tokens), ensure_ascii=False)
        (models["Llama"] / "tokenizer.json").write_text(plain, encoding="utf-8")
    rows: list[list[str]] = []
    coverage: list[list[str]] = []
    for name, folder in models.items():
        for row, elsewhere in measure(name, folder, corpora, given.lab):
            rows.append(row)
            coverage += [elsewhere] if elsewhere else []
            RESULTS.write_text(page(rows, coverage), encoding="utf-8")


_READ_SO = (
    "*Size* is relative to the whole float file. Outputs are compared on 40 texts of the corpus, both files as onnxruntime runs them by default. *Time* is the "
    f"median ratio of CPU times of one thread, both files in turn, {_TIMED} texts, {_ROUNDS} rounds. *CPU s* is what `trim` takes."
)


def page(rows: list[list[str]], coverage: list[list[str]]) -> str:
    """Return the results as Markdown."""
    forms = ["model", "corpus", "form", "trimmed", "tokens", "size / float", "trimmed / float"]
    forms += ["outputs against the full file", "time / full", "CPU s"]
    covers = ["model", "corpus", "trimmed", "texts", "next texts covered [95 %]"]
    covers += ["texts of the other corpus covered [95 %]", "cosine of uncovered texts"]
    texts = [
        "# A smaller vocabulary",
        f"quantkit {quantkit.__version__}, onnxruntime {ort.__version__}. Made by `benchmarks/trim.py`, which says what the models and corpora are.",
        _READ_SO,
        _grid(forms, rows),
        "Each text is judged by the vocabulary of all other texts. Uncovered texts (at most 32) lose tokens that no other text has.",
        _grid(covers, coverage),
    ]
    return "\n\n".join(texts) + "\n"


def _grid(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
