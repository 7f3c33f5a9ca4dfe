"""tools.harvest --torch-exports: a release of torch into the index of exports, from a wheel or the package index."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path

import pytest

from imagegen.audit.torch_exports import ExportIndex as Exports
from imagegen.audit.torch_exports import loads
from imagegen.cli import main
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import ImagegenError, StoreError, UsageError, WheelError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from tests.support import command_line
from tests.support.elf_files import AARCH64, X86_64, make_elf
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.package_index import Index
from tools.harvest import torch_exports
from tools.harvest.__main__ import command
from tools.harvest.torch_exports import dumps

NAME = "torch-2.16.0-cp311-cp311-manylinux_2_28_x86_64.whl"
BEFORE = Exports(("2.15.0",), {"torch_list_size": 1, "_ZN2at4goneEv": 1})
NAMES = ["_ZN2at5emptyEv", "torch_list_size", "aoti_torch_new", "not_torchs_own"]


def wheel(machine: int = X86_64, **members: bytes) -> bytes:
    """A wheel of torch with two libraries, and `members` of torch/lib, _ for every dot, instead of some."""
    libraries = {
        "libtorch_cuda.so": make_elf(machine=machine, exported=NAMES[:1]),
        "libtorch_cpu.so": make_elf(machine=machine, exported=NAMES[1:]),
    }
    libraries |= {name.replace("__", "."): content for name, content in members.items()}
    temporary = io.BytesIO()
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in libraries.items():
            archive.writestr(f"torch/lib/{name}", content)
        archive.writestr("torch/lib/libnote.txt", "no library")
        archive.writestr("torch/_C.so", make_elf(exported=["torch_of_python"]))
    return temporary.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "torch-exports.zst"
    path.write_bytes(dumps(BEFORE))
    return path


@pytest.fixture
def settings(index: Index, tmp_path: Path) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path), "PIP_INDEX_URL": index.url})


def add(requested: str, settings: Settings, path: Path) -> torch_exports.Added:
    """Add a release for x86-64 to `path`, and one for arm64 to a file beside it; return the first that was added."""
    return torch_exports.add(requested, Context(Store(settings.store), settings, Quiet()), paths(path))[0]


def paths(path: Path) -> dict[str, Path]:
    return {"x86_64": path, "aarch64": path.parent / "aarch64.zst"}


def saved(folder: Path, content: bytes, name: str = NAME) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def offer(index: Index, content: bytes, *names: str) -> None:
    digest = hashlib.sha256(content).hexdigest()
    links = [f'<a href="/files/{name}#sha256={digest}">{name}</a>' for name in names]
    index.pages["/simple/torch/"] = "<br>".join(links).encode()
    index.files |= {f"/files/{name}": content for name in names}


def test_a_wheels_exports_become_a_release_once(settings: Settings, path: Path, tmp_path: Path) -> None:
    requested = saved(tmp_path, wheel())
    added = add(requested, settings, path)
    assert (added.release, added.names, added.written) == ("2.16.0", 3, True)
    after = loads(path.read_bytes())
    assert after.releases == ("2.15.0", "2.16.0")
    assert after.of_release("2.16.0") == set(NAMES[:3])
    assert after.of_release("2.15.0") == set(BEFORE.names)
    once = path.stat()
    assert not add(requested, settings, path).written
    assert path.stat() == once


def test_a_release_for_each_processor(settings: Settings, index: Index, path: Path) -> None:
    arm64 = NAME.replace("x86_64", "aarch64")
    paths(path)["aarch64"].write_bytes(dumps(Exports()))
    index.files |= {f"/files/{NAME}": wheel(), f"/files/{arm64}": wheel(AARCH64)}
    index.pages["/simple/torch/"] = "<br>".join(
        f'<a href="{place}#sha256={hashlib.sha256(content).hexdigest()}">{place[7:]}</a>'
        for place, content in index.files.items()
    ).encode()
    added = torch_exports.add("2.16.0", Context(Store(settings.store), settings, Quiet()), paths(path))
    assert [(each.machine, each.release, each.names) for each in added] == [
        ("x86_64", "2.16.0", 3),
        ("aarch64", "2.16.0", 3),
    ]
    assert loads(paths(path)["aarch64"].read_bytes()).releases == ("2.16.0",)


def test_the_release_of_an_index(settings: Settings, index: Index, path: Path) -> None:
    others = [
        *(
            "torch-2.16.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
            "torch-2.16.1-cp311-cp311-manylinux_2_28_x86_64.whl",
        ),
        "torch-2.16.0-cp311-cp311-win_amd64.whl",
        *("torch-2.16.0-cp313-cp313-manylinux_2_28_x86_64.whl", "torch-2.16.0.tar.gz", "torch-what.whl"),
    ]
    offer(index, wheel(), *others, NAME)
    assert add("2.16.0", settings, path).written
    assert {requested for _, requested, _ in index.requested} == {"/simple/torch/", f"/files/{NAME}"}
    with raises("fetch-no-release"):
        add("2.17.0", settings, path)
    index.files[f"/files/{NAME}"] = wheel() + b"x"
    with raises("fetch-digest-mismatch"):
        torch_exports.add("2.16.0", Context(Store(settings.store / "new"), settings, Quiet()), paths(path))


@pytest.mark.parametrize(
    ("content", "name", "kind", "says"),
    [
        (b"no zip", NAME, WheelError, "the wheel cannot be read"),
        (wheel(libbad__so=b"\x7fELF\2\1\1" + b"\0" * 8), NAME, WheelError, "the wheel cannot be read"),
        (wheel(libarm__so=make_elf(machine=AARCH64)), NAME, WheelError, "a library in it is not for x86_64"),
        (
            wheel().replace(b"libtorch_cuda", b"libtorch_none"),
            NAME,
            WheelError,
            "the wheel has no torch/lib/libtorch_cuda.so",
        ),
        (
            b"",
            NAME.replace("torch-", "torchvision-"),
            UsageError,
            "is not a wheel of torch for Linux on x86_64 or aarch64",
        ),
        (b"", NAME.replace("x86_64", "ppc64le"), UsageError, "is not a wheel of torch for Linux on x86_64 or aarch64"),
        (b"", "torch.whl", UsageError, "is not the file name of a wheel"),
    ],
)
def test_what_is_no_such_wheel(
    settings: Settings, path: Path, tmp_path: Path, content: bytes, name: str, kind: type[ImagegenError], says: str
) -> None:
    with pytest.raises(kind) as caught:
        add(saved(tmp_path, content, name), settings, path)
    assert says in str(caught.value)
    assert path.read_bytes() == dumps(BEFORE)


def test_what_is_neither_a_release_nor_a_wheel_nor_there(settings: Settings, path: Path, tmp_path: Path) -> None:
    with raises("usage-invalid-value"):
        add("newest", settings, path)
    with raises("wheel-unreadable"):
        add(str(tmp_path / NAME), settings, path)


@pytest.mark.parametrize("content", [None, b"another file"])
def test_an_index_that_is_none(settings: Settings, tmp_path: Path, content: bytes | None, golden: Golden) -> None:
    path = tmp_path / "exports.zst"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        add(saved(tmp_path, wheel()), settings, path)
    golden.check(caught.value)


def test_on_the_command_line(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    command_line.keep_signals(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch_exports, "add", functools.partial(torch_exports.add, paths=paths(path)))

    def run(*arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", ["tools.harvest", "--torch-exports", *arguments])
        with pytest.raises(SystemExit) as ended:
            main(command)
        return ended.value.code

    requested = saved(tmp_path, wheel())
    assert run(requested, "--json") == 0
    lines = capsys.readouterr()
    release = {"release": "2.16.0", "machine": "x86_64"}
    assert json.loads(lines.out) == [{**release, "path": str(path), "names": 3, "written": True}]
    assert run(requested) == 0
    repeated = capsys.readouterr()
    assert run(requested, "torch") == 64
    golden.check(lines.err, repeated.err, capsys.readouterr().err)
