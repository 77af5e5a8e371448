"""What all files of a package tell of."""

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.deploy.package.lock import Package
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
