"""Parts of an exported image, the files that a host unpacks from them, and the results of its checks."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from imagegen.checks.smoke.table import CHECKS
from imagegen.core.errors import SmokeError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image.layers import Image
from imagegen.run.smoke.passed import SmokeRequirement
from imagegen.run.smoke.report import CheckResult
from imagegen.run.smoke.runner import ROOT
from imagegen.spec.model import Declarations
from tests.support.elf_files import make_elf
from tests.support.environment_samples import combined
from tests.support.hostile_names import PATHS
from tests.support.image_layers import files_layer, image, layer, member
from tests.support.tiny_lock import LOCK
from tools.run_image import export, run_image
from tools.run_image.results import read_results

SMALL, LARGE = b"small", os.urandom(1 << 20) * 3


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def exported(
    store: Store, directory: Path, built: Image, inventory: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Write the parts of an export to `directory`, and return its description as run_image.py reads it."""
    directory.mkdir(parents=True)
    plan = export.plan(built, store, inventory, Quiet())
    order, parts = export.write_parts(plan, store, directory)
    for name in ("ROOT", "CONTENTS", "UNPACKED"):
        monkeypatch.setattr(run_image, name, directory / name.lower())
    monkeypatch.setattr(run_image, "HERE", directory)
    entries = export.described_entries(plan)
    return {"image": "sha256:image", "entries": entries, "present": plan.present, "contents": order, "parts": parts}


TREE = {"a/small": SMALL, "a/large": LARGE, "a/again": SMALL, "b/empty": b""}


@pytest.fixture
def built(store: Store) -> Image:
    link = layer(store, member("a/link", tarfile.SYMTYPE, "small"), member("a/tool", mode=0o755))
    return image(files_layer(store, TREE), link)


@pytest.mark.parametrize("part_bytes", [export.PART_BYTES, 1 << 20])
def test_a_host_unpacks_the_image(
    store: Store, tmp_path: Path, built: Image, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(export, "PART_BYTES", part_bytes)
    monkeypatch.setattr(export, "FRAME", 1 << 20)
    described = exported(store, tmp_path / "out", built, {}, monkeypatch)
    assert len(described["parts"]) == (1 if part_bytes == export.PART_BYTES and part_bytes > len(LARGE) else 4)
    run_image.unpack(described)
    root = tmp_path / "out" / "root"
    assert {path: (root / path).read_bytes() for path in TREE} == TREE
    assert (root / "a/link").readlink() == Path("small")
    assert (root / "a/tool").stat().st_mode & 0o777 == 0o755
    assert (root / "a").stat().st_mtime == 1_700_000_000
    assert (tmp_path / "out" / "unpacked").read_text() == "sha256:image\n"
    assert not (tmp_path / "out" / "contents").exists()


def test_hard_links_of_the_image_are_hard_links_on_the_host(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = files_layer(store, {"a/one": SMALL, "a/same": SMALL})
    high = layer(store, member("b", tarfile.DIRTYPE), member("b/two", tarfile.LNKTYPE, "a/one"))
    built = image(low, high)
    assert export.plan(built, store, {}, Quiet()).size == 2 * len(SMALL)
    run_image.unpack(exported(store, tmp_path / "out", built, {}, monkeypatch))
    root = tmp_path / "out" / "root"
    assert (root / "b/two").samefile(root / "a/one")
    assert not (root / "a/same").samefile(root / "a/one")
    assert (root / "b/two").read_bytes() == (root / "a/same").read_bytes() == SMALL


def test_an_export_describes_the_checks_of_each_environment(store: Store, tmp_path: Path, built: Image) -> None:
    lock = combined({"main": LOCK, "beside": LOCK})
    declared = Declarations(environments={"main": Declarations(), "beside": Declarations({"torch": ("torch",)})})
    directory = tmp_path / "out"
    export.write(export.plan(built, store, {}, Quiet()), lock, declared, directory, store, Quiet())
    described = json.loads(gzip.decompress((directory / "image.json.gz").read_bytes()))
    main, beside = described["environments"]
    assert (main["name"], beside["name"]) == ("main", "beside")
    assert main["activate"][2].startswith(". /opt/venv/bin/activate ")
    assert beside["activate"][2].startswith(". /opt/venvs/beside/bin/activate ")
    assert set(main["checks"]) >= {"imports", "versions"}
    specs = [json.loads(each["programs"][f"{ROOT}/spec.json"]) for each in (main, beside)]
    assert [each["prefix"] for each in specs] == ["/opt/venv", "/opt/venvs/beside"]
    assert [each["imports"] for each in specs] == [{}, {"torch": ["torch"]}]


def test_an_export_of_one_environment_starts_its_checks_as_they_are() -> None:
    (only,) = export.described_environments(LOCK, Declarations({"torch": ("torch",)}))
    assert (only["name"], only["activate"]) == ("", ())
    assert json.loads(only["programs"][f"{ROOT}/spec.json"])["imports"] == {"torch": ["torch"]}


def test_files_of_the_host_are_taken_once_they_are_verified(
    store: Store, tmp_path: Path, built: Image, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site").mkdir()
    own = tmp_path / "site" / "large"
    own.write_bytes(LARGE)
    run_image.write_inventory(tmp_path / "inventory.json", [str(tmp_path / "site")])
    inventory = json.loads((tmp_path / "inventory.json").read_text())
    described = exported(store, tmp_path / "out", built, inventory, monkeypatch)
    assert sum(size for _, size in described["contents"]) == len(SMALL)
    run_image.unpack(described)
    assert (tmp_path / "out/root/a/large").read_bytes() == LARGE
    (tmp_path / "out/unpacked").unlink()
    own.write_bytes(LARGE[:-1] + bytes([LARGE[-1] ^ 1]))
    with pytest.raises(SystemExit, match="a/large: another sha256"):
        run_image.unpack(described)
    assert not (tmp_path / "out/unpacked").exists()
    own.unlink()
    with pytest.raises(SystemExit, match=r"a/large: .*No such file"):
        run_image.unpack(described)


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_damaged_part_is_no_image(
    store: Store, tmp_path: Path, built: Image, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    described = exported(store, tmp_path / "out", built, {}, monkeypatch)
    part = tmp_path / "out" / described["parts"][0]["file"]
    data = part.read_bytes()
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(data[:-9] if damage == "cut" else data[:2000] + bytes([data[2000] ^ 1]) + data[2001:])
    with pytest.raises(SystemExit, match=r"part-000\.zst|not the image's"):
        run_image.unpack(described)
    assert not (tmp_path / "out/unpacked").exists()


FILE = {"kind": "file", "mode": 0o755, "uid": os.getuid(), "gid": os.getgid(), "mtime": 0}
EMPTY = hashlib.sha256().hexdigest()


def described(path: str, kind: str = "file", **more: str) -> dict[str, Any]:
    content = {"sha256": EMPTY, "size": 0} if kind == "file" else {}
    return {**FILE, **content, "path": path, "kind": kind, **more}


HOSTILE = {
    **{f"a file {name!r}": [described(name)] for name in (*PATHS, "/abs", "", "a\0b", "a" * 5000)},
    **{f"a directory {name!r}": [described("a", "directory"), described(name, "directory")] for name in PATHS},
    **{f"a hard link to {name!r}": [described("a"), described("b", link=name)] for name in (*PATHS, "/etc/passwd")},
    "a file behind a link": [described("d", "symlink", target="/tmp"), described("d/x")],
    "a file behind two links": [
        described("d", "directory"),
        described("d/e", "symlink", target=".."),
        described("d/e/x", "directory"),
        described("d/e/x/y"),
    ],
    "a link where a directory was": [
        described("d", "directory"),
        described("d", "symlink", target="/tmp"),
        described("d/x"),
    ],
    "a hard link to a link": [described("a", "symlink", target="/etc/passwd"), described("b", link="a")],
    "a hard link to a directory": [described("a", "directory"), described("b", link="a")],
    "a hard link to a file that comes later": [described("a", link="b"), described("b")],
    "a file in no directory": [described("a/b")],
    "a file in a file": [described("a"), described("a/b")],
    "a device": [described("a", "device")],
    "a link to nothing": [described("a", "symlink", target="")],
    "a link to a NUL": [described("a", "symlink", target="a\0")],
    "a long link": [described("a", "symlink", target="a" * 5000)],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_host_writes_nothing_outside_of_the_root(
    entries: list[dict[str, Any]], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = exported(
        store,
        tmp_path / "deep/out",
        built=Image("sha256:image", b"{}", b"{}", ()),
        monkeypatch=monkeypatch,
        inventory={},
    )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match="has the entry"):
        run_image.unpack({**image, "entries": entries, "contents": [(EMPTY, 0)]})
    assert sorted(tmp_path.rglob("*")) == before


def test_a_part_larger_than_the_contents_is_not_unpacked(
    store: Store, tmp_path: Path, built: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would be written behind the memory that the contents have."""
    image = exported(store, tmp_path / "out", built, {}, monkeypatch)
    image["parts"][0]["offset"] = image["parts"][0]["bytes"] - 10
    with pytest.raises(ValueError, match="Buffer size too small"):
        run_image.unpack(image)


REQUIRED = SmokeRequirement("sha256:image", "sha256:suite", gpu=True)
ROWS = {"": tuple(check for check in CHECKS if check.name in ("versions", "cuda"))}


def test_the_driver_s_libraries_are_mounted_and_linked_for_a_linker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashInfer compiles kernels at run time and links them with -lcuda, which needs a file libcuda.so."""
    host, libraries = tmp_path / "host", tmp_path / "libraries"
    libraries.mkdir()
    host.mkdir()
    monkeypatch.setattr(run_image, "LIBRARIES", str(libraries).lstrip("/"))
    for name in ("libcuda.so.1", "libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05", "libEGL_nvidia.so.580.95.05"):
        (host / name).touch()
    monkeypatch.setattr(run_image, "driver_version", lambda: "580.95.05")
    monkeypatch.setattr(run_image, "library_path", lambda name: host / name)
    mounted: dict[str, str] = {}
    monkeypatch.setattr(run_image, "bind", lambda source, target, **_: mounted.update({target: f"/{source}"}))
    for _ in range(2):
        run_image.add_driver(run_image.driver_files())
    found = {path: source for path, source in mounted.items() if path.startswith(str(libraries))}
    names = ("libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05")
    assert found == {str(libraries / name): str(host / name) for name in names}
    assert (libraries / "libcuda.so").readlink() == Path("libcuda.so.1")


def test_a_driver_that_a_cloud_mounts_is_found_without_the_loaders_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "libimagegen-test.so.1"
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / name).write_bytes(make_elf(soname=name))
    with pytest.raises(OSError, match=name):
        run_image.library_path(name)
    monkeypatch.setattr(run_image, "MOUNTED", str(tmp_path))
    assert run_image.library_path(name) == tmp_path / "lib64" / name


ENVIRONMENTS = [
    {"name": "one", "activate": ["env", "A=1"], "checks": ["versions", "cuda"], "programs": {"/a": "1"}},
    {"name": "two", "activate": ["env", "A=2"], "checks": ["versions"], "programs": {"/a": "2"}},
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """The programs that `run_image.test` starts, in the place of containers: each passes the first check alone."""
    found: list[tuple[str, ...]] = []

    def enter(image: dict[str, Any], programs: dict[str, str], argv: list[str], directory: str, stdout: int) -> int:
        found.append((programs["/a"], *argv[:2], *argv[argv.index("--seconds") + 2 :]))
        answer = {"check": argv[-1], "status": "pass", "seconds": 1.0, "reason": "", "details": {}}
        os.write(stdout, f"{json.dumps(answer)}\n".encode())
        return os.getpid()

    monkeypatch.setattr(run_image, "enter", enter)
    monkeypatch.setattr(os, "waitpid", lambda process, _: (process, 0))
    monkeypatch.setattr(run_image, "RESULTS", tmp_path / "results.json")
    return found


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ([], [("1", "env", "A=1", "versions", "cuda"), ("2", "env", "A=2", "versions")]),
        (["cuda"], [("1", "env", "A=1", "cuda")]),
        (["versions"], [("1", "env", "A=1", "versions"), ("2", "env", "A=2", "versions")]),
        (["two: versions"], [("2", "env", "A=2", "versions")]),
        (["two: numerics"], [("2", "env", "A=2", "numerics")]),
    ],
)
def test_checks_run_in_the_environments_that_have_them(
    started: list[tuple[str, ...]], tmp_path: Path, named: list[str], expected: list[tuple[str, ...]]
) -> None:
    described = {"image": "i", "cell": "c", "suite": "s", "environments": ENVIRONMENTS}
    code = run_image.test(described, named, time.monotonic() + 60)
    assert started == expected
    found = {each["check"]: each["status"] for each in json.loads((tmp_path / "results.json").read_text())["results"]}
    names = {"1": "one", "2": "two"}
    assert found == {
        f"{names[each[0]]}: {check}": "pass" if check == each[-1] else "fail" for each in expected for check in each[3:]
    }
    assert code == int("fail" in found.values())


def test_results_of_the_only_environment_have_the_names_of_the_checks(
    started: list[tuple[str, ...]], tmp_path: Path
) -> None:
    only = {**ENVIRONMENTS[1], "name": "", "activate": []}
    described = {"image": "i", "cell": "c", "suite": "s", "environments": [only]}
    assert run_image.test(described, ["numerics"], time.monotonic() + 60) == 0
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (result["check"], started) == ("numerics", [("2", "python", "-m", "numerics")])


def test_a_check_that_no_environment_has_is_refused(started: list[tuple[str, ...]]) -> None:
    with pytest.raises(SystemExit, match="three: cuda"):
        run_image.test({"environments": ENVIRONMENTS}, ["cuda", "three: cuda"], time.monotonic() + 60)
    assert not started


def results(tmp_path: Path, *found: CheckResult, **other: str) -> Path:
    path = tmp_path / "results.json"
    head = {"format": 1, "image": REQUIRED.image, "suite": REQUIRED.programs, **other}
    path.write_text(json.dumps({**head, "results": [asdict(each) for each in found]}))
    return path


def test_results_of_another_host_become_a_report(tmp_path: Path) -> None:
    path = results(tmp_path, CheckResult("cuda", "pass", 2.0), CheckResult("versions", "pass", 1.0))
    report = read_results(path, REQUIRED, ROWS, "cell")
    assert report.passed
    assert [result.check for result in report.results] == ["versions", "cuda"]


def test_a_check_that_did_not_run_has_failed(tmp_path: Path) -> None:
    report = read_results(results(tmp_path, CheckResult("versions", "pass", 1.0)), REQUIRED, ROWS, "cell")
    assert [result.status for result in report.results] == ["pass", "fail"]


def test_a_skipped_check_fails_where_a_gpu_is_required(tmp_path: Path) -> None:
    path = results(tmp_path, CheckResult("cuda", "skip", 0.1, "no GPU"), CheckResult("versions", "pass", 1.0))
    assert [result.status for result in read_results(path, REQUIRED, ROWS, "cell").results] == ["pass", "fail"]


def test_results_of_several_environments_become_one_report(tmp_path: Path) -> None:
    one, two = CheckResult("one: cuda", "pass", 2.0), CheckResult("two: versions", "pass", 1.0)
    checks = {"one": ROWS[""], "two": ROWS[""]}
    report = read_results(results(tmp_path, two, one), REQUIRED, checks, "cell")
    assert [(result.check, result.status) for result in report.results] == [
        ("one: versions", "fail"),
        ("one: cuda", "pass"),
        ("two: versions", "pass"),
        ("two: cuda", "fail"),
    ]


def test_an_environment_of_which_every_check_was_skipped_has_failed(tmp_path: Path) -> None:
    skipped = CheckResult("two: cuda", "skip", 0.1, "no GPU")
    path = results(tmp_path, CheckResult("one: versions", "pass", 1.0), skipped)
    checks = {"one": ROWS[""][:1], "two": ROWS[""][1:]}
    report = read_results(path, replace(REQUIRED, gpu=False), checks, "cell")
    assert [(result.check, result.status) for result in report.results] == [
        ("one: versions", "pass"),
        ("two: checks", "fail"),
    ]


@pytest.mark.parametrize("other", [{"image": "sha256:other"}, {"suite": "sha256:other"}])
def test_results_of_another_image_are_refused(tmp_path: Path, other: dict[str, str]) -> None:
    with pytest.raises(SmokeError) as caught:
        read_results(results(tmp_path, **other), REQUIRED, ROWS, "cell")
    assert caught.value.where == str(tmp_path / "results.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": 1}', "[" * 100_000])
def test_a_file_without_results_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(SmokeError):
        read_results(path, REQUIRED, ROWS, "cell")
