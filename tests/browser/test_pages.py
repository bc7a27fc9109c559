"""Pages in a browser: quiet, without a network, usable, readable in both themes on any width."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from reproduce.report.page import write_page
from tests.reproduce.report.grids import HOSTILE, write_grid
from tests.sites import build_site, write_project

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (390, 1440)
NUMBERS = "75 ± 35 (2)"
"""Our score on every task of these grids."""
PAGES = {
    "grid": "page/sac-mujoco/paper/index.html",
    "hostile": "page/a2c-classic/rl_zoo/index.html",
    "start": "project/site/index.html",
    "on the site": "project/site/results/published/sac-mujoco/paper/index.html",
    "document": "project/site/agents/sac.html",
}
DOCUMENT = f"""# `sac`

## From equation to function

A word {"x" * 200} and `{"y" * 200}`.

| {" | ".join(f"column_{i}" for i in range(20))} |
|{"---|" * 20}
| {" | ".join(f"`cell_{i}`" for i in range(20))} |

```
python -m reproduce {"sac " * 60}
```
"""
CHARTS = {"grid": 2, "hostile": 2, "on the site": 2}
"""Drawings on a page, at least."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium: make browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of two grids, one of whose names are hostile, and a site with both."""
    root = tmp_path_factory.mktemp("pages")
    project = write_project(root / "project", agent=DOCUMENT)
    for folder in (root / "page", project / "results" / "published"):
        write_grid(folder / "sac-mujoco" / "paper", "HalfCheetah-v4", "Hopper-v4")
        write_grid(folder / "a2c-classic" / "rl_zoo", HOSTILE, text=HOSTILE)
    for report in (root / "page").rglob("report.json"):
        write_page(report.parent)
    build_site(project)
    return root


@contextmanager
def visit(browser: Browser, place: Path, width: int = 1440) -> Iterator[Page]:
    """Show a page; at the end no request has left the machine, and nothing was complained of."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light")
    context.set_default_timeout(180_000)  # the browser shares its cores with other tests
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: complaints.append(request.url))
    page.goto(place.as_uri())
    yield page
    context.close()
    local = ("file:", "data:", "blob:")
    assert [text for text in complaints if not text.startswith(local)] == []


def overflowing(page: Page) -> int:
    """Pixels by which a page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def brightness(page: Page, name: str) -> float:
    """Brightness, 0 to 1, of a colour of the page's body."""
    colour = page.evaluate(f"getComputedStyle(document.body).{name}")
    red, green, blue = map(float, re.findall(r"[\d.]+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_in_both_themes_on_a_phone_and_a_desk(
    browser: Browser, root: Path, name: str
) -> None:
    """Nothing is cut off at the side, charts are drawn, and the verdict's numbers are in sight."""
    with visit(browser, root / PAGES[name], WIDTHS[0]) as page:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for is_dark in (False, True):
                page.emulate_media(color_scheme="dark" if is_dark else "light")
                assert overflowing(page) <= 0, (width, is_dark)
                contrast = brightness(page, "color") - brightness(page, "backgroundColor")
                ours = name not in ("start", "document")  # mkdocs' theme has colours of its own
                assert not ours or ((contrast > 0.6) if is_dark else (contrast < -0.6))
            check_numbers(page, width)
        assert page.locator(".plot:has(.main-svg .trace)").count() >= CHARTS.get(name, 0)
        assert page.locator(".plot:not(:has(.main-svg))").count() == 0


def check_numbers(page: Page, width: int) -> None:
    """The first score of a page, if it has any, is within its width."""
    for numbers in page.get_by_text(NUMBERS).all()[:1]:
        numbers.scroll_into_view_if_needed()
        assert numbers.is_visible()
        box = numbers.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_a_click_turns_times_on_and_off(browser: Browser, root: Path) -> None:
    """The theme follows the reader's, and nothing can be uploaded."""
    with visit(browser, root / PAGES["grid"]) as page:
        chart = page.locator("#curves .plot")
        title = chart.locator(".xtitle").first
        expect(title).to_have_text("environment steps")
        chart.locator(".updatemenu-button", has_text="wall time").click()
        expect(title).to_have_text("seconds of wall time, ours alone")
        visible = "({ data }) => data.filter((t) => t.name === 'another').map((t) => t.visible)"
        assert {*chart.evaluate(visible)} == {"legendonly"}
        ink = "({ _fullLayout }) => _fullLayout.font.color"
        light = chart.evaluate(ink)
        page.emulate_media(color_scheme="dark")
        changed = f"light => ({ink})(document.querySelector('#curves .plot')) !== light"
        page.wait_for_function(changed, arg=light)
        expect(title).to_have_text("seconds of wall time, ours alone")
        assert page.locator(".modebar-btn[data-attr='cloud'], [data-title*='hare']").count() == 0
        chart.hover(position={"x": 250, "y": 300})
        expect(chart.locator(".hoverlayer")).to_contain_text(
            re.compile(r"ours.*: \d+ \[[\d.]+, [\d.]+\]")
        )
