"""The table [package]: what a server in a container is made of."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Settings, Share, setting

# host:port/path/name:tag@sha256:digest, all but the name optional; what else could stand there might be a command.
_IMAGE = re.compile(
    r"(?:[a-z0-9][a-z0-9.-]*(?::\d{1,5})?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][\w.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSettings(Settings):
    """What `quantkit package` writes.

    Packages in the image have the versions that are installed here, with which the kept sample was answered. Their hashes
    come from `lock`, else from the package index that pip is set up for; without `hashes` there are none.
    """

    form: Literal["docker", "kserve", "triton"] = setting(
        "docker: image, compose, Kubernetes; kserve: image, InferenceService; triton: a model repository.",
        "FORM",
        default="docker",
        flag="--format",
        key="format",
    )
    base: str | None = setting(
        "Image to build on, best with @sha256:...; Default: python, slim, as here.", "IMAGE"
    )
    image: str | None = setting(
        "Name of the image with its registry: registry.example.com/team/cats. Default: the model's name; without a tag, "
        "the digest of its content.",
        "IMAGE",
    )
    arch: Literal["amd64", "arm64"] | None = setting(
        "Architecture of the locked packages and of the nodes that run them. Default: this machine's.",
        "ARCH",
    )
    lock: Path | None = setting(
        "Take packages and hashes from this file instead of the index.", "FILE"
    )
    hashes: bool = setting(
        "Pin packages by hash (default), or by version alone.",
        default=True,
        flag="--hashes/--no-lock",
    )
    wheels: bool = setting(
        "Put the packages beside the Dockerfile: the image builds without network.", default=False
    )
    sample: Path | None = setting(
        "What ./smoke sends: an image, a .txt, an .npy or .npz. Default: made up.", "FILE"
    )
    tolerance: Share = setting(
        "How far an answer may be from the recorded one, of its largest value: 1%.",
        "P",
        default=0.01,
        ge=0,
        le=1,
    )
    report: Path | None = setting("Put this report of quantkit evaluate into it.", "FOLDER")

    def _check(self) -> None:
        if self.base is not None and not _IMAGE.fullmatch(self.base):
            raise UsageError(
                f"base {self.base!r} is not an image reference; use python:3.13-slim or name@sha256:<digest>."
            )
        if self.image is not None and ("@" in self.image or not _IMAGE.fullmatch(self.image)):
            raise UsageError(
                f"image {self.image!r} is not a name to push to; use registry.example.com/team/cats, or with a :tag."
            )
        if not self.hashes and (self.lock is not None or self.wheels):
            given = "lock" if self.lock is not None else "wheels"
            raise UsageError(f"{given} needs hashes: leave out --no-lock.")
