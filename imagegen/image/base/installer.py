"""Install Debian packages over the file tree of an image, and write the changes as a layer, in a separate process.

Started by a user, it is the first process of a user namespace in which that user is root and the ids of /etc/subuid are
the others. Started as root, it gives the tree to ids of the host that own nothing (`first_id`). The image's own apt and
dpkg, and the packages' scripts, run below it under bubblewrap, as root of such a namespace with the capabilities that
engines give to `RUN` in a Dockerfile: no network, no process or file of the host, and limits on memory, processes, time
and files. Nothing in the tree is read before the last of these processes is gone, and paths are looked up again then.

Reads the job as JSON on stdin; writes the layer to the file that it names, and the answer as JSON to stdout.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from imagegen.core.errors import ImagegenError
from imagegen.core.image_format import EPOCH
from imagegen.core.layer_tar import most_unpacked
from imagegen.core.sandbox import Limits, first_id, run_to_end, visible
from imagegen.core.store import Store
from imagegen.image.base.difference import snapshot, write_difference
from imagegen.image.base.resolution import LONGEST_STATUS, STATUS
from imagegen.image.base.unpack import ODD, inside, read_inside, unpack
from imagegen.oci.documents import LayerDescriptor

_PACKAGES = "/tmp/packages"  # noqa: S108 - the sandbox's own /tmp
_POLICY = "usr/sbin/policy-rc.d"  # answers whether a service may be started (invoke-rc.d(8)): never
_TIMEOUT = 3600  # seconds
LIMITS = Limits(memory=8 << 30, tasks=1024)
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP", "SETGID", "SETPCAP", "SETUID")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "DEBIAN_FRONTEND": "noninteractive",
    "SOURCE_DATE_EPOCH": str(EPOCH),
    # With SOURCE_DATE_EPOCH, Debian's scripts compile modules with a hash of the source. Byte-code of an import has the
    # source's mtime instead, which the image does not keep.
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
    work, packages, first = Path(job.work), Path(job.packages), first_id()
    tree, policy = work / "tree", work / "policy-rc.d"
    tree.mkdir(mode=0o755)
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    for path in (tree, packages, *packages.iterdir()):
        os.chown(path, first, first)
    unpack([LayerDescriptor(**layer) for layer in job.layers], Store(Path(job.store)), tree, first_id=first)  # type: ignore[arg-type]
    then = read_inside(tree, STATUS, LONGEST_STATUS)
    before = snapshot(tree, first)
    most = most_unpacked(sum(path.stat().st_size for path in packages.iterdir()))
    with _mount_point(tree, first):
        _install(tree, packages, policy, replace(LIMITS, file=most))
    now = read_inside(tree, STATUS, LONGEST_STATUS)
    with Path(job.layer).open("xb") as file:
        write_difference(tree, before, Path(job.original), file, first_id=first, most=most)
    return {"before": then.decode(errors="replace"), "after": now.decode(errors="replace")}


@contextmanager
def _mount_point(tree: Path, first: int) -> Iterator[None]:
    """Have a file at the path of the policy, for a mount; one that was not there before is not there at the end."""
    policy = inside(tree, _POLICY)
    if policy.exists():
        yield
        return
    for parent in reversed(policy.relative_to(tree).parents):
        if not (tree / parent).exists():
            (tree / parent).mkdir(mode=0o755)
            os.chown(tree / parent, first, first)
    policy.touch()
    mount_point = policy.stat()
    yield
    policy = inside(tree, _POLICY)  # the packages' scripts may have put links on the way
    if policy.exists() and os.path.samestat(policy.lstat(), mount_point):
        policy.unlink()


def _install(tree: Path, packages: Path, policy: Path, limits: Limits) -> None:
    debs = [f"{_PACKAGES}/{path.name}" for path in sorted(packages.iterdir())]
    # apt finds nothing but absolute paths in these, which are ours.
    argv = [*COMMAND.split(), *debs]
    sources = (tree, packages, policy)
    root, debs_of, policy_of = visible(sources)
    # Mount points without links, since bubblewrap would follow links of the tree to files of the host. /proc comes
    # last, since its own links lead there too: a mount point such as proc/1/root is a directory of the tree until then.
    proc, dev, tmp, run_dir, policy_rc = (
        f"/{inside(tree, path).relative_to(tree)}" for path in ("proc", "dev", "tmp", "run", _POLICY)
    )
    tmpfs, open_to_all = ["--size", str(limits.memory), "--tmpfs"], ["--perms", "1777"]
    options = [word for capability in _CAPABILITIES for word in ("--cap-add", f"CAP_{capability}")]
    for name, value in ENVIRONMENT.items():
        options += ["--setenv", name, value]
    options += ["--bind", root, "/", "--dev", dev, *open_to_all, *tmpfs, f"{dev}/shm", "--remount-ro", dev]
    options += [*open_to_all, *tmpfs, tmp, *tmpfs, run_dir]
    options += ["--ro-bind", debs_of, f"{tmp}/packages", "--ro-bind", policy_of, policy_rc]
    options += ["--dir", f"{tmp}/lists/partial", "--dir", f"{tmp}/cache/archives/partial", "--chdir", "/"]
    options += ["--proc", proc, "--remount-ro", proc]
    run_to_end(options, sources, argv, limits, _TIMEOUT)


def main() -> None:
    """Run the job on stdin. An expected error becomes an answer, and the exit status 1."""
    os.umask(0o022)
    job = AddedPackages(**json.load(sys.stdin))
    answer: dict[str, object]
    try:
        answer = dict(run(job))
    except ImagegenError as error:
        answer = {
            "error": {"what": error.what, "where": str(error.where or "") or None, "why": error.why, "fix": error.fix}
        }
    except OSError as error:
        if error.errno not in ODD:
            raise
        error_text, why = "the file tree with the packages cannot be read", error.strerror
        answer = {"error": {"what": error_text, "where": None, "why": why, "fix": None}}
    json.dump(answer, sys.stdout)
    sys.exit("error" in answer)


if __name__ == "__main__":
    main()
