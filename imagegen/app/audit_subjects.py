"""The subjects of an audit: cells, an image, installed packages or wheels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from imagegen.app.audit import refused_keywords
from imagegen.app.session import Session
from imagegen.audit.check import audit
from imagegen.audit.model import Subject
from imagegen.audit.report import AuditReport
from imagegen.audit.sarif import LockLocation
from imagegen.core.errors import OptionConflictError, UsageError
from imagegen.core.gpu import Gpu
from imagegen.spec.questions import vocabulary_of

Audited = tuple[Subject, LockLocation | None]  # with the lock file of the subject, if the repository has it


@dataclass(frozen=True)
class AuditArguments:
    """The audit's arguments as typed. `words` are cells or wheels; `gpus` and `driver` are the target."""

    words: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    driver: str | None
    image: str | None
    site: Path | None
    torch: str | None

    @property
    def loose(self) -> bool:
        """True if the words are wheels, by name or as existing files."""
        return any(word.endswith(".whl") or Path(word).is_file() for word in self.words)

    def check(self) -> None:
        """Raise UsageError for arguments that contradict each other."""
        forms = [" ".join(self.words)] if self.words else []
        forms += [f"--image {self.image}"] if self.image is not None else []
        forms += [f"--site-packages {self.site}"] if self.site else []
        if not forms:
            fix = "name a cell (`imagegen list`), wheels, --image REF or --site-packages DIR"
            raise UsageError("no subject of an audit is named", code="usage-nothing-named", fix=fix)
        if len(forms) > 1:
            raise OptionConflictError(
                f"an audit has one subject, and {' and '.join(forms)} are several", fix="run an audit for each"
            )
        if self.torch is not None and not self.loose:
            fix = "leave it out" + (
                "; `imagegen why CELL --set torch=VERSION` asks about another" if self.words else ""
            )
            raise OptionConflictError("--torch is only for wheels, because the other subjects include torch", fix=fix)
        if self.driver is not None and not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}", self.driver):
            fix = "write it as nvidia-smi shows it: 580.65.06, or 580 for the branch"
            raise UsageError(
                f'--driver "{self.driver}" is not a version of a driver', code="usage-invalid-value", fix=fix
            )


def run_audits(session: Session, required: AuditArguments) -> Iterator[tuple[AuditReport, LockLocation | None]]:
    """Yield the report about each requested subject, with the lock file of the subject."""
    gpus = tuple(session.matrix.gpus.values())
    for subject, source in subjects(session, required):
        yield audit(subject, gpus, refused_keywords(session.matrices, subject)), source


def subjects(session: Session, required: AuditArguments) -> Iterator[Audited]:
    """Yield the requested subjects; each is read when it is yielded. Raises UsageError if one does not exist."""
    for subject, source in _read_subjects(session, required):
        gpus, driver = required.gpus or subject.gpus, required.driver or subject.driver
        yield replace(subject, gpus=gpus, driver=driver), source


def _read_subjects(session: Session, required: AuditArguments) -> Iterator[Audited]:
    if required.image is not None:
        from imagegen.app import image_subject

        gpus = session.matrix.gpus.values()
        yield (
            image_subject.image_subject(
                required.image, required.gpus, session.project.settings, session.project.progress, known_gpus=gpus
            ),
            None,
        )
    elif required.site:
        from imagegen.image.inventory.site_subject import site_subject

        yield site_subject(required.site, required.gpus, session.project.progress, variables=session.project.env), None
    elif required.loose:
        from imagegen.audit.readers.loose_wheels import named_wheels_subject

        yield named_wheels_subject(required.words, required.gpus, required.torch), None
    else:
        yield from _cells(session, required)


def _cells(session: Session, required: AuditArguments) -> Iterator[Audited]:
    pattern, *more_words = required.words
    if Path(pattern).is_dir():
        raise UsageError(
            f"{pattern} is a directory",
            code="usage-directory",
            fix=f"`--site-packages {pattern}` audits the packages in it",
        )
    if more_words:
        raise UsageError(
            f"{' '.join(required.words)} are several cells",
            code="usage-several-cells",
            fix='name one cell, or a glob such as "hopper-*"',
        )
    try:
        chosen = session.matrix.select(pattern)
    except UsageError as error:
        if not re.search("[:/]", pattern):
            raise
        raise UsageError(error.what, fix=f"`--image {pattern}` audits an image") from error
    if cpu := [cell.id for cell in chosen if cell.cuda_version is None and (required.gpus or required.driver)]:
        raise UsageError(
            f"{cpu[0]} is for no GPU",
            code="usage-no-gpu-cell",
            fix="leave out --gpu and --driver, or name a cell with CUDA",
        )
    from imagegen.app.assemble import require_wheels
    from imagegen.image.inventory.cell_subject import cell_subject

    pairs = [
        pair for cell in chosen for pair in session.lock_files.fresh(cell).by_cell(cell)
    ]  # one for each environment
    unique = {cell.id: (cell, require_wheels(session.project, cell, lock)) for cell, lock in pairs}
    for cell, lock in unique.values():
        yield cell_subject(lock, cell, session.project.context_for(cell)), lock_source(session.lock_files.path(cell))


def lock_source(lock: Path) -> LockLocation | None:
    """Return the location of a lock for CI, relative to the current directory; None for a lock outside of it."""
    path = os.path.relpath(lock)
    if path.startswith(".."):
        return None
    matches = re.finditer(r'^\[\[wheel\]\]\nname = "(.+)"\nversion = "(.+)"$', text := lock.read_text(), re.MULTILINE)
    lines = {f"{match[1]} {match[2]}": text.count("\n", 0, match.start()) + 2 for match in matches}
    return LockLocation(Path(path).as_posix(), lines)


def find_gpus(session: Session, names: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs with these names. Raises UsageError for an unknown GPU."""
    vocabulary = vocabulary_of(session.matrix) if names else None
    gpus_by_name = {gpu.name: gpu for name in names if vocabulary for gpu in vocabulary.gpu(name)}
    return tuple(sorted(gpus_by_name.values(), key=lambda gpu: tuple(map(int, gpu.capability.split(".")))))
