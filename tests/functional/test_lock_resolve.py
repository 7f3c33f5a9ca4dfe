"""Resolution against indexes on loopback: routes, preferences, times, and that no package's code runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import Tag

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, LockError, SdistMetadataError
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock import uv_interpreter
from imagegen.lock.find_links import find_local_wheel
from imagegen.lock.uv_resolve import OMITTED, ResolveRequest, Site, resolve
from imagegen.spec.model import Component, Sdist
from tests.support.errors import raises
from tests.support.http_server import Behaviour, Server, drip, raw, status
from tests.support.upload_index import NEW, TARGET, PackageIndex


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def index(tmp_path: Path) -> PackageIndex:
    return PackageIndex(tmp_path / "default")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path), "PATH": os.defpath})


def ask(settings: Settings, index: PackageIndex, *requirements: str, **more: object) -> dict[str, str]:
    question = ResolveRequest(requirements, TARGET, "2026-11-20T00:00:00Z", {}, {"pypi": index.site})
    return {each.name: each.version for each in resolve(replace(question, **more), settings)[0]}  # type: ignore[arg-type]


def test_an_override_replaces_what_packages_require(settings: Settings, index: PackageIndex) -> None:
    for version in ("5.0", "6.0"):
        index.wheel("proto", version)
    index.wheel("old", "1.0", "proto<6", "gone")
    index.wheel("new", "1.0", "proto>=6")
    with pytest.raises(LockError):
        ask(settings, index, "old", "new")
    question = ResolveRequest(("old", "new"), TARGET, "2026-11-20T00:00:00Z", {}, {"pypi": index.site})
    question = replace(question, overrides=("proto>=6,<7", "old<2"), omitted=("gone", "lost"))
    found = {each.name: (each.version, each.via) for each in resolve(question, settings)[0]}
    assert found == {
        "gone": (OMITTED, ("old",)),
        "new": ("1.0", ()),
        "old": ("1.0", ()),
        "proto": ("6.0", ("new", "old")),
    }


def test_extras_of_declared_metadata_are_taken_without_a_warning(settings: Settings, index: PackageIndex) -> None:
    index.wheel("more", "1.0")
    index.sdist("demo", "1.0", {})
    declared = Component("demo", "demo", "", (), sdist=Sdist("1.0", ("more; extra == 'x'",), ()))
    question = ResolveRequest(("demo[x,y]",), TARGET, "2026-11-20T00:00:00Z", {}, {"pypi": index.site})
    warnings: list[str] = []
    found, warnings = resolve(replace(question, sdists=(declared,)), settings)
    assert {each.name for each in found} == {"demo", "more"}
    assert warnings == []


CANARY = "open({canary!r}, 'w').write('ran')\n"
BACKEND = CANARY + (
    "def build_wheel(*a): raise SystemExit(1)\n"
    "def prepare_metadata_for_build_wheel(*a): raise SystemExit(1)\n"
)  # fmt: skip
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
TRAPS = {
    "setup.py": {"setup.py": CANARY + "from setuptools import setup; setup(name='trap', version='1.0')"},
    "in-tree backend": {"pyproject.toml": PYPROJECT, "backend.py": BACKEND},
}


@pytest.mark.parametrize("kind", TRAPS)
def test_no_code_of_a_package_runs(kind: str, index: PackageIndex, settings: Settings, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    index.sdist(
        "trap", "1.0", {path: text.replace("{canary!r}", repr(str(canary))) for path, text in TRAPS[kind].items()}
    )
    index.wheel("user", "1.0", "trap")
    with raises("lock-sdist-metadata") as caught:
        ask(settings, index, "user")
    assert "sdist:" in str(caught.value)
    assert not canary.exists()


def test_the_trap_is_one(index: PackageIndex, tmp_path: Path) -> None:
    """With an ordinary interpreter the in-tree backend above does run."""
    canary = tmp_path / "canary"
    files = {path: text.replace("{canary!r}", repr(str(canary))) for path, text in TRAPS["in-tree backend"].items()}
    index.sdist("trap", "1.0", files)
    command = [
        uv.find_uv_bin(),
        "pip",
        "compile",
        "-",
        "--no-config",
        "--no-build-isolation",
        "--python",
        sys.executable,
    ]
    env = {"HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_PYTHON_DOWNLOADS": "never"}
    command += ["--default-index", index.root.as_uri()]
    subprocess.run(command, input=b"trap", env=env, capture_output=True, check=False)
    assert canary.exists()


def test_the_guard_refuses_everything_but_the_question() -> None:
    for arguments in ([], ["-c", "print(1)"], ["-I", "-B", "-c", "print(1)"], ["-I", "-B", "setup.py", "x"]):
        assert uv_interpreter.main("/somewhere", arguments) == 1


def test_declared_metadata_stands_in_for_building(index: PackageIndex, settings: Settings) -> None:
    index.sdist("runtime", "4.9.3", {"setup.py": "raise SystemExit"})
    index.wheel("hydra", "1.0")
    index.wheel("hydra", "1.3", "runtime==4.9.*")
    index.wheel("helper", "2.0")
    declared = Component("runtime", "runtime", "", (), Sdist("4.9.3", ("helper",), ("setuptools==80",)))
    assert ask(settings, index, "hydra", sdists=(declared,)) == {"hydra": "1.3", "runtime": "4.9.3", "helper": "2.0"}


def test_a_routed_package_comes_from_its_index_alone(index: PackageIndex, settings: Settings, tmp_path: Path) -> None:
    special = PackageIndex(tmp_path / "special")
    special.wheel("torch", "2.13.0+cpu")
    special.wheel("helper", "9.0")
    index.wheel("torch", "2.14.0", "helper")
    index.wheel("helper", "1.0")
    index.wheel("peft", "1.0", "torch", "helper")
    sites = {"pypi": index.site, "pytorch-cpu": special.site}
    found = ask(settings, index, "torch", "peft", routes={"torch": "pytorch-cpu"}, sites=sites)
    assert found == {"torch": "2.13.0+cpu", "peft": "1.0", "helper": "1.0"}


def test_via_names_who_asks(index: PackageIndex, settings: Settings) -> None:
    index.wheel("peft", "1.0", "helper", "tool[extra]")
    index.wheel("tool", "1.0", 'helper; extra == "extra"')
    index.wheel("helper", "1.0")
    question = ResolveRequest(
        ("peft", "helper<2"), TARGET, "2026-11-20T00:00:00Z", {}, {"pypi": index.site}, ("helper>=1",)
    )
    via = {each.name: each.via for each in resolve(question, settings)[0]}
    assert via == {"peft": (), "helper": ("peft", "tool"), "tool": ("peft",)}


def test_locked_versions_stay_and_later_files_do_not_exist(index: PackageIndex, settings: Settings) -> None:
    index.wheel("peft", "1.0")
    index.wheel("peft", "1.1")
    index.wheel("peft", "1.2", uploaded=NEW)
    assert ask(settings, index, "peft") == {"peft": "1.2"}
    assert ask(settings, index, "peft", as_of="2026-03-01T00:00:00Z") == {"peft": "1.1"}
    assert ask(settings, index, "peft", preferences={"peft": "1.0"}) == {"peft": "1.0"}
    assert ask(settings, index, "peft>1.0", preferences={"peft": "1.0"}) == {"peft": "1.2"}
    assert ask(settings, index, "peft", constraints=("peft<1.2",)) == {"peft": "1.1"}


def test_markers_are_judged_for_the_target(index: PackageIndex, settings: Settings) -> None:
    index.wheel("a", "1.0", 'b; python_full_version < "3.11.3"', 'c; sys_platform == "win32"')
    index.wheel("b", "1.0")
    assert ask(settings, index, "a") == {"a": "1.0", "b": "1.0"}
    assert ask(settings, index, "a", target=replace(TARGET, python="3.11.4")) == {"a": "1.0"}


def test_an_impossible_cell_is_explained_in_uvs_words(index: PackageIndex, settings: Settings) -> None:
    index.wheel("vllm", "1.0", "torch==2.10")
    index.wheel("torch", "2.13")
    with raises("lock-unresolvable") as caught:
        ask(settings, index, "vllm", "torch==2.13")
    assert caught.value.why
    assert "vllm" in caught.value.why
    assert "torch==2.10" in caught.value.why
    assert "pyproject" not in caught.value.why


def test_credentials_are_not_shown(index: PackageIndex, settings: Settings) -> None:
    site = Site("http://me:secret@127.0.0.1:1/simple")
    settings = replace(settings, env={**settings.env, "UV_HTTP_RETRIES": "0"})
    with pytest.raises(FetchError) as caught:
        ask(settings, index, "torch", sites={"pypi": site})
    assert "secret" not in str(caught.value)


PAGE = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n"
BAD_INDEXES: dict[str, tuple[Behaviour, str]] = {
    "429": (status(429, Retry_After="3600"), "429 Too Many Requests"),
    "500": (status(500), "500 Internal Server Error"),
    "no HTTP": (raw(b"SSH-2.0\x1b[31m\r\n"), "invalid HTTP version"),
    "cut": (raw(b""), "connection closed"),
    "too short": (raw(PAGE + b"Content-Length: 1000\r\n\r\nabc"), "end of file before message length reached"),
    "no gzip": (raw(PAGE + b"Content-Encoding: gzip\r\n\r\nabc"), "error decoding response body"),
    "wrong types": (
        raw(b'HTTP/1.0 200 OK\r\nContent-Type: application/vnd.pypi.simple.v1+json\r\n\r\n{"files": 3}'),
        "unexpected JSON",
    ),
    "another type": (raw(b"HTTP/1.0 200 OK\r\nContent-Type: image/png\r\n\r\nabc"), "Unsupported `Content-Type`"),
    "a circle": (status(302, Location="/x"), "Content-Type"),
    "a redirect to a file": (status(302, Location="file:///etc/passwd"), "file:///etc/passwd"),
}


@pytest.mark.fault(
    "Network", "an index fails while a cell is locked", "uv's reason, the page's address, and what to set"
)
@pytest.mark.parametrize("kind", BAD_INDEXES)
def test_an_index_that_fails_is_named(kind: str, settings: Settings, server: Server) -> None:
    answer, said = BAD_INDEXES[kind]
    server.behaviours = [answer]
    settings = replace(settings, env={**settings.env, "UV_HTTP_RETRIES": "0"})
    site = Site(f"http://me:secret@{server.host}/simple")
    with raises("fetch-index-invalid") as caught:
        resolve(ResolveRequest(("torch",), TARGET, "2026-11-20T00:00:00Z", {}, {"pypi": site}), settings)
    assert server.host in str(caught.value)
    assert said in str(caught.value)
    assert "UV_DEFAULT_INDEX" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.fault("Network", "an index drips while a cell is locked", "given up after half an hour")
def test_an_index_that_drips_ends(settings: Settings, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[resolve.__module__], "TIMEOUT", 1)
    server.behaviours = [drip(PAGE + b"Content-Length: 10000\r\n\r\n" + bytes(10_000), 0.01)]
    site = Site(f"http://{server.host}/simple")
    with raises("fetch-resolution-timeout"):
        resolve(ResolveRequest(("torch",), TARGET, "2026-11-20T00:00:00Z", {}, {"pypi": site}), settings)


@pytest.mark.parametrize("text", ["torch @ file:///tmp/x.whl", "torch==", "x\n--find-links /tmp"])
def test_odd_requirements_are_refused(text: str, index: PackageIndex, settings: Settings) -> None:
    with raises("lock-unresolvable"):
        ask(settings, index, text)


def test_uv_reads_nothing_of_the_users(index: PackageIndex, settings: Settings, tmp_path: Path) -> None:
    other = PackageIndex(tmp_path / "other")
    other.wheel("peft", "9.0")
    index.wheel("peft", "1.0")
    (tmp_path / ".config" / "uv").mkdir(parents=True)
    (tmp_path / ".config" / "uv" / "uv.toml").write_text(f'find-links = ["{other.root / "peft"}"]\n')
    env = {**settings.env, "UV_FIND_LINKS": str(other.root / "peft"), "PIP_FIND_LINKS": str(other.root / "peft")}
    assert ask(replace(settings, env=env), index, "peft") == {"peft": "1.0"}


def test_target_of_a_base() -> None:
    assert WheelTarget.of("linux/amd64", "2.36", "3.11.2") == TARGET
    assert WheelTarget.of("linux/arm64", "2.36", "3.11") == WheelTarget("3.11", "aarch64", 36)
    assert WheelTarget.of("linux/amd64", "2.41", "3.11.2").uv_platform == "x86_64-manylinux_2_40"
    with raises("lock-glibc-unsupported"):
        WheelTarget.of("linux/riscv64", "2.36", "3.11")


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ("x-1.0-py3-none-any.whl", "x-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        ("x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        ("x-1.0-cp39-abi3-manylinux2014_x86_64.whl", "x-1.0-cp311-cp311-manylinux2014_x86_64.whl"),
        ("x-1.0-9-py3-none-any.whl", "x-1.0-10-py3-none-any.whl"),
        ("x-1.0-py3-none-any.whl", "x-1.0-1-py3-none-any.whl"),
    ],
)
def test_the_best_wheel(worse: str, better: str) -> None:
    assert TARGET.best([(worse, worse), (better, better)]) == better
    assert TARGET.best([(better, better), (worse, worse)]) == better


@pytest.mark.parametrize(
    "name",
    [
        "x-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "x-1.0-cp311-cp311-manylinux_2_39_x86_64.whl",
        "x-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "x-1.0-cp311-cp311-win_amd64.whl",
        "x-1.0.tar.gz",
    ],
)
def test_wheels_that_do_not_fit(name: str) -> None:
    assert TARGET.best([(name, name)]) is None


@given(st.integers(17, 60))
def test_manylinux_fits_up_to_the_glibc_of_the_base(minor: int) -> None:
    tag = Tag("cp311", "cp311", f"manylinux_2_{minor}_x86_64")
    assert (tag in TARGET.ranks) == (minor <= TARGET.glibc)


def test_a_stand_in_is_exactly_the_release(settings: Settings, tmp_path: Path) -> None:
    place = tmp_path / "links"
    place.mkdir()
    settings = replace(settings, find_links=(str(tmp_path / "none"), place.as_uri()))
    for name in (
        "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cu130-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
    ):
        (place / name).touch()
    assert find_local_wheel(settings, "torch", "2.13.0+cpu", TARGET) is None
    right = place / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    right.touch()
    assert find_local_wheel(settings, "torch", "2.13.0+cpu", TARGET) == right
    (place / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_17_x86_64.whl").touch()
    assert find_local_wheel(settings, "torch", "2.13.0+cpu", TARGET) is None


def test_a_release_with_only_an_sdist_is_no_candidate_where_another_has_a_wheel(
    index: PackageIndex, settings: Settings
) -> None:
    """`code` needs its backend for its metadata, `static` has it in PKG-INFO; newer releases of both are sdists."""
    for name, files in (
        ("code", {"setup.py": "raise SystemExit"}),
        ("static", {"PKG-INFO": "Metadata-Version: 2.2\nName: static\nVersion: 2.0\n"}),
    ):
        index.wheel(name, "1.0")
        index.sdist(name, "2.0", files)
    assert ask(settings, index, "code", "static") == {"code": "1.0", "static": "1.0"}
    assert ask(settings, index, "static==2.0") == {"static": "2.0"}
    with raises("lock-sdist-metadata"):
        ask(settings, index, "code==2.0")


def test_wheels_of_other_packages_do_not_replace_a_package(index: PackageIndex, settings: Settings) -> None:
    """Without sdists of the runtime, only an old hydra that does not need it would be left."""
    index.sdist("runtime", "4.9.3", {"setup.py": "raise SystemExit"})
    index.wheel("runtime", "4.13")
    index.wheel("hydra", "0.1")
    index.wheel("hydra", "1.3", "runtime==4.9.*")
    with raises("lock-sdist-metadata") as caught:
        ask(settings, index, "hydra")
    assert isinstance(caught.value, SdistMetadataError) and caught.value.release == ("runtime", "4.9.3")
    assert ask(settings, index, "hydra", only_wheels=("runtime",)) == {"hydra": "0.1"}
