"""Measure the audit of an unpacked stack, with its files on the disk only and in the page cache.

    python bench/audit.py SITE_PACKAGES [--rounds 5] [--threads 4] [--readelf] [--cuobjdump PROGRAM] [--save NAME]

Runs `imagegen audit --site-packages SITE_PACKAGES --gpu sm_120`, with byte-code as an installed imagegen has it, and
reads the same files without judging them. Cold: the kernel drops the files' pages first (posix_fadvise), which other
programs that use the files can prevent. With the options, NVIDIA's lister and binutils' readelf run over the same files
once, one file after the other, for scale; what readelf says of symbols is compared with what the audit read, and the
program ends with 1 where it differs. Medians of seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import results

from imagegen.audit.examine import HEAD, concerns, examine
from imagegen.audit.model import Elf, File
from imagegen.audit.window import OnDisk

CUDA = 190


def audit(folder: Path) -> None:
    command = [sys.executable, "-c", "from imagegen.cli import main; main()", "audit", "--site-packages", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command += ["--gpu", "sm_120", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    try:
        json.loads(done.stdout)
    except ValueError:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")


def files(root: Path) -> list[tuple[int, str]]:
    """(size, path), the largest first: what takes long must not come last."""
    found = []
    for folder, _, names in os.walk(root):
        paths = (os.path.join(folder, name) for name in names)
        found += [(os.lstat(path).st_size, path) for path in paths if os.path.isfile(path) and not os.path.islink(path)]
    return sorted(found, reverse=True)


def one(path: str) -> File:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if not size or not concerns(os.pread(descriptor, HEAD, 0)):
            return File(size)
        return examine(OnDisk(descriptor, size), size=size)
    finally:
        os.close(descriptor)


def read(paths: Sequence[str], threads: int) -> list[File]:
    if threads == 1:
        return [one(path) for path in paths]
    with ThreadPoolExecutor(threads) as pool:
        batches = [paths[start :: 64 * threads] for start in range(64 * threads)]
        found = {
            path: file
            for batch, done in zip(batches, pool.map(lambda batch: list(map(one, batch)), batches), strict=True)
            for path, file in zip(batch, done, strict=True)
        }
    return [found[path] for path in paths]


def drop(paths: Sequence[str]) -> None:
    os.sync()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def symbols(path: str) -> tuple[frozenset[str], frozenset[str]]:
    """(undefined, exported) as readelf has them."""
    command = ["readelf", "-W", "--dyn-syms", "-d", "-V", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True, errors="replace").stdout
    undefined, exported = set(), set()
    for line in text.splitlines():
        row = line.replace("<OS specific>: 10", "UNIQUE").split()  # in files that do not call themselves GNU's
        if len(row) < 8 or row[4] not in {"GLOBAL", "WEAK", "UNIQUE"} or row[5] not in {"DEFAULT", "PROTECTED"}:
            continue
        name = row[7].partition("@")[0]
        if row[6] != "UND":
            exported.add(name)
        elif row[4] == "GLOBAL":
            undefined.add(name)
    return frozenset(undefined - {""}), frozenset(exported - {""})


def differs(path: str, elf: Elf) -> bool:
    undefined, exported = symbols(path)
    if (undefined, exported) == (elf.undefined, elf.exported):
        return False
    print(f"{path}: {sorted(undefined ^ elf.undefined)[:5]} {sorted(exported ^ elf.exported)[:5]}", file=sys.stderr)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--readelf", action="store_true")
    parser.add_argument("--cuobjdump")
    results.add_option(parser)
    options = parser.parse_args()
    listed = files(options.folder)
    paths = [path for _, path in listed]
    found = dict(zip(paths, read(paths, options.threads), strict=True))
    libraries = [path for path, file in found.items() if file.elf and file.elf.machine != CUDA]
    coded = [path for path in libraries if found[path].code]
    unreadable = [f"{path}: {file.unreadable}" for path, file in found.items() if file.unreadable]
    print(
        f"{len(paths)} files, {sum(size for size, _ in listed) / 1e9:.1f} GB: {len(libraries)} libraries and programs"
    )
    print(f"with {sum(len(file.elf.undefined) for file in found.values() if file.elf)} undefined symbols,")
    cubins = sum(1 for file in found.values() if file.elf and file.elf.machine == CUDA)
    print(f"{len(coded)} of them with GPU code, and {cubins} cubins; {len(unreadable)} unreadable")
    rows: list[list[results.Value]] = []
    for name, work in (
        ("imagegen audit", lambda: audit(options.folder)),
        (f"reading alone, {options.threads} threads", lambda: read(paths, options.threads)),
    ):
        cold, warm = [], []
        for _ in range(options.rounds):
            drop(paths)
            cold.append(timed(work))
            warm.append(timed(work))
        rows.append([name, statistics.median(cold), statistics.median(warm)])
    wrong = 0
    if options.readelf:
        seconds = timed(lambda: [symbols(path) for path in libraries])
        rows.append([f"readelf, {len(libraries)} files", None, seconds])
        wrong = sum(differs(path, elf) for path in libraries if (elf := found[path].elf))
    if options.cuobjdump:
        calls = [[options.cuobjdump, option, path] for path in coded for option in ("-lelf", "-lptx")]
        seconds = timed(lambda: [subprocess.run(call, capture_output=True, check=False) for call in calls])
        rows.append([f"cuobjdump -lelf and -lptx, {len(coded)} files", None, seconds])
    title = f"{len(paths)} files of {options.folder.name}"
    results.publish(options.save, {title: results.Table({"what": 0, "cold": 1, "warm": 1}, rows)})
    if options.readelf:
        print(f"symbols agree with readelf in {len(libraries) - wrong} of {len(libraries)} files")
    sys.exit(bool(wrong or unreadable))


if __name__ == "__main__":
    main()
