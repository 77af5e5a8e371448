"""The image that `quantkit package` describes: built, started, probed, asked and stopped for real, without Docker.

    apt-get install buildah podman runc mmdebstrap
    python benchmarks/container.py [--base-tar base.tar] [--output benchmarks/results/container.md]

The base is made of Debian's packages, for no registry is needed then; making it takes two minutes, and --base-tar keeps it.
The image is built twice without network from the wheels in the package, and run as root's guest with a read-only root.
Needs root, and Python 3.11, which is Debian bookworm's.
"""

import argparse
import http
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

TOOLS = ("buildah", "podman", "runc", "mmdebstrap")
BASE = "localhost/quantkit-base:bookworm"
HERE = Path(__file__).parent
_MEGABYTE = 1_000_000
_NAME = "quantkit-proof"
_DEBIAN = (3, 11)
# What is asked inside of the container: who it is, what it may do, what it can write, what it can import.
_INSIDE = """
import importlib.util, json, os, pathlib
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
def written(place):
    try:
        pathlib.Path(place, "probe").write_text("x")
    except OSError as e:
        return e.strerror
    pathlib.Path(place, "probe").unlink()
    return "written"
def there(name):
    return importlib.util.find_spec(name) is not None
print(json.dumps({
    "user": [os.getuid(), os.getgid()],
    "capabilities": int(status["CapEff"], 16),
    "no new privileges": status["NoNewPrivs"].strip() == "1",
    "writes": {place: written(place) for place in ("/", "/srv/model", "/opt/venv", "/etc", "/tmp")},
    "modules": [n for n in ("onnx", "onnx_ir", "scipy", "datasets", "typer", "rich", "pip", "setuptools") if there(n)],
    "telemetry": os.environ["ORT_DISABLE_TELEMETRY"],
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What was asked, what was found, and whether that is as promised."""

    question: str
    found: str
    ok: bool


def missing() -> str:
    """Say what keeps this from being run here; "" if nothing."""
    absent = [name for name in TOOLS if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid():
        return "not root"
    return "" if sys.version_info[:2] == _DEBIAN else "Python is not 3.11, as the base's is"


def _run(*words: str | Path, cwd: Path | None = None, check: bool = True) -> str:
    done = subprocess.run(
        [str(w) for w in words], capture_output=True, text=True, check=False, cwd=cwd
    )
    if check and done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """buildah and podman with a place of their own for images."""

    place: Path

    def words(self, tool: str) -> list[str]:
        """Return how a tool is called that keeps its images there."""
        storage = ["--root", str(self.place / "storage"), "--runroot", str(self.place / "run")]
        return [tool, *storage, "--storage-driver", "vfs"]

    def podman(self, *words: str | Path, check: bool = True) -> str:
        """Run podman with runc, which works where crun does not."""
        return _run(*self.words("podman"), "--runtime", "runc", *words, check=check)

    def build(self, folder: Path, image: str) -> float:
        """Build an image without network; return the seconds."""
        start = time.monotonic()
        _run(
            *(*self.words("buildah"), "bud", "--runtime", "runc", "--isolation", "oci"),
            *("--network", "none", "--timestamp", "0", "--format", "docker", "--no-cache"),
            *("--ulimit", "nofile=1024:1024", "--build-arg", f"BASE={BASE}", "-t", image, "."),
            cwd=folder,
        )
        return time.monotonic() - start

    def about(self, kind: str, name: str) -> Any:
        """Return what podman knows of an image or a container."""
        return json.loads(self.podman("inspect", "--type", kind, name))[0]


def make_base(file: Path) -> None:
    """Make a base of Debian's packages."""
    words = ("mmdebstrap", "--mode=root", "--variant=minbase")
    _run(*words, "--include=ca-certificates,python3,python3-venv", "bookworm", file)


def make_package(folder: Path) -> Path:
    """Quantize the sample model and package it, with the float model as its shadow."""
    import numpy as np

    from quantkit import PackageSettings, ServeSettings, package_model, quantize_static
    from quantkit.samples import CLASS_NAMES, fashion_mnist
    from quantkit.settings import ShadowSettings

    sample = fashion_mnist()
    model = sample.model
    np.savez(folder / "images.npz", image=sample.images[:256])
    quantize_static(model, folder / "fashion.int8.onnx", folder / "images.npz")
    np.savez(folder / "one.npz", image=sample.images[:1])
    (folder / "labels.txt").write_text("\n".join(CLASS_NAMES), encoding="utf-8")
    settings = PackageSettings(wheels=True, sample=folder / "one.npz")
    serve = ServeSettings(
        labels=folder / "labels.txt", second=ShadowSettings(shadow=model, share=0.5)
    )
    made = package_model(
        folder / "fashion.int8.onnx", folder / "context", settings=settings, serve=serve
    )
    return made.folder


def prove(place: Path, base: Path) -> list[Fact]:
    """Build, start, probe, ask, stop; return what was found.

    Args:
        place: An empty folder for all of it; podman wants a path of at most 46 characters.
        base: The base's root as tar; made if it is not there.
    """
    if not base.exists():
        make_base(base)
    context = make_package(place)
    engine = Engine(place=place)
    engine.podman("import", base, BASE)
    facts = _built(engine, context)
    port = _free_port()
    limits = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
    memory = ("--memory", "512m", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=256:256")
    try:
        start = time.monotonic()
        engine.podman(
            *("run", "--detach", "--name", _NAME, *limits, *memory, "--tmpfs", "/tmp"),  # noqa: S108 - the container's
            *("--publish", f"127.0.0.1:{port}:8000", "proof:one"),
        )
        smoke = subprocess.run(
            [str(context / "smoke"), f"http://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=False,
        )
        taken = time.monotonic() - start
        said = (smoke.stdout + smoke.stderr).strip()
        facts.append(
            Fact(
                question="started, and ./smoke answered",
                found=f"{taken:.1f} s: {said}",
                ok=not smoke.returncode,
            )
        )
        facts += _asked(port)
        facts += _inside(engine)
        facts += _stopped(engine, context, port)
    finally:
        engine.podman("rm", "--force", _NAME, check=False)
    return facts


def _built(engine: Engine, context: Path) -> list[Fact]:
    seconds = engine.build(context, "proof:one")
    engine.build(context, "proof:two")
    one, two = (engine.about("image", f"proof:{n}") for n in ("one", "two"))
    base = engine.about("image", BASE)
    layers = [found["RootFS"]["Layers"] for found in (one, two)]
    size, below = one["Size"] / _MEGABYTE, base["Size"] / _MEGABYTE
    user = one["Config"]["User"]
    return [
        Fact(question="built without network", found=f"{seconds:.0f} s", ok=True),
        Fact(
            question="size of the image",
            found=f"{size:.0f} MB, {size - below:.0f} MB of them above the base",
            ok=True,
        ),
        Fact(
            question="two builds have the same layers",
            found=layers[0][-1][:19],
            ok=layers[0] == layers[1],
        ),
        Fact(question="user of the image", found=user, ok=user == "10001:10001"),
    ]


def _inside(engine: Engine) -> list[Fact]:
    found = json.loads(engine.podman("exec", _NAME, "python", "-c", _INSIDE))
    health = subprocess.run(
        [*engine.words("podman"), "--runtime", "runc", "healthcheck", "run", _NAME],
        capture_output=True,
        check=False,
    ).returncode
    writes = {place: said for place, said in found["writes"].items() if place != "/tmp"}  # noqa: S108 - the container's
    process = engine.about("container", _NAME)["State"]["Pid"]
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    shown = "; ".join(f"{place}: {said}" for place, said in found["writes"].items())
    return [
        Fact(question="HEALTHCHECK", found=f"exit code {health}", ok=health == 0),
        Fact(
            question="user id, group id", found=str(found["user"]), ok=found["user"] == [10001] * 2
        ),
        Fact(
            question="capabilities",
            found=f"{found['capabilities']:#x}",
            ok=not found["capabilities"],
        ),
        Fact(
            question="no new privileges",
            found=str(found["no new privileges"]),
            ok=found["no new privileges"],
        ),
        Fact(question="writing", found=shown, ok=set(writes.values()) == {"Read-only file system"}),
        Fact(
            question="modules that must not be there",
            found=", ".join(found["modules"]) or "none",
            ok=not found["modules"],
        ),
        Fact(question="memory", found=f"{int(resident.split()[1]) / 1000:.0f} MB", ok=True),
    ]


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def _asked(port: int) -> list[Fact]:
    """Ask what an orchestrator asks."""
    paths = ("/v2/health/live", "/v2/health/ready", "/metrics")
    found = [(path, _status(port, path)) for path in paths]
    return [
        Fact(question=path, found=str(said), ok=said == http.HTTPStatus.OK) for path, said in found
    ]


@dataclass(slots=True)
class _Callers:
    """Callers behind a balancer: they ask without a pause, each time on a new connection, while it says ready."""

    port: int
    record: dict[str, Any]
    body: bytes
    ready: bool = True
    answered: int = 0
    lost: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Ask every second whether it is ready, as k8s.yaml's probe does every two."""
        while self.ready:
            time.sleep(1)
            self.ready = _status(self.port, "/v2/health/ready") == http.HTTPStatus.OK

    def ask(self) -> None:
        """Ask until it is not ready."""
        while self.ready:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            try:
                connection.request("POST", self.record["path"], self.body, self.record["headers"])
                answer = connection.getresponse()
                answer.read()
                said = "" if answer.status == http.HTTPStatus.OK else str(answer.status)
            except (OSError, http.client.HTTPException) as e:
                said = type(e).__name__
            finally:
                connection.close()
            if said:
                self.lost.append(said)
            else:
                self.answered += 1


def _stopped(engine: Engine, context: Path, port: int) -> list[Fact]:
    """Stop it while four callers ask."""
    record = json.loads((context / "answer.json").read_text(encoding="ascii"))
    callers = _Callers(port, record, (context / record["sample"]).read_bytes())
    threads = [Thread(target=one) for one in (callers.look, *[callers.ask] * 4)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    before, start = callers.answered, time.monotonic()
    engine.podman("stop", "--time", "30", _NAME)
    taken = time.monotonic() - start
    for thread in threads:
        thread.join()
    code = engine.about("container", _NAME)["State"]["ExitCode"]
    why = f" ({', '.join(sorted(set(callers.lost)))})" if callers.lost else ""
    after = callers.answered - before
    return [
        Fact(
            question="SIGTERM while four callers ask",
            found=f"exit code {code} after {taken:.1f} s",
            ok=code == 0,
        ),
        Fact(
            question="their requests, until it says that it is not ready",
            found=f"{before} answered before SIGTERM, {after} after it, {len(callers.lost)} lost{why}",
            ok=before > 0 and after > 0 and not callers.lost,
        ),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def table(facts: Sequence[Fact]) -> str:
    """Return the page."""
    rows = "".join(
        f"| {one.question} | {one.found} | {'yes' if one.ok else '**no**'} |\n" for one in facts
    )
    tools = ", ".join(
        _run(name, "--version").splitlines()[0] for name in ("buildah", "podman", "runc")
    )
    return (
        "# The container\n\nfashion_cnn, static int8, with its float model as shadow; `python benchmarks/container.py`.\n"
        f"{tools}.\n\n| what | found | as promised |\n|---|---|---|\n{rows}"
    )


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-tar", type=Path)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "container.md")
    given = parser.parse_args()
    if reason := missing():
        print(f"cannot be run here: {reason}")
        return 2
    with tempfile.TemporaryDirectory() as place:
        facts = prove(Path(place), given.base_tar or Path(place) / "base.tar")
    page = table(facts)
    given.output.write_text(page, encoding="utf-8")
    print(page)
    return 0 if all(one.ok for one in facts) else 1


if __name__ == "__main__":
    sys.exit(main())
