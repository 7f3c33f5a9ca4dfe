"""The pre-image audit: what `build`, `publish` and `lock --record` check before there is an image."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import imagegen.audit
import imagegen.image.inventory
from imagegen.app.session import Session
from imagegen.audit.check import audit
from imagegen.audit.facts import FACTS_FORMAT
from imagegen.audit.model import Finding, Severity
from imagegen.core.errors import AuditError
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.inputs import tree_key
from imagegen.image.inventory.cell import subject
from imagegen.image.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.plan.lock import contents_hash
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell

_AUDIT = "audit"  # kind of the store's records
_SHOWN = 10  # errors of an audit in one message


def audit_before_image(session: Session, cell: Cell, lock: Lock) -> None:
    """Raise AuditError where the audit of the lock finds errors; print how many warnings there are.

    The store keeps the result until the lock, the wheels that were compiled for it, the modules that the matrix
    declares, or the audit itself change. Raises also as `inventory.cell.subject`.
    """
    store, progress = session.store, session.progress
    key = _audit_key(lock, cell)
    found = store.recall(_AUDIT, key)
    if found is None or "report" not in found:
        with timed(progress, f"auditing {lock.cell}"):
            report = audit(subject(lock, cell, store, session.sources(cell), progress))
        errors = [_line(each) for each in report.findings if each.severity is Severity.ERROR]
        found = {"errors": errors, "warnings": report.counts[Severity.WARNING], "report": report.as_dict()}
        store.remember(_AUDIT, key, found)
    errors, more = found["errors"], f"`imagegen audit {lock.cell}` lists them"
    if errors:
        rest = [f"and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
        raise AuditError(
            f"the audit of {lock.cell} found {counted(len(errors), 'error')}",
            code="audit-failed",
            why="\n       ".join([*errors[:_SHOWN], *rest]),
            fix=f"{more}, `imagegen audit --explain ID` explains a finding; `build --no-audit` skips the audit",
        )
    if warnings := found["warnings"]:
        progress.say(f"the audit found no errors, and {counted(warnings, 'warning')}: {more}")


def audit_report(lock: Lock, cell: Cell, store: Store) -> dict[str, Any] | None:
    """Return the audit's result as audit.report.Report.as_dict gives it; None where the lock was not audited."""
    found = store.recall(_AUDIT, _audit_key(lock, cell))
    return found.get("report") if found else None


def _audit_key(lock: Lock, cell: Cell) -> str:
    contents = [contents_hash(lock), asdict(cell.declarations), tree_key(lock.foundation)]
    return digest_of_json([*contents, FACTS_FORMAT, LAYER_FORMAT, _audit_digest()])


def _line(finding: Finding) -> str:
    where = ": ".join(part for part in (finding.package, finding.path) if part)
    return f"{finding.id}: {where}: {finding.evidence}" if where else f"{finding.id}: {finding.evidence}"


def _audit_digest() -> str:
    """Return a digest of the audit's programs and data: another version of imagegen audits again."""
    digest = hashlib.sha256()
    for package in (imagegen.audit, imagegen.image.inventory):
        root = Path(package.__path__[0])
        for path in sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()
