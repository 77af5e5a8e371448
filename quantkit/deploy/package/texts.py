"""The texts of a package and the facts in them: Dockerfile, manifests, README.md and config.pbtxt from templates, and the SBOM.

Names that users choose are in them as `slug` or as the settings checked them, so that they are nothing to a shell; the names
of a model's tensors are quoted.
"""

import json
import math
import re
import unicodedata
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.text_encoding import CEscape
from jinja2 import Environment, PackageLoader, StrictUndefined

from quantkit.deploy.package import smoke
from quantkit.deploy.package.lock import Package
from quantkit.deploy.serve.engine import Engine
from quantkit.errors import ModelError
from quantkit.settings import PackageSettings, ServeSettings

MEGABYTE = 1 << 20
_LONGEST = 40  # of a name; with what is put behind it a name in Kubernetes has at most 63
_USUAL = "model"
_IDLE = 192  # megabytes of a server with a model of no size: measured 57 to 101, and room for more
_COPIES = 3  # of the weights: the file, what onnxruntime makes of it, a moment of both
_STEP = 64
_SLACK = 5  # seconds that stopping may take beyond what it waits for


def slug(text: str) -> str:
    """Return a name that is one everywhere: lower-case letters, digits and single dashes, a letter first, 40 at most.

    It is an image's name, a label of DNS, a file's name, and nothing to a shell.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    found = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if not found:
        return _USUAL
    return (found if found[0].isalpha() else f"{_USUAL}-{found}")[:_LONGEST].strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is packaged: the data of all texts.

    Attributes:
        settings: What is written.
        serve: How the model is served; with a name and a number of workers.
        arch: amd64 or arm64, which its packages are for; "": any.
        packages: What is installed in the image.
        models: Source, size and digest of each model, by its role: model, shadow, canary.
        sample: The file that `./smoke` sends.
        tools: Versions of what made it, Python included.
        tag: Of the image: the first digits of a digest of its content.
    """

    settings: PackageSettings
    serve: ServeSettings
    arch: str
    packages: tuple[Package, ...]
    models: Mapping[str, Mapping[str, Any]]
    sample: str
    tools: Mapping[str, str]
    tag: str = ""

    @property
    def slug(self) -> str:
        """The name of image and manifests."""
        return slug(self.serve.name or "")

    @property
    def base(self) -> str:
        """The image to build on: for the Python of this process, unless it is set."""
        return self.settings.base or f"python:{self.tools['python']}-slim-bookworm"

    @property
    def pinned_base(self) -> bool:
        """Whether the base image is named by its digest; a tag moves."""
        return "@sha256:" in self.base

    @property
    def image(self) -> str:
        """The image's name and tag."""
        name = self.settings.image or self.slug
        return name if ":" in name.rpartition("/")[2] else f"{name}:{self.tag}"

    @property
    def hashed(self) -> bool:
        """Whether packages are pinned by hash."""
        return all(one.hashes for one in self.packages)

    @property
    def cpus(self) -> int:
        """Cores that the server uses at once."""
        return (self.serve.workers or 1) * self.serve.threads

    @property
    def idle_mb(self) -> int:
        """Megabytes of memory that are asked for."""
        content = sum(one["bytes"] for one in self.models.values())
        return _rounded(_IDLE + _COPIES * content / MEGABYTE)

    @property
    def memory_mb(self) -> int:
        """Megabytes of memory at most: with all bodies that may be held."""
        return _rounded(self.idle_mb + self.serve.limits.memory_mb)

    @property
    def grace_s(self) -> int:
        """Seconds that stopping may take: longer than draining and the last request."""
        limits = self.serve.limits
        return math.ceil(limits.drain_s + limits.timeout_s) + _SLACK


def _rounded(megabytes: float) -> int:
    return math.ceil(megabytes / _STEP) * _STEP


SCRIPT = "smoke"
_USER = 10001  # who runs the server: not root, and no other user of an image
_SHEBANG = "#!/usr/bin/env python3\n"
_MANIFESTS = {"docker": "k8s.yaml", "kserve": "inferenceservice.yaml"}
# How the image and compose ask whether the server is ready: slim images have Python, and no curl.
_PROBE = "import urllib.request as r; r.urlopen('http://127.0.0.1:{}/v2/health/ready', timeout=2)"


def texts_of(facts: Facts) -> dict[str, str]:
    """Return the texts of a package by file name."""
    script = Path(smoke.__file__).read_text(encoding="utf-8")
    texts = {"README.md": _render("README.md", facts), SCRIPT: f"{_SHEBANG}{script}"}
    texts["sbom.json"] = json.dumps(_sbom(facts), indent=1) + "\n"
    if facts.settings.form != "triton":
        names = ("Dockerfile", "compose.yaml", _MANIFESTS[facts.settings.form])
        texts |= {name: _render(name, facts) for name in names}
        texts[".dockerignore"] = _render("dockerignore", facts)
    return texts


def commands(facts: Facts) -> tuple[str, ...]:
    """Return the commands from the folder to a server that answers; with a registry, the image is pushed."""
    return tuple(_render("commands.txt", facts).splitlines())


def config_pbtxt(facts: Facts, engine: Engine, *, labelled: str) -> str:
    """Return config.pbtxt, which Triton reads next to a model.

    Requests share runs only where that is asked for and changes no answer; else dimensions are as the model has them.

    Args:
        facts: What is packaged.
        engine: The model.
        labelled: The output whose classes labels.txt names; "": none.

    Raises:
        ModelError: The model takes a single number, or leaves a shape open: Triton can be sent neither.
    """
    single = next((port.name for port in engine.inputs if not port.shape), None)
    if single is not None:
        raise ModelError(
            f"Triton must be told how many dimensions an input has, and '{single}' says none: export it with a shape."
        )
    most = facts.serve.batches.batch
    rows = 0 if engine.unbatched or most == 1 else most
    ports = {"inputs": engine.inputs, "outputs": engine.outputs}
    return _render("config.pbtxt", facts, rows=rows, labelled=labelled, **ports)


def _render(name: str, facts: Facts, **more: Any) -> str:
    known = {key: getattr(facts, key) for key in dir(facts) if not key.startswith("_")}
    probe = _PROBE.format(facts.serve.port)
    return _environment().get_template(name).render(**known, **more, probe=probe, user=_USER)


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701 - no HTML
        loader=PackageLoader("quantkit.deploy.package", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda text: CEscape(text, as_utf8=False)
    return environment


def _sbom(facts: Facts) -> dict[str, Any]:
    """Return sbom.json, as CycloneDX 1.6 writes it: models, quantkit and packages; no time, so that the same inputs give the same file."""
    root, version = f"image:{facts.image}", facts.tools["quantkit"]
    refs = {one.name: _ref(one) for one in facts.packages}
    parts = [_model(role, about) for role, about in facts.models.items()]
    if facts.packages:
        own = _component(Package(name="quantkit-onnx", version=version))
        parts.append({**own, "licenses": [{"expression": "Apache-2.0"}]})
    parts += map(_component, facts.packages)
    depends = {root: [part["bom-ref"] for part in parts]}
    depends |= {_ref(one): [refs[n] for n in one.needs if n in refs] for one in facts.packages}
    identity = f"{facts.image} {facts.models['model']['sha256']} {list(refs.values())}"
    image = {"type": "container", "bom-ref": root, "name": facts.slug, "version": facts.tag}
    tool = {"type": "application", "name": "quantkit", "version": version}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}, "component": image},
        "components": parts,
        "dependencies": [{"ref": ref, "dependsOn": needs} for ref, needs in depends.items()],
    }


def _ref(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: Package) -> dict[str, Any]:
    ref = _ref(package)
    plain: dict[str, Any] = {"type": "library", "bom-ref": ref, "purl": ref}
    plain |= {"name": package.name, "version": package.version}
    if len(package.hashes) == 1:  # of several it is not known here which one is installed
        plain["hashes"] = [{"alg": "SHA-256", "content": package.hashes[0]}]
    if package.licence:
        plain["licenses"] = [{"license": {"name": package.licence}}]
    return plain


def _model(role: str, about: Mapping[str, Any]) -> dict[str, Any]:
    digest = about["sha256"]
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{role}",
        "name": role,
        "version": digest[:12],
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }
