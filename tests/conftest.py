"""What holds for all tests."""

import importlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A result must not depend on how busy the machine is. Tests of measuring ask for it.
os.environ["QUANTKIT_MEASURE"] = "0"

# Who starts tests in the background may have these ignored, and processes that tests end would inherit that.
for _signal, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _usual)

# Each process of the tests has a core to itself: on tiny models, threads and workers that share cores with another process's
# take three times the time. What is about several cores is marked all_cores.
_CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
# Runs of one process each, as of several people on one machine, must not all take the first core.
_FIRST = os.getppid() if os.environ.get("PYTEST_XDIST_WORKER_COUNT") == "1" else 0
_OWN = (
    {_CORES[(_FIRST + int(_WORKER.removeprefix("gw"))) % len(_CORES)]}
    if _WORKER and _CORES
    else set(_CORES)
)
if _OWN:
    os.sched_setaffinity(0, _OWN)  # before numpy counts cores

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


_PORTABLE = Path(__file__).with_name("portable")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "let quantkit see another system: no POSIX names, no fork, and files in use cannot be replaced"
    parser.addoption("--portable", choices=["windows", "macos"], help=text)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--portable"):
        sys.path.insert(0, str(_PORTABLE))
        importlib.import_module("simulated").simulate(config.getoption("--portable"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of simulated systems where none is simulated."""
    return True if collection_path == _PORTABLE and not config.getoption("--portable") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a browser or a server, so that `-m "not browser"` leaves them out."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
        if "serve" in item.path.parts:
            item.add_marker(pytest.mark.server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test in which quantkit did what Windows does not permit, even if it ignored the error."""
    found = []
    if item.config.getoption("--portable"):
        found = importlib.import_module("simulated").VIOLATIONS
        found.clear()
    yield
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("--portable") and item.get_closest_marker("linux"):
        pytest.skip("about what other systems do not have")
    if _OWN:
        every = item.get_closest_marker("all_cores") is not None
        os.sched_setaffinity(0, set(_CORES) if every else _OWN)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """The system's browser. Where none is found tests skip, except where QUANTKIT_REQUIRE_BROWSER is set, as CI does."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        reason = f"no browser: none of {', '.join(_BROWSERS)} is installed"
        if os.environ.get("QUANTKIT_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=_FLAGS)
        yield started
        started.close()
