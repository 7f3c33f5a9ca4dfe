"""The archives that an image's own apt is configured with, read from its file tree: one-line and deb822 form.

The tree may be hostile: links are followed as inside it, and keyrings are read only from it. Source of the formats:
sources.list(5). Entries that apt refuses are refused; unsupported addresses (cdrom:, file: of the image, mirror
lists) are left out and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.errors import BaseError, Location
from imagegen.image.base.unpack import inside

_LIST, _PARTS = "etc/apt/sources.list", "etc/apt/sources.list.d"
_TRUSTED = ("etc/apt/trusted.gpg", "etc/apt/trusted.gpg.d")
_PREFERENCES = "etc/apt/preferences"
_LONGEST = 1 << 20  # bytes of a source file or keyring
_FIELD = re.compile(r"([A-Za-z0-9-]+):(.*)")
_URI = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%+=@:-]+)*/?")
_SUITE = re.compile(r"/|\./|(?:\./)?[A-Za-z0-9][A-Za-z0-9._+~-]*(?:/[A-Za-z0-9][A-Za-z0-9._+~-]*)*/?")
_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{16,64}!?")
_NO = ("no", "false", "without", "off", "disable", "0")  # the words that mean no to apt (strutl.cc, StringToBool)


@dataclass(frozen=True)
class AptSuite:
    """One suite of one archive. A flat archive's suite ends in a slash, and it has no components."""

    uri: str  # as the image has it, without a slash at its end
    suite: str
    components: tuple[str, ...]
    signed_by: str  # path of a keyring, fingerprint, armored key; "": any of the image's trusted keys
    valid_until: bool  # whether the archive's own expiry date counts
    where: Location  # in the image


def parse_lines(text: str, file: str, architecture: str = "amd64") -> Iterator[AptSuite | str]:
    """Yield the enabled `deb` entries of a sources.list; the address of each unsupported one.

    Raises BaseError with file and line for an entry that apt would not take.
    """
    for number, written in enumerate(text.splitlines(), 1):
        where, line = Location(file, number), written.partition("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+\S+)*)", line)
        if match is None:
            raise _malformed(where, line)
        if match[1] == "deb-src":
            continue
        options: dict[str, str] = {}
        for word in (match[2] or "").split():
            name, equals, value = word.partition("=")
            if not equals:
                raise _malformed(where, line)
            options[name.rstrip("+-").lower()] = value
        if architecture in options.get("arch", architecture).split(","):
            yield from _entries(
                [match[3]], [match[4]], match[5].split(), options.get("signed-by", ""),
                options.get("check-valid-until", ""), architecture, where,
            )  # fmt: skip


def parse_deb822(text: str, file: str, architecture: str = "amd64") -> Iterator[AptSuite | str]:
    """Yield the entries of a file in deb822 form, as `parse_lines` does."""
    for where, fields in _stanzas(text, file):
        architectures = fields.get("architectures", "").split() or [architecture]
        enabled = fields.get("enabled", "yes").strip().lower() not in _NO
        if not enabled or "deb" not in fields.get("types", "").split() or architecture not in architectures:
            continue
        uris, suites = fields.get("uris", "").split(), fields.get("suites", "").split()
        if not uris or not suites:
            raise _malformed(where, "URIs or Suites are missing")
        components, signed_by = fields.get("components", "").split(), fields.get("signed-by", "")
        expiry = fields.get("check-valid-until", "")
        yield from _entries(uris, suites, components, signed_by, expiry, architecture, where)


def read_sources(tree: Path, architecture: str) -> tuple[list[AptSuite], list[str]]:
    """Return the entries of an image's tree, each once, and the addresses that cannot be fetched from.

    Raises BaseError for a source that apt would not take.
    """
    files = [_LIST, *(f"{_PARTS}/{path.name}" for path in _listed(tree, _PARTS, (".list", ".sources")))]
    suites: dict[tuple[str, str], AptSuite] = {}
    unsupported = []
    for file in files:
        parse = parse_deb822 if file.endswith(".sources") else parse_lines
        for entry in parse(_read(tree, file).decode(errors="replace"), f"/{file}", architecture):
            if isinstance(entry, str):
                unsupported.append(entry)
            elif (before := suites.get((entry.uri, entry.suite))) is not None:
                components = tuple(dict.fromkeys((*before.components, *entry.components)))
                signed_by = before.signed_by or entry.signed_by
                suites[entry.uri, entry.suite] = AptSuite(
                    entry.uri,
                    entry.suite,
                    components,
                    signed_by,
                    before.valid_until and entry.valid_until,
                    before.where,
                )
            else:
                suites[entry.uri, entry.suite] = entry
    return list(suites.values()), unsupported


def keys_of(entry: AptSuite, tree: Path) -> dict[str, bytes] | str:
    """Return the keyrings that may sign the entry's archive, by file name; or fingerprints among the trusted keys.

    Raises BaseError for a keyring that the image has not.
    """
    signed_by = entry.signed_by
    if "BEGIN PGP PUBLIC KEY BLOCK" in signed_by:
        return {"inline.asc": signed_by.encode()}
    words = signed_by.replace(",", " ").split()
    if words and all(word.startswith("/") for word in words):
        keyrings = {}
        for number, word in enumerate(words):
            content = _read(tree, word)
            if not content:
                raise BaseError(
                    f"the archive {entry.uri} has no keyring",
                    code="base-source-key-missing",
                    where=entry.where,
                    why=f"Signed-By names {word}, which the image does not hold",
                    fix="use an image that holds the archive's key",
                )
            keyrings[f"{number}.{'asc' if content.lstrip().startswith(b'-----BEGIN') else 'gpg'}"] = content
        return keyrings
    if all(_FINGERPRINT.fullmatch(word) for word in words):
        return ",".join(words)
    raise BaseError(
        f"the archive {entry.uri} names its keys in an unknown form",
        code="base-source-key-unsupported",
        where=entry.where,
        why=f"Signed-By: {signed_by[:200]}",
        fix="Signed-By holds paths, fingerprints or an armored key",
    )


def trusted_keys(tree: Path) -> dict[str, bytes]:
    """Return the keyrings that the image's apt trusts for every archive, by file name."""
    single, folder = _TRUSTED
    names = [f"{folder}/{path.name}" for path in _listed(tree, folder, (".gpg", ".asc"))]
    keyrings = {name.rpartition("/")[2]: _read(tree, name) for name in names}
    keyring = _read(tree, single)
    return keyrings | ({"trusted.gpg": keyring} if keyring else {})


def read_preferences(tree: Path) -> dict[str, bytes]:
    """Return the image's files of apt_preferences(5), by file name. They decide which version is installed."""
    folder = f"{_PREFERENCES}.d"
    names = [f"{folder}/{path.name}" for path in _listed(tree, folder, ("", ".pref")) if path.suffix in ("", ".pref")]
    preferences = {name.rpartition("/")[2]: _read(tree, name) for name in names}
    main_file = _read(tree, _PREFERENCES)
    return preferences | ({"00preferences": main_file} if main_file else {})


def _entries(
    uris: Iterable[str],
    suites: Iterable[str],
    components: Iterable[str],
    signed_by: str,
    valid_until: str,
    architecture: str,
    where: Location,
) -> Iterator[AptSuite | str]:
    components = tuple(components)
    names = [suite_name.replace("$(ARCH)", architecture) for suite_name in suites]
    for uri in (template.replace("$(ARCH)", architecture) for template in uris):
        if not uri.lower().startswith(("http://", "https://")):
            yield uri
            continue
        for suite in names:
            sound = _URI.fullmatch(uri) and _SUITE.fullmatch(suite) and all(map(_COMPONENT.fullmatch, components))
            if not sound or ".." in f"{uri}/{suite}" or suite.endswith("/") == bool(components):
                raise _malformed(where, f"{uri} {suite} {' '.join(components)}")
            yield AptSuite(uri.rstrip("/"), suite, components, signed_by.strip(), valid_until not in _NO, where)


def _stanzas(text: str, file: str) -> Iterator[tuple[Location, dict[str, str]]]:
    """Yield each stanza's place and fields, by lower-case name; continued lines are joined by line ends."""
    fields: dict[str, str] = {}
    start, last = 1, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield Location(file, start), fields
            fields, last = {}, ""
        elif line[0] in " \t":
            if not last:
                raise _malformed(Location(file, number), line)
            fields[last] += "\n" + ("" if line.strip() == "." else line[1:])
        elif match := _FIELD.fullmatch(line):
            start = start if fields else number
            last = match[1].lower()
            fields[last] = match[2].strip()
        else:
            raise _malformed(Location(file, number), line)


def _listed(tree: Path, folder: str, endings: tuple[str, ...]) -> list[Path]:
    directory = inside(tree, folder)
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.name.endswith(endings))


def _read(tree: Path, path: str) -> bytes:
    """The contents of a regular file of the tree, or none. Raises BaseError for one that is too long."""
    location = inside(tree, path)
    if not location.is_file():
        return b""
    with location.open("rb") as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise BaseError(
            f"the image's /{path.lstrip('/')} is longer than any source or keyring", code="base-source-too-large"
        )
    return content


def _malformed(where: Location, text: str) -> BaseError:
    return BaseError(
        "the image configures an archive that apt would not take",
        code="base-source-invalid",
        where=where,
        why=text[:200],
        fix="correct the image's sources (sources.list(5)), or use another image",
    )
