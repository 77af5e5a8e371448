"""The image of a package, built and run for real; takes minutes, so only where QUANTKIT_CONTAINER=1 asks for it."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import container
import pytest


@pytest.mark.skipif(
    os.environ.get("QUANTKIT_CONTAINER") != "1", reason="set QUANTKIT_CONTAINER=1: it takes minutes"
)
@pytest.mark.skipif(bool(container.missing()), reason=f"no containers here: {container.missing()}")
def test_the_image_is_built_started_probed_asked_and_stopped() -> None:
    with TemporaryDirectory() as place:  # pytest's own are too deep for podman
        base = Path(os.environ.get("QUANTKIT_CONTAINER_BASE", f"{place}/base.tar"))
        facts = container.prove(Path(place), base)
    assert [f"{one.question}: {one.found}" for one in facts if not one.ok] == []
    assert len(facts) > 10
