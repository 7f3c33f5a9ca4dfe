"""The subjects of `imagegen audit`: cells, an image, installed packages, or wheels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from imagegen.audit.model import Subject
from imagegen.audit.sarif import Source
from imagegen.cli.app import App
from imagegen.core.errors import UsageError
from imagegen.core.gpu import Gpu

Audited = tuple[Subject, Source | None]  # with the file of the repository that decides what is in it


@dataclass(frozen=True)
class Wanted:
    """The audit's arguments as typed. `words` are cells or wheels; `gpus` and `driver` are the target."""

    words: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    driver: str | None
    image: str | None
    site: Path | None
    torch: str | None

    @property
    def loose(self) -> bool:
        """Return whether it is wheels: files, or names of such."""
        return any(each.endswith(".whl") or Path(each).is_file() for each in self.words)

    def check(self) -> None:
        """Raises UsageError where it contradicts itself."""
        forms = [" ".join(self.words)] if self.words else []
        forms += [f"--image {self.image}"] if self.image is not None else []
        forms += [f"--site-packages {self.site}"] if self.site else []
        if not forms:
            fix = "name a cell (`imagegen list`), wheels, --image REF or --site-packages DIR"
            raise UsageError("nothing is named that could be audited", code="usage-nothing-named", fix=fix)
        if len(forms) > 1:
            raise UsageError(
                f"one audit is of one thing, and {' and '.join(forms)} are several",
                code="usage-option-conflict",
                fix="run one for each",
            )
        if self.torch is not None and not self.loose:
            fix = "leave it out" + (
                "; `imagegen why CELL --set torch=VERSION` asks about another" if self.words else ""
            )
            raise UsageError(
                "--torch is about loose wheels: here torch is among what is audited",
                code="usage-option-conflict",
                fix=fix,
            )
        if self.driver is not None and not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}", self.driver):
            fix = "write it as nvidia-smi shows it: 580.65.06, or 580 for the branch"
            raise UsageError(f'--driver "{self.driver}" is no version of a driver', code="usage-invalid-value", fix=fix)


def subjects(app: App, wanted: Wanted) -> Iterator[Audited]:
    """Yield the requested subjects, each read when its turn comes. Raises UsageError for one that does not exist."""
    for subject, source in _found(app, wanted):
        gpus, driver = wanted.gpus or subject.gpus, wanted.driver or subject.driver
        yield replace(subject, gpus=gpus, driver=driver), source


def _found(app: App, wanted: Wanted) -> Iterator[Audited]:
    if wanted.image is not None:
        from imagegen.app import image_subject as image

        known = app.matrix.gpus.values()
        yield image.subject(wanted.image, wanted.gpus, app.settings, app.progress, known=known), None
    elif wanted.site:
        from imagegen.image.inventory import site

        yield site.subject(wanted.site, wanted.gpus, app.progress, variables=app.env), None
    elif wanted.loose:
        yield _wheels(wanted.words, wanted.gpus, wanted.torch), None
    else:
        yield from _cells(app, wanted)


def _cells(app: App, wanted: Wanted) -> Iterator[Audited]:
    pattern, *others = wanted.words
    if Path(pattern).is_dir():
        raise UsageError(
            f"{pattern} is a directory",
            code="usage-directory",
            fix=f"`--site-packages {pattern}` audits what is installed in it",
        )
    if others:
        raise UsageError(
            f"{' '.join(wanted.words)} are several cells",
            code="usage-several-cells",
            fix='name one, or a glob that matches them: "hopper-*"',
        )
    try:
        chosen = app.matrix.select(pattern)
    except UsageError as error:
        if not re.search("[:/]", pattern):
            raise
        raise UsageError(error.what, fix=f"`--image {pattern}` audits an image") from error
    if cpu := [each.id for each in chosen if each.cuda_version is None and (wanted.gpus or wanted.driver)]:
        raise UsageError(
            f"{cpu[0]} is for no GPU",
            code="usage-no-gpu-cell",
            fix="leave out --gpu and --driver, or name a cell with CUDA",
        )
    from imagegen.image.inventory import cell
    from imagegen.wheels import builds

    for each, lock in [
        (each, builds.require_wheels(app.fresh_lock(each), app.store, app.sources(each), app.progress))
        for each in chosen
    ]:
        subject = cell.subject(lock, each, app.store, app.sources(each), app.progress)
        yield subject, lock_source(app.lock_path(each))


def lock_source(lock: Path) -> Source | None:
    """A lock as CI finds it: below the directory that the audit is run in. None for one that lies elsewhere."""
    path = os.path.relpath(lock)
    if path.startswith(".."):
        return None
    found = re.finditer(r'^\[\[wheel\]\]\nname = "(.+)"\nversion = "(.+)"$', text := lock.read_text(), re.MULTILINE)
    lines = {f"{each[1]} {each[2]}": text.count("\n", 0, each.start()) + 2 for each in found}
    return Source(Path(path).as_posix(), lines)


def _wheels(words: tuple[str, ...], gpus: tuple[Gpu, ...], torch: str | None) -> Subject:
    for each in words:
        if not os.path.lexists(each):
            raise UsageError(
                f"there is no file {each}", code="usage-no-file", fix="name wheels that are there, or one cell"
            )
        if not each.endswith(".whl"):
            raise UsageError(f"{each} is no wheel", code="usage-not-a-wheel", fix="a wheel's name ends in .whl")
    if torch is not None:
        try:
            Version(torch)
        except ValueError:
            raise UsageError(
                f'--torch "{torch}" is no version', code="usage-invalid-value", fix="--torch 2.8.0"
            ) from None
    from imagegen.image.inventory import loose

    return loose.subject([Path(each) for each in words], gpus, torch)
