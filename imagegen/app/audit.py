"""The pre-image audit of `build`, `publish` and `lock --record`."""

from __future__ import annotations

import gc
import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

import imagegen.audit
import imagegen.image.inventory
from imagegen.app.session import Session
from imagegen.audit.check import audit
from imagegen.audit.facts import FACTS_FORMAT
from imagegen.audit.imports import RefusedKeyword
from imagegen.audit.model import Finding, Package, Severity, Subject
from imagegen.audit.report import joined_reports
from imagegen.core import data, registry
from imagegen.core.config import Settings
from imagegen.core.errors import AuditError, FetchError, UsageError
from imagegen.core.layer_tar import Allowance
from imagegen.core.net import Client
from imagegen.core.oci import INDEX_FILE, PLATFORMS, Layout, Platform
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import counted
from imagegen.core.types import Gpu
from imagegen.image.inputs import tree_key
from imagegen.image.inventory import archive, system
from imagegen.image.inventory.archive import ArchivedImage, ChunkReader, layer, piped
from imagegen.image.inventory.layers import LayeredTree, LayerEntry
from imagegen.image.inventory.subjects import cell_subject as subject
from imagegen.image.inventory.subjects import describe
from imagegen.image.inventory.tree import (
    Environment,
    FileTree,
    all_sites,
    environment_of_path,
    environment_of_site,
    installed,
    python_of,
)
from imagegen.image.layers.image import LABEL
from imagegen.image.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.plan.lock import contents_hash
from imagegen.plan.lock.environments import CombinedLock, parts
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix import api
from imagegen.plan.matrix.api import PackageNames
from imagegen.plan.matrix.model import Cell


@dataclass(frozen=True)
class _Audited:
    """The result of a pre-image audit; `report` is as `AuditReport.as_dict` returns it."""

    errors: list[str]
    warnings: int
    report: dict[str, Any]


_AUDITS = Cache("audit", _Audited)
_SHOWN = 10  # errors of an audit in one message


def is_audited(session: Session, cell: Cell, lock: Lock) -> bool:
    """Return whether the store has the result of `audit_before_image`."""
    return _AUDITS.get(session.store, _audit_key(lock, cell)) is not None


def audit_before_image(
    session: Session, cell: Cell, lock: Lock, scans: Mapping[str, Package] | None = None
) -> str | None:
    """Raise AuditError if the audit of the lock finds errors; return a note with the number of warnings.

    The store keeps the result until the lock, the wheels that were compiled for it, the modules that the matrix
    declares, or the audit itself change. `scans` are read already, by distribution. Raises also as
    `inventory.cell.subject`.
    """
    store, progress = session.store, session.progress
    key = _audit_key(lock, cell)
    result = _AUDITS.get(store, key)
    if result is None:
        gc.disable()  # data of wheels have no cycles, and searching for cycles takes a tenth of the audit
        try:
            with timed(progress, f"auditing {lock.cell}"):
                report = audit(subject(lock, cell, session.context_for(cell), scans or {}))
        finally:
            gc.enable()
        errors = [_line(finding) for finding in report.findings if finding.severity is Severity.ERROR]
        result = _Audited(errors, report.counts[Severity.WARNING], report.as_dict())
        _AUDITS.put(store, key, result)
    errors, hint = result.errors, f"`imagegen audit {lock.cell}` lists them"
    if errors:
        omitted = [f"and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
        raise AuditError(
            f"the audit of {lock.cell} found {counted(len(errors), 'error')}",
            code="audit-failed",
            why="\n       ".join([*errors[:_SHOWN], *omitted]),
            fix=f"{hint}, `imagegen audit --explain ID` explains a finding; `build --no-audit` skips the audit",
        )
    return f"the audit found no errors, and {counted(result.warnings, 'warning')}: {hint}" if result.warnings else None


def refused_keywords(session: Session, subject: Subject) -> Iterator[RefusedKeyword]:
    """Yield the keyword arguments that packages of a subject pass to others which refuse them, by harvested names.

    Only pairs of releases whose wheels were read count. Raises MatrixError.
    """
    installed = {
        installed_package.name: public
        for installed_package in subject.packages
        if (public := _public(installed_package.version))
    }
    for package in api.names(session.matrix_directories):
        api_names = session.api_names(package) if package in installed else None
        if api_names is None or not _was_read(api_names, package, installed):
            continue
        for name in api_names.names:
            if name.keyword and _was_read(api_names, name.provider, installed):
                passes = any(installed[package] in SpecifierSet(span) for span in name.required_by)
                if passes and any(installed[name.provider] in SpecifierSet(span) for span in name.lacked_by):
                    newest = name.required_by[-1].rpartition("=")[2]  # the release that path and line are of
                    path = name.path if installed[package] == newest else None
                    yield RefusedKeyword(package, name.provider, name.name, name.keyword, path, name.line, name.certain)


def _was_read(names: PackageNames, package: str, installed: Mapping[str, str]) -> bool:
    """Return whether the installed release is one whose wheel was read."""
    return package in installed and installed[package] in names.wheels.get(package, {})


def _public(version: str) -> str | None:
    """Return a version without its label, which names a build of the release; None if it is not a version."""
    try:
        return Version(version).public
    except ValueError:
        return None


def audit_report(lock: Lock, cell: Cell, store: Store) -> dict[str, Any] | None:
    """Return the audit's result as `AuditReport.as_dict` or, for several environments, `joined_reports` returns it;
    None if the lock was not audited.
    """
    audited = [_AUDITS.get(store, _audit_key(environment_lock, part)) for part, environment_lock in parts(cell, lock)]
    reports = [result.report for result in audited if result]
    if len(reports) < len(audited):
        return None
    if not isinstance(lock, CombinedLock):
        return reports[0]
    pairs = zip(lock.environments, reports, strict=True)
    return joined_reports(lock.cell, {environment.name: report for environment, report in pairs})


def _audit_key(lock: Lock, cell: Cell) -> str:
    contents = [contents_hash(lock), asdict(cell.declarations), tree_key(lock.foundation)]
    return digest_of_json([*contents, FACTS_FORMAT, LAYER_FORMAT, _audit_digest()])


def _line(finding: Finding) -> str:
    where = ": ".join(part for part in (finding.package, finding.path) if part)
    return f"{finding.id}: {where}: {finding.evidence}" if where else f"{finding.id}: {finding.evidence}"


def _audit_digest() -> str:
    """Return a digest of the audit's programs and data, so that another version of imagegen audits again."""
    digest = hashlib.sha256()
    for package in (imagegen.audit, imagegen.image.inventory):
        root = Path(package.__path__[0])
        for path in sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


# The audit subject of an image, also of one that imagegen did not build: in Docker, in a registry, or in an OCI
# layout.
#
# Layers are read one after the other as streams and are not unpacked to disk.

LAYOUT = "oci:"
_NAMED = 3  # of the directories that are not audited


def image_subject(
    reference: str, gpus: tuple[Gpu, ...], settings: Settings, progress: Progress, *, known_gpus: Iterable[Gpu] = ()
) -> Subject:
    """Return the image of this name in an engine, else in a registry; `oci:DIR` or `oci:DIR@DIGEST` names a layout.

    If imagegen built the image, its labels give the driver and, unless `gpus` are given, the GPUs (from `known_gpus`).

    Raises UsageError for an image without Python packages, FetchError, EngineError, StoreError.
    """
    with Store(settings.store).temporary_directory("audit") as scratch:
        contents = read_image(reference, scratch, settings, progress)
    tree = LayeredTree()
    for layer_entries in contents.layers:
        tree.add(layer_entries)
    variables = {
        name: value for name, equals, value in (variable.partition("=") for variable in contents.config.env) if equals
    }
    main = main_environment(tree, variables, reference, progress)
    installation = installed(tree, main)
    describe(installation.editable, progress)
    labels = contents.config.labels
    capabilities = labels.get(f"{LABEL}gpu.capabilities", "").split(",")
    return Subject(
        name=reference,
        packages=installation.packages,
        system=system.of(tree, environment=variables, interpreter=main.program),
        python=main.python or python_of(installation.packages),
        gpus=gpus or tuple(gpu for gpu in known_gpus if gpu.capability in capabilities),
        driver=labels.get(f"{LABEL}gpu.driver"),
        cuda=f"{LABEL}gpu.capabilities" in labels if f"{LABEL}cell" in labels else None,
    )


def main_environment(tree: FileTree, variables: Mapping[str, str], reference: str, progress: Progress) -> Environment:
    """Return the environment that the image's `python` uses, else the one with the most files; log the others.

    Raises UsageError where the image has no Python packages.
    """
    sites = all_sites(tree)
    if not sites:
        raise UsageError(
            f"{reference} holds no Python packages",
            code="usage-no-packages",
            why="nothing in it was installed by pip or its like",
        )
    environment = environment_of_path(tree, variables)
    if environment is None or not set(environment.sites) & set(sites):
        largest = max(sites, key=lambda site: sum(1 for _ in tree.entries(site)))
        environment = environment_of_site(tree, largest)
        progress.say(f"note: reading {largest}, because the python on PATH has no packages")
    if unused_sites := [site for site in sites if site not in environment.sites]:
        suffix = f" and {len(unused_sites) - _NAMED} more" if len(unused_sites) > _NAMED else ""
        site_names = ", ".join(unused_sites[:_NAMED]) + suffix
        progress.say(f"note: not read, since {environment.program or 'its Python'} does not use it: {site_names}")
    return environment


def read_image(reference: str, scratch: Path, settings: Settings, progress: Progress) -> ArchivedImage:
    """Return config and layers of an image in an engine, else in a registry, or of a layout; see `image_subject`.

    `scratch` is a directory for large files. Raises UsageError, FetchError, EngineError.
    """
    machine = platform.machine()
    machine_platform = Platform("linux", PLATFORMS.get(machine, machine).rpartition("/")[2])
    if reference.startswith(LAYOUT):
        return _of_layout(reference.removeprefix(LAYOUT), machine_platform, scratch)
    from imagegen.run.engine.client import exported  # late: a build into a layout needs no engine

    name = registry.parse(reference)
    with exported(reference, settings) as archive_stream:
        if archive_stream is not None:
            progress.say(f"reading {reference} from the engine")
            stream = ChunkReader(archive_stream.pieces)
            return archive.read(stream, Platform("linux", archive_stream.architecture), reference, scratch)
    progress.say(f"no engine here has {reference}: asking {name.registry}")
    return _of_registry(name, machine_platform, scratch, settings, progress)


def _of_registry(
    name: registry.Reference, machine_platform: Platform, scratch: Path, settings: Settings, progress: Progress
) -> ArchivedImage:
    with Client(settings) as client:
        image = registry.resolve(name, machine_platform, client, settings)
        repository = registry.Repository(name, client, settings)
        layers: list[list[LayerEntry]] = []
        allowance = Allowance()
        with progress.meter(f"read {name}", sum(descriptor.size for descriptor in image.layers)) as meter:
            for blob in image.layers:
                with piped(partial(repository.stream, blob.digest, blob.size), client.close) as stream:
                    layers.append(layer(stream, blob.digest, f"{name}: {blob.digest}", scratch, allowance))
                meter.advance(blob.size)
        return ArchivedImage(image.config, tuple(layers))


def _of_layout(text: str, machine_platform: Platform, scratch: Path) -> ArchivedImage:
    """Read the image of a layout, DIR or DIR@DIGEST."""
    directory, at, digits = text.partition("@sha256:")
    layout, where = Layout(Path(directory)), f"{LAYOUT}{text}"

    def document(digest: str) -> bytes | None:
        try:
            return data.read(layout.path(digest))
        except OSError:
            return None

    try:
        index = data.read(layout.root / INDEX_FILE)
        digest = f"sha256:{digits}" if at else None
        config, descriptors = archive.chosen(index, document, machine_platform, where, digest)
        layers, allowance = [], Allowance()
        for descriptor in descriptors:
            with layout.open(descriptor.digest) as blob:
                layers.append(layer(blob, descriptor.digest, f"{where}: {descriptor.digest}", scratch, allowance))
    except OSError as error:
        raise FetchError(
            f"{where} is not an OCI layout", code="fetch-not-a-layout", why=f"{error.filename}: {error.strerror}"
        ) from error
    return ArchivedImage(config, tuple(layers))
