"""The compiled components of a lock: for each a wheel that was found, or the build that makes one, and the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from imagegen.core.context import Context
from imagegen.core.errors import BuildError, FetchError, ImagegenError, LockError
from imagegen.plan.lock import recipes
from imagegen.plan.lock.builds import BUILDER, builder, commit_of, keyed, patches_of, source_of
from imagegen.plan.lock.indexes import WheelTarget
from imagegen.plan.lock.model import Lock, LockedBuild, LockedWheel
from imagegen.plan.lock.recipes import Compiled
from imagegen.plan.matrix.model import Cell, Rule
from imagegen.wheels.find import WheelRequirement
from imagegen.wheels.resolve.candidates import COMPILED, WheelSelector, wheel_of

_ASKED = "the cell asks for one that is compiled for it"


@dataclass(frozen=True)
class Drafter:
    """Completes a lock whose other wheels are chosen already."""

    cell: Cell
    target: WheelTarget
    rules: tuple[Rule, ...]
    compiled: Mapping[str, Compiled]  # by package
    chooser: WheelSelector
    build_requires: Callable[[tuple[str, ...]], tuple[LockedWheel, ...]]  # pins -> wheels, resolved
    context: Context

    def completed(
        self, lock: Lock, via: Mapping[str, tuple[str, ...]], settled: Mapping[str, LockedWheel | LockedBuild]
    ) -> Lock:
        """Return the lock with the compiled components.

        `via` maps each to its dependent packages; `settled` to its earlier wheel or build, which is reused for the same
        release or key without a new search. Raises BuildError or LockError for one that has no wheel and cannot be
        compiled; FetchError.
        """
        whole = replace(lock, inputs={**lock.inputs, BUILDER: builder()})
        wheels, builds = list(lock.wheels), []
        for name, each in sorted(self.compiled.items()):
            made = self._made(each, whole, via[name], settled.get(name))
            if isinstance(made, LockedBuild):
                builds.append(made)
            else:
                wheels.append(replace(made, record_exception=self.cell.record_exceptions.get(made.file.sha256)))
        return replace(
            whole if builds else lock,
            wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
            builds=tuple(builds),
        )

    def _made(
        self, each: Compiled, lock: Lock, via: tuple[str, ...], before: LockedWheel | LockedBuild | None
    ) -> LockedWheel | LockedBuild:
        draft = self._attempt(each, lock, via)
        if each.requirement.from_source:
            if isinstance(draft, ImagegenError):
                raise draft
            return replace(draft, choice=_ASKED)
        if isinstance(before, LockedWheel) and self._still_fits(before, each):
            return replace(before, via=via, because=each.requirement.because)
        build = draft if isinstance(draft, LockedBuild) else None
        if build and isinstance(before, LockedBuild) and build.key == before.key:
            return replace(build, choice=before.choice)
        found = self.chooser.choose(self._need(each, lock, draft), each.requirement.index)
        if found and found.place not in COMPILED:
            return wheel_of(each, found, via)
        if isinstance(draft, ImagegenError):
            raise draft
        assert found  # noqa: S101 - what can be compiled is found, after all else
        return replace(draft, choice=f"{found.place}: {found.reason}")

    def _still_fits(self, wheel: LockedWheel, each: Compiled) -> bool:
        """Return whether it is of the release, and for this base: another one may have an older glibc."""
        tagged = self.target.best([(wheel.file.filename, wheel)])
        return tagged is not None and Version(wheel.version).public == each.version

    def _attempt(self, each: Compiled, lock: Lock, via: tuple[str, ...]) -> LockedBuild | ImagegenError:
        """The build, or why there can be none: a wheel may make it unnecessary."""
        try:
            return self._draft(each, lock, via)
        except (BuildError, FetchError, LockError) as error:
            return error

    def _draft(self, each: Compiled, lock: Lock, via: tuple[str, ...]) -> LockedBuild:
        recipes.require_release(each, self.cell)
        env = recipes.environment(each, self.cell)
        against = recipes.against(each, self.cell, lock.wheels)
        recipes.require_tools(each, self.cell, lock.base, lock.debs, lock.wheels, self.rules)
        git, submodules = commit_of(each)
        draft = LockedBuild(
            name=each.package,
            version=each.version,
            because=each.requirement.because,
            via=via,
            choice="",
            source=source_of(each, self.context),
            git=git,
            submodules=submodules,
            patches=patches_of(each.recipe),
            requires=each.recipe.requires,
            build_requires=self.build_requires(each.recipe.build_requires),
            against=against,
            env=env,
            architectures=recipes.architectures(each, self.cell),
            modules=each.recipe.modules,
            key="",
        )
        return keyed(draft, lock)

    def _need(self, each: Compiled, lock: Lock, draft: LockedBuild | ImagegenError) -> WheelRequirement:
        build, obstacle = (None, draft) if isinstance(draft, ImagegenError) else (draft, None)
        return WheelRequirement(
            package=each.package,
            version=each.version,
            python=self.cell.python,
            platform=self.target.uv_platform,
            ranks=self.target.ranks,
            torch=next((wheel.version for wheel in lock.wheels if wheel.name == "torch"), None),
            cuda=self.cell.cuda_version,
            key=build.key if build else None,
            source=build.source.filename if build else None,
            obstacle=obstacle.summary if obstacle else None,
        )
