"""Manifests in YAML: compose, Kubernetes, KServe."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quantkit.package.docker import USER, health
from quantkit.package.facts import Facts

__all__ = ["compose", "inference_service", "kubernetes", "yaml_text"]

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*", re.ASCII)
_WORDS = frozenset("y n yes no on off true false null nan inf".split())  # noqa: SIM905 - a table
_TMP = "64Mi"
# Knative, KServe's other way to run pods, forbids half of what is said of them here. Newer versions call it Standard.
_PLAIN_PODS = {"serving.kserve.io/deploymentMode": "RawDeployment"}


def yaml_text(plain: Any, indent: int = 0) -> str:
    """Return mappings, lists and scalars as YAML. Whatever a text says, it stays a text."""
    space = "  " * indent
    lines = []
    if isinstance(plain, Mapping):
        for key, value in plain.items():
            lines.append(f"{space}{_scalar(key)}:{_below(value, indent + 1)}")
    else:
        for value in plain:
            inner = _below(value, indent + 1)
            # The first line of what is below stands behind the dash.
            lines.append(f"{space}-{' ' + inner.lstrip() if inner[:1] == chr(10) else inner}")
    return "\n".join(lines) + ("" if indent else "\n")


def _below(value: Any, indent: int) -> str:
    if isinstance(value, Mapping | list) and value:
        return f"\n{yaml_text(value, indent)}"
    return f" {_scalar(value)}"


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    plain = (c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
    return f'"{"".join(plain)}"'


def compose(facts: Facts) -> str:
    """Return compose.yaml."""
    port = facts.serve.port
    missing = "?set QUANTKIT_TOKEN" if facts.serve.require_token else "-"
    service = {
        "build": {"context": "."},
        "image": facts.image,
        "user": f"{USER}:{USER}",
        "read_only": True,
        "tmpfs": [f"/tmp:size={_TMP.lower().rstrip('i')},mode=1777,noexec,nosuid,nodev"],  # noqa: S108 - the container's
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "ports": [f"127.0.0.1:{port}:{port}"],
        "environment": {"QUANTKIT_TOKEN": f"${{QUANTKIT_TOKEN:{missing}}}"},
        "healthcheck": {
            "test": ["CMD", *health(port)],
            "interval": "10s",
            "timeout": "3s",
            "start_period": "60s",
            "retries": 3,
        },
        "stop_grace_period": f"{facts.grace_s}s",
        "restart": "unless-stopped",
        "deploy": {
            "resources": {
                "limits": {"cpus": str(facts.cpus), "memory": f"{facts.memory_mb}M", "pids": 256}
            }
        },
    }
    return yaml_text({"name": facts.slug, "services": {facts.slug: service}})


def _pod(facts: Facts) -> dict[str, Any]:
    """Return what a pod runs."""
    port, kserve = facts.serve.port, facts.form == "kserve"

    def asked(path: str, period: int, failures: int) -> dict[str, Any]:
        place = {"path": path, "port": port}
        return {
            "httpGet": place,
            "periodSeconds": period,
            "timeoutSeconds": 2,
            "failureThreshold": failures,
        }

    memory = {"requests": f"{facts.idle_mb}Mi", "limits": f"{facts.memory_mb}Mi"}
    needed = facts.serve.require_token
    token = {"name": f"{facts.slug}-token", "key": "token", "optional": not needed}
    container = {
        "name": "kserve-container" if kserve else "server",
        "image": facts.image,
        "imagePullPolicy": "IfNotPresent",
        "ports": [
            {"name": "http1" if kserve else "http", "containerPort": port, "protocol": "TCP"}
        ],
        "env": [{"name": "QUANTKIT_TOKEN", "valueFrom": {"secretKeyRef": token}}],
        "startupProbe": asked("/v2/health/ready", 2, 60),
        "readinessProbe": asked("/v2/health/ready", 2, 3),
        "livenessProbe": asked("/v2/health/live", 10, 3),
        "resources": {
            "requests": {"cpu": str(facts.cpus), "memory": memory["requests"]},
            "limits": {"cpu": str(facts.cpus), "memory": memory["limits"]},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the container's
    }
    return {
        **({"nodeSelector": {"kubernetes.io/arch": facts.arch}} if facts.arch else {}),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": facts.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": _TMP}}],
    }


def _about(facts: Facts) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/name": facts.slug,
        "app.kubernetes.io/version": facts.tag,
        "app.kubernetes.io/managed-by": "quantkit",
    }
    return {"name": facts.slug, "labels": labels}


def kubernetes(facts: Facts) -> str:
    """Return k8s.yaml: a Deployment and a Service."""
    chosen = {"app.kubernetes.io/name": facts.slug}
    about = _about(facts)
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": about,
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": chosen},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": {"metadata": {"labels": about["labels"]}, "spec": _pod(facts)},
        },
    }
    port = {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {"type": "ClusterIP", "selector": chosen, "ports": [port]},
    }
    return _documents([deployment, service])


def inference_service(facts: Facts) -> str:
    """Return inferenceservice.yaml: KServe's resource, with the same container as predictor."""
    predictor = {"minReplicas": 1, "timeout": facts.grace_s, **_pod(facts)}
    return _documents(
        [
            {
                "apiVersion": "serving.kserve.io/v1beta1",
                "kind": "InferenceService",
                "metadata": _about(facts) | {"annotations": _PLAIN_PODS},
                "spec": {"predictor": predictor},
            }
        ]
    )


def _documents(several: Sequence[Mapping[str, Any]]) -> str:
    return "---\n".join(yaml_text(one) for one in several)
