"""sbom.json: what is in the image, as CycloneDX 1.6 writes it."""

import uuid
from collections.abc import Mapping
from typing import Any

from quantkit.deploy.package.facts import Facts
from quantkit.deploy.package.lock import Package

__all__ = ["sbom"]


def sbom(facts: Facts) -> dict[str, Any]:
    """Return the bill of materials: models, quantkit and packages; no time, so that the same inputs give the same file."""
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
