"""Compute the difference of two images, locks or cells. Pure.

Sizes are bytes. `before` is the present image, `after` its replacement.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.compare.operands import ComparedLayer, DiffOperand
from imagegen.compat import metadata
from imagegen.core.types import parse_requirement
from imagegen.lock.debian_versions import version_key
from imagegen.lock.main_versions import MAIN
from imagegen.lock.model import Lock, LockedBuild, LockedWheel
from imagegen.oci.documents import MACHINES
from imagegen.wheels.throttle import BuildJob, estimate

Requires = Callable[[str, str], Sequence[str] | None]  # name, version -> PEP 508, None: not known


@dataclass(frozen=True)
class ComparisonFacts:
    """The requirements of each release, the cost of each build, and whether its wheel is in the wheelhouse."""

    requires: Requires = lambda *_: None
    work: Callable[[LockedBuild], BuildJob | None] = lambda _: None
    kept: Callable[[LockedBuild], bool] = lambda _: False


@dataclass(frozen=True)
class Change:
    """A value that differs, as the version of a package.

    Without `before` it is new, without `after` it is removed. If both are equal, the version has another file. `by`
    names changed packages that require this change, or required the removed package. `cause` states which patches of
    the project changed.
    """

    name: str
    before: str | None
    after: str | None
    why: str | None = None  # the lock's reason for it
    back: bool = False  # the version is older than before
    by: tuple[str, ...] = ()
    cause: str | None = None  # "patches/a.patch changed"

    @property
    def reason(self) -> str:
        """Why it differs: changed patches, the packages that require it, and the lock's reason."""
        return "; ".join(filter(None, (self.cause, f"with {', '.join(self.by)}" if self.by else "", self.why)))


@dataclass(frozen=True)
class Rebuild:
    """A wheel that must be compiled. `seconds` is the time on a machine with CORES; None: not measured."""

    name: str
    version: str
    because: tuple[str, ...]
    seconds: float | None
    kept: bool  # the wheel is in the wheelhouse, and is not compiled again
    again: bool  # `before` has another build of it


@dataclass(frozen=True)
class Pull:
    """The layers of `after`, for a host that has `before`. `size` is the compressed size of the new layers.

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
    components: tuple[Change, ...]  # packages that the matrix chooses or that identify an image; MAIN first
    packages: tuple[Change, ...]  # other packages, by name
    debs: tuple[Change, ...]
    rebuilds: tuple[Rebuild, ...]
    environments: tuple[Change, ...]  # the cell of each, if an image has several
    axes: tuple[Change, ...]
    base: Change | None
    interpreter: Change | None
    env: tuple[Change, ...]
    config: tuple[Change, ...]  # fields of the config, labels, ports and directories of the loader
    files: tuple[Change, ...]  # of the project: mode and sha256 by path
    overrides: tuple[Change, ...]  # of requirements, by distribution
    capabilities: Change | None
    driver: Change | None
    pull: Pull | None  # None if the layers of one operand are not known

    @property
    def empty(self) -> bool:
        """True if nothing differs, as far as both operands are known."""
        packages = (self.components, self.packages, self.debs, self.rebuilds)
        settings = (self.environments, self.axes, self.env, self.config, self.files, self.overrides)
        layers = self.pull and (self.pull.new or self.pull.gone)
        return not any((*packages, *settings, self.runtime, layers))

    @property
    def runtime(self) -> list[Change]:
        """Changes of the base, the interpreter, the GPUs and the driver."""
        return [change for change in (self.base, self.interpreter, self.capabilities, self.driver) if change]


def difference(before: DiffOperand, after: DiffOperand, facts: ComparisonFacts = ComparisonFacts()) -> Difference:
    """Return the difference of `after` from `before`.

    If images have several environments, the default ones and environments of the same name are compared. Changes in
    named environments begin with the environment's name.
    """
    components, packages = _packages(before, after, facts.requires)
    old, new = before.lock, after.lock
    environments = pairs(old, new) if old and new else []
    return Difference(
        before=before,
        after=after,
        components=components,
        packages=packages,
        debs=_debs(old, new) if old and new else (),
        rebuilds=_rebuilds(old, new, facts) if old and new else (),
        environments=tuple(_changed(_cells(old), _cells(new))) if old and new else (),
        axes=tuple(_changed(old.axes, new.axes)) if old and new else (),
        base=_single("base", _base(old), _base(new)) if old and new else None,
        interpreter=_single("interpreter", str(old.interpreter), str(new.interpreter)) if old and new else None,
        env=(
            *_changed(before.env, after.env),
            *_changed_in_environments((prefix, _variables(a), _variables(b)) for prefix, a, b in environments[1:]),
        ),
        config=tuple(_changed(_config(old), _config(new))) if old and new else (),
        files=tuple(_changed(_files(old), _files(new))) if old and new else (),
        overrides=_changed_in_environments((prefix, _overrides(a), _overrides(b)) for prefix, a, b in environments),
        capabilities=_single("GPUs", before.capabilities, after.capabilities),
        driver=_single("driver", before.driver, after.driver, back=_back(before.driver, after.driver)),
        pull=_pull(before.layers, after.layers, _keys(old) & _keys(new)),
    )


def pairs(before: Lock, after: Lock) -> list[tuple[str, Lock, Lock]]:
    """Return the locks of the environments to compare, each with the prefix for the names of its changes.

    The default environments are first, then the environments that both locks name.
    """
    old_locks, new_locks = ({item.name: item.lock for item in lock.environments} for lock in (before, after))
    (old_default, *_), (new_default, *named) = old_locks.values(), new_locks
    return [("", old_default, new_locks[new_default])] + [
        (f"{name}: ", old_locks[name], new_locks[name]) for name in named if name in old_locks
    ]


def _prefixed(prefix: str, change: Change) -> Change:
    return replace(change, name=f"{prefix}{change.name}", by=tuple(f"{prefix}{name}" for name in change.by))


def _changed_in_environments(
    compared: Iterable[tuple[str, Mapping[str, str], Mapping[str, str]]],
) -> tuple[Change, ...]:
    """Return the changes of values; `compared` has the prefix of each environment, and its values before and after."""
    return tuple(_prefixed(prefix, change) for prefix, old, new in compared for change in _changed(old, new))


def _cells(lock: Lock) -> dict[str, str]:
    return {environment.name: environment.lock.cell for environment in lock.environments if environment.name}


def _variables(lock: Lock) -> dict[str, str]:
    return {variable.name: variable.value for variable in lock.env}


def goes_back(before: str, after: str) -> bool:
    """Return whether `after` is an older version; False if one of them is not a PEP 440 version."""
    try:
        return Version(after) < Version(before)
    except ValueError:
        return False


def _deb_goes_back(before: str | None, after: str | None) -> bool:
    return before is not None and after is not None and version_key(after) < version_key(before)


def _single(name: str, before: str | None, after: str | None, *, back: bool = False) -> Change | None:
    return None if before == after else Change(name, before, after, back=back)


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
        **{field.name: shlex.join(field.value) for field in lock.config},
        **{f"label {label.name}": label.value for label in lock.labels},
        **{f"port {port.port}": port.because for port in lock.ports},
        **{f"ldconfig {directory.path}": directory.because for directory in lock.ldconfig},
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
    """Return the changes of components, the main ones first, and of all other packages."""
    if before.lock and after.lock:
        changes = [
            _prefixed(prefix, change)
            for prefix, old, new in pairs(before.lock, after.lock)
            for change in _package_changes(old, new, requires)
        ]
    else:  # labels have only the versions of main packages
        old_versions, new_versions = (
            {name: operand.versions[name] for name in MAIN if name in operand.versions} for operand in (before, after)
        )
        changes = [
            replace(change, back=_back(change.before, change.after)) for change in _changed(old_versions, new_versions)
        ]
    components = [change for change in changes if change.why or change.name in MAIN]
    others = tuple(change for change in changes if not change.why and change.name not in MAIN)
    return tuple(sorted(components, key=lambda change: rank(change.name))), others


def rank(name: str) -> tuple[int, str]:
    """Return the sort key of packages in a difference. Main packages come first, in the order of MAIN."""
    return (MAIN.index(name), "") if name in MAIN else (len(MAIN), name)


def _back(before: str | None, after: str | None) -> bool:
    return before is not None and after is not None and goes_back(before, after)


def _identity(package: LockedWheel | LockedBuild) -> str:
    if isinstance(package, LockedBuild):
        return package.key
    return package.build or package.file.sha256


def _package_changes(before: Lock, after: Lock, requires: Requires) -> list[Change]:
    old_packages = {package.name: package for package in before.packages}
    new_packages = {package.name: package for package in after.packages}
    packages = {
        name: (old_packages.get(name), new_packages.get(name)) for name in old_packages.keys() | new_packages.keys()
    }
    names = sorted(
        name for name, (old, new) in packages.items() if not old or not new or _identity(old) != _identity(new)
    )
    moved = {name for name in names if _release(packages[name][0]) != _release(packages[name][1])}
    changes = []
    for name in names:
        old, new = packages[name]
        if isinstance(old, LockedBuild) and isinstance(new, LockedBuild) and name not in moved:
            continue  # the same version is compiled again; see `rebuilds`
        by: tuple[str, ...] = ()
        if new and name in moved:
            dependents = sorted((moved & set(new.via)) - {name}, key=rank)
            by = tuple(parent for parent in dependents if _forces(new_packages[parent], new, old, after, requires))
        elif old and not new:
            by = tuple(sorted((moved & set(old.via)) - {name}, key=rank))
        was, now = _release(old), _release(new)
        because = new.because if new else old.because if old else None
        changes.append(Change(name, was, now, because, _back(was, now), by, _changed_patches(old, new)))
    return changes


def _release(package: LockedWheel | LockedBuild | None) -> str | None:
    return package.release if package else None


def _changed_patches(old: LockedWheel | LockedBuild | None, new: LockedWheel | LockedBuild | None) -> str | None:
    """Describe the changes of a wheel's patches; None if they are equal."""
    if not (isinstance(old, LockedWheel) and isinstance(new, LockedWheel)):
        return None
    old_patches, new_patches = ({patch.path: patch.sha256 for patch in wheel.patches} for wheel in (old, new))
    texts = [f"{path} is no longer applied" for path in old_patches if path not in new_patches]
    texts += [f"{path} is new" for path in new_patches if path not in old_patches]
    texts += [
        f"{path} changed" for path in new_patches if old_patches.get(path, new_patches[path]) != new_patches[path]
    ]
    if not texts and list(old_patches) != list(new_patches):
        return "its patches are applied in another order"
    return ", ".join(texts) or None


def _forces(
    requester: LockedWheel | LockedBuild,
    new: LockedWheel | LockedBuild,
    old: LockedWheel | LockedBuild | None,
    lock: Lock,
    requires: Requires,
) -> bool:
    """Return whether the old version does not satisfy `requester`; True if its requirements are not known."""
    stated = requester.requires if isinstance(requester, LockedBuild) else requires(requester.name, requester.version)
    if old is None or stated is None:
        return True
    try:
        version = Version(old.version)
        requirements = [item for item in map(parse_requirement, stated) if canonicalize_name(item.name) == new.name]
    except ValueError:
        return True
    machine = MACHINES.get(lock.platform, "")
    return any(
        not requirement.specifier.contains(version, prereleases=True)
        for requirement in requirements
        if requirement.marker is None
        or metadata.holds(str(requirement.marker), f"{lock.python}.0", machine, "") is not False
    )


def _debs(before: Lock, after: Lock) -> tuple[Change, ...]:
    old_versions, new_versions = _deb_versions(before), _deb_versions(after)
    names = sorted(old_versions.keys() | new_versions.keys())
    compared = ((name, old_versions.get((name, arch)), new_versions.get((name, arch))) for name, arch in names)
    return tuple(Change(name, a, b, back=_deb_goes_back(a, b)) for name, a, b in compared if a != b)


def _deb_versions(lock: Lock) -> dict[tuple[str, str], str]:
    """Return versions by name and architecture, which is "" for the lock's own, to compare two platforms."""
    architecture = lock.platform.rpartition("/")[2]
    return {(deb.name, "" if deb.architecture == architecture else deb.architecture): deb.version for deb in lock.debs}


def _rebuilds(before: Lock, after: Lock, facts: ComparisonFacts) -> tuple[Rebuild, ...]:
    keys = _keys(before)
    rebuilds = []
    for prefix, old, new in pairs(before, after):
        for build in new.builds:
            if build.key not in keys:
                keys.add(build.key)
                work = facts.work(build)
                seconds = estimate(work) if work else None
                again = any(earlier.name == build.name for earlier in old.builds)
                reasons = _rebuild_reasons(build, old, new)
                rebuilds.append(
                    Rebuild(f"{prefix}{build.name}", build.release, reasons, seconds, facts.kept(build), again)
                )
    return tuple(rebuilds)


def _rebuild_reasons(build: LockedBuild, before: Lock, after: Lock) -> tuple[str, ...]:
    """Describe why the build differs from the earlier one."""
    old_packages = {package.name: package for package in before.packages}
    new_packages = {package.name: package for package in after.packages}
    old = old_packages.get(build.name)
    if old is None:
        return ("it is new",)
    if not isinstance(old, LockedBuild):
        return ("a wheel was used before",)
    reasons = [f"{build.name} {old.release} -> {build.release}"] if old.release != build.release else []
    for name in build.against:
        old_package, new_package = old_packages.get(name), new_packages.get(name)
        if new_package and (old_package is None or _identity(old_package) != _identity(new_package)):
            change = f"{old_package.release} -> {new_package.release}" if old_package else new_package.release
            reasons.append(f"{name} {change}")
    inputs = (
        ("its source", old.source.sha256, build.source.sha256),
        ("its patches", old.patches, build.patches),
        ("its GPUs", old.architectures, build.architectures),
        ("its variables", dict(old.env), dict(build.env)),
        ("its build requirements", [*map(_identity, old.build_requires)], [*map(_identity, build.build_requires)]),
        ("the base", before.base, after.base),
        ("the interpreter", before.interpreter, after.interpreter),
    )  # fmt: skip
    if old.release == build.release:
        reasons += [words for words, was, now in inputs if was != now]
    return tuple(reasons) or ("how it is built",)


def _keys(lock: Lock | None) -> set[str]:
    return {build.key for environment in lock.environments for build in environment.lock.builds} if lock else set()


def _pull(
    before: tuple[ComparedLayer, ...] | None, after: tuple[ComparedLayer, ...] | None, built: set[str]
) -> Pull | None:
    """Compare layers by the digests of their blobs, or by the keys of their inputs if a digest is not known.

    `built` are keys of builds that both operands have. Layers with these keys are not new.
    """
    if before is None or after is None:
        return None
    before, after = (
        tuple(layer for layer in layers if layer.digest or layer.key not in built) for layers in (before, after)
    )
    if all(layer.digest for layer in (*before, *after)):
        old_layers, new_layers = ({str(layer.digest): layer for layer in layers} for layers in (before, after))
    elif all(layer.key for layer in (*before, *after)):
        old_layers, new_layers = ({str(layer.key): layer for layer in layers} for layers in (before, after))
    else:
        return None
    new = tuple(new_layers[key] for key in new_layers if key not in old_layers)
    return Pull(
        shared=tuple(new_layers[key] for key in new_layers if key in old_layers),
        new=new,
        gone=tuple(old_layers[key] for key in old_layers if key not in new_layers),
        size=sum(layer.size or 0 for layer in new),
        exact=all(layer.digest for layer in new),
        unknown=tuple(layer.name for layer in new if layer.size is None),
    )
