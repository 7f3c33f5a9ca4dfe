"""Build a base from Debian packages as a layer.

Its packages and this module decide the bytes of a base: mmdebstrap, run offline, unpacks them and lets the
base's own dpkg install them in one call, in an order that dpkg finds; apt takes no part in that, and the files that
mmdebstrap itself writes or copies from the host are dropped. So the version of mmdebstrap on the host is not part of
the key. Packages above a base are installed over its tree by the image's own apt (`installer`).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from imagegen.core import programs, stopping, temporary
from imagegen.core.context import Context
from imagegen.core.errors import BaseError
from imagegen.core.net import Missing
from imagegen.core.progress import timed
from imagegen.core.store import Store, disk
from imagegen.core.store.cache import Cache
from imagegen.image.base import fetch, registry_image
from imagegen.image.base.installer import ENVIRONMENT
from imagegen.image.base.normalise import dpkg_configuration, normalise, read
from imagegen.image.base.resolution import STATUS
from imagegen.image.base.sources_list import AptSuite, parse_deb822, parse_lines
from imagegen.lock.distributions import DebianRelease, release
from imagegen.lock.foundation import LockedBase
from imagegen.oci.documents import PLATFORMS, LayerDescriptor, digest_of

FORMAT = 1  # raise it with every change here, in normalise.py or in data/ that changes bytes
BASES = Cache("base", LayerDescriptor)
_PEAK = 12  # bytes for a byte of package: packages twice; tree, tar and normalised tar, three times as large each
_FIELD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~-]*")
# /bin and its like are links into /usr from the start, as the package usr-is-merged demands.
_MERGE_USR = 'for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d" || exit 1; done'

# It ends with imagegen, however that ends. As root it has its mounts and processes in namespaces, where killing the
# first process removes them all; as a user it makes such namespaces itself, and tidies up on SIGTERM.
_TIDYING = 10.0  # seconds, since files of other user ids stay where it is killed
_ENDING = {
    "root": ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc", "--kill-child"),
    "unshare": ("setpriv", "--pdeathsig", "TERM"),
}


def key(locked: LockedBase) -> str:
    """The digest of all that decides the layer's bytes, which are the packages and the format of this module.

    The archives' dates do not: a lock made later that has the same packages gives the same layer.
    """
    if locked.content:
        return registry_image.key(locked)
    debs = [[deb.name, deb.version, deb.architecture, deb.sha256] for deb in locked.debs]
    inputs = {"format": FORMAT, "kind": locked.kind, "suite": locked.suite, "debs": debs}
    return digest_of(json.dumps(inputs, sort_keys=True).encode())


def build(locked: LockedBase, context: Context) -> LayerDescriptor:
    """Return the base's layer, uncompressed: from the store when it is there, else built from its packages.

    Raises BaseError (mmdebstrap missing or failed, packages gone), MissingFiles, StoreError. Nothing half-done stays.
    """
    base_key = key(locked)
    with context.store.lock(f"base-{base_key.removeprefix('sha256:')}"):
        if built := _built(base_key, context.store):
            return built
        if shutil.which("mmdebstrap", path=context.settings.env.get("PATH", os.defpath)) is None:
            raise BaseError(
                "mmdebstrap is not installed",
                code="base-program-missing",
                why="a Debian base is made by it",
                fix="apt-get install mmdebstrap",
            )
        require_execution(_architecture(locked), context.settings.env)
        fetch.fetch(locked, context)
        with timed(context.progress, f"building base {locked.name} from {len(locked.debs)} packages"):
            layer = _build(locked, context.store)
        BASES.put(context.store, base_key, layer)
        return layer


def fetch_files(locked: LockedBase, context: Context) -> None:
    """Bring the packages, or layers, that the base is made of. Raises as `build`."""
    (registry_image if locked.content else fetch).fetch(locked, context)


def missing(locked: LockedBase, store: Store) -> list[Missing]:
    """The packages, or layers, that `build` would have to fetch."""
    if locked.content:
        return registry_image.missing(locked, store)
    if _built(key(locked), store):
        return []
    return [fetch.missing(deb) for deb in fetch.lacking(locked, store)]


def _built(base_key: str, store: Store) -> LayerDescriptor | None:
    layer = BASES.get(store, base_key)
    return layer if layer and store.has(layer.digest, layer.size) else None


def needed(locked: LockedBase, store: Store) -> int:
    """Bytes, about, that making this base takes in the store at its peak; 0 when it is there."""
    if locked.content:
        return registry_image.needed(locked, store)
    return 0 if _built(key(locked), store) else _PEAK * sum(deb.size for deb in locked.debs)


def _build(locked: LockedBase, store: Store) -> LayerDescriptor:
    with _work_directory(store) as work:
        work.chmod(0o755)  # in a user namespace mmdebstrap is another user
        archive = work / "root.tar"
        write_repository(locked, store, work / "repository")
        _mmdebstrap(locked, work / "repository", archive, store)
        with archive.open("rb") as source:
            debian = release(str(locked.suite))
            status, example = read(source, STATUS, debian.example)
            verify(locked, status.decode())
            files = {
                debian.sources: sources_file(debian, example.decode()),
                "etc/dpkg/dpkg.cfg.d/imagegen": dpkg_configuration(),
            }
            with store.writer() as writer:
                normalise(source, writer, files)
                return LayerDescriptor.of_tar(writer.commit(), writer.size)


@contextmanager
def _work_directory(store: Store) -> Iterator[Path]:
    """Yield the directory in which mmdebstrap works: in the store; with subordinate ids, one that all may enter."""
    if os.geteuid() == 0:
        with store.temporary_directory("base") as work:
            yield work
    else:
        directory = Path(tempfile.gettempdir())
        with (
            disk.explained(directory, "the directory for temporary files", "set TMPDIR to another one"),
            temporary.temporary_directory(directory) as work,
        ):
            yield work


def write_repository(locked: LockedBase, store: Store, directory: Path) -> None:
    """A flat repository of exactly the locked packages; apt need not know what they depend on.

    Raises BaseError for a package with invalid fields.
    """
    directory.mkdir()
    stanzas = []
    for deb in locked.debs:
        if not all(_FIELD.fullmatch(value) for value in (deb.name, deb.version, deb.architecture)):
            raise BaseError(
                f"base {locked.name}: {deb.name!r} {deb.version!r} is not a package",
                code="base-package-invalid",
                fix="lock again",
            )
        copy = directory / f"{deb.sha256}.deb"
        with store.open(deb.digest) as blob, copy.open("wb") as file:
            for chunk in blob:
                file.write(chunk)
        stanzas.append(
            f"Package: {deb.name}\nVersion: {deb.version}\nArchitecture: {deb.architecture}\n"
            f"Filename: ./{copy.name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        )
    (directory / "Packages").write_text("\n".join(stanzas))
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)  # as above: read by another user


def _architecture(locked: LockedBase) -> str:
    """Return Debian's name of the architecture of a base's packages."""
    return next((deb.architecture for deb in locked.debs if deb.architecture != "all"), "all")


def require_execution(architecture: str, env: Mapping[str, str]) -> None:
    """Raise BaseError where this machine runs no programs of an `architecture`, as Debian names it.

    The scripts of packages run below mmdebstrap, and the image's interpreter compiles byte-code: for another processor
    than this machine's, qemu does it, for which the kernel is configured (Linux, admin-guide/binfmt-misc).
    """
    if architecture == "all" or PLATFORMS.get(platform.machine()) == f"linux/{architecture}":
        return
    program = shutil.which("arch-test", path=env.get("PATH", os.defpath))
    if program and subprocess.run([program, architecture], capture_output=True, check=False).returncode == 0:
        return
    raise BaseError(
        f"this machine runs no programs for linux/{architecture}",
        code="base-foreign-architecture",
        why="the kernel starts no emulator for them" if program else "arch-test, which tests it, is not installed",
        fix="apt-get install arch-test qemu-user-static binfmt-support; in a container, on its host",
    )


def _mmdebstrap(locked: LockedBase, repository: Path, archive: Path, store: Store) -> None:
    mode = "root" if os.geteuid() == 0 else "unshare"
    command = [
        *_ENDING[mode],
        "mmdebstrap",
        f"--mode={mode}",
        "--variant=custom",  # exactly the packages named, installed by dpkg
        "--format=tar",
        f"--architectures={_architecture(locked)}",
        f"--include={','.join(deb.name for deb in locked.debs)}",
        "--dpkgopt=force-unsafe-io",
        f"--setup-hook={_MERGE_USR}",
        "",
        str(archive),
        f"deb [trusted=yes] copy:{quote(str(repository))} ./",
    ]
    process = programs.Program[bytes](
        command,
        patience=0 if mode == "root" else _TIDYING,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "HOME": str(archive.parent), "TMPDIR": str(archive.parent)},
        umask=0o022,
    )
    try:
        stderr = process.communicate()[1].decode(errors="replace")
    except BaseException:
        process.stop()
        process.wait()
        raise
    stopping.check()
    if process.returncode:
        store.blame_disk(stderr)
        raise failed(stderr, mode)


def failed(stderr: str, mode: str) -> BaseError:
    """Return the error for mmdebstrap's stderr."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("I: ")]
    fix = None
    if mode == "unshare":
        fix = (
            "run as root; or let your user make user namespaces: apt-get install uidmap, a line for you in /etc/subuid "
            "and in /etc/subgid, and kernel.unprivileged_userns_clone=1 where that setting exists"
        )
    elif "mount" in stderr or "unshare" in stderr:
        fix = "inside a container, give it CAP_SYS_ADMIN"
    return BaseError("mmdebstrap failed", code="base-build-failed", why="\n       ".join(lines[-8:]) or None, fix=fix)


def verify(locked: LockedBase, status: str) -> None:
    """Raise BaseError unless dpkg's status file names exactly the locked packages, all of them installed."""
    installed = set()
    for stanza in status.strip().split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version|Architecture): (.*)$", stanza, re.MULTILINE))
        state = fields.get("Status", "").rpartition(" ")[2]
        installed.add((fields.get("Package"), fields.get("Version"), fields.get("Architecture"), state))
    expected = {(deb.name, deb.version, deb.architecture, "installed") for deb in locked.debs}
    if installed != expected:
        different = sorted(" ".join(map(str, entry)) for entry in installed ^ expected)
        raise BaseError(
            f"base {locked.name}: dpkg installed other packages than the lock names",
            code="base-packages-differ",
            why="; ".join(different),
            fix="lock the base again; if it stays so, report it",
        )


def sources_file(release: DebianRelease, example: str) -> bytes:
    """Return the image's own sources, from those that the release's apt ships as an example, in the same form.

    So the image points to the official archives, whatever mirror served this build. Only the release's suites and
    components, as the base itself was resolved. Raises BaseError when the example has other suites.
    """
    deb822 = release.sources.endswith(".sources")
    parsed = (parse_deb822 if deb822 else parse_lines)(example, f"/{release.example}")
    entries = {entry.suite: entry for entry in parsed if isinstance(entry, AptSuite)}
    suites = [suite for archive_suites in release.suites.values() for suite in archive_suites]
    if lacking := [suite for suite in suites if suite not in entries]:
        raise BaseError(
            f"apt's example of its sources is not for {release.name}",
            code="base-host-unsuitable",
            where=f"/{release.example}",
            why=f"it has no {', '.join(lacking)}",
        )
    components = " ".join(release.components)
    if not deb822:
        return "".join(f"deb {entries[suite].uri} {suite} {components}\n" for suite in suites).encode()
    return "\n".join(
        f"Types: deb\nURIs: {entries[names[0]].uri}\nSuites: {' '.join(names)}\nComponents: {components}\n"
        f"Signed-By: {entries[names[0]].signed_by}\n"
        for names in release.suites.values()
    ).encode()
