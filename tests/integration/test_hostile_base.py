"""A base whose programs are hostile: its apt, run to install packages, and its setpriv, run to start any program."""

from __future__ import annotations

import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagegen.core import sandbox
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import ImagegenError, SandboxError
from imagegen.core.progress import Quiet
from imagegen.core.sandbox import Limits, Sandbox, run_to_end, visible
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.base.unpack import unpack
from imagegen.lock.foundation import LockedPackages
from imagegen.oci.documents import LayerDescriptor, digest_of
from tests.support.file_trees import Things, To, as_tar, on_disk

pytestmark = pytest.mark.integration

TAR = "application/vnd.oci.image.layer.v1.tar"
APPLETS = "cat chmod date grep head id ln mkdir mkfifo mv rm sh sleep setsid true touch truncate yes"
STATUS = "/var/lib/dpkg/status"
LEASE = "/proc/sys/fs/lease-break-time"  # root of the host may write it without any capability


def files(busybox: bytes, apt: str, **more: To) -> Things:
    links = {f"bin/{name}": To("busybox") for name in APPLETS.split()}
    return {
        "bin/busybox": busybox,
        **links,
        **dict.fromkeys(("dev", "opt", "tmp", "usr/sbin")),
        "usr/bin/apt-get": f"#!/bin/sh\n{apt}\n".encode(),
        "var/lib/dpkg/status": b"",
        "opt/kept": b"",
        **more,
    }


def install(tmp_path: Path, settings: Settings, busybox: bytes, apt: str, **more: To) -> dict[str, tarfile.TarInfo]:
    """Install no packages above a base whose apt is this shell text; return the members of the layer."""
    store = Store(tmp_path / "store")
    data = as_tar(files(busybox, apt, **more))
    layer = LayerDescriptor(TAR, store.write(data), len(data), digest_of(data))
    tree = tmp_path / "original"
    tree.mkdir(exist_ok=True)
    unpack([layer], store, tree)
    context = Context(store, settings, Quiet())
    made = base.build_packages(LockedPackages({}, (), ()), layer.digest, lambda: ([layer], tree), context)
    with tarfile.open(store.path(made.digest)) as tar:
        return {member.name: member for member in tar}


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a base's own apt writes the machine's /proc/sys, or changes its devices",
    "refused, as root too: its ids own nothing of the machine",
)
def test_it_cannot_reach_the_machine(busybox: bytes, settings: Settings, tmp_path: Path) -> None:
    attacks = (
        f"cat {LEASE} > {LEASE}",
        "cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern",
        "chmod 666 /dev/null",
        "echo 0 > /proc/self/oom_score_adj",
        "grep A_SECRET /proc/1/environ",
        "touch /dev/x",
    )
    env = {**settings.env, "A_SECRET": "hunter2"}
    script = "\n".join(f"if ( {attack} ) 2>/dev/null; then exit 1; fi" for attack in attacks)
    assert install(tmp_path, Settings.from_environment(env), busybox, script) == {}


@pytest.mark.fault(
    "Wheels",
    "a base's own setpriv, which starts programs for root, writes the machine's /proc/sys",
    "refused: its ids own nothing of the machine",
)
@pytest.mark.parametrize("attack", [f"cat {LEASE} > {LEASE}", "chmod 666 /dev/null"])
def test_the_program_that_starts_programs_cannot_reach_the_machine(attack: str, busybox: bytes, tmp_path: Path) -> None:
    script = f"#!/bin/sh\n( {attack} ) 2>/dev/null && echo done\ntrue\n".encode()
    tree = on_disk(tmp_path / "tree", {**files(busybox, ""), "usr/bin/setpriv": script})
    assert Sandbox(tree).run(["/bin/true"], timeout=30) == b""


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a base's own apt puts links, pipes and endless files where imagegen reads afterwards",
    "refused by name; nothing outside of the tree is read or removed, nothing hangs",
)
@pytest.mark.parametrize(
    "attack",
    [
        f"ln -sf /etc/passwd {STATUS}.x; mv {STATUS}.x {STATUS}; ln -s nowhere /etc",
        f"ln -sf /dev/zero {STATUS}",
        f"rm {STATUS}; mkfifo {STATUS}",
        f"truncate -s 3G {STATUS}",
        "mv /var /var.x; ln -s /etc /var",
        "mkfifo /opt/pipe",
        "truncate -s 8G /opt/1; truncate -s 8G /opt/2",
        "mkdir -p /opt/$(yes d | head -n 300 | while read d; do echo -n d/; done)",
    ],
)
def test_what_it_leaves_is_read_within_the_tree(
    attack: str, busybox: bytes, settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(ImagegenError) as caught:
        install(tmp_path, settings, busybox, f"{attack}; exit 0")
    assert caught.value.code == "base-packages-conflict"
    assert "root:" not in str(caught.value)
    assert not list((tmp_path / "store/tmp").iterdir())


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a base's apt moves /usr/sbin, and puts a link out of the tree in its place",
    "the file of the same name there stays",
)
def test_a_path_is_looked_up_again_afterwards(busybox: bytes, settings: Settings, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "policy-rc.d").touch()
    victim.chmod(0o777)
    members = install(tmp_path, settings, busybox, f"mv /usr/sbin /usr/x; ln -s {victim} /usr/sbin")
    assert (members["usr/sbin"].linkname, [*victim.iterdir()]) == (str(victim), [victim / "policy-rc.d"])


def test_links_of_the_tree_lead_no_mount_out_of_it(busybox: bytes, settings: Settings, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    link = To(f"/oldroot{victim}")  # bubblewrap's own name for the machine's root while it mounts
    members = install(tmp_path, settings, busybox, "grep -q 101 /usr/sbin/policy-rc.d", **{"usr/sbin": link})
    assert all(name.startswith("oldroot") for name in members)
    assert not list(victim.iterdir())


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a base has directories of the names of links in /proc, and mount points below them",
    "nothing is created outside of the tree",
)
@pytest.mark.parametrize("name", ["usr/sbin", "run", "tmp", "dev"])
def test_links_of_proc_lead_no_mount_out_of_the_tree(
    name: str, busybox: bytes, settings: Settings, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    directory = f"proc/self/root/oldroot{victim}"
    members = install(tmp_path, settings, busybox, "", **{directory: None, name: To(f"/{directory}/new")})
    assert (members, [*victim.iterdir()]) == ({}, [])


def test_links_of_the_tree_lead_no_file_of_a_sandbox_out_of_it(busybox: bytes, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    things = {**files(busybox, ""), "file": To(f"/oldroot{victim}/new"), "usr/bin/setpriv": b"#!/bin/sh\ncat /file\n"}
    source = tmp_path / "source"
    source.write_bytes(b"contents")
    source.chmod(0o644)
    assert Sandbox(on_disk(tmp_path / "tree", things), {"/file": source}).run(["/bin/true"], timeout=30) == b"contents"
    assert not list(victim.iterdir())


def test_services_are_refused_and_no_mount_point_stays(busybox: bytes, settings: Settings, tmp_path: Path) -> None:
    script = "/usr/sbin/policy-rc.d; test $? = 101 && rm /opt/kept && touch /opt/new && chmod 4711 /opt/new"
    members = install(tmp_path, settings, busybox, script)
    assert sorted(members) == ["opt", "opt/.wh.kept", "opt/new"]
    new = members["opt/new"]
    assert (new.uid, new.gid, new.mode) == (0, 0, 0o4711)


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a base's apt leaves processes behind that go on changing the tree",
    "they are gone before the tree is read",
)
def test_what_it_started_is_gone_before_its_files_are_read(busybox: bytes, settings: Settings, tmp_path: Path) -> None:
    mark = f"{os.getpid()}.5"
    loop = f"setsid sleep {mark} </dev/null >/dev/null 2>&1 & while :; do mv /opt/a /opt/b; mv /opt/b /opt/a; done"
    install(tmp_path, settings, busybox, f"touch /opt/a; setsid sh -c {shlex.quote(loop)} >/dev/null 2>&1 & sleep 0.2")
    assert (
        f"sleep {mark}" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    )


@contextmanager
def running(tree: Path, script: str, timeout: float, limits: Limits) -> Iterator[pytest.ExceptionInfo[SandboxError]]:
    (root,) = visible([tree])
    with pytest.raises(SandboxError) as caught:
        run_to_end(["--bind", root, "/", "--dev", "/dev"], [tree], ["/bin/sh", "-c", script], limits, timeout)
    yield caught


@pytest.fixture
def tree(busybox: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        tree = on_disk(Path(name), files(busybox, ""))
        tree.chmod(0o755)
        os.chown(tree / "opt", sandbox.first_id() or os.geteuid(), -1)
        yield tree


@pytest.mark.fault(
    "Matrices, rules, locks", "a base's apt prints without end", "stopped at 256 MiB, of which 8 kB are kept"
)
def test_endless_output_is_not_kept(tree: Path) -> None:
    with running(tree, f"exec yes {'A' * 4000}", 60, Limits()) as caught:
        assert "256 MiB" in caught.value.what
        assert len(caught.value.why or "") < 9000


@pytest.mark.fault("Matrices, rules, locks", "a base's apt does not end", "stopped, with all that it started")
def test_the_time_is_limited(tree: Path) -> None:
    with running(tree, "echo begun; sleep 1000 & sleep 1000", 0.5, Limits()) as caught:
        assert (caught.value.what, caught.value.why) == ("/bin/sh was stopped after 0.5 s", "begun")


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a base's apt is a fork bomb, and its processes take all users of the namespace",
    "all together have the limit of the sandbox, also without control groups",
)
@pytest.mark.parametrize("groups", [True, False])
def test_a_fork_bomb_is_limited(tree: Path, groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not groups:
        monkeypatch.setattr(sandbox, "make_cgroups", lambda _: ())
    bomb = "while sleep 1000 & do :; done"
    with running(tree, bomb, 30, Limits(tasks=40)) as caught:
        assert "can't fork" in (caught.value.why or "")


@pytest.mark.fault(
    "Matrices, rules, locks", "a base's apt fills memory, or one file", "stopped at the limit of the sandbox"
)
def test_memory_and_files_are_limited(tree: Path) -> None:
    limits = Limits(memory=64 << 20, file=1 << 20)
    with running(tree, "x=$(yes | head -c 99999999)", 30, limits) as caught:
        assert caught.value.code in ("sandbox-program-failed", "sandbox-killed")
    with running(tree, "yes > /opt/x", 30, limits):
        assert (tree / "opt/x").stat().st_size == 1 << 20
