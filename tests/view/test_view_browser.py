"""The page in a real browser: quiet, offline, nothing overlaps, usable by keyboard, two models go together."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders import graph, matmul_model, model, node, save, weight
from onnx import TensorProto
from playwright.sync_api import Browser, Page

from quantkit import QInt8, quantize_dynamic, view_model

HOSTILE = "</script><script>window.hit=1</script><img src=x onerror=window.hit=1>"
# Boxes that lie over each other, and lines that run through a box.
_WRONG = """() => {
  const wrong = [];
  for (const svg of document.querySelectorAll('svg.graph')) {
    const boxes = [...svg.querySelectorAll('.box .body')].map(r => ({x: +r.getAttribute('x'), y: +r.getAttribute('y'), w: +r.getAttribute('width'), h: +r.getAttribute('height')}));
    boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
      if (a.x < b.x + b.w - 1 && b.x < a.x + a.w - 1 && a.y < b.y + b.h - 1 && b.y < a.y + a.h - 1) wrong.push(['boxes', a, b]);
    }));
    for (const line of svg.querySelectorAll('.net')) {
      const long = line.getTotalLength();
      for (let at = 0; at < long; at += 9) {
        const p = line.getPointAtLength(at);
        if (boxes.some(b => p.x > b.x + 2 && p.x < b.x + b.w - 2 && p.y > b.y + 2 && p.y < b.y + b.h - 2)) { wrong.push(['line', p.x, p.y]); break; }
      }
    }
  }
  return wrong;
}"""


@contextmanager
def opened(browser: Browser, path: Path, at: str = "") -> Iterator[Page]:
    """Open a page; afterwards it must have been quiet and have asked for nothing but itself."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    page = context.new_page()
    heard: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri() + at)
    yield page
    context.close()
    assert heard == []
    assert [url.split("#")[0] for url in asked] == [path.as_uri()]


def scoped(blocks: int, layers: int = 3) -> list[tuple[str, str]]:
    return [
        (f"/net/block{b}/fc{i}/MatMul", f"w{b}.{i}") for b in range(blocks) for i in range(layers)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("view")
    nodes, last = [], "x"
    for number, (name, held) in enumerate(scoped(24)):
        nodes.append(node("MatMul", [last, held], [f"m{number}"], name))
        skip = last if number % 3 else f"m{max(0, number - 4)}"
        last = f"m{number}"
        if number % 3 == 2:
            nodes.append(node("Add", [last, skip], [f"a{number}"], f"/net/block{number // 3}/Add"))
            last = f"a{number}"
    weights = {held: weight(8, 8) for _, held in scoped(24)}
    nodes.append(node("Identity", [last], ["y"], "end"))
    save(model(graph(nodes, {"x": ["N", 8]}, {"y": ["N", 8]}, weights)), place / "scopes.onnx")
    view_model(place / "scopes.onnx", place / "scopes.html")
    base = save(matmul_model(), place / "m.onnx")
    quantize_dynamic(base, place / "q.onnx", QInt8)
    view_model(place / "q.onnx", place / "two.html", float_model=base)
    return place


def rows(page: Page) -> int:
    return page.locator(".box").count()


@pytest.mark.slow
def test_first_sight_groups_and_search(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "scopes.html") as page:
        assert 5 < rows(page) <= 90
        assert page.evaluate(_WRONG) == []
        page.click("#close")
        closed = rows(page)
        page.click("#open")
        assert rows(page) > closed
        assert page.evaluate(_WRONG) == []
        for _ in range(4):
            page.keyboard.press("o")
        assert page.evaluate(_WRONG) == []
        page.keyboard.press("c")
        page.keyboard.press("/")
        page.keyboard.type("block17/fc1")
        page.keyboard.press("Enter")
        assert "block17/fc1" in page.locator("#panel h2").inner_text()
        assert "node=" in page.evaluate("location.hash")


def test_a_group_opens_and_closes_where_it_is_clicked(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "scopes.html") as page:
        page.click("#close")
        group = page.locator(".box[aria-expanded=false]").first
        before = rows(page)
        group.locator("[data-fold]").click()
        assert rows(page) > before
        page.keyboard.press("Enter")
        assert rows(page) == before


def test_a_link_leads_to_its_node(browser: Browser, folder: Path) -> None:
    at = "#node=/net/block3/fc0/MatMul"
    with opened(browser, folder / "scopes.html", at) as page:
        chosen = page.locator(".box.chosen")
        assert chosen.count() == 1
        box = chosen.bounding_box()
        assert box is not None
        assert 0 < box["y"] < 800
        assert "block3/fc0" in page.locator("#panel h2").inner_text()


def test_keys(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "scopes.html") as page:
        page.keyboard.press("ArrowDown")
        assert page.locator("#panel h2").inner_text() == "x"
        page.keyboard.press("ArrowDown")
        assert page.locator("#panel h2").inner_text() != "x"
        page.keyboard.press("ArrowUp")
        assert page.locator("#panel h2").inner_text() == "x"
        scale = "document.querySelector('svg.graph > g').getAttribute('transform')"
        before = page.evaluate(scale)
        page.keyboard.press("+")
        assert page.evaluate(scale) != before
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        assert page.locator("#panel").is_hidden()


def test_two_models_go_together(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "two.html") as page:
        page.locator("svg.graph").nth(1).locator(".box", has_text="mm").first.click()
        assert page.locator("svg.graph").nth(0).locator(".twin").count() == 1
        text = page.locator("#panel").inner_text()
        assert "MatMul is now MatMulInteger" in text
        page.select_option("#by", "change")
        assert "changed" in page.locator("#legend").inner_text()
        page.select_option("#by", "size")
        assert "%" in (page.locator("svg.graph").nth(1).text_content() or "")
        assert page.evaluate(_WRONG) == []


def test_float_model_has_the_colours_of_float(browser: Browser, folder: Path) -> None:
    with opened(browser, folder / "two.html") as page:
        float_side, quantized = (page.locator("svg.graph").nth(i) for i in (0, 1))
        assert float_side.locator(".k-dynamic, .k-int8").count() == 0
        assert float_side.locator(".k-float").count()
        assert quantized.locator(".k-dynamic").count()
        assert "float (1 → 0)" in page.locator("#legend").inner_text()


def test_hostile_names_do_no_harm(browser: Browser, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["y"], f"{HOSTILE}/a/{HOSTILE}"),
        node("Relu", ["y"], [HOSTILE], '" onload="window.hit=1'),
    ]
    proto = model(graph(nodes, {"x": ["N", 4]}, {HOSTILE: ["N", 4]}, {"w": weight(4, 4)}))
    path = save(proto, tmp_path / "m.onnx")
    view_model(path, tmp_path / "g.html", float_model=path)
    with opened(browser, tmp_path / "g.html") as page:
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("window.hit") is None
        assert page.locator("img").count() == 0


def test_subgraphs_and_an_empty_graph(browser: Browser, tmp_path: Path) -> None:
    branch = [
        graph(
            [node("MatMul", ["x", f"w{i}"], [f"o{i}"], f"in{i}")],
            {},
            {f"o{i}": ["N", 4]},
            {f"w{i}": weight(4, 4)},
            name=f"b{i}",
        )
        for i in range(2)
    ]
    nodes = [node("If", ["c"], ["y"], "choice", then_branch=branch[0], else_branch=branch[1])]
    proto = model(
        graph(nodes, {"x": ["N", 4], "c": []}, {"y": ["N", 4]}, types={"c": TensorProto.BOOL})
    )
    view_model(save(proto, tmp_path / "if.onnx"), tmp_path / "if.html")
    with opened(browser, tmp_path / "if.html") as page:
        assert page.locator(".box", has_text="in0").count() == 1
        assert page.locator(".box", has_text="choice").count() >= 1
        assert page.evaluate(_WRONG) == []
    empty = model(graph([], {"x": ["N"]}, {"x": ["N"]}))
    view_model(save(empty, tmp_path / "e.onnx"), tmp_path / "e.html")
    with opened(browser, tmp_path / "e.html") as page:
        assert rows(page) == 2


def test_three_thousand_nodes(browser: Browser, tmp_path: Path) -> None:
    count = 3_000
    nodes = [node("Sin", [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i in range(count)]
    proto = model(graph(nodes, {"v0": ["N"]}, {f"v{count}": ["N"]}))
    view_model(save(proto, tmp_path / "m.onnx"), tmp_path / "g.html")
    with opened(browser, tmp_path / "g.html", "#node=n1700") as page:
        assert page.locator("#panel h2").inner_text() == "n1700"
        assert rows(page) < 400


def test_what_onnxruntime_does_not_load_says_so_where_its_facts_would_be(
    browser: Browser, tmp_path: Path
) -> None:
    odd = node("Mystery", ["x"], ["y"], "odd")
    odd.domain = "acme"
    proto = model(graph([odd], {"x": ["N", 4]}, {"y": ["N", 4]}, {}))
    proto.opset_import.add(domain="acme", version=1)
    view_model(save(proto, tmp_path / "m.onnx"), tmp_path / "g.html")
    with opened(browser, tmp_path / "g.html") as page:
        assert "onnxruntime does not load it" in page.locator(".notes").inner_text()
        page.locator(".box", has_text="Mystery").click()
        assert "onnxruntime does not load it" in page.locator("#panel").inner_text()
