"""The pages as a site: built without a warning, and quiet and offline in a real browser."""

import functools
import runpy
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from doc_pages import ROOT
from playwright.sync_api import Browser, expect

OPENED = ["", "docs/first-model/", "docs/reference/cli/", "docs/results/", "quantkit/ort/"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="zensical is not installed: pip install '.[docs]'")
    build = runpy.run_path(str(ROOT / "docs" / "build.py"))["build"]
    folder: Path = build(tmp_path_factory.mktemp("site"))
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
def test_the_site_has_pages_reports_and_the_workflow(site: Path) -> None:
    for path in (
        *(f"{page}index.html" for page in OPENED),
        "docs/ci/quantkit-gate.yml",
        "reports/efficientnet_lite0/report.html",
        "reports/static.svg",
    ):
        assert (site / path).is_file(), path


@pytest.mark.parametrize("path", OPENED, ids=lambda p: p or "home")
@pytest.mark.slow
def test_a_page_is_quiet_and_asks_nobody_else(browser: Browser, address: str, path: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    asked: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: asked.append(r.url))
    page.goto(address + path)
    expect(page.locator("h1")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert errors == []
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    page.close()
