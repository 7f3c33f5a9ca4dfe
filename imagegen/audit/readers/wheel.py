"""Read a wheel: every member is validated before it is used, every byte inflated once.

A wheel is untrusted input. In addition to `archive`'s checks, refused are: members that RECORD lacks or
contradicts, names in RECORD that the wheel lacks, metadata of another release than the file name's, a wheel format that
is not 1.x. Member names that differ only in case are two files, as on any Linux. Sources: PEP 427, PEP 376, "Binary
distribution format" and "Recording installed projects" of packaging.python.org.
"""

from __future__ import annotations

import base64
import csv
import email.parser
import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from installer.records import InvalidRecordEntry, parse_record_file
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagegen.audit.licence import read_licence
from imagegen.core.errors import WheelError
from imagegen.core.zip_archive import ArchiveError, ZipArchive

# Bytes of members that are read whole; the field's longest have a tenth of that.
MAX_TEXT = 4 << 20
MAX_RECORD = 64 << 20
_UNSIGNED = ("RECORD", "RECORD.jws", "RECORD.p7s")  # files of .dist-info that RECORD need not hash
_HASHES = ("sha256", "sha384", "sha512")  # "sha256 or better"


@dataclass(frozen=True, slots=True)
class Member:
    """One file of the wheel. `size` is unpacked bytes, `sha256` RECORD's hash (hex), None for RECORD itself."""

    name: str
    size: int
    executable: bool
    sha256: str | None


class Wheel:
    """An open wheel whose table of contents has been validated. A context manager.

    With `ignore_record`, RECORD's hashes and sizes are ignored and its names used: all members are read to hash them.
    Raises WheelError, naming wheel and member, for every deviation from the format.
    """

    def __init__(self, path: Path, filename: str, *, ignore_record: bool = False) -> None:
        self.filename = filename
        self._ignore_record = ignore_record
        try:
            distribution, version, _, _ = parse_wheel_filename(filename)
        except ValueError as error:
            raise WheelError(
                "not a wheel's file name", code="wheel-name-invalid", where=filename, why=str(error)
            ) from error
        self.distribution, self.version = str(distribution), str(version)
        try:
            self._archive = ZipArchive(path)
        except ArchiveError as error:
            raise self._error(error.what, error.member, error.why) from error
        try:
            self.dist_info = self._dist_info()
            self._check_metadata()
            record = self._record()
            self.members: Mapping[str, Member] = self._members(record)
        except BaseException:
            self._archive.close()
            raise

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *exc: object) -> None:
        self._archive.close()

    def read(self, name: str) -> bytes:
        """A whole member, verified; WheelError where that is more than MAX_TEXT."""
        self._check_length(name, MAX_TEXT)
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """The member's bytes, verified against size, CRC-32 and RECORD: an error comes after the last good chunk."""
        member = self.members[name]
        digest = hashlib.sha256()
        for chunk in self._raw(name):
            digest.update(chunk)
            yield chunk
        if member.sha256 not in (None, digest.hexdigest()):
            raise self._lie(name, f"sha256 {member.sha256}", digest.hexdigest())

    def optional(self, name: str) -> bytes | None:
        """A file of .dist-info that need not be there: entry_points.txt."""
        member = f"{self.dist_info}/{name}"
        return self.read(member) if member in self.members else None

    def _raw(self, name: str) -> Iterator[bytes]:
        """Yield the member's bytes, verified only against the zip file."""
        try:
            yield from self._archive.chunks(self._archive.files[name])
        except ArchiveError as error:
            raise self._error(error.what, error.member or name, error.why) from error

    def _text(self, file: str, limit: int = MAX_TEXT) -> str:
        """A file of .dist-info that is needed before RECORD is known."""
        name = f"{self.dist_info}/{file}"
        if name not in self._archive.files:
            raise self._error("the wheel lacks a file", name)
        self._check_length(name, limit)
        try:
            return b"".join(self._raw(name)).decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{file} cannot be read", name, str(error)) from error

    def _check_length(self, name: str, limit: int) -> None:
        if self._archive.files[name].size > limit:
            raise self._error("the member is too long to be read whole", name, f"more than {limit} bytes")

    def _error(self, problem: str, member: str | None, why: str | None = None) -> WheelError:
        where = self.filename if member is None else f"{self.filename}: {member}"
        fix = "do not install this wheel; report it to its project or lock another version"
        return WheelError(problem, where=where, why=why, fix=fix)

    def _lie(self, name: str, promised: str, actual: str) -> WheelError:
        error = self._error("the member is not what RECORD says", name, f"RECORD promises {promised}, it has {actual}")
        error.fix = "lock another version, or accept this wheel under `record_exceptions:` in the matrix"
        return error

    def _dist_info(self) -> str:
        dist_infos = {top for name in self._archive.files if (top := name.partition("/")[0]).endswith(".dist-info")}
        if len(dist_infos) != 1:
            raise self._error("a wheel has one .dist-info directory", None, f"found {sorted(dist_infos) or 'none'}")
        name = dist_infos.pop()
        distribution, _, version = name.removesuffix(".dist-info").partition("-")
        self._check_release(name, distribution, version)
        return name

    def _check_metadata(self) -> None:
        """METADATA and WHEEL must be of this release and of a format that is known here."""
        headers = email.parser.HeaderParser()
        metadata = headers.parsestr(self._text("METADATA"))
        self._check_release(f"{self.dist_info}/METADATA", str(metadata["Name"]), str(metadata["Version"]))
        wheel = headers.parsestr(self._text("WHEEL"))
        version = str(wheel["Wheel-Version"])
        if version.partition(".")[0] != "1":
            why = f"Wheel-Version is {version}, this imagegen knows 1.x"
            raise self._error("the wheel has a format that is not known here", f"{self.dist_info}/WHEEL", why)
        self.requires = tuple(str(line) for line in metadata.get_all("Requires-Dist", ()))
        self.tags = tuple(str(line) for line in wheel.get_all("Tag", ()))
        self.licence = read_licence(metadata)

    def _check_release(self, member: str, name: str, version: str) -> None:
        """Verify name and version against the file name, which may have a build's local label in addition."""
        expected = Version(self.version)
        try:
            same = Version(version) in (expected, Version(expected.public))
        except ValueError:
            same = False
        if canonicalize_name(name) != self.distribution or not same:
            why = f"there it is {name} {version}"
            raise self._error("the wheel holds another release than its file name says", member, why)

    def _members(self, record: Mapping[str, tuple[str, str]]) -> Mapping[str, Member]:
        unsigned = {f"{self.dist_info}/{file}" for file in _UNSIGNED}
        members = {}
        for name, entry in sorted(self._archive.files.items()):
            if name not in record and name not in unsigned:
                raise self._error("RECORD lacks a member", name)
            algorithm, promised = record.get(name, ("", ""))
            if algorithm not in _HASHES and name not in unsigned:
                raise self._error("RECORD gives no sha256 for a member", name)
            if self._ignore_record and name not in unsigned:
                algorithm = "sha256"
                promised = self._hashed(name, algorithm)[0]
            sha256 = promised if algorithm == "sha256" else self._rehash(name, algorithm, promised)
            members[name] = Member(name, entry.size, bool(entry.mode & 0o111), sha256)
        return members

    def _rehash(self, name: str, algorithm: str, promised: str) -> str | None:
        """Read a member for which RECORD gives a longer hash, and return its sha256; None for an unknown algorithm."""
        if algorithm not in _HASHES:
            return None
        longer, sha256 = self._hashed(name, algorithm, "sha256")
        if longer != promised:
            raise self._lie(name, f"{algorithm} {promised}", longer)
        return sha256

    def _hashed(self, name: str, *algorithms: str) -> list[str]:
        hashes = [hashlib.new(algorithm) for algorithm in algorithms]
        for chunk in self._raw(name):
            for digest in hashes:
                digest.update(chunk)
        return [digest.hexdigest() for digest in hashes]

    def _record(self) -> dict[str, tuple[str, str]]:
        """Member name -> algorithm and hex digest, both empty where RECORD gives no (usable) hash."""
        record: dict[str, tuple[str, str]] = {}
        text = io.StringIO(self._text("RECORD", MAX_RECORD), newline="")
        try:
            for path, hash_, size in parse_record_file(text):
                if path.endswith("/"):
                    continue
                entry = self._archive.files.get(path)
                if entry is None:
                    raise self._error("RECORD names a member that the wheel lacks", path)
                algorithm, _, encoded = hash_.partition("=")
                row = (algorithm, _hex(algorithm, encoded))
                if record.setdefault(path, row) != row:
                    raise self._error("RECORD names a member twice, with different hashes", path)
                if size and size != str(entry.size) and not self._ignore_record:
                    raise self._lie(path, f"{size} bytes", str(entry.size))
        except (InvalidRecordEntry, csv.Error) as error:
            raise self._error("RECORD cannot be read", f"{self.dist_info}/RECORD", str(error)) from error
        return record


def _hex(algorithm: str, encoded: str) -> str:
    """RECORD's hash, base64url without padding (PEP 376), as hex; empty when it is none.

    Some wheels (gmsh 4.15) write hex, which is longer than base64 and so cannot be mistaken.
    """
    if algorithm in _HASHES and len(encoded) == 2 * hashlib.new(algorithm).digest_size:
        return encoded
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
    except ValueError:
        return ""
