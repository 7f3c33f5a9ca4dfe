"""The whole road from a lock to a proven tag, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import imagegen.audit
import imagegen.image.inventory
from imagegen.audit.check import audit
from imagegen.audit.facts import FACTS_FORMAT
from imagegen.audit.model import Finding, Severity
from imagegen.core.config import Settings
from imagegen.core.errors import AuditError, SmokeError
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store, refs
from imagegen.core.text import counted
from imagegen.image import base, layers
from imagegen.image.inputs import tree_key
from imagegen.image.inventory.cell import subject
from imagegen.image.layers import Image
from imagegen.image.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.plan.lock import contents_hash, inputs_hash
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell, Declarations
from imagegen.run import smoke
from imagegen.run.engine import Engine


@dataclass(frozen=True)
class Built:
    """What a build gave: the manifest's digest, the tags, and the smoke report where checks ran."""

    digest: str
    tags: tuple[str, ...]
    report: smoke.Report | None


Gate = Callable[[Lock], None]  # raises where no image shall be made of a lock

_AUDIT = "audit"  # records of the store: what an audit found
_SHOWN = 10  # errors of an audit in one message


def tags(lock: Lock) -> tuple[str, str]:
    """The tag that users type and moves, and the one that names these inputs for good."""
    repository = f"imagegen/{lock.image}"
    rest = lock.cell.removeprefix(f"{lock.image}-")
    return f"{repository}:{rest}", f"{repository}:{rest}-{inputs_hash(lock).removeprefix('sha256:')[:12]}"


def to_store(
    lock: Lock,
    store: Store,
    settings: Settings,
    progress: Progress,
    gate: Gate,
    grown: layers.Grown = lambda _: None,
    elsewhere: Mapping[str, layers.Layer] = MappingProxyType({}),
    bring: base.Bring | None = None,
) -> Image:
    """Assemble and hold the result to the lock's record. ReproducibilityError when it is another image.

    `elsewhere` and `bring` as `layers.assemble` has them.
    """
    built = layers.assemble(lock, store, settings, progress, grown, partial(gate, lock), elsewhere, bring)
    remark = layers.compare(lock, built)
    if remark:
        progress.say(f"note: {remark}")
    refs.keep(store, lock.cell, built.digest, len(built.manifest))
    return built


def to_layout(lock: Lock, directory: Path, store: Store, settings: Settings, progress: Progress, gate: Gate) -> str:
    """Assemble into an OCI image layout at `directory`; needs no engine. Returns the manifest's digest."""
    refs.require_new(directory)
    built = to_store(lock, store, settings, progress, gate)
    refs.export(store, built.digest, directory, tags(lock)[0])
    return built.digest


def to_engine(
    lock: Lock,
    declared: Declarations,
    engine: Engine,
    store: Store,
    settings: Settings,
    progress: Progress,
    gate: Gate,
    *,
    test: bool,
    require_gpu: bool = False,
) -> Built:
    """Assemble, load, prove, tag: the moving tag is set only after the smoke checks have passed.

    Raises SmokeError when a check fails or crashes; the image stays under the tag of its inputs, to be looked at. What
    `gate` raises comes before there is an image.
    """
    moving, fixed = tags(lock)
    digest = layers.made_here(lock, store)  # not what the lock claims was made
    if digest and engine.image_digest(fixed) == digest:
        gate(lock)  # it may have been made without
    else:
        with engine.loading(store) as loading:
            digest = to_store(
                lock, store, settings, progress, gate, lambda bottom: loading.offer(layers.image(lock, bottom))
            ).digest
            loading.finish(digest, fixed, progress)
    report = None
    if test:
        report = smoke.run(engine, digest, lock, declared, require_gpu=require_gpu, progress=progress)
        if not report.passed:
            names = ", ".join(result.check for result in report.results if result.failed)
            raise SmokeFailed(f"smoke checks failed: {names}", report, fix=f"the image is kept as {fixed}")
    engine.tag(digest, moving)
    return Built(digest, (moving, fixed), report)


def audited(lock: Lock, cell: Cell, store: Store, settings: Settings, progress: Progress) -> None:
    """Raise AuditError where the audit finds errors.

    What it found is remembered until the lock, the wheels that were compiled for it, the modules that the matrix
    promises, or the audit itself change.

    Raises as `inventory.cell.subject` too, which fetches and reads what nobody has looked at yet.
    """
    key = _audit_key(lock, cell)
    found = store.recall(_AUDIT, key)
    if found is None or "report" not in found:
        with timed(progress, f"auditing {lock.cell}"):
            report = audit(subject(lock, cell, store, settings, progress))
        errors = [_line(each) for each in report.findings if each.severity is Severity.ERROR]
        found = {"errors": errors, "warnings": report.counts[Severity.WARNING], "report": report.as_dict()}
        store.remember(_AUDIT, key, found)
    errors, more = found["errors"], f"`imagegen audit {lock.cell}` tells all"
    if errors:
        rest = [f"and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
        raise AuditError(
            f"the audit of {lock.cell} found {counted(len(errors), 'error')}",
            code="audit-failed",
            why="\n       ".join([*errors[:_SHOWN], *rest]),
            fix=f"{more}, `imagegen audit --explain ID` what a finding means; `build --no-audit` takes no notice",
        )
    if warnings := found["warnings"]:
        progress.say(f"the audit found no errors, and {counted(warnings, 'warning')}: {more}")


def audit_report(lock: Lock, cell: Cell, store: Store) -> dict[str, Any] | None:
    """What `audited` found, as audit.report.Report.as_dict has it; None where it has not looked at this lock."""
    found = store.recall(_AUDIT, _audit_key(lock, cell))
    return found.get("report") if found else None


def _audit_key(lock: Lock, cell: Cell) -> str:
    contents = [contents_hash(lock), asdict(cell.declarations), tree_key(lock.foundation)]
    return digest_of_json([*contents, FACTS_FORMAT, LAYER_FORMAT, _edition()])


def _line(finding: Finding) -> str:
    where = ": ".join(part for part in (finding.package, finding.path) if part)
    return f"{finding.id}: {where}: {finding.evidence}" if where else f"{finding.id}: {finding.evidence}"


def _edition() -> str:
    """A digest of the programs and data of which an audit is made: another imagegen asks again."""
    digest = hashlib.sha256()
    for package in (imagegen.audit, imagegen.image.inventory):
        root = Path(package.__path__[0])
        for path in sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


class SmokeFailed(SmokeError):
    """Carries the report, so that the command line can print all of it."""

    code = "smoke-failed"

    def __init__(self, what: str, report: smoke.Report, *, fix: str) -> None:
        super().__init__(what, fix=fix)
        self.report = report
