"""Find the files that a build of a cell needs and this machine cannot get from the store or from a configured source.

No host is asked. The default package index and Debian's archive count as reachable; any other host does only if the
environment names a mirror of it, a find-links directory has the file, or the store has it already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from imagegen.core.config import Settings, mirror_name
from imagegen.core.net import package_index
from imagegen.core.store import Store
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.find_links import find_local_wheel
from imagegen.lock.interpreter import MIRROR, InterpreterArchive, LockedInterpreter, resolve_interpreter
from imagegen.lock.model import LOCAL, URL, Lock, LockedBuild, LockedWheel
from imagegen.spec.model import Cell, Requirement
from imagegen.spec.recipe import Commit

if TYPE_CHECKING:
    from imagegen.wheels.catalogue import Catalogue


_SERVED = {package_index.DEFAULT, LOCAL}  # the default index; a path that the user names


def missing_of_lock(lock: Lock, store: Store, settings: Settings) -> tuple[str, ...]:
    """Return the addresses of all that a build of `lock` lacks here, each once, in the order of the build."""
    if settings.mirror:  # which has all that locks name
        return ()
    sources = _Here(store, settings)
    return tuple(
        dict.fromkeys(address for environment in lock.environments for address in sources.of_lock(environment.lock))
    )


def missing_of_cell(cell: Cell, store: Store, settings: Settings, wheels: Catalogue) -> tuple[str, ...]:
    """Return the addresses of everything that locking and building `cell` lack here, as far as its matrix names them.

    `wheels` is the catalogue of compiled wheels, for components that nothing in the cell can compile.
    """
    sources, cells = _Here(store, settings), [environment.cell for environment in cell.environments] or [cell]
    return tuple(
        dict.fromkeys(address for environment_cell in cells for address in sources.of_cell(environment_cell, wheels))
    )


class _Here:
    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings = store, settings

    def of_lock(self, lock: Lock) -> Iterator[str]:
        base = lock.base
        if base.image and base.content and not all(self.store.has(layer.digest) for layer in base.content.layers):
            yield from self._image(base.image)
        yield from self._interpreter(lock.interpreter)
        packages: tuple[LockedWheel | LockedBuild, ...] = (*lock.wheels, *lock.builds)
        for package in packages:
            yield from self._package(package)

    def of_cell(self, cell: Cell, wheels: Catalogue) -> Iterator[str]:
        if cell.base.image:
            yield from self._image(cell.base.image)
        yield from self._interpreter(resolve_interpreter(cell.interpreter, cell.platform, ()))
        target = WheelTarget.of(cell.platform, cell.base.glibc, cell.python)
        for requirement in cell.requirements:
            yield from self._requirement(requirement, cell, target, wheels)

    def _requirement(
        self, requirement: Requirement, cell: Cell, target: WheelTarget, wheels: Catalogue
    ) -> Iterator[str]:
        from packaging.specifiers import SpecifierSet  # late: of cells without a lock

        package = requirement.component.package
        if requirement.git:
            yield from self._repository(requirement.git.url)
        elif recipe := cell.recipes.get(package):
            commits = [source for source in recipe.releases.values() if isinstance(source, Commit)]
            if recipe.architectures and not any(variable.name == "CUDA_HOME" for variable in cell.env):
                allowed = SpecifierSet(requirement.specifier, prereleases=True)
                urls = [
                    release.url
                    for release in wheels.releases
                    if release.package == package and release.version in allowed
                ]
                # nvcc is not there to compile one. Addresses are patterns, whose placeholders begin with a brace.
                yield urls[0].partition("{")[0].rpartition("/")[0] if urls else f"a wheel of {package}"
            elif len(commits) == len(recipe.releases):
                yield from (address for commit in commits for address in self._repository(commit.url))
        elif not self._is_served(requirement.index) and not self._replaced(requirement, target):
            yield cell.indexes[requirement.index].url or f"index {requirement.index}"

    def _replaced(self, requirement: Requirement, target: WheelTarget) -> bool:
        """Return whether find-links directories can replace the index of an exact version."""
        version = requirement.specifier.removeprefix("==")
        if requirement.label is None or version == requirement.specifier or "*" in version:
            return False
        return (
            find_local_wheel(self.settings, requirement.component.package, f"{version}+{requirement.label}", target)
            is not None
        )

    def _image(self, image: str) -> Iterator[str]:
        if mirror_name(image.partition("/")[0]) not in self.settings.registry_mirrors:
            yield image

    def _interpreter(self, locked: LockedInterpreter) -> Iterator[str]:
        file = locked.file
        if file and MIRROR not in self.settings.env and not self._has(file):
            yield file.url

    def _package(self, package: LockedWheel | LockedBuild) -> Iterator[str]:
        file = package.source
        if self._is_served(file.index):
            return  # nearly all files of all locks are served, which needs no look into the store
        installed = package.file if isinstance(package, LockedWheel) else file
        if self.store.has(installed.digest) or self.store.has(file.digest):
            return
        if package.git:
            submodules = package.submodules if isinstance(package, LockedBuild) else ()
            for url in (package.git.url, *(submodule.url for submodule in submodules)):
                yield from self._repository(url)
        elif not self._linked(file.filename):
            yield file.url or f"index {file.index}: {file.filename}"

    def _repository(self, url: str) -> Iterator[str]:
        is_mirrored = mirror_name(urlsplit(url).hostname or "") in self.settings.git_mirrors
        if not is_mirrored and not self.settings.git_mirror:
            yield url

    def _is_served(self, index: str) -> bool:
        return index in _SERVED or (index != URL and index in self.settings.index_urls)

    def _has(self, file: InterpreterArchive) -> bool:
        return self.store.has(file.digest) or self._linked(file.filename)

    def _linked(self, filename: str) -> bool:
        directories = filter(None, map(package_index.local_directory, self.settings.find_links))
        return any((directory / filename).exists() for directory in directories)
