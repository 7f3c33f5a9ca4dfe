"""Packages above a base as one layer: installed over the base's tree by the image's own apt, and compared with it.

The base, the packages, and this module with those that it uses decide the bytes. The host's dpkg and apt do not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from imagegen.core import programs
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import parse_json
from imagegen.core.errors import BaseError
from imagegen.core.net import Missing
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.base import fetch
from imagegen.image.base.installer import LIMITS, AddedPackages
from imagegen.lock.foundation import LockedPackages
from imagegen.oci.documents import LayerDescriptor, digest_of

PACKAGES_FORMAT = 1  # raise it with every change here or in normalise.py that changes bytes
_ADDED = Cache("packages", LayerDescriptor)
_PEAK_OF_PACKAGES = 8  # bytes for a byte of package: installed, and as a layer
_STANZA = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", re.MULTILINE)
# A user becomes root of a namespace that has the other ids as well; newuidmap makes it (shadow's, package uidmap).
NAMESPACE = ("unshare", "--user", "--map-root-user", "--map-auto", "--")
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
    added: LockedPackages, base_key: str, base: Callable[[], tuple[Sequence[LayerDescriptor], Path]], context: Context
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
        str(store.root), [asdict(descriptor) for descriptor in layers], str(tree), str(packages), str(work), str(layer)
    )
    answer = run_installer(job, store, settings)
    verify_status(added, answer["before"], answer["after"])
    with layer.open("rb") as file, store.writer() as writer:
        while chunk := file.read(1 << 20):
            writer.write(chunk)
        return LayerDescriptor.of_tar(writer.commit(), writer.size)


def run_installer(job: AddedPackages, store: Store, settings: Settings) -> dict[str, str]:
    """Run the installer to its end; the files of a killed one are removed as the user that wrote them."""
    # The namespace's processes are together within the limit that its maker has.
    limit = ("prlimit", f"--nproc={LIMITS.processes()}", "--")
    enter = () if os.geteuid() == 0 else (*limit, *NAMESPACE)
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
