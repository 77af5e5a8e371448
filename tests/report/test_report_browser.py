"""The page in a real browser: quiet, offline, within its width, usable by keyboard, in both themes, on paper."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect
from report_cases import hard_result, judged_result, tuned_result, unlabelled_result, with_layers
from result_cases import candidate

from quantkit.evaluate.report import write_html

_LAYERS = 2000
# Only boxes that scroll may hold what is wider than the page: elsewhere it would be cut off.
_STICKS_OUT = """() => [...document.querySelectorAll('main *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && !e.closest('.scroll, svg, .panel-name') && (box.right > innerWidth + 1 || box.left < -1);
}).map(e => e.className || e.tagName)"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    long = with_layers(candidate("long"), _LAYERS)
    results = {
        "judged": judged_result(),
        "hard": hard_result(),
        "unlabelled": unlabelled_result(),
        "searched": tuned_result(),
        "long": judged_result(long, candidate("other")),
    }
    folder = tmp_path_factory.mktemp("report")
    return {name: write_html(result, folder / name) for name, result in results.items()}


@dataclass
class Heard:
    """What a page said and asked for."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(
    browser: Browser,
    path: Path,
    width: int = 1280,
    theme: Literal["light", "dark"] = "light",
    *,
    section: str = "",
) -> Iterator[tuple[Page, Heard]]:
    """Open a page, at a section; afterwards it must have been quiet and have asked for nothing but itself."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    context.set_default_timeout(10_000)
    page, heard = context.new_page(), Heard()
    page.on("console", lambda message: heard.errors.append(message.text))
    page.on("pageerror", lambda error: heard.errors.append(str(error)))
    page.on("request", lambda request: heard.requests.append(request.url))
    page.goto(path.as_uri() + (f"#{section}" if section else ""))
    yield page, heard
    context.close()
    assert heard.errors == []
    assert [url.split("#")[0] for url in heard.requests] == [path.as_uri()]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["judged", "hard", "unlabelled", "searched"])
@pytest.mark.slow
def test_quiet_and_within_its_width(
    browser: Browser, pages: dict[str, Path], name: str, theme: Literal["light", "dark"]
) -> None:
    with opened(browser, pages[name], theme=theme) as (page, _):
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", shown)[0]) < 64) == (theme == "dark")
        for width in (1600, 1280, 1241, 700, 390, 320):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate(_STICKS_OUT) == []
            plot = page.locator("#picture .plot:visible")
            assert plot.count() == 1
            box = plot.bounding_box()
            assert box is not None
            assert box["width"] <= width


def test_theme_can_be_chosen_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["judged"]) as (page, _):
        ground = "getComputedStyle(document.body).backgroundColor"
        light, button = page.evaluate(ground), page.locator("#theme")
        assert button.inner_text() == "Dark"  # what it does, not what is
        button.focus()
        page.keyboard.press("Enter")
        assert button.inner_text() == "Light"
        assert page.evaluate(ground) != light
        page.keyboard.press("Space")
        assert page.evaluate(ground) == light


def test_the_first_screen_has_the_verdict_the_figures_and_the_best_advice(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["judged"]) as (page, _):
        box = page.locator("#verdict").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900
        text = page.locator("#verdict").inner_text()
        for figure in ("top-1 drop", "flips", "SQNR", "size", "time", "What would help"):
            assert figure in text
        assert page.evaluate("document.documentElement.scrollHeight") < 2600
        assert page.locator("details.fold[open]").count() == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_contents_open_sections_and_say_where_one_is(
    browser: Browser, pages: dict[str, Path], width: int
) -> None:
    with opened(browser, pages["judged"], width) as (page, _):
        current = page.locator(".contents [aria-current]")
        assert current.inner_text() == "Verdict"
        fold = page.locator("#drift details.fold")
        assert fold.get_attribute("open") is None
        link = page.locator(".contents a", has_text="Drift")
        assert link.is_visible()
        link.click()
        assert fold.get_attribute("open") == ""
        expect(current).to_have_text("Drift")
        page.evaluate("scrollTo(0, 0)")
        expect(current).to_have_text("Verdict")


def test_a_section_is_opened_by_keyboard_and_all_by_one_button(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["judged"]) as (page, _):
        page.locator("#size summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("#size table.sums").is_visible()
        page.locator("#unfold").click()
        assert page.locator("details.fold:not([open])").count() == 0
        expect(page.locator("#unfold")).to_have_text("Close all")


def test_a_link_into_the_page_opens_what_it_points_to(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["judged"], section="layer-panel-1") as (page, _):
        assert page.locator("#layers-1").is_visible()


def test_a_table_that_is_wider_than_a_phone_says_so(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["judged"], 390, section="drift") as (page, _):
        box = page.locator("#drift .scroll").first
        expect(box).to_have_class(re.compile("wider"))
        hint = box.evaluate("e => getComputedStyle(e, '::before').content")
        assert "Scroll sideways" in hint


def test_skip_link_is_the_first_stop(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["judged"]) as (page, _):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"


def test_tips_on_focus_and_on_hover(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["judged"], section="size") as (page, _):
        tip = page.locator("#tip")
        assert not tip.is_visible()
        page.locator("#picture .wide .mark").nth(1).focus()
        assert tip.is_visible()
        assert "static" in tip.inner_text()
        assert len(tip.inner_text().splitlines()) >= 4
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        page.locator("#size .mark").first.hover()
        assert "weights of Conv" in tip.inner_text()
        page.mouse.move(2, 2)
        assert not tip.is_visible()


def test_long_table_is_sorted_and_searched_by_keyboard(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["long"], section="layers") as (page, _):
        table, first = page.locator("#layers-1"), page.locator("#layers-1 tbody tr").first
        rows = page.locator("#layers-1 tbody tr")
        assert rows.count() < 50
        assert "/features/0/" in first.inner_text()
        alone = table.locator("th button", has_text="alone")
        alone.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        head = table.locator("th", has_text="alone")
        assert head.get_attribute("aria-sort") == "descending"
        assert "no error" in first.inner_text()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        assert "/features/0/" in first.inner_text()
        page.locator("#layers-1-filter").focus()
        page.keyboard.type("matmul /features/1995/")
        assert rows.count() == 1
        assert page.locator("#layer-panel-1 .count").inner_text() == "1 of 2000"
        page.keyboard.press("Control+A")
        page.keyboard.press("Delete")
        more = page.locator("#layer-panel-1 .all")
        more.focus()
        page.keyboard.press("Enter")
        assert rows.count() == _LAYERS


def test_layers_with_short_names_need_no_scrolling(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["judged"], section="layers") as (page, _):
        box = page.locator("#layer-panel-1 .scroll")
        assert box.evaluate("e => e.scrollWidth <= e.clientWidth")
        # The advice names an option, which is in one piece.
        assert page.locator("#layers-1 .nobr").first.inner_text() == "--exclude"


def test_missing_figures_are_last_either_way(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["long"], section="layers") as (page, _):
        button = page.locator("#layers-1 th button", has_text="input")
        for _ in range(2):
            button.click()
            assert "—" not in page.locator("#layers-1 tbody tr").first.inner_text()


def test_tabs_by_arrow_keys(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["judged"], section="layers") as (page, _):
        tabs = page.locator("#layers [role=tab]")
        assert page.locator("#layer-panel-1").is_visible()
        assert not page.locator("#layer-panel-2").is_visible()
        tabs.first.focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == "layer-tab-2"
        assert page.locator("#layer-panel-2").is_visible()
        assert tabs.nth(1).get_attribute("aria-selected") == "true"
        page.keyboard.press("Home")
        assert page.locator("#layer-panel-1").is_visible()


def test_command_is_copied(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["judged"], section="provenance") as (page, _):
        button = page.locator("button.copy")
        button.click()
        expect(button).to_have_text("Copied")


def test_paper_is_light_open_and_complete(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["judged"], theme="dark") as (page, _):
        assert page.pdf(print_background=True).startswith(b"%PDF")
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        ground = page.evaluate(
            "getComputedStyle(document.documentElement).getPropertyValue('--bg')"
        )
        assert ground == "#fdfdfc"
        page.set_viewport_size({"width": 690, "height": 1000})  # A4 within margins of 15 mm
        assert page.evaluate("document.documentElement.scrollWidth") == 690
        assert page.locator("details:not([open])").count() == 0
        for shown in ("#layer-panel-2", "#picture .wide"):
            assert page.locator(shown).first.is_visible()
        for gone in ("#theme", ".tabs", ".tools", ".copy"):
            assert not page.locator(gone).first.is_visible()


def test_works_without_script(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["judged"].as_uri())
    page.locator("#layers summary").first.click()
    assert page.locator("#layer-panel-2").is_visible()
    assert page.locator("#layers-1 tbody tr").count() == 9
    assert not page.locator("#theme").is_visible()
    context.close()
