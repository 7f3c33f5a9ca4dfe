"""Build a base from Debian packages as a layer, and the layer of packages above a base.

What decides the bytes of a base is its packages and this module: mmdebstrap, run offline, unpacks them and lets the
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
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from imagegen.core import programs, stopping, temporary
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import parse_json
from imagegen.core.errors import BaseError
from imagegen.core.net import Missing
from imagegen.core.progress import timed
from imagegen.core.store import Store, disk
from imagegen.core.store.cache import Cache
from imagegen.image.base import fetch, image
from imagegen.image.base.apt import STATUS
from imagegen.image.base.fetch import AptSuite, parse_deb822, parse_lines
from imagegen.image.base.installer import ENVIRONMENT, LIMITS, AddedPackages
from imagegen.image.base.normalise import dpkg_configuration, normalise, read
from imagegen.lock.distributions import DebianRelease, release
from imagegen.lock.foundation import LockedBase, LockedPackages
from imagegen.oci.documents import PLATFORMS, LayerDescriptor, digest_of

FORMAT = 1  # raise it with every change here, in normalise.py or in data/ that changes bytes
BASES = Cache("base", LayerDescriptor)
_PEAK = 12  # bytes for a byte of package: the packages twice; tree, tar and normalised tar, three times as large each
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
        return image.key(locked)
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
    (image if locked.content else fetch).fetch(locked, context)


def missing(locked: LockedBase, store: Store) -> list[Missing]:
    """The packages, or layers, that `build` would have to fetch."""
    if locked.content:
        return image.missing(locked, store)
    if _built(key(locked), store):
        return []
    return [fetch.missing(deb) for deb in fetch.lacking(locked, store)]


def _built(base_key: str, store: Store) -> LayerDescriptor | None:
    layer = BASES.get(store, base_key)
    return layer if layer and store.has(layer.digest, layer.size) else None


def needed(locked: LockedBase, store: Store) -> int:
    """Bytes, about, that making this base takes in the store at its peak; 0 when it is there."""
    if locked.content:
        return image.needed(locked, store)
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
                normalise(source, writer.write, files)
                return LayerDescriptor.of_tar(writer.commit(), writer.size)


@contextmanager
def _work_directory(store: Store) -> Iterator[Path]:
    """Yield the directory in which mmdebstrap works: in the store; for a user with subordinate ids, one that all may
    enter.
    """
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


# Packages above a base as one layer: installed over the base's tree by the image's own apt, and compared with it.
#
# The base, the packages, and this module with those that it uses decide the bytes. The host's dpkg and apt do not.

PACKAGES_FORMAT = 1  # raise it with every change here or in normalise.py that changes bytes
_ADDED = Cache("packages", LayerDescriptor)
_PEAK_OF_PACKAGES = 8  # bytes for a byte of package: installed, and as a layer
_STANZA = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", re.MULTILINE)
# A user becomes root of a namespace that has the other ids as well; newuidmap makes it (shadow's, package uidmap).
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--map-auto", "--")
_PYTHON = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")  # the interpreter may need them


def packages_key(added: LockedPackages, base_key: str) -> str:
    """Return the digest of all that decides the layer's bytes, which are the base, the packages, and the format.

    Neither reasons nor the archives' dates do.
    """
    debs = [[deb.name, deb.version, deb.architecture, deb.sha256] for deb in added.debs]
    inputs = {"format": PACKAGES_FORMAT, "base": base_key, "debs": debs}
    return digest_of(json.dumps(inputs, sort_keys=True).encode())


def missing_packages(added: LockedPackages, base_key: str, store: Store) -> list[Missing]:
    """Return the packages that `build_packages` would have to fetch."""
    if _built_packages(packages_key(added, base_key), store):
        return []
    return [fetch.missing(deb) for deb in fetch.lacking(added, store)]


def needed_packages(added: LockedPackages, base_key: str, store: Store) -> int:
    """Return about how many bytes the layer takes in the store at its peak, but for the base; 0 when it is there."""
    return (
        0
        if _built_packages(packages_key(added, base_key), store)
        else _PEAK_OF_PACKAGES * sum(deb.size for deb in added.debs)
    )


def build_packages(
    added: LockedPackages,
    base_key: str,
    base: Callable[[], tuple[Sequence[LayerDescriptor], Path]],
    context: Context,
) -> LayerDescriptor:
    """Return the layer of the packages, from the store when it is there.

    `base` brings the base's layers into the store, from the bottom up, and its unpacked tree. Raises BaseError (a
    package's script fails, the base holds something else than when it was locked), SandboxError, MissingFiles,
    GoneError, StoreError.
    """
    key = packages_key(added, base_key)
    with context.store.lock(f"packages-{key.removeprefix('sha256:')}"):
        if built := _built_packages(key, context.store):
            return built
        layers, tree = base()
        fetch.fetch(added, context)
        with (
            timed(context.progress, f"installing {len(added.debs)} packages above the base"),
            context.store.temporary_directory("packages") as work,
        ):
            layer = _install_as_layer(added, layers, tree, work, context.store, context.settings)
        _ADDED.put(context.store, key, layer)
        return layer


def fetch_packages(added: LockedPackages, context: Context) -> None:
    """Bring the packages into the store. Raises as `build_packages`."""
    fetch.fetch(added, context)


def packages_built(added: LockedPackages, base_key: str, store: Store) -> bool:
    """Return whether the store has the layer."""
    return _built_packages(packages_key(added, base_key), store) is not None


def _built_packages(key: str, store: Store) -> LayerDescriptor | None:
    layer = _ADDED.get(store, key)
    return layer if layer and store.has(layer.digest, layer.size) else None


def _install_as_layer(
    added: LockedPackages, layers: Sequence[LayerDescriptor], tree: Path, work: Path, store: Store, settings: Settings
) -> LayerDescriptor:
    packages, layer = work / "packages", work / "layer.tar"
    packages.mkdir()
    for deb in added.debs:
        with store.open(deb.digest) as blob, (packages / f"{deb.sha256}.deb").open("wb") as file:
            file.writelines(blob)
    job = AddedPackages(
        str(store.root),
        [asdict(descriptor) for descriptor in layers],
        str(tree),
        str(packages),
        str(work),
        str(layer),
    )
    answer = _run(job, store, settings)
    verify_status(added, answer["before"], answer["after"])
    with layer.open("rb") as file, store.writer() as writer:
        while chunk := file.read(1 << 20):
            writer.write(chunk)
        return LayerDescriptor.of_tar(writer.commit(), writer.size)


def _run(job: AddedPackages, store: Store, settings: Settings) -> dict[str, str]:
    """Run the installer to its end; the files of a killed one are removed as the user that wrote them."""
    # The namespace's processes are together within the limit that its maker has.
    limit = ("prlimit", f"--nproc={LIMITS.processes()}", "--")
    enter = () if os.geteuid() == 0 else (*limit, *_NAMESPACE)
    process = programs.Program[bytes](
        ["setpriv", "--pdeathsig", "KILL", *enter, sys.executable, "-P", "-m", "imagegen.image.base.installer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: settings.env[name] for name in _PYTHON if name in settings.env},
        cwd=job.work,
    )
    try:
        out, err = (stream.decode(errors="replace") for stream in process.communicate(json.dumps(asdict(job)).encode()))
    except BaseException:
        process.stop()
        process.wait()
        raise
    finally:
        programs.remove(f"{job.work}/tree", enter)
    try:
        answer = parse_json(out)
    except ValueError:
        store.blame_disk(err)
        fix = "run as root, or: apt-get install uidmap, and a line for your user in /etc/subuid and in /etc/subgid"
        raise BaseError(
            "packages cannot be installed here",
            code="base-packages-failed",
            why=err.strip()[-2000:],
            fix=fix if enter else None,
        ) from None
    if error := answer.get("error"):
        store.blame_disk(str(error["why"]))
        raise BaseError(
            "the packages cannot be installed",
            code="base-packages-conflict",
            where=error["where"],
            why=f"{error['what']}: {error['why']}",
            fix=error["fix"],
        )
    return {name: str(answer[name]) for name in ("before", "after")}


def verify_status(added: LockedPackages, before: str, after: str) -> None:
    """Raise BaseError unless dpkg installed exactly the locked packages, in addition to those before."""
    then, now = _installed(before), _installed(after)
    expected = then | {(deb.name, deb.architecture): (deb.version, "installed") for deb in added.debs}
    if now != expected:
        different = sorted(" ".join(key) for key in now.keys() | expected if now.get(key) != expected.get(key))
        raise BaseError(
            "dpkg installed other packages above the base than the lock names",
            code="base-packages-differ",
            why="; ".join(different[:20]) + f" and {len(different) - 20} more" * (len(different) > 20),
            fix="lock the base again (imagegen lock CELL --upgrade-base); if it stays so, report it",
        )


def _installed(status: str) -> dict[tuple[str, str], tuple[str, str]]:
    """(name, architecture) -> (version, state) of dpkg's status file."""
    packages = {}
    for stanza in status.strip().split("\n\n"):
        fields = dict(_STANZA.findall(stanza))
        if "Package" in fields and "Version" in fields:
            state = fields.get("Status", "").rpartition(" ")[2]
            packages[fields["Package"], fields.get("Architecture", "")] = (fields["Version"], state)
    return packages
