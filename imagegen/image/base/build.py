"""Build a base from Debian packages as a layer, and install packages over the file tree of an image.

Started as root, it is root, with the capabilities that engines give to `RUN` in a Dockerfile. Started by a user, it is
the first process of a user namespace in which that user is root and the ids of /etc/subuid are the others. The image's
own apt and dpkg, and the packages' scripts, run below it under bubblewrap: no network, no process or file of the host.

Reads the job as JSON on stdin; writes the layer to the file that it names, and the answer as JSON to stdout.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from imagegen.core import sandbox
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, ImagegenError
from imagegen.core.net import Missing
from imagegen.core.oci import PLATFORMS, LayerDescriptor, digest_of
from imagegen.core.progress import timed
from imagegen.core.sandbox import failure, pipe_from
from imagegen.core.store import Store, disk
from imagegen.core.store.cache import Cache
from imagegen.core.types import EPOCH
from imagegen.image.base import fetch, image
from imagegen.image.base.apt import STATUS
from imagegen.image.base.fetch import AptSuite, parse_deb822, parse_lines
from imagegen.image.base.image import inside, unpack
from imagegen.image.base.normalise import dpkg_configuration, normalise, read, snapshot, write_difference
from imagegen.plan.distributions import DebianRelease, release
from imagegen.plan.lock.foundation import LockedBase, LockedPackages

_PACKAGES = "/tmp/packages"  # noqa: S108 - the sandbox's own /tmp
_POLICY = "usr/sbin/policy-rc.d"  # answers whether a service may be started (invoke-rc.d(8)): never
_TIMEOUT = 3600  # seconds
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP", "SETGID", "SETPCAP", "SETUID")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "DEBIAN_FRONTEND": "noninteractive",
    "SOURCE_DATE_EPOCH": str(EPOCH),
    # With SOURCE_DATE_EPOCH, Debian's scripts compile modules with a hash of the source. What an import would write by
    # the way is bound to the source's mtime instead, which the image does not keep.
    "PYTHONDONTWRITEBYTECODE": "1",
}
# The image's own apt finds the order of installation. It sees these packages and dpkg's status, and no archive.
COMMAND = (
    "apt-get install --quiet --quiet --yes --no-install-recommends --no-remove --allow-downgrades "
    "-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists=/tmp/lists "
    "-o Dir::Cache=/tmp/cache -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -o DPkg::Options::=--force-confold"
)


@dataclass(frozen=True)
class AddedPackages:
    """All paths are absolute. `work` is an empty directory on the store's disk; `original` is the base, unpacked."""

    store: str
    layers: list[dict[str, object]]  # of the base, from the bottom up: fields of registry.Layer
    original: str
    packages: str  # directory of the debs
    work: str
    layer: str  # the file to write


def run(job: AddedPackages) -> dict[str, str]:
    """Unpack the base, install the packages, write the layer; return dpkg's status before and after.

    Raises BaseError, SandboxError, StoreError.
    """
    tree = Path(job.work, "tree")
    tree.mkdir(mode=0o755)
    unpack([LayerDescriptor(**each) for each in job.layers], Store(Path(job.store)), tree, owners=True)  # type: ignore[arg-type]
    status = inside(tree, "var/lib/dpkg/status")
    then = status.read_bytes()
    before = snapshot(tree)
    policy = inside(tree, _POLICY)
    ours = not policy.exists()
    if ours:
        policy.parent.mkdir(parents=True, exist_ok=True)
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    _install(tree, Path(job.packages))
    if ours:
        policy.unlink(missing_ok=True)
    with Path(job.layer).open("xb") as file:
        write_difference(tree, before, Path(job.original), file.write)
    return {"before": then.decode(errors="replace"), "after": status.read_bytes().decode(errors="replace")}


def _install(tree: Path, packages: Path) -> None:
    debs = [f"{_PACKAGES}/{path.name}" for path in sorted(packages.iterdir())]
    # apt finds nothing but absolute paths in these, which are ours.
    argv = [*COMMAND.split(), *debs]
    command = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    for capability in _CAPABILITIES:
        command += ["--cap-add", f"CAP_{capability}"]
    for name, value in ENVIRONMENT.items():
        command += ["--setenv", name, value]
    command += ["--bind", str(tree), "/", "--proc", "/proc", "--dev", "/dev", "--perms", "1777"]
    command += ["--tmpfs", "/tmp", "--tmpfs", "/run", "--ro-bind", str(packages), _PACKAGES]  # noqa: S108
    command += ["--dir", "/tmp/lists/partial", "--dir", "/tmp/cache/archives/partial"]  # noqa: S108
    with pipe_from(sandbox.program(platform.machine())) as filter_fd:
        done = subprocess.run(
            [*command, "--seccomp", str(filter_fd), "--chdir", "/", "--", *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[filter_fd],
            umask=0o022,
            timeout=_TIMEOUT,
            check=False,
        )
    if done.returncode:
        raise failure(argv, done.returncode, (done.stdout + done.stderr)[-8000:])


def main() -> None:
    """Run the job on stdin. An expected error becomes an answer, and the exit status 1."""
    job = AddedPackages(**json.load(sys.stdin))
    answer: dict[str, object]
    try:
        answer = dict(run(job))
    except ImagegenError as error:
        answer = {"error": {"what": error.what, "where": str(error.where or "") or None, "why": error.why}}
    finally:
        shutil.rmtree(Path(job.work, "tree"), ignore_errors=True)
    json.dump(answer, sys.stdout)
    sys.exit("error" in answer)


if __name__ == "__main__":
    main()


# A locked base as a layer: mmdebstrap runs offline on exactly the locked packages, and its tar is normalised.
#
# What decides the bytes is the packages and this module: mmdebstrap unpacks them and lets the base's own dpkg install
# them in one call, in an order that dpkg finds; apt takes no part in that, and the files that mmdebstrap itself
# writes or copies from the host are dropped. So the version of mmdebstrap on the host is not part of the key.

FORMAT = 1  # raise it with every change here, in normalise.py or in data/ that changes bytes
BASES = Cache("base", LayerDescriptor)
_PEAK = 12  # bytes for a byte of package: the packages twice; tree, tar and normalised tar, three times as large each
_FIELD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~-]*")
# /bin and its like are links into /usr from the start, as the package usr-is-merged demands.
_MERGE_USR = 'for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d" || exit 1; done'

# It ends with imagegen, however that ends. As root it has its mounts and processes in namespaces, where killing the
# first process removes them all; as a user it makes such namespaces itself, and tidies up on SIGTERM.
_ENDING = {
    "root": ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc", "--kill-child"),
    "unshare": ("setpriv", "--pdeathsig", "TERM"),
}


def key(locked: LockedBase) -> str:
    """The digest of all that decides the layer's bytes: the packages and the format of this module.

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
    known = BASES.get(store, base_key)
    return known if known and store.has(known.digest, known.size) else None


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
            found = release(str(locked.suite))
            status, example = read(source, STATUS, found.example)
            verify(locked, status.decode())
            files = {
                found.sources: sources_file(found, example.decode()),
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
        place = Path(tempfile.gettempdir())
        with (
            disk.explained(place, "the directory for temporary files", "set TMPDIR to another one"),
            tempfile.TemporaryDirectory(prefix="imagegen-base-") as name,
        ):
            yield Path(name)


def write_repository(locked: LockedBase, store: Store, directory: Path) -> None:
    """A flat repository of exactly the locked packages; apt need not know what they depend on.

    Raises BaseError for a package whose fields cannot be those of a package.
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
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "HOME": str(archive.parent), "TMPDIR": str(archive.parent)},
        umask=0o022,
    )
    try:
        stderr = process.communicate()[1].decode(errors="replace")
    except BaseException:
        process.send_signal(signal.SIGKILL if mode == "root" else signal.SIGTERM)
        process.wait()
        raise
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
            f"base {locked.name}: what dpkg installed is not what the lock names",
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
    entries = {each.suite: each for each in parsed if isinstance(each, AptSuite)}
    suites = [suite for each in release.suites.values() for suite in each]
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
# What decides the bytes is the base, the packages, and this module with those that it uses: the host's dpkg and apt
# take no part in it.

PACKAGES_FORMAT = 1  # raise it with every change here or in normalise.py that changes bytes
_ADDED = Cache("packages", LayerDescriptor)
_PEAK_OF_PACKAGES = 8  # bytes for a byte of package: installed, and as a layer
_STANZA = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", re.MULTILINE)
# A user becomes root of a namespace that has the other ids as well; newuidmap makes it (shadow's, package uidmap).
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--map-auto", "--")


def packages_key(added: LockedPackages, base_key: str) -> str:
    """Return the digest of all that decides the layer's bytes: the base, the packages, and the format.

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
    known = _ADDED.get(store, key)
    return known if known and store.has(known.digest, known.size) else None


def _install_as_layer(
    added: LockedPackages, layers: Sequence[LayerDescriptor], tree: Path, work: Path, store: Store, settings: Settings
) -> LayerDescriptor:
    packages, layer = work / "packages", work / "layer.tar"
    packages.mkdir()
    for deb in added.debs:
        with store.open(deb.digest) as blob, (packages / f"{deb.sha256}.deb").open("wb") as file:
            file.writelines(blob)
    job = AddedPackages(
        str(store.root), [asdict(each) for each in layers], str(tree), str(packages), str(work), str(layer)
    )
    answer = _run(job, store, settings)
    verify_status(added, answer["before"], answer["after"])
    with layer.open("rb") as file, store.writer() as writer:
        while chunk := file.read(1 << 20):
            writer.write(chunk)
        return LayerDescriptor.of_tar(writer.commit(), writer.size)


def _run(job: AddedPackages, store: Store, settings: Settings) -> dict[str, str]:
    """Run the installer to its end; what it leaves when it is killed is removed as the user that wrote it."""
    enter = () if os.geteuid() == 0 else _NAMESPACE
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *enter, sys.executable, "-P", "-m", "imagegen.image.base.build"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(settings.env),
        cwd=job.work,
    )
    try:
        out, err = (each.decode(errors="replace") for each in process.communicate(json.dumps(asdict(job)).encode()))
    except BaseException:
        process.send_signal(signal.SIGKILL)
        process.wait()
        raise
    finally:
        subprocess.run([*enter, "rm", "-rf", f"{job.work}/tree"], capture_output=True, check=False)
    try:
        answer = json.loads(out)
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
        )
    return {name: str(answer[name]) for name in ("before", "after")}


def verify_status(added: LockedPackages, before: str, after: str) -> None:
    """Raise BaseError unless exactly the locked packages came to what dpkg had, all of them installed."""
    then, now = _installed(before), _installed(after)
    expected = then | {(deb.name, deb.architecture): (deb.version, "installed") for deb in added.debs}
    if now != expected:
        different = sorted(" ".join(key) for key in now.keys() | expected if now.get(key) != expected.get(key))
        raise BaseError(
            "what dpkg installed above the base is not what the lock names",
            code="base-packages-differ",
            why="; ".join(different),
            fix="lock the base again (imagegen lock CELL --upgrade-base); if it stays so, report it",
        )


def _installed(status: str) -> dict[tuple[str, str], tuple[str, str]]:
    """(name, architecture) -> (version, state) of dpkg's status file."""
    found = {}
    for stanza in status.strip().split("\n\n"):
        fields = dict(_STANZA.findall(stanza))
        if "Package" in fields and "Version" in fields:
            state = fields.get("Status", "").rpartition(" ")[2]
            found[fields["Package"], fields.get("Architecture", "")] = (fields["Version"], state)
    return found
