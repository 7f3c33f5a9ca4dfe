"""Debian's containerd and stargz-snapshotter, with sockets, images and mounts of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.config import Settings
from imagegen.core.progress import Quiet
from imagegen.run import embedded_engine

# Of the suites, bookworm alone has stargz-snapshotter: ctr-remote, and the sources of its library.
_SUITE = "bookworm"
_PROGRAMS = ("containerd", "stargz-snapshotter", "golang-1.19-go", "golang-1.19-src")
_LIBRARIES = (
    *("beorn7-perks", "cespare-xxhash", "containerd-containerd", "containerd-continuity"),
    *("containerd-stargz-snapshotter", "coreos-bbolt", "docker-go-metrics", "gogo-protobuf", "golang-groupcache"),
    *("golang-protobuf-1-3", "hanwen-go-fuse", "hashicorp-errwrap", "hashicorp-go-cleanhttp"),
    *("hashicorp-go-multierror", "hashicorp-go-retryablehttp", "klauspost-compress", "moby-locker", "moby-sys"),
    *("opencontainers-go-digest", "opencontainers-image-spec", "prometheus-client-golang"),
    *("prometheus-client-model", "prometheus-common", "prometheus-procfs", "sirupsen-logrus", "vbatts-tar-split"),
)
_OTHER_LIBRARIES = (
    *("golang-x-net", "golang-x-sync", "golang-x-sys", "golang-x-text"),
    *("google-genproto", "google-grpc", "google-protobuf", "protobuf-extensions"),
)
_SOURCE = Path(__file__).parents[1] / "samples" / "stargz" / "main.go"
_NAMESPACE = "imagegen-stargz"  # containerd's, and the control group's
_CONFIG = """\
version = 2
root = "{work}/containerd"
state = "{work}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = "{work}/containerd.sock"
[proxy_plugins.stargz]
type = "snapshot"
address = "{work}/stargz.sock"
"""
# Processes and mounts end with this one. containerd's shims and ctr write below /run/containerd, whatever its options.
_INSIDE = """\
set -e
mkdir -p /run/containerd
mount -t tmpfs tmpfs /run/containerd
"$0/stargz" "$1/stargz.sock" "$1/stargz" $2 >"$1/stargz.log" 2>&1 &
exec containerd --config "$1/config.toml" >"$1/containerd.log" 2>&1
"""


def programs(target: Path, settings: Settings) -> Path:
    """Unpack and compile the programs below `target`; return their directory. 90 MB of packages, a minute."""
    names = [
        *(f"golang-github-{name}-dev" for name in _LIBRARIES),
        *(f"golang-{name}-dev" for name in _OTHER_LIBRARIES),
    ]
    embedded_engine.unpack(_SUITE, [*_PROGRAMS, *names], target, settings, Quiet())
    found = target / "usr/bin"
    if not (found / "stargz").exists():
        own = {"GO111MODULE": "off", "GOROOT": str(target / "usr/lib/go-1.19"), "CGO_ENABLED": "0", "GOFLAGS": ""}
        own |= {"GOPATH": str(target / "usr/share/gocode"), "GOCACHE": str(target / "cache")}
        command = [target / "usr/lib/go-1.19/bin/go", "build", "-o", found / "stargz", _SOURCE]
        subprocess.run(command, env={**os.environ, **own}, check=True)
    return found


@dataclass(frozen=True)
class Containerd:
    """A running containerd, whose snapshotters are overlayfs and stargz; `process` is its id."""

    programs: Path
    work: Path
    process: int

    def command(self, *arguments: str) -> list[str]:
        """Return a command that runs in its namespaces with its programs."""
        inside = ["nsenter", "--mount", "--pid", "--target", str(self.process), "env"]
        variables = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "CONTAINERD_ADDRESS": str(self.work / "containerd.sock"),
            "CONTAINERD_NAMESPACE": _NAMESPACE,
        }
        return [*inside, *(f"{name}={value}" for name, value in variables.items()), *arguments]

    def pull(self, ref: str, snapshotter: str) -> None:
        """Pull an image from a registry on loopback, or with stargz mount its layers."""
        pull = ["ctr-remote", "images", "rpull"] if snapshotter == "stargz" else ["ctr", "images", "pull"]
        done = subprocess.run(self.command(*pull, ref), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(pull)}: exit code {done.returncode}\n{done.stderr}"

    def mounted(self) -> list[Path]:
        """Return the directories of the layers that are mounted and not pulled."""
        mounts = Path(f"/proc/{self.process}/mountinfo").read_text(encoding="utf-8").splitlines()
        points = [line.split()[4] for line in mounts if " - fuse" in line and " stargz " in line]
        return [Path(f"/proc/{self.process}/root{point}") for point in points]

    def run(self, ref: str, snapshotter: str, arguments: list[str], mounted: Path | None = None) -> list[str]:
        """Return the command of a container that ends with its process; `mounted` is read-only at /mnt."""
        mount = f"type=bind,src={mounted},dst=/mnt,options=rbind:ro"
        mounts = ["--mount", mount] if mounted else []
        return self.command("ctr", "run", "--rm", "--snapshotter", snapshotter, *mounts, ref, "one", *arguments)


@contextmanager
def containerd(programs: Path, work: Path, chunk: int | None = None) -> Iterator[Containerd]:
    """Run containerd without images, below the empty directory `work`, whose file system must be one for overlays.

    stargz-snapshotter fetches 10 MiB of each layer when it mounts it, what is read in pieces of 50 kB, and all when it
    has been idle for five seconds; with `chunk` it fetches only what is read, in pieces of so many bytes.
    """
    (work / "config.toml").write_text(_CONFIG.format(work=work))
    inside = ["sh", "-c", _INSIDE, str(programs), str(work), str(chunk or "")]
    spaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--propagation", "private"]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    with subprocess.Popen([*spaces, *inside], env=environment) as parent:
        try:
            deadline = time.monotonic() + 60
            while not all((work / name).exists() for name in ("containerd.sock", "stargz.sock")):
                assert parent.poll() is None, (work / "containerd.log").read_text()
                assert time.monotonic() < deadline, (work / "stargz.log").read_text()
                time.sleep(0.1)
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
            yield Containerd(programs, work, int(children))
        finally:
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            embedded_engine.remove_cgroups(_NAMESPACE)
