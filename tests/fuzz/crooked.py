"""ZIP files that lie: every field of a wheel's archive may differ from the truth, the rest is consistent."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.wheels import INFO, METADATA, WHEEL, record_line


@dataclass(frozen=True)
class Part:
    """A member. `local` and `central` replace fields of its two headers; `before` and `behind` are stray bytes."""

    name: str
    data: bytes = b""
    stored: bool = False
    streamed: bool = False  # sizes behind the data
    mode: int = 0o100644
    local: Mapping[str, int | bytes] = field(default_factory=dict)
    central: Mapping[str, int | bytes] = field(default_factory=dict)
    before: bytes = b""
    behind: bytes = b""
    repeat: int = 1  # entries of the directory for it


@dataclass(frozen=True)
class Crooked:
    """A zip file of parts. `end` replaces fields of the end record."""

    parts: Sequence[Part]
    end: Mapping[str, int] = field(default_factory=dict)
    comment: bytes = b""
    gap: bytes = b""  # before the directory
    tail: bytes = b""  # behind everything
    wide: bool = False  # zip64 end records
    wide_end: Mapping[str, int] = field(default_factory=dict)

    def bytes(self) -> bytes:
        body, directory, count = b"", b"", 0
        for part in self.parts:
            body += part.before
            at = len(body)
            packed = part.data if part.stored else zlib.compress(part.data, wbits=-15)
            flags = 0x800 | (8 if part.streamed else 0)
            truth: dict[str, int | bytes] = {
                "name": part.name.encode("utf-8", "surrogateescape"),
                "extra": b"",
                "flags": flags,
                "method": 0 if part.stored else 8,
                "crc": zlib.crc32(part.data),
                "packed": len(packed),
                "size": len(part.data),
                "offset": at,
                "mode": part.mode,
            }
            hidden = {"crc": 0, "packed": 0, "size": 0} if part.streamed else {}
            body += _local(truth | hidden | part.local) + packed
            if part.streamed:
                body += struct.pack("<4s3L", b"PK\x07\x08", zlib.crc32(part.data), len(packed), len(part.data))
            body += part.behind
            directory += _central(truth | part.central) * part.repeat
            count += part.repeat
        body += self.gap
        end = {"count": count, "size": len(directory), "start": len(body), "disk": 0, "comment": len(self.comment)}
        middle = b""
        if self.wide:
            at = len(body) + len(directory)
            wide = {**end, "length": 44, "at": at, "disks": 1, **self.wide_end}
            middle = struct.pack("<4sQ2H2L", b"PK\x06\x06", wide["length"], 45, 45, 0, 0)
            middle += struct.pack("<4Q", wide["count"], wide["count"], wide["size"], wide["start"])
            middle += struct.pack("<4sLQL", b"PK\x06\x07", 0, wide["at"], wide["disks"])
            end |= {"count": 0xFFFF, "size": 0xFFFFFFFF, "start": 0xFFFFFFFF}
        end |= self.end
        last = struct.pack("<4s4H", b"PK\x05\x06", end["disk"], 0, end["count"], end["count"])
        last += struct.pack("<LLH", end["size"], end["start"], end["comment"])
        return body + directory + middle + last + self.comment + self.tail


def wheel(*parts: Part, **lies: object) -> Crooked:
    """A wheel of the parts, whose RECORD and metadata tell the truth."""
    own = [Part(f"{INFO}/METADATA", METADATA.encode()), Part(f"{INFO}/WHEEL", WHEEL.encode())]
    lines = "".join(record_line(part.name, part.data) for part in [*parts, *own] if not part.name.endswith("/"))
    record = Part(f"{INFO}/RECORD", f"{lines}{INFO}/RECORD,,\n".encode("utf-8", "surrogateescape"))
    return Crooked([*parts, *own, record], **lies)  # type: ignore[arg-type]


def zip64(*values: int) -> bytes:
    """An extra field with what did not fit into 32 bits."""
    return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values)


def _local(stated: Mapping[str, int | bytes]) -> bytes:
    name, extra = bytes(stated["name"]), bytes(stated["extra"])
    numbers = [stated[key] for key in ("crc", "packed", "size")]
    return (
        struct.pack("<4s5H", b"PK\x03\x04", 20, stated["flags"], stated["method"], 0, 0x21)
        + struct.pack("<3L2H", *numbers, len(name), len(extra))
        + name
        + extra
    )


def _central(stated: Mapping[str, int | bytes]) -> bytes:
    name, extra = bytes(stated["name"]), bytes(stated["extra"])
    numbers = [stated[key] for key in ("crc", "packed", "size")]
    return (
        struct.pack("<4s6H", b"PK\x01\x02", 0x314, 20, stated["flags"], stated["method"], 0, 0x21)
        + struct.pack("<3L5H", *numbers, len(name), len(extra), 0, 0, 0)
        + struct.pack("<2L", int(stated["mode"]) << 16, stated["offset"])
        + name
        + extra
    )
