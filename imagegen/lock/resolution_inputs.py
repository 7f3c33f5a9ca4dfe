"""Prepare a resolution: a cell's base, the indexes behind aliases, commits.

All parts that cannot be fetched are reported at once, for a user who has to bring them into another network.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement as Pep508
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, FetchError, ImagegenError, LockError
from imagegen.core.net import Client, NotFoundError, UnreachableError, package_index
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.text import redact
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.components import Compiled, no_recipe
from imagegen.lock.file import raise_all
from imagegen.lock.find_links import find_local_wheel
from imagegen.lock.model import BUILT, GIT, LOCAL, LockedWheel
from imagegen.lock.recipes import require_metadata
from imagegen.lock.uv_resolve import Pinned, Site
from imagegen.spec.model import Cell, Requirement


class Attempts:
    """Steps that may fail one by one; `require` then raises all that went wrong."""

    def __init__(self) -> None:
        self._errors: list[ImagegenError] = []

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Collect an error of a part that cannot be fetched, which ends the block."""
        try:
            yield
        except (BaseError, FetchError, LockError) as error:
            self._errors.append(error)

    def require(self) -> None:
        raise_all(self._errors)


@dataclass(frozen=True)
class ResolutionInputs:
    """`sites` by index alias; `archives` of commits by package."""

    sites: Mapping[str, Site]
    archives: Mapping[str, git.PackedTree]


def gather(
    cell: Cell,
    target: WheelTarget,
    compiled: Mapping[str, Compiled],
    attempts: Attempts,
    work_dir: Path,
    context: Context,
) -> ResolutionInputs:
    """Fetch all parts of a resolution; `work_dir` must exist until the lock is made. Raises the errors that `attempts`
    collected.

    The resolution needs no file of components that are `compiled` by a recipe.
    """
    for requirement in cell.requirements:
        component, is_given = requirement.component, bool(requirement.own or requirement.address)
        if component.compiled and component.package not in cell.recipes and not is_given:
            with attempts.attempt():
                _check_wheel(requirement, target, context.settings)
    sites = default_site(context.settings)
    builder = _SiteBuilder(cell, target, work_dir, context.settings, context.progress)
    routed: dict[str, list[Requirement]] = {}
    for requirement in cell.requirements:
        elsewhere = requirement.git or requirement.own or requirement.address
        ordinary = not elsewhere and requirement.component.package not in compiled
        if requirement.index != package_index.DEFAULT and ordinary:
            routed.setdefault(requirement.index, []).append(requirement)
    for alias, requirements in routed.items():
        with attempts.attempt():
            sites[alias] = builder.site(alias, requirements)
    archives: dict[str, git.PackedTree] = {}
    for requirement in cell.requirements:
        if requirement.git and not requirement.component.compiled:
            with attempts.attempt():
                archives[requirement.component.package] = _archive(requirement, context)
    attempts.require()
    sites |= {GIT: builder.commits(archives)} if archives else {}
    sites |= {BUILT: builder.recipes(compiled.values())} if compiled else {}
    return ResolutionInputs(sites, archives)


def default_site(settings: Settings) -> dict[str, Site]:
    """Return the default index by its alias if the user configured one, else nothing: uv has its own default."""
    return {alias: Site(url) for alias, url in settings.index_urls.items() if alias == package_index.DEFAULT}


def page_of_wheels(wheels: Iterable[LockedWheel], store: Store, work_dir: Path) -> Site:
    """Write a page that offers wheels of the store, and return it."""
    links = []
    for wheel in wheels:
        file = work_dir / wheel.file.filename
        file.symlink_to(store.path(wheel.file.digest))
        links.append(_link(file.as_uri(), wheel.file.sha256, wheel.file.filename))
    return _write_page(work_dir, LOCAL, links)


def _write_page(work_dir: Path, alias: str, lines: Sequence[str]) -> Site:
    page = work_dir / f"{alias}.html"
    page.write_text("<!DOCTYPE html>\n" + "<br>\n".join(lines))
    return Site(page.as_uri(), flat=True)


def pep508(requirement: Requirement) -> str:
    """Return the requirement; an exact version gets its index's local label, so that no other build satisfies it."""
    if requirement.git:
        return f"{requirement.pep508}{',' if requirement.specifier else ''}=={requirement.git.metadata.version}"
    parsed = Pep508(requirement.pep508)
    exacts = [
        specifier for specifier in parsed.specifier if specifier.operator == "==" and "*" not in specifier.version
    ]
    if (label := requirement.label) and len(parsed.specifier) == len(exacts) == 1 and "+" not in exacts[0].version:
        return f"{requirement.pep508}+{label}"
    return requirement.pep508


def _check_wheel(requirement: Requirement, target: WheelTarget, settings: Settings) -> None:
    """Raise LockError for a compiled component without a wheel. Errors of the index are reported elsewhere."""
    name, package = requirement.component.name, requirement.component.package
    if source := requirement.git:
        requested = f"the cell asks for {source.url} at {source.commit}"
        raise no_recipe(f"{name} {source.metadata.version}", requested)
    url = package_index.url_of(requirement.index, settings)
    try:
        links = package_index.project(Client(settings).impatient(), url, package) if url else None
    except NotFoundError:
        links = []
    except FetchError:
        return
    if links is None or (not links and settings.extra_indexes):  # which may have it
        return
    allowed = SpecifierSet(requirement.specifier)
    wheels = [(link.filename, link) for link in links if allowed.contains(release_of(link.filename), prereleases=True)]
    if target.best(wheels) is None:
        target_name = f" for Python {target.python} on {target.uv_platform}" if links else ""
        why = f"recipes know none, and index {requirement.index} has no wheel of it{target_name}"
        raise no_recipe(f"{name} {requirement.specifier}".strip(), why)


def release_of(filename: str) -> str:
    """Return a wheel's version; for other files one that no requirement names."""
    try:
        return str(parse_wheel_filename(filename)[1])
    except ValueError:
        return "0.dev0"


def _archive(requirement: Requirement, context: Context) -> git.PackedTree:
    assert requirement.git  # noqa: S101 - the caller passes only requirements of commits
    source, package = requirement.git, requirement.component.package
    commit = git.TreeSource(source.url, source.commit, source.tree, exclude=source.exclude)
    packed = git.archive(commit, f"{package}-{source.metadata.version}", context)
    for paths, subject in ((packed.submodules, "submodules are"), (packed.pointers, "files in Git LFS are")):
        if paths:
            context.progress.say(f"{package} from {source.url}: {subject} left out: {', '.join(paths)}")
    require_metadata(requirement, packed, context.store)
    return packed


@dataclass(frozen=True)
class _SiteBuilder:
    cell: Cell
    target: WheelTarget
    work_dir: Path
    settings: Settings
    progress: Progress

    def site(self, alias: str, requirements: Sequence[Requirement]) -> Site:
        """Return the alias's index; if it cannot be reached, the exact files that find-links directories have.

        An index that answers is never replaced; a file that it refuses or lacks is an error. Raises FetchError,
        LockError.
        """
        url = package_index.url_of(alias, self.settings)
        if url is None:
            fix = f"set {package_index.variable(alias)}"
            raise LockError(f"index {alias} has no address", code="lock-no-index", fix=fix)
        try:
            undated = frozenset(self._undated(url, requirements))
        except UnreachableError as error:
            return self._stand_in(alias, requirements, error)
        if undated:
            names = ", ".join(sorted(undated))
            self.progress.say(f"note: index {alias} gives no upload times for {names}: --as-of does not apply there")
        return Site(url, undated=undated)

    def _undated(self, url: str, requirements: Iterable[Requirement]) -> Iterator[str]:
        """The packages of which an index lists a file without an upload time; that file may be older than the others.

        Raises FetchError, UnreachableError where the index does not answer.
        """
        client = Client(self.settings).impatient()
        for requirement in requirements:
            package = requirement.component.package
            try:
                links = package_index.project(client, url, package)
            except NotFoundError:  # uv names what an index lacks
                continue
            if any(link.uploaded is None for link in links):
                yield package

    def commits(self, archives: Mapping[str, git.PackedTree]) -> Site:
        """A page that offers one sdist for each commit: uv has its metadata from the matrix and does not open it."""
        lines = []
        for requirement in self.cell.requirements:
            if (source := requirement.git) and (archive := archives.get(requirement.component.package)):
                name = f"{requirement.component.package.replace('-', '_')}-{source.metadata.version}.tar.gz"
                digest = archive.digest.removeprefix("sha256:")
                lines.append(_link((self.work_dir / name).as_uri(), digest, name))
        return self._page(GIT, lines)

    def recipes(self, compiled: Iterable[Compiled]) -> Site:
        """Write a page that offers one sdist for each component that a recipe compiles: uv gets its metadata, as for
        commits.

        Its hash is of a description, not of a file: a wheel that fits may make the sources unnecessary. Hashes differ,
        since uv takes files of one hash for one release (measured with 0.13.8).
        """
        lines = []
        for component in compiled:
            name = f"{component.package.replace('-', '_')}-{component.version}.tar.gz"
            digest = hashlib.sha256(json.dumps([name, component.recipe.requires]).encode()).hexdigest()
            lines.append(_link((self.work_dir / name).as_uri(), digest, name))
        return self._page(BUILT, lines)

    def _stand_in(self, alias: str, requirements: Sequence[Requirement], error: UnreachableError) -> Site:
        """A page of files from find-links directories that replaces an index out of reach for this resolution.

        Each package must be pinned to a version with a local label (2.13.0+cpu), so that no other build can have its
        version, and exactly one wheel must fit. Raises LockError where that is not so.
        """
        why = error.summary
        files = {requirement.component.package: self._exact_file(requirement) for requirement in requirements}
        lacking = [pep508(requirement) for requirement in requirements if not files[requirement.component.package]]
        if lacking:
            directories = ", ".join(map(redact, self.settings.find_links)) or "none is set"
            raise LockError(
                f"index {alias} cannot be reached",
                code="lock-index-unreachable",
                why=f"{why}; find-links directories ({directories}) can replace it only if each package is pinned "
                f"to a version with a local label, as in ==2.13.0+cpu, and exactly one wheel of it fits Python "
                f"{self.target.python} on {self.target.uv_platform}: not so for {', '.join(lacking)}",
                fix=f"set {package_index.variable(alias)} to a mirror of the index, or put that wheel where "
                "PIP_FIND_LINKS points",
            ) from error
        stand_ins = [
            (requirement, file) for requirement in requirements if (file := files[requirement.component.package])
        ]
        self.progress.say(f"warning: index {alias} cannot be reached ({why})")
        for requirement, file in stand_ins:
            self.progress.say(
                f"warning: {pep508(requirement)} is locked from the find-links directory {file.parent} instead of "
                f"index {alias}: {file.name}"
            )
        # With hashes on a page uv need not unpack the files into its cache to learn them.
        return self._page(alias, [_link(file.resolve().as_uri(), _sha256(file), file.name) for _, file in stand_ins])

    def _page(self, alias: str, lines: Sequence[str]) -> Site:
        return _write_page(self.work_dir, alias, lines)

    def _exact_file(self, requirement: Requirement) -> Path | None:
        specifiers = list(Pep508(pep508(requirement)).specifier)
        if len(specifiers) != 1 or specifiers[0].operator != "==" or "+" not in specifiers[0].version:
            return None
        package = requirement.component.package
        return find_local_wheel(self.settings, package, specifiers[0].version, self.target)


def _link(url: str, sha256: str, name: str) -> str:
    return f'<a href="{url}#sha256={sha256}">{html.escape(name)}</a>'


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_NO_EXTRA = re.compile(r"The package `([^`=]+)(?:==([^`]+))?` does not have an extra named `([^`]+)`")  # of uv 0.13


def report_warnings(cell: Cell, warnings: Iterable[str], progress: Progress) -> None:
    """Report warnings of uv. Raises LockError for each extra that the cell requires and the release does not have."""
    extras = {requirement.component.package: requirement.extras for requirement in cell.requirements}
    errors: list[ImagegenError] = []
    for warning in warnings:
        match = _NO_EXTRA.match(warning)
        if match and match[3] in extras.get(match[1], ()):
            errors.append(
                LockError(
                    f'{match[1]} {match[2] or ""} has no extra "{match[3]}"',
                    code="lock-unknown-extra",
                    where=cell.extra_places.get(match[1]),
                    why="the packages that it would bring are not in the image",
                    fix=f"remove it from `extras`, or require a release of {match[1]} that has it",
                )
            )
        else:
            progress.say(f"warning: uv: {warning}")
    raise_all(errors)


def require_used(cell: Cell, pins: Iterable[Pinned]) -> None:
    """Raise LockError for each override of a package that no found package requires."""
    required = {pin.name for pin in pins if pin.via}
    unused: list[ImagegenError] = [
        LockError(
            f'"{override.package}" overrides nothing',
            code="lock-unused-override",
            where=cell.override_places.get(override.package),
            why=f"no package of this cell requires {override.package}",
            fix="remove it from `overrides`" + ("" if override.specifier is None else ", or add it to `components`"),
        )
        for override in cell.overrides
        if override.package not in required
    ]
    raise_all(unused)
