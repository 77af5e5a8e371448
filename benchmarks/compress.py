"""`quantkit compress` on four models: what it finds, in how many minutes, and whether the recipe makes the same bytes again.

Every run is the command that a user would type, in a folder of ``--work``; a run that was stopped resumes. Writes
``results/compress.json`` (everything), ``results/compress.md`` (made from it) and one picture, ``results/compress.svg``.
Besides, one search is killed and resumed, and one has a budget that cannot be met.
"""

import argparse
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, ROOT, SHARED, describe, machine, table, write_results

from quantkit.result import load_result

Report = dict[str, Any]
_QUANTKIT = Path(sys.executable).with_name("quantkit")
_IMAGENET = "[data.image]\ncrop = 224\nmean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]\n"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PICTURED = "minilm_speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its samples, and the flags of the command.

    Attributes:
        title: For tables.
        model: Below ``shared/models``.
        lay_out: Writes what the command reads into a folder.
        data: What is given as --data.
        flags: All else.
        verify: Flags of `verify --again` besides --float and --data.
    """

    title: str
    model: str
    lay_out: Callable[[Path], None]
    data: str
    flags: tuple[str, ...]
    verify: tuple[str, ...] = ()


def cases() -> dict[str, Case]:
    """Return every run by name."""
    pairs = ("--column", "sentence1", "--column", "sentence2", "--pairs")
    resnet = ("ResNet-20, CIFAR-10", "resnet20_cifar10.onnx", _lay_out_cifar, "images.npz")
    mobile = ("MobileNetV2, ImageNet", "mobilenet_v2.onnx", _lay_out_imagenet, "images")
    minilm = ("MiniLM, likeness of sentences", "all-MiniLM-L6-v2/model.onnx", _lay_out_pairs)
    found = {
        "resnet20_size": (*resnet, ("--goal", "size")),
        "mobilenet_v2_size": (*mobile, ("--goal", "size")),
        "mobilenet_v2_speed": (*mobile, ("--goal", "speed")),
        "minilm_speed": (*minilm, "pairs.csv", ("--goal", "speed", *pairs)),
        "minilm_size": (*minilm, "pairs.csv", ("--goal", "size", *pairs)),
        "detector_size": (
            "detector (zoo)",
            "zoo/detector.onnx",
            _lay_out_zoo,
            "samples",
            ("--goal", "size"),
        ),
    }
    return {
        name: Case(title=title, model=model, lay_out=lay_out, data=data, flags=flags)
        for name, (title, model, lay_out, data, flags) in found.items()
    }


# ---- samples ----


def _lay_out_imagenet(folder: Path) -> None:
    (folder / "images").symlink_to(SHARED / "data" / "imagenet500")
    (folder / "quantkit.toml").write_text(_IMAGENET, encoding="utf-8")


def _lay_out_cifar(folder: Path) -> None:
    from PIL import Image

    source = SHARED / "data" / "cifar10"
    with Image.open(source / "test.png") as file:
        pixels = np.asarray(file).reshape(-1, 32, 32, 3) / 255  # one image a row
    labels = json.loads((source / "test_labels.json").read_text(encoding="utf-8"))
    x = ((pixels - _MEAN) / _STD).transpose(0, 3, 1, 2).astype(np.float32)
    np.savez(folder / "images.npz", input=x, label=np.array(labels))


def _lay_out_pairs(folder: Path) -> None:
    shutil.copyfile(SHARED / "data" / "sts" / "dev.csv", folder / "pairs.csv")


def _lay_out_zoo(folder: Path) -> None:
    maker = SHARED / "zoo" / "inputs.py"
    subprocess.run([sys.executable, str(maker), str(folder / "zoo")], check=True)
    (folder / "samples").mkdir()
    for file in sorted((folder / "zoo" / "detector").glob("*/*.npz")):
        shutil.copyfile(file, folder / "samples" / f"{file.parent.name}_{file.name}")


# ---- runs ----


def run(folder: Path, words: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], Report]:
    """Run a command; return also the minutes that it took, by the clock and of the CPU."""
    print(f"$ {shlex.join(['quantkit', *words])}", flush=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [str(_QUANTKIT), *words], cwd=folder, check=False, text=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(done.stdout[-2000:], done.stderr[-2000:], flush=True)
    return done, {"minutes": (time.perf_counter() - start) / 60, "cpu_minutes": cpu / 60}


def compressed(case: Case, folder: Path, given: argparse.Namespace) -> Report:
    """Search, and make the chosen file again from its recipe."""
    if not (folder / "laid_out").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        case.lay_out(folder)
        (folder / "laid_out").touch()
    model = str(SHARED / "models" / case.model)
    words = ["compress", model, "--data", case.data, *case.flags, "--max-drop", given.max_drop]
    done, took = run(folder, [*words, "--minutes", f"{given.minutes:g}", "-o", "out"])
    if done.returncode not in {0, 1}:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    check = ["verify", "out/model.onnx", "--again", "--float", model, "--data", case.data, "--json"]
    again, _ = run(folder, check)
    checks = json.loads(again.stdout)["checks"] if again.stdout else []
    same = next((c["sentence"] for c in checks if c["name"] == "again"), again.stderr.strip())
    return {**took, "exit": done.returncode, "again": same, **_found(folder / "out")}


def _found(folder: Path) -> Report:
    result = load_result(folder)
    tuning = result.tuning
    if tuning is None:
        return {}
    judged = {m.name: result.judged_drop(m.name) for m in result.candidates}
    trials = [
        {
            "name": t.name,
            "made": t.made,
            "verdict": t.verdict,
            "drop": t.drop,
            "judged": judged.get(t.name),
            "time": t.latency,
            "size": t.size,
            "seconds": t.seconds,
            "note": t.note,
            "chosen": t.name == tuning.chosen,
        }
        for t in tuning.trials
    ]
    return {
        "measure": tuning.measure,
        "samples": [tuning.calibration, tuning.choosing, tuning.judging],
        "sentence": tuning.sentence,
        "met": tuning.met,
        "trials": trials,
    }


def resumed(case: Case, folder: Path, given: argparse.Namespace) -> Report:
    """Kill a search behind its second candidate, run the same command again, and compare with one that was not killed."""
    model = str(SHARED / "models" / case.model)
    words = ["compress", model, "--data", case.data, *case.flags, "--max-drop", given.max_drop]
    words += ["--candidates", "3", "--no-measure", "--limit", "600"]
    for name in ("whole", "killed"):
        shutil.rmtree(folder / name, ignore_errors=True)
    run(folder, [*words, "-o", "whole"])
    with subprocess.Popen(
        [str(_QUANTKIT), *words, "-o", "killed"], cwd=folder, stdout=subprocess.DEVNULL
    ) as process:
        while not (folder / "killed/candidates/02/candidate.json").exists():
            if process.poll() is not None:
                return {"error": "it ended before it could be killed"}
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    done, took = run(folder, [*words, "-o", "killed"])
    files = sorted(p.relative_to(folder / "whole") for p in (folder / "whole").rglob("*.onnx"))
    same = [
        (folder / "whole" / f).read_bytes() == (folder / "killed" / f).read_bytes() for f in files
    ]
    return {**took, "exit": done.returncode, "files": len(files), "same": sum(same)}


def unmet(case: Case, folder: Path, given: argparse.Namespace) -> Report:
    """Ask for what cannot be."""
    del given
    model = str(SHARED / "models" / case.model)
    words = ["compress", model, "--data", case.data, *case.flags, "--max-drop", "0.1%"]
    words += ["--max-size", "5%", "--candidates", "4", "--limit", "600", "-o", "unmet", "--again"]
    done, took = run(folder, words)
    return {**took, "exit": done.returncode, "sentence": _found(folder / "unmet").get("sentence")}


# ---- report ----


def markdown(data: Mapping[str, Any]) -> str:
    """Return the page."""
    lines = ["# compress", "", f"{describe(data['machine'])}", ""]
    lines += [
        "`quantkit compress MODEL --data DIR --max-drop 1%`, one run each. *Drop* is that of the final check, on samples that neither",
        "fitted nor chose, with its 95 % interval; in brackets that of the samples that chose, where a file was not judged. *Time* and",
        "*size* are multiples of float's. The machine was shared: minutes by the clock say little, those of the CPU more.",
        "",
    ]
    for name, found in data["runs"].items():
        lines += [f"## {found['title']}: {name}", "", *_section(found), ""]
    lines += ["## Resumed, and unmet", ""]
    lines += [f"- {key}: {json.dumps(value)}" for key, value in data["others"].items()]
    return "\n".join(lines) + "\n"


def _section(found: Mapping[str, Any]) -> list[str]:
    if "error" in found:
        return [f"Failed: {found['error']}"]
    calibration, choosing, judging = found["samples"]
    rows = [
        [
            f"**{t['made']}**" if t["chosen"] else t["made"],
            _drop(t),
            "" if t["time"] is None else f"{t['time']:.2f}",
            "" if t["size"] is None else f"{t['size']:.3f}",
            t["verdict"],
            f"{t['seconds']:.0f} s",
        ]
        for t in found["trials"]
    ]
    said = (
        f"{found['measure']}; {calibration:,} samples to fit, {choosing:,} to choose, {judging:,} to judge. "
        f"{found['minutes']:.1f} minutes ({found['cpu_minutes']:.1f} of the CPU), exit {found['exit']}. {found['sentence']} "
        f"{found['again']}"
    )
    notes = [f"- {t['made']}: {t['note']}" for t in found["trials"] if t["note"]]
    header = ["recipe", "drop", "time", "size", "budget", "took"]
    return [said, "", *table(header, rows), *([""] if notes else []), *notes]


def _drop(trial: Mapping[str, Any]) -> str:
    if trial["judged"]:
        middle, low, high = (100 * v for v in trial["judged"])
        return f"{middle:.2f} [{low:.2f}, {high:.2f}]"
    return "" if trial["drop"] is None else f"({100 * trial['drop']:.2f})"


def main() -> None:
    """Run what is asked for, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "compress")
    parser.add_argument("--only", nargs="*", default=list(cases()), help="runs, by name")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--max-drop", default="1%")
    parser.add_argument("--skip-others", action="store_true", help="neither killed nor unmet")
    given = parser.parse_args()
    file = RESULTS / "compress.json"
    data = json.loads(file.read_text()) if file.exists() else {"runs": {}, "others": {}}
    data["machine"] = machine()
    every = cases()
    for name in given.only:
        found = compressed(every[name], given.work / name, given)
        data["runs"][name] = {"title": every[name].title, **found}
        write_results(RESULTS, "compress", data, markdown(data))
        if name == _PICTURED:
            words = ["report", "out/result.json", "--picture", str(RESULTS / "compress.svg")]
            run(given.work / name, words)
    if not given.skip_others:
        case, folder = every["resnet20_size"], given.work / "resnet20_size"
        data["others"] = {
            "resumed": resumed(case, folder, given),
            "unmet": unmet(case, folder, given),
        }
        write_results(RESULTS, "compress", data, markdown(data))


if __name__ == "__main__":
    main()
