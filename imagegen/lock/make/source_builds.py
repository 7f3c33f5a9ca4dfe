"""Draft the source builds of a cell's compiled components, and choose between them and prebuilt wheels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from packaging.version import Version

from imagegen.compat.rule import Rule
from imagegen.core.errors import BuildError, FetchError, ImagegenError, LockError
from imagegen.lock import components
from imagegen.lock.build_sources import commit_of, patches_of, source_of
from imagegen.lock.builds import BUILDER, builder, keyed
from imagegen.lock.components import Compiled
from imagegen.lock.make.packages import PackageResolver
from imagegen.lock.model import Lock, LockedBuild, LockedWheel
from imagegen.wheels.find import WheelRequirement
from imagegen.wheels.selector import COMPILED, WheelSelector, wheel_of

_FROM_SOURCE = "the cell asks for one that is compiled for it"


@dataclass(frozen=True)
class BuildDrafter:
    """Drafts source builds in a lock that has all other wheels. `dependents` maps a package to its dependents."""

    resolver: PackageResolver
    rules: tuple[Rule, ...]
    lock: Lock
    dependents: Mapping[str, tuple[str, ...]]

    @cached_property
    def _lock_with_builder(self) -> Lock:
        """The lock with the programs of builds among its inputs, which keys cover."""
        return replace(self.lock, inputs={**self.lock.inputs, BUILDER: builder()})

    def draft(self, component: Compiled) -> LockedBuild | ImagegenError:
        """Return the build, or the reason why there can be none; a wheel may make it unnecessary."""
        cell, lock = self.resolver.cell, self.lock
        try:
            components.require_release(component, cell)
            env = components.environment(component, cell)
            against = components.against(component, cell, lock.wheels)
            components.require_tools(component, cell, lock.base, lock.debs, lock.wheels, self.rules)
            git, submodules = commit_of(component)
            draft = LockedBuild(
                name=component.package,
                version=component.version,
                because=component.requirement.because,
                via=self.dependents[component.package],
                choice="",
                source=source_of(component, self.resolver.context),
                git=git,
                submodules=submodules,
                patches=patches_of(component.recipe),
                requires=component.recipe.requires,
                build_requires=self.resolver.build_requires(component.recipe.build_requires),
                against=against,
                env=env,
                architectures=components.architectures(component, cell),
                modules=component.recipe.modules,
                key="",
            )
            return keyed(draft, self._lock_with_builder)
        except (BuildError, FetchError, LockError) as error:
            return error

    def choose(
        self,
        component: Compiled,
        draft: LockedBuild | ImagegenError,
        previous: LockedWheel | LockedBuild | None,
        selector: WheelSelector,
    ) -> LockedWheel | LockedBuild:
        """Return the wheel or the build of a component.

        The `previous` one is reused for the same release or key, without a new search. Raises the error of the draft
        if no wheel fits, or the cell requires a build.
        """
        via, because = self.dependents[component.package], component.requirement.because
        if component.requirement.from_source:
            if isinstance(draft, ImagegenError):
                raise draft
            return replace(draft, choice=_FROM_SOURCE)
        if isinstance(previous, LockedWheel) and self._still_fits(previous, component):
            return replace(previous, via=via, because=because)
        build = draft if isinstance(draft, LockedBuild) else None
        if build and isinstance(previous, LockedBuild) and build.key == previous.key:
            return replace(build, choice=previous.choice)
        candidate = selector.choose(self._wheel_requirement(component, draft), component.requirement.index)
        if candidate and candidate.place not in COMPILED:
            return wheel_of(component, candidate, via)
        if isinstance(draft, ImagegenError):
            raise draft
        assert candidate  # noqa: S101 - the source build is the last candidate
        return replace(draft, choice=f"{candidate.place}: {candidate.reason}")

    def _still_fits(self, wheel: LockedWheel, component: Compiled) -> bool:
        """Return whether the wheel is of the release, and fits this base: another one may have an older glibc."""
        tagged = self.resolver.target.best([(wheel.file.filename, wheel)])
        return tagged is not None and Version(wheel.version).public == component.version

    def _wheel_requirement(self, component: Compiled, draft: LockedBuild | ImagegenError) -> WheelRequirement:
        build, obstacle = (None, draft) if isinstance(draft, ImagegenError) else (draft, None)
        cell, target = self.resolver.cell, self.resolver.target
        return WheelRequirement(
            package=component.package,
            version=component.version,
            python=cell.python,
            platform=target.uv_platform,
            ranks=target.ranks,
            torch=next((wheel.version for wheel in self.lock.wheels if wheel.name == "torch"), None),
            cuda=cell.cuda_version,
            key=build.key if build else None,
            source=build.source.filename if build else None,
            obstacle=obstacle.summary if obstacle else None,
        )

    def with_packages(self, packages: Iterable[LockedWheel | LockedBuild]) -> Lock:
        """Return the lock with the chosen wheels and builds; with a build, the builder becomes one of its inputs."""
        packages = tuple(packages)
        exceptions = self.resolver.cell.record_exceptions
        wheels = [
            replace(package, record_exception=exceptions.get(package.file.sha256))
            for package in packages
            if isinstance(package, LockedWheel)
        ]
        builds = tuple(package for package in packages if isinstance(package, LockedBuild))
        return replace(
            self._lock_with_builder if builds else self.lock,
            wheels=tuple(sorted((*self.lock.wheels, *wheels), key=lambda wheel: wheel.name)),
            builds=builds,
        )
