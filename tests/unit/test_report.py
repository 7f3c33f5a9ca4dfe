"""The report's pages: valid, complete, the same each time, and no more than text where others wrote the words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagegen.app import site, site_report, site_view, unlocked
from imagegen.app.lock_difference import LockVerdict
from imagegen.app.lock_history import LockChange
from imagegen.app.site_view import ChooserValues
from imagegen.core.data import shipped
from imagegen.core.errors import Location
from imagegen.lock.model import WheelPatch
from imagegen.spec.model import (
    ExposedPort,
    GitSource,
    LibraryDirectory,
    OwnSource,
    Sdist,
    WheelAddress,
)
from tests.support import report_samples
from tests.support.golden import Golden

ROOT = Path(__file__).parents[2]
DOCS = "https://github.com/imagegen/imagegen/blob/main/docs/"
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(1)">&lt;{{ 7 * 7 }}{% raw %}'


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> site_report.SiteReport:
    return report_samples.report(tmp_path_factory.mktemp("matrix") / "m")


@pytest.fixture(scope="module")
def files(report: site_report.SiteReport) -> dict[str, bytes]:
    return site.render(report)


def parsed(page: bytes) -> Element:
    """The page's tree; an error where it is not valid HTML as far as the standard's parser says."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    tree: Element = parser.parse(page, transport_encoding="utf-8")
    return tree


def text(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def pages(files: dict[str, bytes]) -> Iterator[tuple[str, Element]]:
    return ((name, parsed(data)) for name, data in files.items() if name.endswith(".html"))


def test_the_pages(files: dict[str, bytes], golden: Callable[[str, str], None]) -> None:
    golden("report-index.html", files["index.html"].decode())
    golden("report-cell.html", files["cells/tiny-gpu.html"].decode())
    golden("report-unlocked.html", files["cells/tiny-gpu-py312.html"].decode())
    cells = {f"cells/{name}.html" for name in ("tiny-gpu", "tiny-cpu-py311", "tiny-gpu-py312", "worse-cpu")}
    scripts = {"choose.js", "copy.js", "filter.js", "packages.js"}
    saved = {"cells/tiny-gpu.toml", "cells/tiny-gpu.cdx.json"}
    days = {f"differences/tiny-gpu-{day}.html" for day in ("uncommitted", "2026-11-13-2", "2026-11-13")}
    golden("report-difference.html", files["differences/tiny-gpu-uncommitted.html"].decode())
    golden("report-differences.html", files["differences.html"].decode())
    assert set(files) == {
        "index.html",
        "packages.html",
        "differences.html",
        *cells,
        *saved,
        *days,
        "style.css",
        *scripts,
    }


def test_an_image_is_started_by_digest_where_it_is_published(report: site_report.SiteReport) -> None:
    gpu, cpu = site_view.index(report)["sheets"]
    digest = f"ghcr.io/acme/rl/tiny@sha256:{'e' * 64}"
    texts = dict(gpu["specifications"])
    assert (texts["Docker"], texts["Dockerfile"]) == (f"docker pull {digest}", f"FROM {digest}")
    assert all(digest in texts[name] for name in ("Docker Compose", "Kubernetes"))
    assert dict(cpu["specifications"])["Dockerfile"] == f"FROM imagegen/tiny@sha256:{'e' * 64}"
    assert "Docker" not in dict(cpu["specifications"])


def test_the_chooser_offers_what_the_images_have(report: site_report.SiteReport) -> None:
    whole = site_view.index(report)
    assert whole["choices"] == ChooserValues(
        ("RTX 5090", "RTX PRO 6000", "none: CPU"), ("none",), ("13.0",), ("3.12", "3.11")
    )
    assert [sheet["choice"].cuda for sheet in whole["sheets"]] == [("13.0",), ()]


def test_the_chooser_proposes_tested_images_first(report: site_report.SiteReport) -> None:
    gpu, cpu = (sheet.cell for sheet in report.sheets)
    newer = replace(cpu, id="tiny-cpu-py312", axes={**cpu.axes, "python": "3.12"})
    flagship = replace(newer, id="flagship", flagship=True)
    keys = {
        (state, cell.id): site_view.preference(state, cell, {cpu.id})
        for state in ("tested", "locked") for cell in (cpu, newer, flagship, gpu)
    }  # fmt: skip
    assert sorted(keys, key=lambda key: keys[key]) == [
        (state, cell)
        for state in ("tested", "locked")
        for cell in ("tiny-gpu", "flagship", "tiny-cpu-py311", "tiny-cpu-py312")
    ]


def test_the_heat_map_has_each_cell_once(report: site_report.SiteReport) -> None:
    heat = site_view.index(report)["heat"]
    found = [(row["image"], [[cell["cell"] for cell in cells] for cells in row["columns"]]) for row in heat["rows"]]
    assert heat["cudas"] == ["CPU", "13.0"]
    assert found == [("tiny", [["tiny-cpu-py311"], ["tiny-gpu", "tiny-gpu-py312"]]), ("worse", [["worse-cpu"], []])]


@pytest.mark.parametrize(
    ("names", "driver", "expected"),
    [
        (["NVIDIA H200"], "580.159.04", "They passed on NVIDIA H200, driver 580.159.04:"),
        (["NVIDIA H200", "NVIDIA H200"], "", "They passed on 2 x NVIDIA H200:"),
        ([], "", "They passed:"),
    ],
)
def test_gpu_and_driver_of_a_test_are_shown(
    report: site_report.SiteReport, names: list[str], driver: str, expected: str
) -> None:
    details = {"devices": [{"name": name} for name in names], "driver": driver}
    cuda = {"check": "cuda", "status": "pass", "seconds": 1.0, "reason": "", "details": details, "log": ""}
    tested = {**report_samples.SMOKE.as_dict(), "passed": True, "checks": [cuda]}
    made = site.render(replace(report, sheets=(replace(report.sheets[0], smoke=tested),)))
    assert expected in text(parsed(next(page for name, page in made.items() if name.startswith("cells/"))))


def test_what_is_not_known_is_said(files: dict[str, bytes], golden: Golden) -> None:
    said = text(parsed(files["cells/tiny-cpu-py311.html"]))
    index = text(parsed(files["differences.html"]))
    golden.check(said, index, text(parsed(files["differences/tiny-gpu-2026-11-13.html"])))


def test_a_cell_without_a_lock_has_a_page_of_what_is_known(
    report: site_report.SiteReport, files: dict[str, bytes], golden: Golden
) -> None:
    free, bad = site_view.index(report)["unlocked"]
    assert [(each.name, each.allowed) for each in free["constraints"]] == [
        ("numpy", "any version"),
        ("torch", "==2.13.0, index wheels-cpu"),
    ]
    assert free["declarations"] == (("without wandb", "Nothing logs."),)
    assert free["locked"] == (("tiny-gpu", "tiny-gpu.html"), ("tiny-cpu-py311", "tiny-cpu-py311.html"))
    commands = [[command for _, command in page["commands"]] for page in (free, bad)]
    golden.check(commands)
    page = text(parsed(files["cells/worse-cpu.html"]))
    golden.check(page)
    for name in ("tiny-gpu-py312", "worse-cpu"):
        links = [each.get("href") for each in parsed(files["index.html"]).iter("a")]
        assert links.count(f"cells/{name}.html") == 2  # from the grid and from the list


def test_requirements_that_are_no_release_name_their_source(report: site_report.SiteReport) -> None:
    cell = report.unlocked[0].cell
    torch = next(each for each in cell.requirements if each.component.name == "torch")
    commit = GitSource("v1", "https://example.org/t", "0123456789abcdef" * 2, "f" * 40, Sdist("1", (), ()))
    address = WheelAddress("https://example.org/torch-2.9.1%2Bx-cp311-cp311-linux_x86_64.whl", "a" * 64)
    changed = {
        "v1 of https://example.org/t, commit 0123456789ab": replace(torch, git=commit),
        "./scorer of the project": replace(torch, own=OwnSource("path", "./scorer", Location("m.yaml", 1))),
        f"2.9.1+x from {address.url}": replace(torch, address=address),
        "==2.13.0, index wheels-cpu, compiled from source": replace(torch, index="wheels-cpu", from_source=True),
    }
    found = [unlocked.constraints(replace(cell, requirements=(each,)))[0].allowed for each in changed.values()]
    assert found == list(changed)


def test_packages_are_listed_with_what_is_known_of_them(files: dict[str, bytes], golden: Golden) -> None:
    page = parsed(files["packages.html"])
    numpy, torch = page.findall(".//tbody/tr")
    golden.check([text(each) for each in numpy])
    assert [text(each) for each in torch][:4] == ["torch", "2.13.0", "BSD-3-Clause", "140 days, uploaded 2026-07-03"]
    assert [each.get("href") for each in torch.iter("a")][:2] == [
        "https://deps.dev/pypi/torch/2.13.0", "cells/tiny-gpu.html",
    ]  # fmt: skip
    assert "packages.html" in [each.get("href") for each in parsed(files["index.html"]).iter("a")]


def test_pages_are_well_made(files: dict[str, bytes]) -> None:
    for name, page in pages(files):
        assert page.find("head/title") is not None
        assert len(page.findall(".//h1")) == len(page.findall(".//main")) == 1, name
        ids = Counter(each.get("id") for each in page.iter() if each.get("id"))
        assert not [each for each, count in ids.items() if count > 1], name
        for each in page.iter():
            if label := each.get("aria-labelledby"):
                assert label in ids, (name, label)
            assert not [attribute for attribute in each.attrib if attribute.startswith("on") or attribute == "style"]
        for table in page.findall(".//table"):
            assert table[0].tag == "caption", name
            assert text(table[0])
            assert all(each.get("scope") for each in table.findall(".//th")), name
        levels = [int(each.tag[1]) for each in page.iter() if re.fullmatch("h[1-6]", str(each.tag))]
        assert all(after - before <= 1 for before, after in pairwise(levels)), (name, levels)


def test_links_lead_somewhere_and_nothing_comes_from_outside(files: dict[str, bytes]) -> None:
    ids = {name: {each.get("id") for each in page.iter()} for name, page in pages(files)}
    for name, page in pages(files):
        for each in page.iter():
            for link in filter(None, (each.get("href"), each.get("src"))):
                if link == "data:,":
                    continue
                if each.tag.endswith("a") and link.startswith(DOCS):  # a page to visit; nothing is loaded from it
                    assert (ROOT / "docs" / link.removeprefix(DOCS)).exists(), (name, link)
                    continue
                if each.get("rel") == "external noreferrer":
                    assert each.tag == "a", (name, link)
                    continue
                path, _, fragment = link.partition("#")
                target = _resolved(PurePosixPath(name).parent / path) if path else name
                assert target in files, (name, link)
                assert not fragment or fragment in ids[target], (name, link)
    assert not re.search(rb"url\(|@import|https?:", files["style.css"] + files["filter.js"] + files["packages.js"])


def _resolved(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


@settings(max_examples=15)
@example(HOSTILE)
@example("\ufffe \ufdd0")
@example("\x1b[2J \u202egnihtyna \ud800 \0 https://user:secret@host/x")
@given(st.text(max_size=60))
def test_what_others_wrote_is_text_and_nothing_else(report: site_report.SiteReport, words: str) -> None:
    made, plain = (site.render(_saying(each, report)) for each in (words, "words"))
    for name, page in pages(made):
        assert _shape(page) == _shape(parsed(plain[name])), name
    assert b"secret" not in b"".join(made.values())
    if words == HOSTILE:
        assert text(parsed(made["index.html"])).count(HOSTILE) == 9


def _saying(words: str, report: site_report.SiteReport) -> site_report.SiteReport:
    """The report with these words wherever a matrix, a repository or a check has the word."""
    first = report.sheets[0]
    steps = tuple(_changed(step, words) for step in first.history.steps)
    sheet = replace(
        first,
        cell=replace(first.cell, purpose=words),
        history=replace(first.history, steps=steps),
        stale=(words,),
        smoke=_smoke(words),
    )
    return replace(
        report,
        states={name: replace(state, reason=words) for name, state in report.states.items()},
        sheets=(sheet, *report.sheets[1:]),
        unlocked=tuple(replace(each, missing=(words,), locked=(words,)) for each in report.unlocked),
        packages=tuple(replace(each, licence=words or "-", source=words) for each in report.packages),
        descriptions={"tiny": words},
    )


def _changed(step: LockChange, words: str) -> LockChange:
    verdict = LockVerdict("conflict", rules=(words,), reason=words)
    summary = replace(step.lock, verdict=verdict) if step.lock else None
    found = step.difference and replace(
        step.difference,
        before=replace(step.difference.before, verdict=verdict),
        packages=tuple(replace(each, name=words, why=words, step=words) for each in step.difference.packages),
        others=tuple(replace(each, name=words, kind=words, before=words) for each in step.difference.others),
    )
    rejected = tuple(replace(each, name=words, newer=words, reason=words) for each in step.rejected)
    return replace(step, lines=(words,), rejected=rejected, lock=summary, difference=found)


def _smoke(words: str) -> dict[str, Any]:
    report = report_samples.SMOKE.as_dict()
    return report | {"checks": [check | {"reason": words} for check in report["checks"]]}


def _shape(page: Element) -> list[str]:
    """Elements in their order; what says something or nothing, as a reason does, aside."""
    return [str(each.tag) for each in page.iter() if each.tag != "br" and each.get("class") != "reason"]


def test_the_same_report_gives_the_same_bytes(report: site_report.SiteReport, files: dict[str, bytes]) -> None:
    assert site.render(report) == files


def test_colours_can_be_distinguished_from_what_is_below_them() -> None:
    """4.5 to 1 for text, light and dark: WCAG 2.2, 1.4.3."""
    style = (shipped("pages") / "style.css").read_text()
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in _themes(style))
    for theme in (light, dark):
        pairs = [(ink, paper) for ink in ("text", "quiet", "link") for paper in ("page", "raised")]
        pairs += [(ink, paper) for ink in ("good", "bad", "open") for paper in (f"{ink}-below", "raised")]
        for ink, paper in [*pairs, ("text", "open-below")]:
            assert contrast(theme[ink], theme[paper]) >= 4.5, (ink, paper, theme)


def _themes(style: str) -> tuple[str, str]:
    light, rest = style.split("@media (prefers-color-scheme: dark)", 1)
    return light, rest.split("}", 1)[0]


def contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    """Source: WCAG 2.2, "relative luminance"."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_browsers_scripts_are_only_ours(files: dict[str, bytes]) -> None:
    for name, page in pages(files):
        scripts = [each.get("src") for each in page.iter("script")]
        expected = {
            "index.html": ["copy.js", "choose.js", "filter.js"],
            "packages.html": ["packages.js"],
            "differences.html": [],
        }
        assert scripts == expected.get(name, ["../copy.js"])
        policy = next(each.get("content") for each in page.iter("meta") if each.get("http-equiv"))
        assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy


def test_what_a_lock_changes_of_packages_and_config_has_its_reasons(
    report: site_report.SiteReport, golden: Golden
) -> None:
    *others, sheet = report.sheets
    *wheels, torch = sheet.lock.wheels
    patch = WheelPatch("patches/torch.patch", "a" * 64, 9, "Until a release has it.", "https://example.com/1")
    lock = replace(
        sheet.lock,
        wheels=(*wheels, replace(torch, patches=(patch,))),
        ports=(ExposedPort("80/tcp", "Web."),),
        ldconfig=(LibraryDirectory("/opt/lib", "Our scorer."),),
    )
    made = site.render(replace(report, sheets=(*others, replace(sheet, lock=lock))))
    rows = [[text(each) for each in row] for row in parsed(made["cells/tiny-cpu-py311.html"]).iter("tr")]
    golden.check(rows)
    assert ["ldconfig", "/opt/lib", "Our scorer."] in rows
    assert ["port", "80/tcp", "Web."] in rows
