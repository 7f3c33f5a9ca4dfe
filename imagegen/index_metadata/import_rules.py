"""Rules about pinned releases whose imports fail beside each other, from the sources in their wheels on the index."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from packaging.version import Version

from imagegen.audit.api.import_time import removed_name
from imagegen.audit.import_reach import Failure, Share, failures
from imagegen.audit.model import Package
from imagegen.audit.module_facts import MODULES_FORMAT
from imagegen.compat.derived import derived_rule
from imagegen.compat.facts import Facts, machine_of
from imagegen.compat.rule import Rule
from imagegen.core.context import Context
from imagegen.core.net import Client
from imagegen.core.store.cache import Cache
from imagegen.core.wheel_target import WheelTarget
from imagegen.index_metadata.wheel_modules import IndexModules
from imagegen.oci.documents import digest_of

_SECONDS = 10.0  # for one answer of the index
_REQUESTS = 4  # at a time
_NEWEST_GLIBC = 45  # other rules judge the glibc of a system
_PYTHONS = ("3.12", "3.11", "3.13", "3.10", "3.14")


@dataclass(frozen=True)
class FailedImport:
    """A statement that raises at import. Packages are (name, version); `provider` is None for Python."""

    package: tuple[str, str]
    provider: tuple[str, str] | None
    importers: tuple[tuple[str, str], ...]  # packages whose import gets there, if `package` alone does not
    path: str
    line: int
    name: str  # that does not exist; "" if a release is refused
    share: Share | None = None  # as in Failure


@dataclass(frozen=True)
class _Result:
    failed: list[FailedImport] = field(default_factory=list)


_RESULTS = Cache("failed-imports", _Result)


class ReadImports(NamedTuple):
    """The rules, and the packages whose sources were read."""

    rules: Sequence[Rule]
    read: frozenset[str]


def read_imports(
    pins: Mapping[str, str], required: Collection[tuple[str, str]], facts: Facts, context: Context
) -> ReadImports:
    """Return the rules about releases that are pinned together: package -> version, on the facts' Python and machine.

    `required` are pairs of a package and one that it requires. A rule about optional parts of a package is an error if
    they are much of it, or of what it requires the other package for.
    Sources are fetched from the default index unless the store has them, or no index may be asked.
    """
    python = _python(facts)
    target = WheelTarget(python, machine_of(facts), _NEWEST_GLIBC)
    with (
        Client(context.settings, attempts=1, timeout=(_SECONDS, _SECONDS), patience=_SECONDS) as client,
        ThreadPoolExecutor(_REQUESTS) as pool,
    ):
        modules = IndexModules(client, context, target)
        packages = [package for package in pool.map(modules.package, pins.keys(), pins.values()) if package]
        hashes = sorted(f"{package.name} {modules.wheel_hash(package.name)}" for package in packages)
        key = digest_of("\n".join([str(MODULES_FORMAT), python, *hashes]).encode())
        result = _RESULTS.get(context.store, key)
        if result is None:
            modules.announce()
            for _ in pool.map(modules.importers, packages):  # fetches the sources
                pass
            result = _Result([_failed(failure, packages) for failure in failures(packages, python, modules)])
            modules.close()
            if not modules.unread:
                _RESULTS.put(context.store, key, result)
    read = frozenset(package.name for package in packages) - modules.unread
    today = str(dt.datetime.now(dt.UTC).date())
    return ReadImports([_rule(failed, required, python, today) for failed in _distinct(result.failed)], read)


def _distinct(failed: Iterable[FailedImport]) -> list[FailedImport]:
    """Return the failures, of those in optional parts only the first about each provider."""
    distinct = {
        (failure.package, failure.provider, *([] if failure.share else [failure.path, failure.line])): failure
        for failure in reversed(list(failed))
    }
    return list(reversed(distinct.values()))


def _python(facts: Facts) -> str:
    """Return the Python that the facts name, else the one that most wheels are for."""
    fact = facts.versions.get("python")
    candidates = (python for python in _PYTHONS if fact is None or Version(f"{python}.0") in fact.range)
    return next(candidates, _PYTHONS[0])


def _failed(failure: Failure, packages: Sequence[Package]) -> FailedImport:
    top = failure.reach[0].partition(".")[0]
    owners = [package for package in packages if any(path.split("/")[0].split(".")[0] == top for path in package.files)]
    importers = tuple((owner.name, owner.version) for owner in owners[:1] if owner is not failure.package)
    provider = (failure.provider.name, failure.provider.version) if failure.provider else None
    package = (failure.package.name, failure.package.version)
    return FailedImport(package, provider, importers, failure.path, failure.line, failure.name, failure.share)


def _rule(failed: FailedImport, required: Collection[tuple[str, str]], python: str, today: str) -> Rule:
    package, version = failed.package
    name = (failed.provider or ("Python",))[0]
    provider = " ".join(failed.provider or ("Python", python))
    problem = f"imports {failed.name}, which {provider} does not have" if failed.name else f"refuses {provider}"
    reached = "".join(f"; {importer} {release} imports that" for importer, release in failed.importers)
    removed = removed_name(failed.name)
    replacement = removed.unless if removed else ""  # setuptools for distutils: most environments have it
    if share := failed.share:
        reached = f"; {share}"
    is_error = share is None or share.is_large or (share.is_much and (package, name) in required)
    return derived_rule(
        f"imports-{package}-{version}-{(failed.provider or ('python',))[0]}",
        f"{package} {version} {problem}{reached}.",
        when={name: f"=={release}" for name, release in (failed.package, *failed.importers)},
        conflict={name: f"=={release}" for name, release in [failed.provider or ("python", f"{python}.*")]},
        source=f"{failed.path}, line {failed.line}, of {package} {version}, and {provider}, on PyPI",
        date=today,
        severity="error" if is_error and not replacement else "warning",
        evidence="measured",
        fix=f"Use another release of {name} or of {package}.",
        message=_message(failed.name),
        unless={replacement: ""} if replacement else {},
    )


def _message(name: str) -> str:
    module, dot, last = name.rpartition(".")
    if not name:
        return ""
    return f"ImportError: cannot import name '{last}' from '{module}'" if dot else f"No module named '{name}'"
