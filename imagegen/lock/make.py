"""Making a lock: base, resolution, the choice of files, and wheels from sdists."""

from __future__ import annotations

import hashlib
import html
import importlib.metadata
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name

from imagegen import base, compat
from imagegen.config import Settings
from imagegen.errors import FetchError, ImagegenError, LockError
from imagegen.lock import indexes, sdist
from imagegen.lock.fetch import workshop_of
from imagegen.lock.file import LockErrors
from imagegen.lock.freshness import BASE
from imagegen.lock.model import File, Lock, LockedBase, LockedEnv, LockedGpus, LockedSdist, LockedWheel, winners_among
from imagegen.lock.resolve import Pinned, Question, Remote, Site, resolve
from imagegen.lock.sources import Finder, Wanted, in_parallel
from imagegen.lock.target import Target
from imagegen.matrix.model import Cell, Requirement, Sdist
from imagegen.matrix.rule import Rule
from imagegen.net import Client, NotFoundError
from imagegen.progress import Progress, timed
from imagegen.store import Store
from imagegen.text import redact

_UV = importlib.metadata.version("uv")


def make(
    cell: Cell,
    *,
    previous: Lock | None,
    upgrade: bool,
    upgrade_packages: Sequence[str],
    as_of: str | None,
    settings: Settings,
    store: Store,
    rules: Iterable[Rule],
    progress: Progress,
    upgrade_base: bool = False,
) -> Lock:
    """Resolve a cell. What `previous` holds stays, its as-of time too, unless an upgrade or another time is asked for.

    Raises LockError when there is no answer, FetchError when an index fails, and what `base.resolve` and building
    sdists raise. The new lock has the record of `previous` only if nothing else differs.
    """
    rules = tuple(rules)
    time = _as_of(as_of, None if upgrade or upgrade_packages else previous)
    locked_base = _base(cell, previous, settings, progress, upgrade=upgrade or upgrade_base)
    settings = indexes.with_indexes(settings, cell.indexes)
    kept = {} if upgrade or previous is None else _kept(previous, upgrade_packages)
    target = Target.of(cell.platform, cell.base, locked_base)
    with tempfile.TemporaryDirectory(prefix="imagegen-lock-") as room:
        maker = _Maker(cell, target, locked_base, time, settings, store, progress, Path(room), _sizes(previous))
        wheels = maker.wheels(tuple(compat.constraints(rules, cell)), kept)
        uv = previous.uv if previous and previous.uv.version == _UV else maker.uv()
    made = Lock(
        cell=cell.id,
        image=cell.image,
        axes=dict(cell.axes),
        inputs={name: value for name, value in cell.inputs.items() if name not in _unused(cell, wheels)},
        uv=uv,
        as_of=time,
        base=locked_base,
        wheels=wheels,
        env=tuple(LockedEnv(each.name, each.value, each.because) for each in cell.env),
        winners=winners_among(cell.winners, wheels),
    )
    made = replace(made, gpu=_gpus(cell, rules, compat.facts_of_lock(made)))
    return previous if previous is not None and replace(previous, record=None) == made else made


def _gpus(cell: Cell, rules: Iterable[Rule], facts: compat.Facts) -> LockedGpus | None:
    if cell.cuda_version is None:
        return None
    return LockedGpus(tuple(gpu.capability for gpu in cell.gpus), compat.floor(rules, facts, "driver", cell.gpus))


def _as_of(asked: str | None, previous: Lock | None) -> str:
    if asked is None:
        return previous.as_of if previous else _rfc3339(datetime.now(UTC))
    try:
        time = datetime.fromisoformat(asked)
    except ValueError as error:
        raise LockError(
            f"{asked!r} is no time", why=str(error), fix="write a date or a time as in 2026-11-20T00:00:00Z"
        ) from error
    # A date or a time without zone is UTC, so that a lock does not depend on where it is made.
    time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    if time > datetime.now(UTC):
        why = "a time in the future holds nothing back, so that the next resolution could differ"
        raise LockError(f"{asked} has not come yet", why=why, fix="name a time in the past")
    return _rfc3339(time)


def _unused(cell: Cell, wheels: Iterable[LockedWheel]) -> set[str]:
    """Inputs that are sdists which the resolution did not take."""
    taken = {wheel.name for wheel in wheels if wheel.sdist}
    return {f"sdist {each.package}" for each in cell.sdists if each.package not in taken}


def _rfc3339(time: datetime) -> str:
    return time.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def _base(cell: Cell, previous: Lock | None, settings: Settings, progress: Progress, *, upgrade: bool) -> LockedBase:
    if previous and not upgrade and previous.inputs.get("base") == cell.inputs.get("base"):
        return replace(previous.base, **{name: getattr(cell.base, name) for name in BASE})  # whatever a hand has done
    return base.resolve(cell.base, settings, progress)


def _kept(previous: Lock, upgraded: Sequence[str]) -> dict[str, str]:
    names = {canonicalize_name(name) for name in upgraded}
    unknown = names - {wheel.name for wheel in previous.wheels}
    if unknown:
        raise LockError(f"the lock has no {', '.join(sorted(unknown))}", fix="upgrade a package that it has")
    return {wheel.name: wheel.version for wheel in previous.wheels if wheel.name not in names}


def _sizes(previous: Lock | None) -> dict[str, int]:
    wheels = previous.wheels if previous else ()
    sdists = [wheel.sdist for wheel in wheels if wheel.sdist]
    parts = [wheel for each in sdists for wheel in each.build_requires]
    files = [*(each.file for each in (*wheels, *parts)), *(each.file for each in sdists)]
    return {file.sha256: file.size for file in files}


@dataclass(frozen=True)
class _Maker:
    cell: Cell
    target: Target
    base: LockedBase
    as_of: str
    settings: Settings
    store: Store
    progress: Progress
    room: Path  # a directory for as long as the lock is made
    sizes: Mapping[str, int]  # sha256 -> bytes, as far as the previous lock knows them

    def wheels(self, constraints: tuple[str, ...], kept: Mapping[str, str]) -> tuple[LockedWheel, ...]:
        requirements = {each.component.package: each for each in self.cell.requirements}
        question = Question(
            requirements=tuple(self._pep508(each) for each in self.cell.requirements),
            target=self.target,
            as_of=self.as_of,
            routes={name: each.index for name, each in requirements.items()},
            sites=self._sites,
            constraints=constraints,
            sdists=self.cell.sdists,
            preferences=kept,
        )
        with timed(self.progress, f"resolving {self.cell.id} as of {self.as_of}"):
            found = resolve(question, self.settings)
        sdists = {component.package: component.sdist for component in self.cell.sdists if component.sdist}
        locked = self._files(found, question.routes, sdists)
        return tuple(
            replace(
                wheel,
                because=requirements[wheel.name].because if wheel.name in requirements else None,
                misrecorded=self.cell.misrecorded.get(wheel.file.sha256),
            )
            for wheel in locked
        )

    def uv(self) -> LockedWheel:
        """The wheel of the uv that resolves here. Its age is no matter of the stack's as-of time."""
        now = _rfc3339(datetime.now(UTC))
        sites = {alias: site for alias, site in self._sites.items() if alias == indexes.DEFAULT}
        (wheel,) = self._files(resolve(Question((f"uv=={_UV}",), self.target, now, {}, sites), self.settings), {}, {})
        return wheel

    def _pep508(self, requirement: Requirement) -> str:
        """The requirement; an exact version gets the local label of its index, so that no other build answers."""
        parsed = Pep508(requirement.pep508)
        label = requirement.component.local.get(self.cell.cuda)
        exact = [each for each in parsed.specifier if each.operator == "==" and "*" not in each.version]
        if label and len(parsed.specifier) == len(exact) == 1 and "+" not in exact[0].version:
            return f"{requirement.pep508}+{label}"
        return requirement.pep508

    @cached_property
    def _sites(self) -> dict[str, Site]:
        sites: dict[str, Site] = {}
        if indexes.DEFAULT in self.settings.index_urls:
            sites[indexes.DEFAULT] = Site(self.settings.index_urls[indexes.DEFAULT])
        routed: dict[str, list[Requirement]] = {}
        for requirement in self.cell.requirements:
            if requirement.index != indexes.DEFAULT:
                routed.setdefault(requirement.index, []).append(requirement)
        for alias, requirements in routed.items():
            sites[alias] = self._site(alias, requirements)
        return sites

    def _site(self, alias: str, requirements: Sequence[Requirement]) -> Site:
        """The alias's index; where it cannot be reached, the exact files that find-links directories hold."""
        url = indexes.url_of(alias, self.settings)
        if url is None:
            raise LockError(f"index {alias} has no address", fix=f"set {indexes.variable(alias)}")
        try:
            indexes.project(Client(self.settings).impatient(), url, requirements[0].component.package)
        except NotFoundError:
            pass  # it answers: what it lacks, uv tells best
        except FetchError as error:
            return self._stand_in(alias, requirements, error)
        return Site(url)

    def _stand_in(self, alias: str, requirements: Sequence[Requirement], error: FetchError) -> Site:
        files = {each.component.package: self._exact_file(each) for each in requirements}
        found = [file for file in files.values() if file]
        if len(found) < len(files):
            lacking = ", ".join(self._pep508(each) for each in requirements if not files[each.component.package])
            places = ", ".join(map(redact, self.settings.find_links)) or "none is set"
            raise LockError(
                f"index {alias} cannot be reached",
                why=f"{error.what}: {error.why}; and no find-links directory ({places}) holds exactly one wheel of "
                f"{lacking} for Python {self.target.python} on {self.target.uv_platform}",
                fix=f"set {indexes.variable(alias)} to a mirror of it, or put that wheel where PIP_FIND_LINKS points",
            ) from error
        # With hashes on a page uv need not unpack the files into its cache to learn them.
        page = self.room / f"{alias}.html"
        lines = [
            f'<a href="{file.resolve().as_uri()}#sha256={_sha256(file)}">{html.escape(file.name)}</a>' for file in found
        ]
        page.write_text("<!DOCTYPE html>\n" + "<br>\n".join(lines))
        for file in found:
            self.progress.say(f"index {alias} cannot be reached: {file} stands in for it")
        return Site(page.as_uri(), flat=True)

    def _exact_file(self, requirement: Requirement) -> Path | None:
        specifiers = list(Pep508(self._pep508(requirement)).specifier)
        if len(specifiers) != 1 or specifiers[0].operator != "==" or "+" not in specifiers[0].version:
            return None
        package = requirement.component.package
        return indexes.stand_in(self.settings, package, specifiers[0].version, self.target)

    def _files(
        self, found: Iterable[Pinned], routes: Mapping[str, str], sdists: Mapping[str, Sdist]
    ) -> tuple[LockedWheel, ...]:
        """Choose a file for each release. Raises LockError, naming all for which none will do."""
        chosen: list[tuple[Pinned, Remote]] = []
        errors: list[ImagegenError] = []
        for pinned in found:
            wheel = self.target.best((remote.filename, remote) for remote in pinned.wheels)
            declared = sdists.get(pinned.name)
            if wheel:
                chosen.append((pinned, wheel))
            elif pinned.sdist and declared and declared.version == pinned.version:
                chosen.append((pinned, pinned.sdist))
            else:
                errors.append(_no_wheel(pinned, self.target))
        if errors:
            raise LockErrors(errors)
        with ThreadPoolExecutor(8) as pool, Client(self.settings) as client:  # an interrupt stops the client first
            known = [remote.size or self.sizes.get(remote.sha256) for _, remote in chosen]
            sizes = list(pool.map(lambda size, pair: size or client.size(pair[1].url), known, chosen))
        wheels = []
        for (pinned, remote), size in zip(chosen, sizes, strict=True):
            alias = routes.get(pinned.name, indexes.DEFAULT)
            file = File(remote.filename, remote.sha256, size, alias, indexes.hint(remote.url))
            wheel_ = LockedWheel(pinned.name, pinned.version, file, pinned.via)
            wheels.append(wheel_ if remote in pinned.wheels else self._from_sdist(wheel_, sdists[pinned.name]))
        return tuple(wheels)

    def _from_sdist(self, locked: LockedWheel, declared: Sdist) -> LockedWheel:
        """`locked`, whose file is an sdist, as the wheel that it gives in the sandbox."""
        sites = {alias: site for alias, site in self._sites.items() if alias == indexes.DEFAULT}
        question = Question(declared.build_requires, self.target, self.as_of, routes={}, sites=sites)
        source = LockedSdist(locked.file, self._files(resolve(question, self.settings), {}, {}))
        parts = [Wanted(locked.name, source.file), *(Wanted(each.name, each.file) for each in source.build_requires)]
        total = sum(part.file.size for part in parts)
        with Client(self.settings) as client, self.progress.meter(f"fetching {source.file.filename}", total) as meter:
            finder = Finder(client, self.store, self.settings, meter)
            for _ in in_parallel([partial(finder.fetch, part) for part in parts], client):
                pass
        workshop = workshop_of(self.base, self.store, self.settings, self.progress)
        wheel = sdist.build(locked.name, locked.version, source, workshop)
        return replace(locked, file=wheel, sdist=source)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_wheel(pinned: Pinned, target: Target) -> LockError:
    offered = (
        ", ".join(remote.filename for remote in pinned.wheels[:4]) or "only an sdist" if pinned.sdist else "nothing"
    )
    return LockError(
        f"{pinned.name} {pinned.version} has no wheel for Python {target.python} on {target.uv_platform}",
        why=f"its index offers {offered}; {', '.join(pinned.via) or 'the cell'} asks for it",
        fix=f"if it is pure Python, declare {pinned.name} as a component with `sdist:`; else exclude this version",
    )
