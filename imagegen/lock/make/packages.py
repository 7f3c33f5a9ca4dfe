"""Resolve the packages of a cell, and lock their files. Sdists and commits become wheels in the sandbox."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from imagegen.core.context import Context
from imagegen.core.errors import ImagegenError, LockError, SandboxError, SdistMetadataError, WheelError
from imagegen.core.net import Client, package_index, wheel_metadata
from imagegen.core.progress import timed
from imagegen.core.wheel_target import WheelTarget
from imagegen.image.file_tree import sdist_builder
from imagegen.lock import sdist
from imagegen.lock.components import Compiled, no_wheel
from imagegen.lock.file import LockErrors
from imagegen.lock.make.options import rfc3339
from imagegen.lock.make.previous import Previous
from imagegen.lock.model import (
    BUILT,
    GIT,
    LOCAL,
    URL,
    Foundation,
    LockedFile,
    LockedGit,
    LockedSdist,
    LockedWheel,
    archive_name,
)
from imagegen.lock.resolution_inputs import (
    ResolutionInputs,
    default_site,
    page_of_wheels,
    pep508,
    report_warnings,
    require_used,
)
from imagegen.lock.sources import RequiredFile, fetch_files
from imagegen.lock.stack import read_sdist
from imagegen.lock.uv_project import ProjectContents
from imagegen.lock.uv_resolve import UPLOADS, Pinned, Remote, ResolveRequest, resolve
from imagegen.spec.model import Cell, Component, GitSource, Requirement, Sdist

_MOST_SDISTS = 8  # of a cell that are built for their metadata
UV_VERSION = importlib.metadata.version("uv")


@dataclass(frozen=True)
class PackageResolver:
    """Resolves the packages of a cell and locks their files."""

    cell: Cell
    target: WheelTarget
    foundation: Foundation
    compiled: Mapping[str, Compiled]  # by package
    inputs: ResolutionInputs
    previous: Previous
    context: Context
    # By package: wheels of the project's own packages, and wheels that the cell names by address
    given: Mapping[str, LockedWheel] = field(default_factory=dict)
    # By package: metadata of sdists that no component declares, which the sandbox has built
    sdists: dict[str, Sdist] = field(default_factory=dict)

    def resolve(self, constraints: tuple[str, ...]) -> tuple[Pinned, ...]:
        """Return the releases that satisfy the cell; compiled components and commits without their files."""
        described = [
            replace(requirement.component, sdist=requirement.git.metadata)
            for requirement in self.cell.requirements
            if requirement.git
        ]
        described += [component.described for component in self.compiled.values()]
        described_packages = {component.package for component in described}
        overrides = self.cell.overrides
        request = ResolveRequest(
            requirements=tuple(self._requirement_text(requirement) for requirement in self.cell.requirements),
            target=self.target,
            as_of=self.previous.cutoff,
            routes=self._routes,
            sites=self.inputs.sites,
            constraints=constraints,
            overrides=tuple(
                f"{override.package}{override.specifier}" for override in overrides if override.specifier is not None
            ),
            omitted=tuple(override.package for override in overrides if override.specifier is None),
            sdists=(
                *(component for component in self.cell.sdists if component.package not in described_packages),
                *described,
            ),
            preferences=self.previous.versions,
        )
        with timed(self.context.progress, f"resolving {self.cell.id} as of {self.previous.cutoff}"):
            pins = self._resolve(request)
        require_used(self.cell, pins)
        return tuple(pin for pin in pins if pin.name not in request.omitted)

    def _resolve(self, request: ResolveRequest) -> tuple[Pinned, ...]:
        """Return the releases. An sdist whose metadata only a build gives is built in the sandbox."""
        try:
            pins, warnings = resolve(request, self.context.settings)
        except SdistMetadataError as error:
            return self._resolve_with_sdist(request, error)
        report_warnings(self.cell, warnings, self.context.progress)
        return pins

    def _resolve_with_sdist(self, request: ResolveRequest, refusal: SdistMetadataError) -> tuple[Pinned, ...]:
        """Return the releases with the sdist that uv refused, or with wheels of its package.

        A second refused release of one package shows that the resolver goes back through old releases.
        """
        name, version = refusal.release
        try:
            if name in self.sdists or len(self.sdists) >= _MOST_SDISTS:
                raise refusal
            self.sdists[name] = self._described(name, version, request)
        except ImagegenError as error:
            self.sdists.pop(name, None)
            sdists = tuple(component for component in request.sdists if component.package != name)
            try:
                return self._resolve(replace(request, sdists=sdists, only_wheels=(*request.only_wheels, name)))
            except LockError:
                raise error from None
        component = Component(name, name, "", (), sdist=self.sdists[name])
        return self._resolve(replace(request, sdists=(*request.sdists, component)))

    def _described(self, name: str, version: str, request: ResolveRequest) -> Sdist:
        """Return the metadata of an sdist, by the wheel that the sandbox builds of it."""
        files = replace(
            request,
            requirements=(f"{name}=={version}",),
            constraints=(),
            overrides=(),
            omitted=(),
            sdists=(Component(name, name, "", (), sdist=Sdist(version, (), ())),),
            preferences=None,
        )
        (pinned,), _ = resolve(files, self.context.settings)
        assert pinned.sdist  # noqa: S101 - uv has refused to build it
        alias = request.routes.get(name, package_index.DEFAULT)
        described = read_sdist(name, version, pinned.sdist, alias, self.context)
        (wheel,) = self._files([pinned], request.routes, {name: described})
        with self.context.store.path(wheel.file.digest).open("rb") as file:
            return replace(described, requires=wheel_metadata.of_file(file, name, version).requires)

    def _requirement_text(self, requirement: Requirement) -> str:
        package = requirement.component.package
        if wheel := self.given.get(package):
            return f"{requirement.pep508}{',' if requirement.specifier else ''}=={wheel.version}"
        compiled = self.compiled.get(package)
        return compiled.pep508 if compiled else pep508(requirement)

    def with_given(self, wheels: Mapping[str, LockedWheel], work_dir: Path) -> PackageResolver:
        """Return a resolver that takes these wheels of the store, by package, from a page in `work_dir`."""
        sites = {**self.inputs.sites, LOCAL: page_of_wheels(wheels.values(), self.context.store, work_dir)}
        return replace(self, given=wheels, inputs=replace(self.inputs, sites=sites))

    @cached_property
    def _known_sizes(self) -> dict[str, int]:
        return self.previous.file_sizes()

    @cached_property
    def _trusted_wheels(self) -> dict[tuple[str, str], LockedWheel]:
        return self.previous.wheels_of_sdists(self.foundation.base)

    @property
    def _routes(self) -> dict[str, str]:
        routes = {
            requirement.component.package: GIT if requirement.git else requirement.index
            for requirement in self.cell.requirements
        }
        return routes | dict.fromkeys(self.compiled, BUILT) | dict.fromkeys(self.given, LOCAL)

    def wheels(self, pins: Iterable[Pinned], contents: ProjectContents | None = None) -> tuple[LockedWheel, ...]:
        """Return the wheels of packages that are not compiled, by name; `contents` are another lock file's."""
        pins = [pin for pin in pins if pin.name not in self.compiled]
        requirements = {requirement.component.package: requirement for requirement in self.cell.requirements}
        commits = (
            contents.commits
            if contents
            else {name: requirement.git for name, requirement in requirements.items() if requirement.git}
        )
        routes = contents.routes if contents else self._routes
        sdists = {component.package: component.sdist for component in self.cell.sdists if component.sdist}
        sdists |= contents.sdists if contents else self.sdists
        locked = [
            *self._files([pin for pin in pins if pin.name not in {*commits, *self.given}], routes, sdists),
            *(replace(self.given[pin.name], via=pin.via) for pin in pins if pin.name in self.given),
            *(self._from_commit(pin, commits[pin.name]) for pin in pins if pin.name in commits),
        ]
        return tuple(
            replace(
                wheel,
                because=requirements[wheel.name].because if wheel.name in requirements else None,
                choice=contents.choice if contents and wheel.file.index == URL else wheel.choice,
                record_exception=self.cell.record_exceptions.get(wheel.file.sha256),
            )
            for wheel in sorted(locked, key=lambda wheel: wheel.name)
        )

    def uv(self) -> LockedWheel:
        """Return the wheel of the uv that resolves here, whatever the cutoff."""
        now = rfc3339(datetime.now(UTC))
        request = ResolveRequest((f"uv=={UV_VERSION}",), self.target, now, {}, default_site(self.context.settings))
        (wheel,) = self._files(self._resolve(request), {}, {})
        return wheel

    def _files(
        self, pins: Iterable[Pinned], routes: Mapping[str, str], sdists: Mapping[str, Sdist]
    ) -> tuple[LockedWheel, ...]:
        """Choose a file for each release. Raises LockError, naming all for which none will do."""
        chosen: list[tuple[Pinned, Remote]] = []
        errors: list[ImagegenError] = []
        components = (requirement.component for requirement in self.cell.requirements)
        compiled = {component.package for component in components if component.compiled}
        for pinned in pins:
            wheel = self.target.best((remote.filename, remote) for remote in pinned.wheels)
            if remote := wheel or (pinned.sdist if pinned.name in sdists or pinned.name not in compiled else None):
                chosen.append((pinned, remote))
            else:
                errors.append(no_wheel(pinned, self.target, self.cell))
        if errors:
            raise LockErrors(errors)
        with (
            ThreadPoolExecutor(8) as pool,
            Client(self.context.settings) as client,
        ):  # an interrupt stops the client first
            sizes = list(pool.map(lambda pair: self._size(pair[0], pair[1], routes, client), chosen))
        wheels = []
        for (pinned, remote), size in zip(chosen, sizes, strict=True):
            alias = routes.get(pinned.name, package_index.DEFAULT)
            has_url = alias == URL
            hint = None if has_url else package_index.hint(remote.url, remote.filename)
            file = LockedFile(remote.filename, size, remote.sha256, alias, hint, remote.url if has_url else None)
            locked = LockedWheel(pinned.name, pinned.version, file, via=pinned.via)
            if remote.uploaded:
                UPLOADS.put(self.context.store, file.digest, remote.uploaded)
            try:
                wheels.append(locked if remote in pinned.wheels else self._from_sdist(locked, sdists, remote))
            except (LockError, SandboxError, WheelError) as error:
                if pinned.name in sdists:
                    raise
                refusal = no_wheel(pinned, self.target, self.cell)
                refusal.why = f"{refusal.why}; {error.what}{f': {error.why}' if error.why else ''}"
                errors.append(refusal)
        if errors:
            raise LockErrors(errors)
        return tuple(wheels)

    def _size(self, pinned: Pinned, remote: Remote, routes: Mapping[str, str], client: Client) -> int | None:
        """Return the file's size in bytes, asked of the index if its page lacks it; None if a lock file does."""
        size = remote.size or self._known_sizes.get(remote.sha256)
        if size or routes.get(pinned.name) == URL:
            return size
        digest, store = f"sha256:{remote.sha256}", self.context.store
        return store.path(digest).stat().st_size if store.has(digest) else client.size(remote.url)

    def _from_sdist(self, locked: LockedWheel, sdists: Mapping[str, Sdist], remote: Remote) -> LockedWheel:
        """Return the wheel that the sandbox builds of `locked`, whose file is an sdist, declared or not."""
        declared = sdists.get(locked.name)
        if declared is None or declared.version != locked.version:
            declared = read_sdist(locked.name, locked.version, remote, locked.file.index, self.context)
        source = LockedSdist(locked.file, self.build_requires(declared.build_requires))
        return self._built(locked, source)

    def _from_commit(self, pinned: Pinned, commit: GitSource) -> LockedWheel:
        """Return the wheel that the sandbox builds of a commit."""
        archive = self.inputs.archives[pinned.name]
        sha256 = archive.digest.removeprefix("sha256:")
        file = LockedFile(archive_name(pinned.name, pinned.version), archive.size, sha256, GIT)
        source = LockedSdist(file, self.build_requires(commit.metadata.build_requires), git=LockedGit.of(commit))
        return self._built(LockedWheel(pinned.name, pinned.version, file, via=pinned.via), source)

    def build_requires(self, pins: tuple[str, ...]) -> tuple[LockedWheel, ...]:
        """Return the build requirements of a backend, complete and exact; the image has none of them."""
        if not pins:
            return ()
        request = ResolveRequest(
            pins, self.target, self.previous.cutoff, routes={}, sites=default_site(self.context.settings)
        )
        return self._files(self._resolve(request), {}, {})

    def _built(self, locked: LockedWheel, source: LockedSdist) -> LockedWheel:
        """Return `locked` with the wheel of `source`."""
        before = self._trusted_wheels.get((locked.name, locked.version))
        if before and before.sdist == source:
            return replace(locked, file=before.file, sdist=source)
        return replace(locked, file=self.build(locked.name, locked.version, source), sdist=source)

    def build(self, name: str, version: str | None, source: LockedSdist) -> LockedFile:
        """Return the wheel that the sandbox builds of `source`; an sdist and build requirements are fetched first."""
        sdist.require_small(name, source)
        sdists = [] if source.file.index in (GIT, LOCAL) else [RequiredFile(name, source.file)]
        required = [RequiredFile(require.name, require.file) for require in source.build_requires]
        label = f"fetching the build requirements of {source.file.filename}"
        fetch_files(label, [*sdists, *required], self.context)
        builder = sdist_builder(self.foundation, self.context)
        return sdist.build(name, version, source, builder)
