"""Install Debian packages over the file tree of an image, and write what they changed as a layer: a process of its own.

Started as root, it is root, with the capabilities that engines give to `RUN` in a Dockerfile. Started by a user, it is
the first process of a user namespace in which that user is root and the ids of /etc/subuid are the others. The image's
own apt and dpkg, and the packages' scripts, run below it under bubblewrap: no network, no process or file of the host.

Reads the job as JSON on stdin; writes the layer to the file that it names, and the answer as JSON to stdout.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from imagegen.core import sandbox
from imagegen.core.errors import ImagegenError
from imagegen.core.oci import LayerDescriptor
from imagegen.core.sandbox import failure, pipe_from
from imagegen.core.store import Store
from imagegen.core.types import EPOCH
from imagegen.image.base.image import inside, unpack
from imagegen.image.base.normalise import snapshot, write_difference

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
