"""The errors that imagegen raises on purpose. Each states the event, its place, its reason and a fix.

Each class has an exit code, so that scripts can tell the classes apart: 0, 1 and 2 are answers (success, "no",
"unknown"), 64 is a usage error as in sysexits(3). Each error has a code, such as `lock-stale`: it begins with the code
of its class and stays the same when the message is reworded. Any other exception that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from imagegen.core.deferred import dataclass
from imagegen.core.text import counted, cut, redact, shown

SHOWN = 10_000  # characters of problem, cause and fix, each
MOST = 100  # errors of one pass that are explained


@dataclass(frozen=True)
class Location:
    """A place in a text file; line and column count from 1."""

    file: Path | str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        fields = [str(self.file), *(str(n) for n in (self.line, self.column) if n is not None)]
        return ":".join(fields)


class ImagegenError(Exception):
    """Base class. `what` is one sentence; `why` and `fix` are shown below it; `where` names file and line.

    `code` identifies the error for programs; the class has the default.
    """

    exit_code: ClassVar[int] = 70
    code: str = "internal"

    def __init__(
        self,
        what: str,
        *,
        code: str | None = None,
        where: Location | str | None = None,
        why: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what)
        self.code = code or type(self).code
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = [_bounded(f"{self.where}: {self.what}" if self.where else self.what)]
        if self.why:
            lines.append(f"  why: {_bounded(self.why)}")
        if self.fix:
            lines.append(f"  fix: {_bounded(self.fix)}")
        return shown("\n".join(lines))

    @property
    def summary(self) -> str:
        """Return `what` and `why` as one text, for use in another message."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def as_dict(self) -> dict[str, Any]:
        """Return the error for JSON output: its code, its exit code, its location and its texts, those that it has."""
        texts = {"what": self.what, "where": self.where and str(self.where), "why": self.why, "fix": self.fix}
        fields = {name: shown(_bounded(text)) for name, text in texts.items() if text}
        return {"code": self.code, "exit_code": self.exit_code, **fields}


def _bounded(text: str) -> str:
    """Return `text` redacted and at most SHOWN characters long."""
    return cut(redact(text), SHOWN)


_Error = TypeVar("_Error", bound=ImagegenError)


class ErrorList(list[_Error]):
    """The first MOST errors of one pass; `omitted` counts the others.

    If the list `is_full`, callers skip the costly parts of an error (a search for similar names).
    """

    omitted = 0

    @property
    def is_full(self) -> bool:
        return len(self) >= MOST

    def append(self, error: _Error) -> None:
        if self.is_full:
            self.omitted += 1
        else:
            super().append(error)

    def extend(self, errors: Iterable[_Error]) -> None:
        for error in errors:
            self.append(error)
        self.omitted += getattr(errors, "omitted", 0)

    def __iadd__(self, errors: Iterable[_Error]) -> Self:  # type: ignore[override, misc]
        self.extend(errors)
        return self


class ErrorGroup(ImagegenError):
    """Several errors of one class found in one pass, so that a user fixes a file in one go.

    `omitted` is how many more were found than `errors` holds.
    """

    def __init__(self, errors: Sequence[ImagegenError]) -> None:
        self.errors = list(errors)
        self.omitted: int = getattr(errors, "omitted", 0)
        super().__init__(counted(len(errors) + self.omitted, "error"))

    def __str__(self) -> str:
        omitted = [f"{self.omitted} more"] if self.omitted else []
        return "\n".join([*(str(error) for error in self.errors), *omitted, f"{self.what} found"])

    def as_dict(self) -> dict[str, Any]:
        """Return the error for JSON output, with `errors` and how many of them were `omitted`."""
        return {**super().as_dict(), "errors": [error.as_dict() for error in self.errors], "omitted": self.omitted}


class UsageError(ImagegenError):
    """The command line names something that does not exist, or is not valid."""

    exit_code = 64
    code = "usage"


class OptionConflictError(UsageError):
    """Options or arguments that exclude each other."""

    code = "usage-option-conflict"


class MatrixError(ImagegenError):
    """A file under matrices/ or wheels/ is malformed or contradicts itself."""

    exit_code = 65
    code = "matrix"


class MatrixErrors(ErrorGroup, MatrixError):
    """All that is wrong with the matrices, at once."""


class IncompatibleError(ImagegenError):
    """A compatibility rule refuses this cell."""

    exit_code = 66
    code = "incompatible"


class LockError(ImagegenError):
    """A lock is missing, stale, malformed, or cannot be made."""

    exit_code = 67
    code = "lock"


class SdistMetadataError(LockError):
    """A release has only an sdist, and only its build backend knows its requirements. `release`: name and version."""

    code = "lock-sdist-metadata"

    def __init__(self, what: str, *, release: tuple[str, str], **details: Any) -> None:
        super().__init__(what, **details)
        self.release = release


class FetchError(ImagegenError):
    """A file named by a lock cannot be fetched, or differs from the lock."""

    exit_code = 68
    code = "fetch"


class StoreError(ImagegenError):
    """The store is damaged, read-only or full."""

    exit_code = 69
    code = "store"


class WheelError(ImagegenError):
    """A wheel is malformed or hostile; `where` names the wheel and the member."""

    exit_code = 71
    code = "wheel"


class BaseError(ImagegenError):
    """A base cannot be resolved or made."""

    exit_code = 72
    code = "base"


class PackagesGoneError(BaseError):
    """Packages of a locked base have left the archive: only another base can be made."""

    code = "base-packages-gone"


class EngineError(ImagegenError):
    """No usable container engine, or it failed."""

    exit_code = 73
    code = "engine"


class NoGpuError(EngineError):
    """The engine cannot give GPUs to containers, because the host has none or no NVIDIA container toolkit."""

    code = "engine-no-gpu"


class LostEngineError(EngineError):
    """The engine no longer answers: nothing more can be asked of it, not even to tidy up."""

    code = "engine-lost"


class ContainerError(EngineError):
    """A container ended under the programs that ran in it, and the engine goes on."""

    code = "engine-container-ended"


class OutputLimitError(ContainerError):
    """A program in a container printed more than is read, and its container was killed. `why` is the output's end."""

    code = "engine-output-limit"


class ReproducibilityError(ImagegenError):
    """The built image is not the one that the lock records."""

    exit_code = 74
    code = "not-reproducible"


class SandboxError(ImagegenError):
    """The container for untrusted code (byte-compiling, sdists) cannot start, or its program failed."""

    exit_code = 75
    code = "sandbox"


class AuditError(ImagegenError):
    """The audit found errors, so no image is made."""

    exit_code = 77
    code = "audit"


class ProjectFileError(ImagegenError):
    """A file in which a project declares its packages cannot be read, or contradicts its format."""

    exit_code = 81
    code = "project"


class ProjectFileErrors(ErrorGroup, ProjectFileError):
    """All that is wrong with a project's files, at once."""


class DependencyConfusionError(ImagegenError):
    """A package of the project itself would come from an index, and another project may have its name there."""

    exit_code = 83
    code = "dependency-confusion"


class OutputError(ImagegenError):
    """stdout or stderr cannot be written."""

    exit_code = 76
    code = "output"


class SmokeError(ImagegenError):
    """A smoke check failed or crashed, so the answer is no."""

    exit_code = 1
    code = "smoke"


class BuildError(ImagegenError):
    """A source build cannot start, failed, or made something other than requested."""

    exit_code = 78
    code = "source-build"


class PublishError(ImagegenError):
    """Something cannot be written to a registry, or is not there as it was written."""

    exit_code = 79
    code = "publish"


class TrustError(ImagegenError):
    """An image or document differs from its lock, was tampered with, or has no trusted signature."""

    exit_code = 80
    code = "trust"


class TrustErrors(ErrorGroup, TrustError):
    """All that is wrong with a project's keys, at once."""


class UntrustedSignerError(TrustError):
    """A valid signature of a signer that the project does not name."""

    code = "trust-untrusted-signer"


class MemoryLimitError(ImagegenError):
    """A command needs more memory than the machine or a limit of the process allows."""

    exit_code = 82
    code = "memory"
