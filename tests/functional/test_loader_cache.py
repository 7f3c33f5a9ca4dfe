"""The loader's cache with declared directories is the one that ldconfig writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from imagegen.image.layers import loader_cache
from imagegen.image.layers.loader_cache import CacheEntry
from tests.support.elf_files import make_elf

LDCONFIG = "/sbin/ldconfig"


def listed(cache: Path) -> list[str]:
    """Return the cache's libraries in their order; the last line names the program that wrote the file."""
    done = subprocess.run([LDCONFIG, "-p", "-C", cache], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line.startswith("\t")]


def write(conf: Path, cache: Path, *lines: str) -> None:
    conf.write_text("".join(f"{line}\n" for line in lines))
    subprocess.run([LDCONFIG, "-X", "-f", conf, "-C", cache], check=True)


def test_the_cache_equals_that_of_ldconfig(tmp_path: Path) -> None:
    names = [
        "libc.so.6",
        "libz.so.1",
        "liba.so.9",
        "liba.so.10",
        "liba.so",
        "liba-b.so.1",
        "lib1.so",
        "libpthread.so.0",
    ]
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(make_elf(soname=name))
    write(tmp_path / "base.conf", tmp_path / "base", "include /etc/ld.so.conf")
    write(tmp_path / "all.conf", tmp_path / "all", str(folder), "include /etc/ld.so.conf")
    before = loader_cache.read((tmp_path / "base").read_bytes())
    added = [CacheEntry(name, f"{folder}/{name}", loader_cache.FLAGS[62]) for name in sorted(names)]
    (tmp_path / "made").write_bytes(loader_cache.write(loader_cache.add(before, added)))
    assert listed(tmp_path / "made") == listed(tmp_path / "all")
    assert len(listed(tmp_path / "all")) == len(before.entries) + len(names)
