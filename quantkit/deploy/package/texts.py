"""The texts of a package: Dockerfile, manifests, README.md and config.pbtxt from the templates next to this module, and the SBOM.

Names that users choose are in them as `facts.slug` or as the settings checked them, so that they are nothing to a shell;
the names of a model's tensors are quoted.
"""

import json
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.text_encoding import CEscape
from jinja2 import Environment, PackageLoader, StrictUndefined

from quantkit.deploy.package import smoke
from quantkit.deploy.package.facts import Facts
from quantkit.deploy.package.lock import Package
from quantkit.deploy.serve.engine import Engine
from quantkit.errors import ModelError

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
