"""The topmost layer: what is in it, with which modes, what moves it, and that both ways of building say the same."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from packaging.requirements import Requirement

from imagegen import spec as matrix
from imagegen.checks.preflight.model import image_from_json
from imagegen.compat.evaluate import evaluate
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base as image_base
from imagegen.image import folder
from imagegen.image.layers import assembly as assembling
from imagegen.image.layers import byte_code, support
from imagegen.image.layers.byte_code import Compiler
from imagegen.image.layers.image_config import image, labels
from imagegen.image.layers.plan import plan
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.model import Lock, LockedGit, LockedSdist
from imagegen.oci.documents import LayerDescriptor
from imagegen.spec.model import EnvVar
from tests.support.layer_inputs import HostSandbox, lock_of, locked
from tests.support.tiny_lock import CUDA, LOCK

Member = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store whose base is nothing, and byte-code from the interpreter of the tests."""
    store = Store(tmp_path / "store")
    base_layer = LayerDescriptor.of_tar(store.write(bytes(1024)), 1024)
    monkeypatch.setattr(byte_code, "Sandbox", HostSandbox)
    monkeypatch.setattr(image_base, "build", lambda *_: base_layer)
    monkeypatch.setattr(image_base, "rootfs", lambda *_: tmp_path)
    return store


def top(lock: Lock, store: Store) -> dict[str, Member]:
    """The members of the topmost layer."""
    settings = Settings.from_environment({"HOME": str(store.root.parent)})
    layer = assembling.assemble(lock, Context(store, settings, Quiet())).layers[-1]
    assert layer.name == "support"
    raw = zstandard.ZstdDecompressor().stream_reader(store.path(layer.digest).read_bytes(), read_across_frames=True)
    with tarfile.open(fileobj=io.BytesIO(raw.read())) as tar:
        return {member.name: (member, contents(tar, member)) for member in tar}


def contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member) if member.isreg() else None
    return file.read() if file else b""


def test_modes_are_what_any_user_needs(store: Store) -> None:
    found = {name: member for name, (member, _) in top(lock_of(), store).items()}
    for name in ("home/user", "home/user/.cache", "workspace"):
        assert (found[name].mode, found[name].isdir()) == (0o1777, True)
    for name in ("opt", "opt/imagegen", "home"):
        assert (found[name].mode, found[name].isdir()) == (0o755, True)
    assert "root" not in found, "root's home keeps the mode that the base gives it"
    assert (found["root/.cache"].issym(), found["root/.cache"].linkname) == (True, "/home/user/.cache")
    programs = {name for name, member in found.items() if member.isreg() and member.mode & stat.S_IXUSR}
    assert programs == {"opt/imagegen/entrypoint", "opt/imagegen/doctor"}


def test_the_programs_run_under_the_bases_interpreter_and_see_nothing_of_the_user(store: Store) -> None:
    found = top(lock_of(), store)
    for name in ("entrypoint", "doctor"):
        assert found[f"opt/imagegen/{name}"][1].startswith(b"#!/usr/bin/python3.11 -BIS\n")


def test_every_module_has_byte_code(store: Store) -> None:
    found = top(lock_of(), store)
    modules = {name for name in found if name.startswith("opt/imagegen/preflight/") and name.endswith(".py")}
    assert "opt/imagegen/preflight/gpu_checks.py" in modules
    assert len(modules) == len([name for name in found if name.endswith(".pyc")])


def test_the_constraints_are_all_of_the_stack() -> None:
    lines = [line for line in support.constraints(LOCK).splitlines() if not line.startswith("#")]
    assert [str(Requirement(line)) for line in lines] == [f"{each.name}=={each.version}" for each in LOCK.wheels]
    assert "torch==2.13.0+cpu" in lines


def test_the_facts_say_which_gpus_and_which_driver() -> None:
    facts = support.image_facts(CUDA)
    assert (facts.cuda, facts.gpus, facts.driver) == ("13.0", ("9.0", "12.0"), "580.65.06")
    assert facts.packages["torch"] == "2.13.0+cpu"
    cpu = support.image_facts(LOCK)
    assert (cpu.cuda, cpu.gpus, cpu.driver) == (None, (), None)


def test_what_the_image_reads_is_what_was_written() -> None:
    file = next(file for file in support.support_files(CUDA) if file.path.endswith("image.json"))
    assert image_from_json(json.loads(file.content)) == support.image_facts(CUDA)


def test_the_config_starts_with_the_entrypoint_and_the_labels_have_the_floor() -> None:
    config = json.loads(image(CUDA, ()).config)["config"]
    assert (config["Entrypoint"], config["Cmd"]) == (["/opt/imagegen/entrypoint"], ["/bin/bash"])
    assert {"HOME=/home/user", "LOGNAME=user", "PIP_CONSTRAINT=/opt/imagegen/constraints.txt"} <= set(config["Env"])
    assert labels(CUDA)["dev.imagegen.gpu.capabilities"] == "9.0,12.0"
    assert labels(CUDA)["dev.imagegen.gpu.driver"] == "580.65.06"
    assert not [name for name in labels(LOCK) if "gpu" in name]


def test_the_labels_name_the_main_versions_and_the_title_is_fit_for_a_tag() -> None:
    found = labels(CUDA)
    assert found["org.opencontainers.image.version"] == "torch2.13.0-cu130-py311"
    assert found["dev.imagegen.version.torch"] == "2.13.0+cpu"
    assert not [name for name in found if name.endswith(("base.name", "base.digest"))]  # of Debian's packages


def test_a_lock_may_choose_another_home() -> None:
    lock = replace(LOCK, env=(EnvVar("HOME", "/data", "It is mounted there."),))
    assert "HOME=/data" in json.loads(image(lock, ()).config)["config"]["Env"]


def test_a_moved_version_moves_the_top_alone(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = locked(store, tmp_path, "one", {"one.py": b"x = 1\n"})
    first, second = lock_of(wheel), lock_of(replace(wheel, version="2.0"))
    differing = [a.name for a, b in zip(plan(first), plan(second), strict=True) if a.key != b.key]
    assert differing == ["support"]
    before = top(first, store)
    compiled: list[Any] = []
    monkeypatch.setattr(Compiler, "submit", lambda _, sources: compiled.append(sources))
    after = top(second, store)
    assert not compiled, "the byte-code of the programs is kept"
    moved = {name for name, (_, content) in before.items() if after[name][1] != content}
    assert moved == {"opt/imagegen/constraints.txt", "opt/imagegen/image.json"}


def test_the_folder_of_a_plain_build_has_the_layers_files(store: Store, tmp_path: Path) -> None:
    directory = tmp_path / "support"
    umask = os.umask(0o077)
    try:
        folder.write_support(lock_of(), directory)
    finally:
        os.umask(umask)
    layer = {name: each for name, each in top(lock_of(), store).items() if name.startswith("opt/imagegen/")}
    files = {name: (member.mode, content) for name, (member, content) in layer.items() if member.isreg()}
    written = {
        f"opt/imagegen/{path.relative_to(directory)}": (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }
    assert written == {name: each for name, each in files.items() if not name.endswith(".pyc")}
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_dir()} == {0o755}


def test_nvcc_from_wheels_lies_where_compilers_look_for_it() -> None:
    """Torch 2.11's cpp_extension and FlashInfer 0.6 link with -L$CUDA_HOME/lib64 -lcudart; the wheels have neither."""
    wheel = CUDA.wheels[0]
    named = [replace(wheel, name=name) for name in ("nvidia-cuda-nvcc", "nvidia-cuda-runtime")]
    home = "/opt/venv/lib/python3.11/site-packages/nvidia/cu13"
    assert support.support_links(replace(CUDA, wheels=tuple(named))) == {
        **support.LINKS,
        "/usr/local/cuda": home,
        f"{home}/lib64": "lib",
        f"{home}/lib/libcudart.so": "libcudart.so.13",
    }
    saver = replace(CUDA, wheels=(*named, replace(wheel, name="torch-memory-saver")))
    assert support.support_links(saver)["/usr/lib/x86_64-linux-gnu/libcudart.so.13"] == f"{home}/lib/libcudart.so.13"
    assert support.support_links(replace(CUDA, wheels=tuple(named[1:]))) == dict(support.LINKS)  # no compiler
    assert support.support_links(CUDA) == dict(support.LINKS)


def test_a_commit_is_distinguished_from_the_release_of_its_version() -> None:
    """PyPI's mbridge 0.15.1 breaks on megatron-core 0.18; commit 641a5a0, which says 0.15.1 too, does not."""
    loaded = matrix.load([shipped("matrices")])
    (rule,) = (rule for rule in loaded.rules if rule.id == "mbridge-megatron-core")
    cell = loaded.select_one("cpu-grpo")
    wheel = LOCK.wheels[0]
    core = replace(wheel, name="megatron-core", version="0.18.0")
    release = replace(wheel, name="mbridge", version="0.15.1", sdist=None)
    commit = LockedGit("641a5a0", "https://github.com/ISEEKYAN/mbridge", "6" * 40, "c" * 40)
    built = replace(release, sdist=LockedSdist(wheel.file, (), git=commit))
    for mbridge, answer in ((release, "incompatible"), (built, "compatible")):
        facts = facts_of_lock(replace(LOCK, wheels=(core, mbridge)), cell)
        assert evaluate([rule], facts).answer == answer
