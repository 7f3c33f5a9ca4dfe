"""The difference of two images, locks or cells: a pure function of both, and of further known data.

Sizes are bytes. `before` is the present image, `after` the one that would replace it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.core.oci import MACHINES
from imagegen.core.types import parse_requirement
from imagegen.plan.distributions import version_key
from imagegen.plan.lock.environments import environments
from imagegen.plan.lock.model import MAIN, Lock, LockedBuild, LockedWheel
from imagegen.plan.matrix import metadata
from imagegen.supply.compare.operands import ComparedLayer, DiffOperand
from imagegen.wheels.throttle import BuildJob, Machine, plan

CORES = 16  # of the machine that build times are estimated for
_ENOUGH = 1 << 40  # bytes of its memory: what a smaller one takes, `imagegen wheels build` says there

Requires = Callable[[str, str], Sequence[str] | None]  # name, version -> PEP 508, None: not known


@dataclass(frozen=True)
class ComparisonFacts:
    """Further known data: the requirements of each release, the cost of each build and whether its wheel is kept."""

    requires: Requires = lambda *_: None
    work: Callable[[LockedBuild], BuildJob | None] = lambda _: None
    kept: Callable[[LockedBuild], bool] = lambda _: False


@dataclass(frozen=True)
class Change:
    """One thing that differs. Without `before` it is new, without `after` gone; equal: another file of one version.

    `by` names what changed as well and leaves no choice: what requires it so, or required it before. `cause` states
    which patches of the project changed.
    """

    name: str
    before: str | None
    after: str | None
    why: str | None = None  # the lock's reason for it
    back: bool = False  # the version is older than before
    by: tuple[str, ...] = ()
    cause: str | None = None  # "patches/a.patch changed"


@dataclass(frozen=True)
class Rebuild:
    """A wheel that must be compiled. `seconds` are of a machine with CORES; None: not measured."""

    name: str
    version: str
    because: tuple[str, ...]
    seconds: float | None
    kept: bool  # the wheel is in the wheelhouse here: nothing is compiled
    again: bool  # another build of it was there before


@dataclass(frozen=True)
class Pull:
    """The layers of `after`, for a host that has `before`. `size` is the compressed size of what the host lacks.

    Without `exact` the sizes are estimates from the wheels; layers in `unknown` have no estimate.
    """

    shared: tuple[ComparedLayer, ...]
    new: tuple[ComparedLayer, ...]
    gone: tuple[ComparedLayer, ...]
    size: int
    exact: bool
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    before: DiffOperand
    after: DiffOperand
    components: tuple[Change, ...]  # that the matrix chooses, or by which users choose an image; the main ones first
    packages: tuple[Change, ...]  # the rest, by name
    debs: tuple[Change, ...]
    rebuilds: tuple[Rebuild, ...]
    environments: tuple[Change, ...]  # of an image with several: the cell of each
    axes: tuple[Change, ...]
    base: Change | None
    interpreter: Change | None
    env: tuple[Change, ...]
    config: tuple[Change, ...]  # fields of the config, labels, ports and directories of the loader
    files: tuple[Change, ...]  # of the project, by path: mode and sha256
    overrides: tuple[Change, ...]  # of requirements, by distribution
    capabilities: Change | None
    driver: Change | None
    pull: Pull | None  # None: the layers of one side are not known

    @property
    def empty(self) -> bool:
        """True if nothing differs, as far as both operands are known."""
        several = (self.components, self.packages, self.debs, self.rebuilds, self.axes, self.env)
        more = (self.environments, self.config, self.files, self.overrides)
        single = (self.base, self.interpreter, self.capabilities, self.driver)
        return not any((*several, *more)) and not any(single) and not (self.pull and (self.pull.new or self.pull.gone))


def difference(before: DiffOperand, after: DiffOperand, known: ComparisonFacts = ComparisonFacts()) -> Difference:
    """Return the difference of `after` from `before`.

    Of images with several environments, the default ones are compared, and those of one name; the names of what
    differs in the latter begin with the environment's.
    """
    components, packages = _packages(before, after, known.requires)
    had, has = before.lock, after.lock
    return Difference(
        before=before,
        after=after,
        components=components,
        packages=packages,
        debs=_debs(had, has) if had and has else (),
        rebuilds=_rebuilds(had, has, known) if had and has else (),
        environments=tuple(_changed(_cells(had), _cells(has))) if had and has else (),
        axes=tuple(_changed(had.axes, has.axes)) if had and has else (),
        base=_single("base", _base(had), _base(has)) if had and has else None,
        interpreter=_single("interpreter", str(had.interpreter), str(has.interpreter)) if had and has else None,
        env=(*_changed(before.env, after.env), *(_each(_variables, had, has, beside=True) if had and has else ())),
        config=tuple(_changed(_config(had), _config(has))) if had and has else (),
        files=tuple(_changed(_files(had), _files(has))) if had and has else (),
        overrides=_each(_overrides, had, has) if had and has else (),
        capabilities=_single("GPUs", before.capabilities, after.capabilities),
        driver=_single("driver", before.driver, after.driver, goes_back),
        pull=_pull(before.parts, after.parts, _keys(had) & _keys(has)),
    )


def pairs(before: Lock, after: Lock) -> list[tuple[str, Lock, Lock]]:
    """Return the locks of the environments that are compared: the default ones, then those of one name.

    Each pair has the beginning of the names of what differs.
    """
    (one, *ones), (other, *others) = environments(before), environments(after)
    had = {each.name: each.lock for each in ones}
    named = [(f"{each.name}: ", had[each.name], each.lock) for each in others if each.name in had]
    return [("", one.lock, other.lock), *named]


def _prefixed(prefix: str, change: Change) -> Change:
    return replace(change, name=f"{prefix}{change.name}", by=tuple(f"{prefix}{name}" for name in change.by))


def _each(
    values: Callable[[Lock], Mapping[str, str]], before: Lock, after: Lock, *, beside: bool = False
) -> tuple[Change, ...]:
    """Return the changes of values of each environment; with `beside` not of the default one."""
    compared = pairs(before, after)[beside:]
    return tuple(
        _prefixed(prefix, change) for prefix, had, has in compared for change in _changed(values(had), values(has))
    )


def _cells(lock: Lock) -> dict[str, str]:
    return {environment.name: environment.lock.cell for environment in environments(lock) if environment.name}


def _variables(lock: Lock) -> dict[str, str]:
    return {variable.name: variable.value for variable in lock.env}


def goes_back(before: str, after: str) -> bool:
    """Return whether `after` is an older version; False if one of them is not a PEP 440 version."""
    try:
        return Version(after) < Version(before)
    except ValueError:
        return False


def _deb_goes_back(before: str, after: str) -> bool:
    return version_key(after) < version_key(before)


def _single(
    name: str, before: str | None, after: str | None, back: Callable[[str, str], bool] = lambda *_: False
) -> Change | None:
    if before == after:
        return None
    return Change(name, before, after, back=bool(before and after and back(before, after)))


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[Change]:
    for name in sorted(before.keys() | after.keys()):
        if change := _single(name, before.get(name), after.get(name)):
            yield change


def _base(lock: Lock) -> str:
    content = lock.base.content
    return f"{lock.base.image}@{content.digest}" if content else lock.base.name


def _config(lock: Lock) -> dict[str, str]:
    """Return fields of the config, labels, ports and directories of the loader by name, as text."""
    return {
        **{each.name: shlex.join(each.value) for each in lock.config},
        **{f"label {label.name}": label.value for label in lock.labels},
        **{f"port {port.port}": port.because for port in lock.ports},
        **{f"ldconfig {each.path}": each.because for each in lock.ldconfig},
    }


def _files(lock: Lock) -> dict[str, str]:
    return {file.path: f"{file.mode} sha256:{file.sha256[:12]}" for copy in lock.copies for file in copy.files}


def _overrides(lock: Lock) -> dict[str, str]:
    return {
        override.package: "not installed" if override.specifier is None else override.specifier or "any version"
        for override in lock.overrides
    }


def _packages(
    before: DiffOperand, after: DiffOperand, requires: Requires
) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Changes of components, the main ones first, and of all other packages."""
    if before.lock and after.lock:
        changes = [
            _prefixed(prefix, change)
            for prefix, old, new in pairs(before.lock, after.lock)
            for change in _of_locks(old, new, requires)
        ]
    else:  # labels tell the main ones alone
        had, has = before.versions, after.versions
        changes = [
            Change(each.name, each.before, each.after, back=_back(each.before, each.after))
            for each in _changed(
                {name: had[name] for name in MAIN if name in had}, {name: has[name] for name in MAIN if name in has}
            )
        ]
    ranked = sorted((each for each in changes if each.why or each.name in MAIN), key=lambda each: rank(each.name))
    return tuple(ranked), tuple(each for each in changes if not each.why and each.name not in MAIN)


def rank(name: str) -> tuple[int, str]:
    """Return the sort key of packages in a difference: the main ones in the order of MAIN, then by name."""
    return (MAIN.index(name), "") if name in MAIN else (len(MAIN), name)


def _back(before: str | None, after: str | None) -> bool:
    return before is not None and after is not None and goes_back(before, after)


def _identity(package: LockedWheel | LockedBuild) -> str:
    if isinstance(package, LockedBuild):
        return package.key
    return package.build or package.file.sha256


def _of_locks(before: Lock, after: Lock, requires: Requires) -> list[Change]:
    had = {package.name: package for package in before.packages}
    has = {package.name: package for package in after.packages}
    names = sorted(
        name
        for name in had.keys() | has.keys()
        if name not in had or name not in has or _identity(had[name]) != _identity(has[name])
    )
    moved = {name for name in names if name not in had or name not in has or had[name].release != has[name].release}
    found = []
    for name in names:
        old, new = had.get(name), has.get(name)
        if isinstance(old, LockedBuild) and isinstance(new, LockedBuild) and name not in moved:
            continue  # one version, compiled anew: see `rebuilds`
        by: tuple[str, ...] = ()
        if new and name in moved:
            askers = sorted((moved & set(new.via)) - {name}, key=rank)
            by = tuple(asker for asker in askers if _forces(has[asker], new, old, after, requires))
        elif old and not new:
            by = tuple(sorted((moved & set(old.via)) - {name}, key=rank))
        was, now = (each.release if each else None for each in (old, new))
        because = new.because if new else old.because if old else None
        found.append(Change(name, was, now, because, _back(was, now), by, _cause(old, new)))
    return found


def _cause(old: LockedWheel | LockedBuild | None, new: LockedWheel | LockedBuild | None) -> str | None:
    """Return in words what changed of a wheel's patches; None where they are the same."""
    if not (isinstance(old, LockedWheel) and isinstance(new, LockedWheel)):
        return None
    had, has = ({patch.path: patch.sha256 for patch in each.patches} for each in (old, new))
    found = [f"{path} is no longer applied" for path in had if path not in has]
    found += [f"{path} is new" for path in has if path not in had]
    found += [f"{path} changed" for path in has if had.get(path, has[path]) != has[path]]
    if not found and list(had) != list(has):
        return "its patches are applied in another order"
    return ", ".join(found) or None


def _forces(
    requester: LockedWheel | LockedBuild,
    new: LockedWheel | LockedBuild,
    old: LockedWheel | LockedBuild | None,
    lock: Lock,
    requires: Requires,
) -> bool:
    """Return whether the old version does not satisfy the dependent package; True if its requirements are not known."""
    stated = requester.requires if isinstance(requester, LockedBuild) else requires(requester.name, requester.version)
    if old is None or stated is None:
        return True
    try:
        version = Version(old.version)
        requested = [each for each in map(parse_requirement, stated) if canonicalize_name(each.name) == new.name]
    except ValueError:
        return True
    machine = MACHINES.get(lock.platform, "")
    return any(
        not each.specifier.contains(version, prereleases=True)
        for each in requested
        if each.marker is None or metadata.holds(str(each.marker), f"{lock.python}.0", machine, "") is not False
    )


def _debs(before: Lock, after: Lock) -> tuple[Change, ...]:
    had, has = _deb_versions(before), _deb_versions(after)
    names = sorted(had.keys() | has.keys())
    changes = (_single(name, had.get((name, arch)), has.get((name, arch)), _deb_goes_back) for name, arch in names)
    return tuple(change for change in changes if change)


def _deb_versions(lock: Lock) -> dict[tuple[str, str], str]:
    """Return the versions by name and architecture, "" for the lock's own: locks of two platforms are compared too."""
    own = lock.platform.rpartition("/")[2]
    return {(deb.name, "" if deb.architecture == own else deb.architecture): deb.version for deb in lock.debs}


def _rebuilds(before: Lock, after: Lock, known: ComparisonFacts) -> tuple[Rebuild, ...]:
    keys = _keys(before)
    found = []
    for prefix, old, new in pairs(before, after):
        for build in new.builds:
            if build.key not in keys:
                keys.add(build.key)
                work = known.work(build)
                seconds = estimate(work) if work else None
                again = build.name in {each.name for each in old.builds}
                moved = _moved(build, old, new)
                found.append(Rebuild(f"{prefix}{build.name}", build.release, moved, seconds, known.kept(build), again))
    return tuple(found)


def estimate(work: BuildJob) -> float | None:
    """Return the seconds that a build takes on CORES cores with enough memory; None where its cost is not known."""
    return plan(work, Machine(CORES, _ENOUGH, _ENOUGH, limited=True)).seconds


def _moved(build: LockedBuild, before: Lock, after: Lock) -> tuple[str, ...]:
    """Return in words why the build is another one than before."""
    had = {package.name: package for package in before.packages}
    has = {package.name: package for package in after.packages}
    old = had.get(build.name)
    if old is None:
        return ("it is new",)
    if not isinstance(old, LockedBuild):
        return ("a wheel served before",)
    found = [f"{build.name} {old.release} -> {build.release}"] if old.release != build.release else []
    for name in build.against:
        one, other = had.get(name), has.get(name)
        if other and (one is None or _identity(one) != _identity(other)):
            found.append(f"{name} {one.release} -> {other.release}" if one else f"{name} {other.release}")
    parts = (
        ("its source", old.source.sha256, build.source.sha256),
        ("its patches", old.patches, build.patches),
        ("its GPUs", old.architectures, build.architectures),
        ("its variables", dict(old.env), dict(build.env)),
        ("what builds it", [*map(_identity, old.build_requires)], [*map(_identity, build.build_requires)]),
        ("the base", before.base, after.base),
        ("the interpreter", before.interpreter, after.interpreter),
    )  # fmt: skip
    if old.release == build.release:
        found += [words for words, was, now in parts if was != now]
    return tuple(found) or ("how it is built",)


def _keys(lock: Lock | None) -> set[str]:
    return {build.key for environment in environments(lock) for build in environment.lock.builds} if lock else set()


def _pull(
    before: tuple[ComparedLayer, ...] | None, after: tuple[ComparedLayer, ...] | None, built: set[str]
) -> Pull | None:
    """Layers are compared by the digests of their blobs, where one side has none by the keys of their inputs.

    `built` are keys of builds that both have: their wheels are no news, in whatever layer they are.
    """
    if before is None or after is None:
        return None
    before, after = (tuple(part for part in each if part.digest or part.key not in built) for each in (before, after))
    everything = (*before, *after)
    if all(part.digest for part in everything):
        had, has = ({str(part.digest): part for part in each} for each in (before, after))
    elif all(part.key for part in everything):
        had, has = ({str(part.key): part for part in each} for each in (before, after))
    else:
        return None
    new = tuple(part for each, part in has.items() if each not in had)
    return Pull(
        shared=tuple(part for each, part in has.items() if each in had),
        new=new,
        gone=tuple(part for each, part in had.items() if each not in has),
        size=sum(part.size or 0 for part in new),
        exact=all(part.digest for part in new),
        unknown=tuple(part.name for part in new if part.size is None),
    )
