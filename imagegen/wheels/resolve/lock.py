"""Making a lock: base, resolution, the choice of files, and wheels from sdists."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from packaging.version import Version

from imagegen.core import temporary
from imagegen.core.context import Context
from imagegen.core.errors import BuildError, FetchError, ImagegenError, LockError
from imagegen.core.git import PackedTree
from imagegen.core.net import Client
from imagegen.core.progress import timed
from imagegen.image.inputs import sdist_builder
from imagegen.plan.lock import indexes, recipes, sdist
from imagegen.plan.lock.builds import BUILDER, builder, commit_of, keyed, patches_of, source_of
from imagegen.plan.lock.file import LockErrors
from imagegen.plan.lock.foundation import lock_interpreter
from imagegen.plan.lock.freshness import contradictions, gpus_of, stale
from imagegen.plan.lock.indexes import WheelTarget
from imagegen.plan.lock.model import (
    BUILT,
    GIT,
    LOCAL,
    URL,
    Foundation,
    Lock,
    LockedBuild,
    LockedFile,
    LockedGit,
    LockedSdist,
    LockedWheel,
    all_debs,
    archive_name,
    file_conflicts_among,
)
from imagegen.plan.lock.recipes import Compiled, no_wheel, released
from imagegen.plan.lock.resolution_inputs import (
    Attempts,
    ResolutionInputs,
    default_site,
    gather,
    page_of_wheels,
    pep508,
    report_warnings,
    require_used,
)
from imagegen.plan.lock.resolve import UPLOADS, Pinned, Remote, ResolveRequest, resolve
from imagegen.plan.lock.sources import Finder, RequiredFile, in_parallel
from imagegen.plan.lock.uv_lock import ProjectContents, UvProject
from imagegen.plan.matrix.model import Cell, GitSource, Requirement, Rule, Sdist
from imagegen.plan.projects.stack import ProjectStack, with_needed_recipes
from imagegen.plan.rules import facts_of_lock, rule_constraints
from imagegen.wheels.find import WheelRequirement
from imagegen.wheels.resolve import copies, patches
from imagegen.wheels.resolve.candidates import COMPILED, WheelSelector, wheel_of
from imagegen.wheels.resolve.options import LockOptions
from imagegen.wheels.resolve.own import OwnPackageBuilder, wheels_by_address, with_own_wheels
from imagegen.wheels.resolve.previous import (
    added_packages,
    base_of,
    built_wheels,
    bytecode_base_of,
    file_sizes,
    kept_versions,
    own_wheels,
    settled_packages,
)

_ASKED = "the cell asks for one that is compiled for it"


@dataclass(frozen=True)
class Drafter:
    """Completes a lock whose other wheels are chosen already."""

    cell: Cell
    target: WheelTarget
    rules: tuple[Rule, ...]
    compiled: Mapping[str, Compiled]  # by package
    selector: WheelSelector
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
        for name, component in sorted(self.compiled.items()):
            package = self._made(component, whole, via[name], settled.get(name))
            if isinstance(package, LockedBuild):
                builds.append(package)
            else:
                wheels.append(replace(package, record_exception=self.cell.record_exceptions.get(package.file.sha256)))
        return replace(
            whole if builds else lock,
            wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
            builds=tuple(builds),
        )

    def _made(
        self, component: Compiled, lock: Lock, via: tuple[str, ...], before: LockedWheel | LockedBuild | None
    ) -> LockedWheel | LockedBuild:
        draft = self._attempt(component, lock, via)
        if component.requirement.from_source:
            if isinstance(draft, ImagegenError):
                raise draft
            return replace(draft, choice=_ASKED)
        if isinstance(before, LockedWheel) and self._still_fits(before, component):
            return replace(before, via=via, because=component.requirement.because)
        build = draft if isinstance(draft, LockedBuild) else None
        if build and isinstance(before, LockedBuild) and build.key == before.key:
            return replace(build, choice=before.choice)
        candidate = self.selector.choose(self._need(component, lock, draft), component.requirement.index)
        if candidate and candidate.place not in COMPILED:
            return wheel_of(component, candidate, via)
        if isinstance(draft, ImagegenError):
            raise draft
        assert candidate  # noqa: S101 - what can be compiled is found, after all else
        return replace(draft, choice=f"{candidate.place}: {candidate.reason}")

    def _still_fits(self, wheel: LockedWheel, component: Compiled) -> bool:
        """Return whether it is of the release, and for this base: another one may have an older glibc."""
        tagged = self.target.best([(wheel.file.filename, wheel)])
        return tagged is not None and Version(wheel.version).public == component.version

    def _attempt(self, component: Compiled, lock: Lock, via: tuple[str, ...]) -> LockedBuild | ImagegenError:
        """The build, or why there can be none: a wheel may make it unnecessary."""
        try:
            return self._draft(component, lock, via)
        except (BuildError, FetchError, LockError) as error:
            return error

    def _draft(self, component: Compiled, lock: Lock, via: tuple[str, ...]) -> LockedBuild:
        recipes.require_release(component, self.cell)
        env = recipes.environment(component, self.cell)
        against = recipes.against(component, self.cell, lock.wheels)
        recipes.require_tools(component, self.cell, lock.base, lock.debs, lock.wheels, self.rules)
        git, submodules = commit_of(component)
        draft = LockedBuild(
            name=component.package,
            version=component.version,
            because=component.requirement.because,
            via=via,
            choice="",
            source=source_of(component, self.context),
            git=git,
            submodules=submodules,
            patches=patches_of(component.recipe),
            requires=component.recipe.requires,
            build_requires=self.build_requires(component.recipe.build_requires),
            against=against,
            env=env,
            architectures=recipes.architectures(component, self.cell),
            modules=component.recipe.modules,
            key="",
        )
        return keyed(draft, lock)

    def _need(self, component: Compiled, lock: Lock, draft: LockedBuild | ImagegenError) -> WheelRequirement:
        build, obstacle = (None, draft) if isinstance(draft, ImagegenError) else (draft, None)
        return WheelRequirement(
            package=component.package,
            version=component.version,
            python=self.cell.python,
            platform=self.target.uv_platform,
            ranks=self.target.ranks,
            torch=next((wheel.version for wheel in lock.wheels if wheel.name == "torch"), None),
            cuda=self.cell.cuda_version,
            key=build.key if build else None,
            source=build.source.filename if build else None,
            obstacle=obstacle.summary if obstacle else None,
        )


# Resolve the packages of a cell, and choose and lock their files.

UV_VERSION = importlib.metadata.version("uv")


def rfc3339(time: datetime) -> str:
    return time.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


@dataclass(frozen=True)
class Resolver:
    cell: Cell
    target: WheelTarget
    below: Foundation
    compiled: Mapping[str, Compiled]  # by package
    parts: ResolutionInputs
    as_of: str
    context: Context
    sizes: Mapping[str, int]  # sha256 -> bytes, as far as the previous lock knows them
    made_before: Mapping[tuple[str, str], LockedWheel]  # by name and version, trusted wheels of sdists
    given: Mapping[str, LockedWheel] = field(default_factory=dict)  # by package: the project's own, and by address

    def resolved(self, constraints: tuple[str, ...], preferences: Mapping[str, str]) -> tuple[Pinned, ...]:
        """The releases that answer the cell; of what is compiled and of commits, without their files."""
        described = [
            replace(requirement.component, sdist=requirement.git.metadata)
            for requirement in self.cell.requirements
            if requirement.git
        ]
        described += [component.described for component in self.compiled.values()]
        described_packages = {component.package for component in described}
        overrides = self.cell.overrides
        question = ResolveRequest(
            requirements=tuple(self._asked(requirement) for requirement in self.cell.requirements),
            target=self.target,
            as_of=self.as_of,
            routes=self._routes,
            sites=self.parts.sites,
            constraints=constraints,
            overrides=tuple(
                f"{override.package}{override.specifier}" for override in overrides if override.specifier is not None
            ),
            omitted=tuple(override.package for override in overrides if override.specifier is None),
            sdists=(
                *(component for component in self.cell.sdists if component.package not in described_packages),
                *described,
            ),
            preferences=preferences,
        )
        with timed(self.context.progress, f"resolving {self.cell.id} as of {self.as_of}"):
            pins = self._resolve(question)
        require_used(self.cell, pins)
        return tuple(pin for pin in pins if pin.name not in question.omitted)

    def _resolve(self, question: ResolveRequest) -> tuple[Pinned, ...]:
        warnings: list[str] = []
        pins = resolve(question, self.context.settings, warnings.append)
        report_warnings(self.cell, warnings, self.context.progress)
        return pins

    def _asked(self, requirement: Requirement) -> str:
        package = requirement.component.package
        if wheel := self.given.get(package):
            return f"{requirement.pep508}{',' if requirement.specifier else ''}=={wheel.version}"
        compiled = self.compiled.get(package)
        return compiled.pep508 if compiled else pep508(requirement)

    def with_given(self, wheels: Mapping[str, LockedWheel], work_dir: Path) -> Resolver:
        """Return a resolver that takes these wheels of the store, by package, from a page in `work_dir`."""
        sites = {**self.parts.sites, LOCAL: page_of_wheels(wheels.values(), self.context.store, work_dir)}
        return replace(self, given=wheels, parts=replace(self.parts, sites=sites))

    @property
    def _routes(self) -> dict[str, str]:
        routes = {
            requirement.component.package: GIT if requirement.git else requirement.index
            for requirement in self.cell.requirements
        }
        return routes | dict.fromkeys(self.compiled, BUILT) | dict.fromkeys(self.given, LOCAL)

    def wheels(self, pins: Iterable[Pinned], contents: ProjectContents | None = None) -> tuple[LockedWheel, ...]:
        """Return all but what is compiled, sorted by name; with `contents`, as a uv.lock has them."""
        pins = [pin for pin in pins if pin.name not in self.compiled]
        requirements = {requirement.component.package: requirement for requirement in self.cell.requirements}
        commits = (
            contents.commits
            if contents
            else {name: requirement.git for name, requirement in requirements.items() if requirement.git}
        )
        routes = contents.routes if contents else self._routes
        sdists = {component.package: component.sdist for component in self.cell.sdists if component.sdist}
        sdists |= contents.sdists if contents else {}
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
        """The wheel of the uv that resolves here. Its age is no matter of the stack's as-of time."""
        now = rfc3339(datetime.now(UTC))
        question = ResolveRequest((f"uv=={UV_VERSION}",), self.target, now, {}, default_site(self.context.settings))
        (wheel,) = self._files(self._resolve(question), {}, {})
        return wheel

    def _files(
        self, pins: Iterable[Pinned], routes: Mapping[str, str], sdists: Mapping[str, Sdist]
    ) -> tuple[LockedWheel, ...]:
        """Choose a file for each release. Raises LockError, naming all for which none will do."""
        chosen: list[tuple[Pinned, Remote]] = []
        errors: list[ImagegenError] = []
        for pinned in pins:
            wheel = self.target.best((remote.filename, remote) for remote in pinned.wheels)
            declared = sdists.get(pinned.name)
            if wheel:
                chosen.append((pinned, wheel))
            elif pinned.sdist and declared and declared.version == pinned.version:
                chosen.append((pinned, pinned.sdist))
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
            alias = routes.get(pinned.name, indexes.DEFAULT)
            has_url = alias == URL
            hint = None if has_url else indexes.hint(remote.url, remote.filename)
            file = LockedFile(remote.filename, size, remote.sha256, alias, hint, remote.url if has_url else None)
            wheel_ = LockedWheel(pinned.name, pinned.version, file, via=pinned.via)
            if remote.uploaded:
                UPLOADS.put(self.context.store, file.digest, remote.uploaded)
            wheels.append(wheel_ if remote in pinned.wheels else self._from_sdist(wheel_, sdists[pinned.name]))
        return tuple(wheels)

    def _size(self, pinned: Pinned, remote: Remote, routes: Mapping[str, str], client: Client) -> int | None:
        """The file's size in bytes, asked for where an index leaves it out; another lock file is taken as it is."""
        size = remote.size or self.sizes.get(remote.sha256)
        if size or routes.get(pinned.name) == URL:
            return size
        digest, store = f"sha256:{remote.sha256}", self.context.store
        return store.path(digest).stat().st_size if store.has(digest) else client.size(remote.url)

    def _from_sdist(self, locked: LockedWheel, declared: Sdist) -> LockedWheel:
        """`locked`, whose file is an sdist, as the wheel that it gives in the sandbox."""
        source = LockedSdist(locked.file, self.build_requires(declared.build_requires))
        return self._built(locked, source, [RequiredFile(locked.name, source.file)])

    def _from_commit(self, pinned: Pinned, commit: GitSource) -> LockedWheel:
        """The wheel that a commit gives in the sandbox."""
        archive = self.parts.archives[pinned.name]
        sha256 = archive.digest.removeprefix("sha256:")
        file = LockedFile(archive_name(pinned.name, pinned.version), archive.size, sha256, GIT)
        source = LockedSdist(file, self.build_requires(commit.metadata.build_requires), git=LockedGit.of(commit))
        return self._built(LockedWheel(pinned.name, pinned.version, file, via=pinned.via), source, [])

    def build_requires(self, pins: tuple[str, ...]) -> tuple[LockedWheel, ...]:
        """Return the build requirements of a backend, complete and exact; they are no part of the image."""
        if not pins:
            return ()
        question = ResolveRequest(pins, self.target, self.as_of, routes={}, sites=default_site(self.context.settings))
        return self._files(self._resolve(question), {}, {})

    def _built(self, locked: LockedWheel, source: LockedSdist, sources: Sequence[RequiredFile]) -> LockedWheel:
        """`locked` with the wheel of `source`; `own` and what its backend needs are fetched first."""
        before = self.made_before.get((locked.name, locked.version))
        if before and before.sdist == source:
            return replace(locked, file=before.file, sdist=source)
        return replace(locked, file=self.build(locked.name, locked.version, source, sources), sdist=source)

    def build(
        self, name: str, version: str | None, source: LockedSdist, sources: Sequence[RequiredFile] = ()
    ) -> LockedFile:
        """Return the wheel that the sandbox builds of `source`; `own` and what its backend needs are fetched first."""
        sdist.require_small(name, source)
        required = [*sources, *(RequiredFile(require.name, require.file) for require in source.build_requires)]
        total = sum(part.file.estimate for part in required)
        label = f"fetching what {source.file.filename} is built with"
        with Client(self.context.settings) as client, self.context.progress.meter(label, total) as meter:
            finder = Finder(client, self.context.store, self.context.settings, meter)
            for _ in in_parallel([partial(finder.fetch, part) for part in required], client):
                pass
        workshop = sdist_builder(self.below, self.context)
        return sdist.build(name, version, source, workshop)

    def own_wheels(self, packed: Mapping[str, PackedTree], before: Mapping[str, LockedWheel]) -> dict[str, LockedWheel]:
        """Return the wheels of the project's own packages. Raises as `OwnPackageBuilder.wheels`."""
        builder = OwnPackageBuilder(
            self.cell,
            self.target,
            self.context.store,
            lambda name, source: self.build(name, None, source),
            self.build_requires,
        )
        return builder.wheels(packed, before)


# Making a lock: base, resolution, the choice of files, and wheels from sdists.


def lock_cell(
    cell: Cell,
    previous: Lock | None,
    options: LockOptions,
    rules: Iterable[Rule],
    selector: WheelSelector,
    context: Context,
    packed: Mapping[str, PackedTree],
    stack: ProjectStack | None = None,
) -> Lock:
    """Resolve a cell. Versions and cutoff time of `previous` stay, unless the options say otherwise.

    `packed` are the sources of the project's own packages, by package; if they alone changed, and not what they
    require, nothing is resolved. `selector` selects the wheel of a component that needs a compiler. Nothing is compiled
    here. The new lock has the record of `previous` only if nothing else differs. `stack` is the cell's own lock file.

    Raises LockError when there is no solution, FetchError when an index fails, BuildError for what cannot be compiled,
    and what `base.resolve` and building sdists raise; LockErrors when several parts that the cell needs cannot be
    fetched.
    """
    rules = tuple(rules)
    upgrade_base = options.upgrade or options.upgrade_base
    pinned = None if options.upgrade or options.packages else previous
    time = pinned.as_of if pinned and options.as_of is None else parse_as_of(options.as_of)
    context = replace(context, settings=indexes.with_indexes(context.settings, cell.indexes))
    is_plain = options == LockOptions()
    if previous and is_plain and (edited := _with_edited_sources(cell, previous, packed, stack, context)):
        return edited
    kept = {} if options.upgrade or previous is None else kept_versions(previous, options.packages)
    attempts = Attempts()
    locked_base = attempts.attempt(
        lambda: base_of(cell, previous, context.settings, context.progress, upgrade=upgrade_base)
    )
    added = attempts.attempt(lambda: added_packages(cell, None if upgrade_base else previous, locked_base, context))
    debs = all_debs(locked_base, added) if locked_base else ()
    interpreter = lock_interpreter(cell.interpreter, cell.platform, debs)
    target = WheelTarget.of(cell.platform, cell.base, interpreter.version)
    contents = stack.contents(cell, target, attempts, context) if stack else None
    cell = with_needed_recipes(cell, contents, target) if contents else cell
    release = partial(_released, cell=cell, selector=selector, kept=kept, bounds=options.bounds)
    released = [attempts.attempt(partial(release, requirement)) for requirement in cell.requirements]
    compiled = {each.package: each for each in released if each}
    with temporary.temporary_directory() as work_dir:
        if cell.from_uv_lock:
            contents = UvProject(cell, target, compiled, attempts, context).contents()
        if contents:
            if stack or locked_base is None:
                attempts.require()
            parts = ResolutionInputs(default_site(context.settings), contents.archives)
        else:
            parts = gather(cell, target, compiled, attempts, work_dir, context)
        assert locked_base  # noqa: S101 - else `gather` has raised why not
        made_before = built_wheels(previous, locked_base) if previous and options.trust_previous_wheels else {}
        sizes = file_sizes(previous)
        below = Foundation(locked_base, interpreter, added if added and added.debs else None)
        maker = Resolver(
            cell,
            target,
            below,
            compiled,
            parts,
            time,
            context,
            sizes,
            made_before,
        )
        given = {**maker.own_wheels(packed, own_wheels(pinned)), **wheels_by_address(cell, target, context)}
        maker = maker.with_given(given, work_dir) if given else maker
        bounded = (f"{name}{specifier}" for name, specifier in sorted(options.bounds.items()))
        if contents:
            found, wheels = contents.found, maker.wheels(contents.found, contents)
            attempts.require()
        else:
            found = maker.resolved((*rule_constraints(rules, cell), *bounded), kept)
            wheels = maker.wheels(found)
        drafter = Drafter(
            cell,
            target,
            rules,
            compiled,
            selector,
            maker.build_requires,
            context,
        )
        uv = previous.uv if previous and previous.uv.version == UV_VERSION else maker.uv()
        made = Lock(
            cell=cell.id,
            image=cell.image,
            axes=dict(cell.axes),
            inputs={name: value for name, value in cell.inputs.items() if name not in _unused(cell, wheels)},
            uv=uv,
            as_of=time,
            base=locked_base,
            interpreter=interpreter,
            wheels=patches.apply(cell, wheels, context),  # before the drafter, whose builds read them
            env=cell.env,
            config=cell.config,
            labels=cell.labels,
            ports=cell.ports,
            ldconfig=cell.ldconfig,
            copies=copies.read(cell, context.store),
            overrides=cell.overrides,
            added=added,
            bytecode_base=bytecode_base_of(cell, previous, locked_base, context),
        )
        settled = settled_packages(previous, made, kept) if previous else {}
        made = patches.complete(
            cell, drafter.completed(made, {each.name: each.via for each in found}, settled), context
        )
    made = replace(made, file_conflicts=file_conflicts_among(cell.file_conflicts, made.packages))
    made = replace(made, gpu=gpus_of(cell, rules, facts_of_lock(made, cell.base.glibc)))
    return previous if previous is not None and replace(previous, record=None) == made else made


def _with_edited_sources(
    cell: Cell, previous: Lock, packed: Mapping[str, PackedTree], stack: ProjectStack | None, context: Context
) -> Lock | None:
    """Return the previous lock with the project's own packages as they are; None where it must be resolved again."""
    if not packed or stale(previous, cell) or contradictions(previous, cell):
        return None
    if stack and stack.changed_packages(previous, cell):
        return None
    if patches.read(cell, context.store) != {wheel.name: wheel.patches for wheel in previous.wheels if wheel.patches}:
        return None
    target = WheelTarget.of(cell.platform, cell.base, previous.interpreter.version)
    parts = ResolutionInputs(default_site(context.settings), {})
    maker = Resolver(cell, target, previous.foundation, {}, parts, previous.as_of, context, file_sizes(previous), {})
    with_copies = replace(previous, copies=copies.read(cell, context.store))
    edited = with_own_wheels(with_copies, maker.own_wheels(packed, own_wheels(previous)))
    return replace(edited, record=None) if edited and edited != previous else edited


def _released(
    requirement: Requirement, cell: Cell, selector: WheelSelector, kept: Mapping[str, str], bounds: Mapping[str, str]
) -> Compiled | None:
    package = requirement.component.package
    if (recipe := cell.recipes.get(package)) and not requirement.address:
        narrowed = ",".join(filter(None, [requirement.specifier, bounds.get(package)]))
        asked = replace(requirement, specifier=narrowed)
        return replace(released(asked, recipe, selector.versions(package), kept.get(package)), requirement=requirement)
    return None


def parse_as_of(asked: str | None) -> str:
    """Return the cutoff time as locks write it; None is now. Raises LockError for a malformed or a future time."""
    if asked is None:
        return rfc3339(datetime.now(UTC))
    try:
        time = datetime.fromisoformat(asked)
    except ValueError as error:
        raise LockError(
            f"{asked!r} is not a time",
            code="lock-cutoff-invalid",
            why=str(error),
            fix="write a date or a time as in 2026-11-20T00:00:00Z",
        ) from error
    # A date or a time without zone is UTC, so that a lock does not depend on where it is made.
    time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    if time > datetime.now(UTC):
        why = "releases until then may still appear, so the next resolution could differ"
        raise LockError(f"{asked} lies in the future", code="lock-cutoff-in-future", why=why, fix="use a past time")
    return rfc3339(time)


def _unused(cell: Cell, wheels: Iterable[LockedWheel]) -> set[str]:
    """Inputs that are sdists which the resolution did not take."""
    taken = {wheel.name for wheel in wheels if wheel.sdist}
    return {f"sdist {each.package}" for each in cell.sdists if each.package not in taken}
