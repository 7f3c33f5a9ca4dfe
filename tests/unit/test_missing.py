"""The files that a build of a cell lacks here: one address each, and no request is sent."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import spec as matrix
from imagegen.app import missing_sources
from imagegen.core.config import Settings
from imagegen.core.data import shipped
from imagegen.core.store import Store
from imagegen.lock.interpreter import InterpreterArchive, LockedInterpreter
from imagegen.lock.model import URL, Lock, LockedFile
from imagegen.spec.model import Cell
from imagegen.wheels import catalogue
from tests.support.shipped_locks import shipped_lock

LOCK = shipped_lock("hopper-vllm-cu130-py311")
ARCHIVE = InterpreterArchive("cpython-3.12.tar.gz", hashlib.sha256(b"a").hexdigest(), "https://example.org/c.tar.gz")
STANDALONE = LockedInterpreter("standalone-3.12", "3.12.14", "/opt/python/3.12/bin/python3.12", "20260814", ARCHIVE)
PYTORCH = "https://download.pytorch.org/whl/cu128"
IMAGE = "docker.io/nvidia/cuda:12.8.1-devel-ubuntu22.04"


def here(tmp_path: Path, env: Mapping[str, str]) -> tuple[Store, Settings]:
    settings = Settings.from_environment({"XDG_CACHE_HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null", **env})
    return Store(settings.store), settings


def of_lock(lock: Lock, tmp_path: Path, **env: str) -> tuple[str, ...]:
    return missing_sources.missing_of_lock(lock, *here(tmp_path, env))


def of_cell(name: str, tmp_path: Path, **env: str) -> tuple[str, ...]:
    known = catalogue.load([shipped("wheels")])
    return missing_sources.missing_of_cell(cells()[name], *here(tmp_path, env), known)


@functools.cache
def cells() -> dict[str, Cell]:
    """Return the shipped cells by id, with the recipes of source builds."""
    return {each.id: each for each in matrix.load([shipped("matrices"), shipped("wheels")]).all_cells}


def test_the_default_index_and_debian_count_as_there(tmp_path: Path) -> None:
    assert of_lock(LOCK, tmp_path) == ()
    assert of_cell("verl06-vllm-cu128-py311", tmp_path) == ()


def test_a_standalone_interpreter_is_taken_from_store_links_or_mirror(tmp_path: Path) -> None:
    lock = replace(LOCK, interpreter=STANDALONE)
    assert of_lock(lock, tmp_path / "a") == (ARCHIVE.url,)
    assert of_lock(lock, tmp_path / "a", UV_PYTHON_INSTALL_MIRROR="https://mirror.example.org") == ()
    assert of_lock(lock, tmp_path / "a", IMAGEGEN_MIRROR="/mirror") == ()
    (tmp_path / "links").mkdir()
    assert of_lock(lock, tmp_path / "a", PIP_FIND_LINKS=str(tmp_path / "links")) == (ARCHIVE.url,)
    (tmp_path / "links" / ARCHIVE.filename).touch()
    assert of_lock(lock, tmp_path / "a", PIP_FIND_LINKS=str(tmp_path / "links")) == ()
    store, settings = here(tmp_path / "b", {})
    store.write(b"a")
    assert missing_sources.missing_of_lock(lock, store, settings) == ()


@pytest.mark.parametrize(
    ("file", "needed"),
    [
        (
            LockedFile("a-1-py3-none-any.whl", 1, "1" * 64, URL, url="https://example.org/a.whl"),
            "https://example.org/a.whl",
        ),
        (
            LockedFile("a-1+cu128-py3-none-any.whl", 1, "2" * 64, "pytorch-cu128"),
            "index pytorch-cu128: a-1+cu128-py3-none-any.whl",
        ),
    ],
)
def test_a_wheel_of_another_host_is_one_address(file: LockedFile, needed: str, tmp_path: Path) -> None:
    wheel = replace(LOCK.wheels[0], file=file)
    assert of_lock(replace(LOCK, wheels=(wheel, *LOCK.wheels)), tmp_path) == (needed,)
    named = of_lock(replace(LOCK, wheels=(wheel,)), tmp_path, IMAGEGEN_INDEX_PYTORCH_CU128="https://mirror.example.org")
    assert named == (() if file.url is None else (needed,))


def test_a_cell_without_a_lock_names_what_its_matrix_needs(tmp_path: Path) -> None:
    assert of_cell("verl06-vllm-cu128-py310-nvidia", tmp_path) == (IMAGE,)
    assert (
        of_cell("verl06-vllm-cu128-py310-nvidia", tmp_path, IMAGEGEN_REGISTRY_DOCKER_IO="https://m.example.org") == ()
    )
    assert of_cell("arpo-vllm-cu128-py311", tmp_path) == (PYTORCH,)
    assert of_cell("arpo-vllm-cu128-py311", tmp_path, IMAGEGEN_INDEX_PYTORCH_CU128="https://m.example.org") == ()
    (needed,) = of_cell("verl06-vllm-cu128-py312", tmp_path)
    assert needed.startswith("https://github.com/astral-sh/python-build-standalone/")


def test_what_cannot_be_compiled_in_the_cell_needs_its_publishers_wheel(tmp_path: Path) -> None:
    (needed,) = of_cell("verl06-vllm-cu128-py311-flash-attn", tmp_path)
    assert needed == "https://github.com/Dao-AILab/flash-attention/releases/download/v2.8.3"
    assert of_cell("hopper-vllm-cu130-py311-flash-attn", tmp_path) == ()  # nvcc is in NVIDIA's wheels of CUDA 13


def test_a_commit_is_taken_from_a_mirror_of_its_host(tmp_path: Path) -> None:
    name = "blackwell-vllm-cu130-py312-newest"
    mirror = {"UV_PYTHON_INSTALL_MIRROR": "https://mirror.example.org"}
    assert of_cell(name, tmp_path, **mirror) == ("https://github.com/ISEEKYAN/mbridge",)
    assert of_cell(name, tmp_path, **mirror, IMAGEGEN_GIT_GITHUB_COM="https://git.example.org") == ()
