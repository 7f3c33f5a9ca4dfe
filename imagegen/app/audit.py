"""The pre-image audit of `build`, `publish` and `lock --record`."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

import imagegen.audit
import imagegen.image.inventory
from imagegen.app.matrices import Matrices
from imagegen.app.project import ProjectContext
from imagegen.audit.check import audit
from imagegen.audit.facts import FACTS_FORMAT
from imagegen.audit.imports import RefusedKeyword
from imagegen.audit.lists import few
from imagegen.audit.model import Finding, Package, Severity, Subject
from imagegen.audit.report import joined_reports
from imagegen.compat import package_names as api
from imagegen.compat.package_names import PackageNames
from imagegen.core.errors import AuditError
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import counted
from imagegen.image.file_tree import tree_key
from imagegen.image.inventory.cell_subject import cell_subject as subject
from imagegen.image.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.lock import contents_hash
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell


@dataclass(frozen=True)
class _Audited:
    """The result of a pre-image audit; `report` is as `AuditReport.as_dict` returns it."""

    errors: list[str]
    warnings: int
    report: dict[str, Any]


_AUDITS = Cache("audit", _Audited)
_SHOWN = 10  # errors of an audit in one message


def is_audited(project: ProjectContext, cell: Cell, lock: Lock) -> bool:
    """Return whether the store has the result of `audit_before_image`."""
    return _AUDITS.get(project.store, audit_key(lock, cell)) is not None


def audit_before_image(
    project: ProjectContext, cell: Cell, lock: Lock, scans: Mapping[str, Package] | None = None
) -> str | None:
    """Raise AuditError if the audit of the lock finds errors; return a note with the number of warnings.

    The store keeps the result until the lock, the wheels that were compiled for it, the modules that the matrix
    declares, or the audit itself change. `scans` are read already, by distribution. Raises also as
    `inventory.cell.subject`.
    """
    store, progress = project.store, project.progress
    key = audit_key(lock, cell)
    result = _AUDITS.get(store, key)
    if result is None:
        gc.disable()  # data of wheels have no cycles, and searching for cycles takes a tenth of the audit
        try:
            with timed(progress, f"auditing {lock.cell}"):
                report = audit(subject(lock, cell, project.context_for(cell), scans or {}))
        finally:
            gc.enable()
        errors = [_line(finding) for finding in report.findings if finding.severity is Severity.ERROR]
        result = _Audited(errors, report.counts[Severity.WARNING], report.as_dict())
        _AUDITS.put(store, key, result)
    errors, hint = result.errors, f"`imagegen audit {lock.cell}` lists them"
    if errors:
        raise AuditError(
            f"the audit of {lock.cell} found {counted(len(errors), 'error')}",
            code="audit-failed",
            why="\n       ".join(few(errors, _SHOWN)),
            fix=f"{hint}, `imagegen audit --explain ID` explains a finding; `build --no-audit` skips the audit",
        )
    return f"the audit found no errors, and {counted(result.warnings, 'warning')}: {hint}" if result.warnings else None


def audit_lock(project: ProjectContext, cell: Cell, lock: Lock, *, audit: bool) -> tuple[str, ...]:
    """Audit the lock unless the user has declined, each environment as the cell that it is; print and return the notes.

    Raises AuditError.
    """
    if audit:
        notes = [note for part in lock.by_cell(cell) if (note := audit_before_image(project, *part))]
    else:
        skipped = f"NOTE: {cell.id} is not audited (--no-audit)."
        notes = [skipped, f"NOTE: `imagegen audit {cell.id}` reports what would not work."]
    for text in notes:
        project.progress.say(text)
    return tuple(notes)


def refused_keywords(matrices: Matrices, subject: Subject) -> Iterator[RefusedKeyword]:
    """Yield the keyword arguments that packages of a subject pass to others which refuse them, by harvested names.

    Only pairs of releases whose wheels were read count. Raises MatrixError.
    """
    installed = {
        installed_package.name: public
        for installed_package in subject.packages
        if (public := _public(installed_package.version))
    }
    for package in api.names(matrices.project.matrix_directories):
        api_names = matrices.knowledge_files.api_names(package) if package in installed else None
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
    audited = [_AUDITS.get(store, audit_key(environment_lock, part)) for part, environment_lock in lock.by_cell(cell)]
    reports = [result.report for result in audited if result]
    if len(reports) < len(audited):
        return None
    if not lock.has_several:
        return reports[0]
    pairs = zip(lock.environments, reports, strict=True)
    return joined_reports(lock.cell, {environment.name: report for environment, report in pairs})


def audit_key(lock: Lock, cell: Cell) -> str:
    """Return the digest of all inputs of the audit of a lock."""
    contents = [contents_hash(lock), asdict(cell.declarations), tree_key(lock.foundation)]
    return digest_of_json([*contents, FACTS_FORMAT, LAYER_FORMAT, audit_digest()])


def _line(finding: Finding) -> str:
    where = ": ".join(part for part in (finding.package, finding.path) if part)
    return f"{finding.id}: {where}: {finding.evidence}" if where else f"{finding.id}: {finding.evidence}"


def audit_digest() -> str:
    """Return a digest of the audit's programs and data, so that another version of imagegen audits again."""
    digest = hashlib.sha256()
    for package in (imagegen.audit, imagegen.image.inventory):
        root = Path(package.__path__[0])
        for path in sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()
