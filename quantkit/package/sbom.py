"""sbom.json: what is in the image, as CycloneDX 1.6 writes it."""

import uuid
from collections.abc import Mapping
from typing import Any

from quantkit.package.facts import Facts
from quantkit.package.lock import Package

__all__ = ["sbom"]


def sbom(facts: Facts) -> dict[str, Any]:
    """Return the bill of materials: packages, quantkit and the models; no time, so that the same is the same."""
    root = f"image:{facts.image}"
    version = facts.tools["quantkit"]
    own = {
        "type": "library",
        "bom-ref": f"pkg:pypi/quantkit-onnx@{version}",
        "name": "quantkit-onnx",
        "version": version,
        "purl": f"pkg:pypi/quantkit-onnx@{version}",
        "licenses": [{"expression": "Apache-2.0"}],
    }
    models = [_model(role, about) for role, about in facts.models.items()]
    known = {one.name for one in facts.packages}
    served = [own] if facts.packages else []
    parts = [*models, *served, *map(_component, facts.packages)]
    needs = {
        _ref(one): [f"pkg:pypi/{n}" for n in one.needs if n in known] for one in facts.packages
    }
    by_name = {f"pkg:pypi/{one.name}": _ref(one) for one in facts.packages}
    depends = [{"ref": root, "dependsOn": [part["bom-ref"] for part in parts]}]
    depends += [{"ref": r, "dependsOn": [by_name[n] for n in names]} for r, names in needs.items()]
    identity = (
        f"{facts.image} {facts.models['model']['sha256']} {[_ref(one) for one in facts.packages]}"
    )
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [{"type": "application", "name": "quantkit", "version": version}]
            },
            "component": {
                "type": "container",
                "bom-ref": root,
                "name": facts.slug,
                "version": facts.tag,
            },
        },
        "components": parts,
        "dependencies": depends,
    }


def _ref(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: Package) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "type": "library",
        "bom-ref": _ref(package),
        "name": package.name,
        "version": package.version,
        "purl": _ref(package),
    }
    if len(package.hashes) == 1:  # of several it is not known here which one is installed
        plain["hashes"] = [{"alg": "SHA-256", "content": package.hashes[0]}]
    if package.licence:
        plain["licenses"] = [{"license": {"name": package.licence}}]
    return plain


def _model(role: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{role}",
        "name": role,
        "version": about["sha256"][:12],
        "hashes": [{"alg": "SHA-256", "content": about["sha256"]}],
    }
