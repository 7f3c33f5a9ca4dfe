"""Credentials and certificates on the way to a lock: used, and found nowhere afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from imagegen import lock
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net.address import netrc_auth, parse
from imagegen.core.store import Store
from imagegen.image.base import packages_layer
from imagegen.image.base.installer import AddedPackages
from tests.support.canaries import PASSWORD, USER, Guarded, Proxy, address, forms, leaks, watched
from tests.support.errors import raises
from tests.support.project import Project

NOWHERE = (
    "not in the lock, the store, uv's cache, temporary files, output, errors, tracebacks or arguments of processes"
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def index(project: Project) -> Iterator[Guarded]:
    server = Guarded(project.root / "index")
    yield server
    server.close()


def in_address(project: Project, host: str, password: str) -> dict[str, str]:
    return {"PIP_INDEX_URL": address(host, password=password)}


def in_netrc(project: Project, host: str, password: str) -> dict[str, str]:
    netrc = project.root / "home" / ".netrc"
    netrc.write_text(f"machine 127.0.0.1 login {USER} password {password}\n")
    netrc.chmod(0o600)
    return {"UV_DEFAULT_INDEX": f"http://{host}"}


def in_uv_variables(project: Project, host: str, password: str) -> dict[str, str]:
    return {"UV_INDEX_URL": f"http://{host}", "UV_INDEX_PYPI_USERNAME": USER, "UV_INDEX_PYPI_PASSWORD": password}


Way = Callable[[Project, str, str], dict[str, str]]  # project, host and password -> variables
WAYS: list[Way] = [in_address, in_netrc, in_uv_variables]


def searched(
    project: Project, needles: set[bytes], env: dict[str, str], *arguments: str, in_process: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run imagegen and find none of the needles in anything that it said, wrote or left behind, nor in `ps`."""
    with watched(needles) as listed:
        done = (project.call if in_process else project.run)(*arguments, env=env)
    said = (done.stdout + done.stderr).encode()
    assert [needle for needle in needles if needle in said] == [], said
    assert leaks(needles, [project.root], skip=[project.root / "home" / ".netrc"]) == []
    assert listed == []
    assert project.leftovers() == []
    return done


@pytest.mark.fault("Secrets", "credentials of an index: in its address, in netrc, in uv's variables", NOWHERE)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_lock_made_with_credentials(way: Way, project: Project, index: Guarded) -> None:
    env = way(project, index.host, PASSWORD)
    done = searched(project, forms(PASSWORD), env, "lock", "demo", in_process=False)
    assert done.returncode == 0, done.stderr
    assert any(index.seen), "nobody asked with the password"
    assert [wheel.name for wheel in lock.read(project.lock).wheels] == ["demo"]


@pytest.mark.fault("Secrets", "a wrong password, an index out of reach or broken, with --debug too", NOWHERE)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("fault", ["wrong password", "out of reach", "no index"])
def test_a_lock_that_fails(way: Way, fault: str, project: Project, index: Guarded) -> None:
    wrong = "wr0ng/p@ss:c4n4ry"
    host = "127.0.0.1:1" if fault == "out of reach" else index.host
    env = way(project, host, wrong if fault == "wrong password" else PASSWORD)
    if fault == "no index":
        (project.root / "index/demo/index.html").write_text("<a href='http://[broken'>")
    done = searched(project, forms(wrong, PASSWORD), env, "--debug", "lock", "demo")
    assert done.returncode == (68 if fault == "out of reach" else 67), done.stderr
    assert "Traceback" in done.stderr


@pytest.mark.fault("Secrets", "user and password of a proxy, right ones and wrong ones", NOWHERE)
@pytest.mark.parametrize("right", [True, False])
def test_a_proxy_with_a_password(right: bool, project: Project) -> None:
    proxy, index = Proxy(), Guarded(project.root / "index")
    password = PASSWORD if right else "wr0ng/p@ss:c4n4ry"
    try:
        env = {"PIP_INDEX_URL": address(index.host), "http_proxy": address(proxy.host, password=password)}
        done = searched(project, forms(password, PASSWORD), env, "--debug", "lock", "demo")
    finally:
        proxy.close()
        index.close()
    assert done.returncode == (0 if right else 68), done.stderr
    assert bool(proxy.seen) is right


@pytest.mark.fault("Secrets", "an index serves other bytes than the lock names; a mirror refuses its password", NOWHERE)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["render", "-o", "x"], "is not the expected file"),  # uv's wheel, which it fetches before the base
        (["build", "--output", "oci:x"], "may not be read"),  # the base
    ],
)
def test_a_build_that_fails(command: list[str], said: str, project: Project, index: Guarded) -> None:
    mirror = Guarded(project.root / "index", password="other")
    try:
        env = {"PIP_INDEX_URL": address(index.host)}
        assert project.call("lock", "demo", env=env).returncode == 0
        project.serve_uv(b"right")
        next(project.root.glob("index/uv/*.whl")).write_bytes(b"wrong")
        env |= {f"IMAGEGEN_DEBIAN{name}_MIRROR": address(mirror.host) for name in ("", "_SECURITY")}
        done = searched(project, forms(PASSWORD), env, "--debug", command[0], "demo", *command[1:])
    finally:
        mirror.close()
    assert done.returncode == 68, done.stderr
    assert said in done.stderr
    assert not (project.root / "x").exists()


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"x" + PASSWORD.encode())
    (tmp_path / "packed").write_bytes(zstandard.compress(forms(PASSWORD).pop() * 100))
    assert {line.partition(":")[0] for line in leaks(forms(PASSWORD), [tmp_path])} == {
        str(tmp_path / name) for name in ("plain", "packed")
    }
    with watched([b"c4n4ry-argument"]) as listed:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(0.2)", "c4n4ry-argument"], check=True)
    assert listed


@pytest.mark.parametrize("line", ["machine h login me passwd c4n4ry", "machine h login me password a c4n4ry b"])
def test_a_broken_netrc_is_not_quoted(line: str, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(f"{line}\n")
    with raises("fetch-netrc-unreadable") as caught:
        netrc_auth(parse("http://h/"), {"HOME": str(tmp_path)})
    assert "c4n4ry" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("url", ["http://me:c4n4ry[x@h/", "http://me:c4n4ry/x@h/", "http://me:c4n4ry\u2100@h/"])
def test_a_broken_address_is_not_quoted(url: str) -> None:
    with pytest.raises(FetchError) as caught:
        parse(url)
    assert "c4n4ry" not in str(caught.value)
    assert "%2F" in str(caught.value)


@pytest.mark.fault("Secrets", "the environment holds COSIGN_PASSWORD while packages are installed", "not passed on")
def test_the_installer_of_packages_gets_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = recorder(tmp_path / "python", tmp_path / "env")
    monkeypatch.setattr(sys, "executable", str(program))
    build = packages_layer
    monkeypatch.setattr(build, "NAMESPACE", ())
    settings = Settings.from_environment({**SECRETS, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    build.run_installer(AddedPackages("", [], "", "", str(tmp_path), ""), Store(tmp_path / "store"), settings)
    assert "hunter2" not in (tmp_path / "env").read_text()


SECRETS = {"COSIGN_PASSWORD": "hunter2", "GH_TOKEN": "hunter2", "PIP_INDEX_URL": "https://me:hunter2@index.example"}


def recorder(program: Path, file: Path) -> Path:
    """Write a program that writes its environment to `file`."""
    program.write_text(f'#!/bin/sh\nenv > {file}.new && mv {file}.new {file}\necho \'{{"before": "", "after": ""}}\'\n')
    program.chmod(0o755)
    return program
