"""The report's pages in a real browser: on a phone and a desktop, with scripts and without, and printed."""

from __future__ import annotations

import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.app import site
from tests.support import report_samples
from tests.support.browser import Browser

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SHOWN = (
    "[...document.querySelectorAll('tr[data-state]')].filter(e => e.checkVisibility()).map(e => e.cells[0].innerText)"
)
OVERFLOWING = """[...document.querySelectorAll('body *')].filter(e => e.checkVisibility({visibilityProperty: true})
    && !e.closest('.jump, .hidden, thead'))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < 0)
    .map(e => e.outerHTML.slice(0, 80))"""
EVERY = ["tiny-gpu", "tiny-cpu-py311", "tiny-gpu-py312", "worse-cpu"]
DIFFERENCES = ["differences.html", "differences/tiny-gpu-uncommitted.html"]
PAGES = [
    "index.html",
    "cells/tiny-gpu.html",
    "cells/tiny-cpu-py311.html",
    "cells/tiny-gpu-py312.html",
    "packages.html",
    *DIFFERENCES,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    long = "x" * 300 + " </script><script>document.title = 'taken'</script><img src=https://example.org/x>"
    site.replace_report(root / "site", site.render(report_samples.report(root / "matrix", long)))
    return root / "site"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_requests_nothing_else(
    browser: Browser, pages: Path, page: str, width: int, *, dark: bool
) -> None:
    browser.look(width=width, dark=dark)
    browser.open(pages / page)
    browser.value("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert browser.value("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert browser.value(OVERFLOWING) == []
    folder = pages.resolve().as_uri()
    assert len(browser.requests) >= 2  # itself and its style
    assert all(request.startswith(folder) for request in browser.requests), browser.requests
    assert browser.said == []
    assert browser.value("document.title") != "taken"
    assert browser.value("getComputedStyle(document.body).maxWidth") != "none"  # the style is in force


@pytest.mark.parametrize(
    "page", ["index.html", "cells/tiny-gpu.html", "cells/tiny-gpu-py312.html", "packages.html", *DIFFERENCES]
)
def test_tables_stay_tables_for_screen_readers_on_a_phone(browser: Browser, pages: Path, page: str) -> None:
    roles_read = []
    for width in (390, 1280):
        browser.look(width=width)
        browser.open(pages / page)
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = Counter(each["role"]["value"] for each in nodes if not each["ignored"])
        roles_read.append({role: roles[role] for role in ("table", "row", "rowheader", "columnheader", "caption")})
    phone, desktop = roles_read
    assert phone == desktop
    assert all(phone.values())


def test_without_scripts_all_is_there_to_read(browser: Browser, pages: Path) -> None:
    browser.look(width=390, scripts=False)
    browser.open(pages / "index.html", "?filter=gpu")
    assert browser.value(SHOWN) == EVERY
    assert not browser.value("document.getElementById('filter').checkVisibility()")


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("", EVERY),
        ("?filter=tiny+GPU", ["tiny-gpu", "tiny-gpu-py312"]),
        ("?state=conflict", ["worse-cpu"]),
        ("?filter=tiny&state=unknown", ["tiny-cpu-py311"]),
        ("?filter=none+such", []),
        ("?state=constructor", EVERY),
    ],
)
def test_the_filter_takes_an_address(browser: Browser, pages: Path, query: str, left: list[str]) -> None:
    browser.look(width=1280)
    browser.open(pages / "index.html", query)
    assert browser.value(SHOWN) == left
    assert browser.value("document.querySelector('#filter output').value") == f"{len(left)} of 4 cells"


def test_the_filter_takes_keyboard_input(browser: Browser, pages: Path) -> None:
    browser.look(width=1280)
    browser.open(pages / "index.html")
    focus = "document.activeElement.tagName + '.' + (document.activeElement.name || document.activeElement.className)"
    seen = []
    for _ in range(40):
        browser.press("Tab")
        seen.append(browser.value(focus))
        if seen[-1] == "INPUT.filter":
            break
    assert seen[0] == "A.jump"
    assert seen[-1] == "INPUT.filter"
    browser.call("Input.insertText", text="worse")
    assert browser.value(SHOWN) == ["worse-cpu"]
    assert browser.value("location.search") == "?filter=worse"


def test_packages_are_filtered_by_words(browser: Browser, pages: Path) -> None:
    shown = "[...document.querySelectorAll('tbody tr')].filter(e => e.checkVisibility()).map(e => e.cells[0].innerText)"
    browser.look(width=1280, scripts=False)
    browser.open(pages / "packages.html", "?filter=bsd")
    assert browser.value(shown) == ["numpy", "torch"]
    assert not browser.value("document.getElementById('filter').checkVisibility()")
    browser.look(width=1280)
    browser.open(pages / "packages.html", "?filter=bsd+TINY-cpu")
    assert browser.value(shown) == ["torch"]
    assert browser.value("document.querySelector('#filter output').value") == "1 of 2 packages"
    browser.value("document.querySelector('#filter input').focus()")
    browser.call("Input.insertText", text=" nothing")
    assert browser.value(shown) == []


def test_on_paper_there_is_no_navigation_and_what_is_folded_is_seen(browser: Browser, pages: Path) -> None:
    browser.look(width=1280)
    browser.open(pages / "cells" / "tiny-gpu.html")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert not browser.value("[...document.querySelectorAll('nav, footer')].some(e => e.checkVisibility())")
    assert browser.value(
        "document.querySelector('details.printed table').checkVisibility({contentVisibilityAuto: true})"
    )
    assert browser.call("Page.printToPDF")["data"]
    browser.call("Emulation.setEmulatedMedia", media="")


CARDS = (
    "[...document.querySelectorAll('.card')].filter(e => e.checkVisibility()).map(e => e.querySelector('h3').innerText)"
)
CHOOSE = """(([name, value]) => {
    const form = document.getElementById('choose');
    form.elements[name].value = value;
    form.elements[name].dispatchEvent(new Event('input', {bubbles: true}));
})"""


def test_the_chooser_shows_one_image_with_what_runs_it(browser: Browser, pages: Path) -> None:
    browser.look(width=1280)
    browser.open(pages / "index.html")
    assert browser.value(CARDS) == ["tiny-gpu", "tiny-cpu-py311"]
    browser.value(f"{CHOOSE}(['gpu', 'RTX 5090'])")
    assert browser.value(CARDS) == ["tiny-gpu"]
    assert browser.value("document.querySelector('.first pre').innerText").startswith(
        "docker pull ghcr.io/acme/rl/tiny@"
    )
    browser.value(f"{CHOOSE}(['gpu', 'none: CPU'])")
    assert browser.value(CARDS) == ["tiny-cpu-py311"]
    browser.value(f"{CHOOSE}(['cuda', '13.0'])")
    assert browser.value(CARDS) == []
    unlocked = "[...document.querySelectorAll('#unlocked li')].filter(e => e.checkVisibility()).map(e => e.innerText)"
    assert browser.value(unlocked) == []
    browser.value(f"{CHOOSE}(['gpu', ''])")
    assert browser.value(CARDS) == ["tiny-gpu"]
    browser.value(f"{CHOOSE}(['python', '3.12'])")
    assert browser.value(CARDS) == []
    assert browser.value(unlocked) == ["tiny-gpu-py312 no known conflict"]
    assert browser.value("document.querySelector('#unlocked a').href").endswith("/cells/tiny-gpu-py312.html")


def test_the_heat_map_shows_a_reason_on_focus_without_scripts(browser: Browser, pages: Path) -> None:
    shown = "getComputedStyle(document.querySelector('.square.conflict .tip')).visibility"
    for width in (390, 1280):
        browser.look(width=width, scripts=False)
        browser.open(pages / "index.html")
        assert browser.value(shown) == "hidden"
        browser.value("document.querySelector('.square.conflict').focus()")
        assert browser.value(shown) == "visible"
        assert "worse-cpu" in browser.value("document.querySelector('.square.conflict .tip').innerText")
        assert browser.value(OVERFLOWING) == []


MARK = "document.querySelector('.marks .conflict')"
CENTRES = """['circle', '.marks a'].map(shape => [...document.querySelectorAll('.chart ' + shape)]
    .map(e => e.getBoundingClientRect()).map(r => Math.round(r.left + r.width / 2)))"""


def test_the_chart_shows_a_verdict_on_focus_without_scripts(browser: Browser, pages: Path) -> None:
    shown = f"getComputedStyle({MARK}.querySelector('.tip')).visibility"
    for width in (320, 390, 1280):
        browser.look(width=width, scripts=False)
        browser.open(pages / "cells/tiny-gpu.html")
        assert browser.value(shown) == "hidden"
        browser.value(f"{MARK}.focus()")
        assert browser.value(shown) == "visible"
        assert "torch-numpy" in browser.value(f"{MARK}.querySelector('.tip').innerText")
        assert browser.value(OVERFLOWING) == []
        circles, marks = browser.value(CENTRES)
        assert len(circles) == 4
        assert all(abs(one - other) <= 1 for one, other in zip(circles, marks, strict=True)), (circles, marks)
        cells = browser.value("[...document.querySelectorAll('.locks td:last-child')].map(e => e.innerText)")
        assert ["torch-numpy" in each for each in cells] == [False, True, True, False]


def test_a_chart_is_printed_without_its_reasons(browser: Browser, pages: Path) -> None:
    browser.look(width=1280)
    browser.open(pages / "cells" / "tiny-gpu.html")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.value("[...document.querySelectorAll('.chart circle, .locks td')].every(e => e.checkVisibility())")
    assert not browser.value("[...document.querySelectorAll('.tip')].some(e => e.checkVisibility())")
    browser.call("Emulation.setEmulatedMedia", media="")


def test_a_difference_leads_to_the_one_before_and_to_its_cell(browser: Browser, pages: Path) -> None:
    browser.look(width=390, scripts=False)
    browser.open(pages / "differences.html")
    leads = "[...document.querySelectorAll('a')].map(e => e.href.split('/').slice(-2).join('/'))"
    assert "differences/tiny-gpu-uncommitted.html" in browser.value(leads)
    browser.open(pages / "differences/tiny-gpu-uncommitted.html")
    found = browser.value(leads)
    for target in ("differences/tiny-gpu-2026-11-13-2.html", "cells/tiny-gpu.html", "cells/tiny-gpu.toml"):
        assert target in found
    browser.open(pages / "cells/tiny-gpu.html")
    assert "differences/tiny-gpu-uncommitted.html" in browser.value(leads)


def test_a_button_copies_a_command(browser: Browser, pages: Path) -> None:
    browser.look(width=1280)
    browser.open(pages / "cells/tiny-gpu.html")
    copied = """new Promise(done => {
        navigator.clipboard.writeText = async text => done(text);
        document.querySelector('.copy').click();
    })"""
    assert browser.value(copied) == browser.value("document.querySelector('pre').textContent")


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checker of accessibility rules, from npm."""
    folder = tmp_path_factory.mktemp("axe")
    subprocess.run(["npm", "pack", "--silent", "axe-core@4.10.2"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        program = archive.extractfile("package/axe.min.js")
        assert program
        return program.read().decode()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_violation_of_accessibility_rules(
    browser: Browser, pages: Path, axe: str, page: str, width: int, *, dark: bool
) -> None:
    browser.look(width=width, dark=dark)
    browser.open(pages / page)
    browser.value("document.querySelectorAll('details').forEach(e => e.open = true)")
    browser.value(f"{axe};0")
    found = browser.value("axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 120))]))")
    assert found == []
