"""The audit's reader of GPU code beside NVIDIA's own lister: the same counts, file by file, and how long each takes.

    python bench/cuobjdump.py [--cuobjdump PROGRAM] [--save NAME] FILE...

The program is in the wheel nvidia-cuda-cuobjdump. Ends with 1 where the counts differ.
Two differences are known, and are not counted as such: cuobjdump names code for a family (sm_100f) like plain code
(sm_100); and it leaves out `__nv_relfatbin`, as the audit does. Pieces are counted, and not containers.
"""

from __future__ import annotations

import argparse
import mmap
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import results

from imagegen.audit import elf, fatbin
from imagegen.audit.model import CUDA, CodeTarget

LINE = re.compile(r"^(?:ELF|PTX) file +\d+: .*\.sm_(\d+)([a-z]?)\.(?:cubin|ptx)$", re.MULTILINE)


def ours(path: Path) -> tuple[Counter[CodeTarget | None], int, float]:
    """(pieces by target, containers, seconds)."""
    start = time.perf_counter()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if elf.read(data).machine == CUDA:
            return Counter(fatbin.cubin(data).targets), 1, time.perf_counter() - start
        found = [each for where in elf.code_ranges(data) for each in fatbin.containers(data, *where)]
    pieces = Counter(piece.target for entries in found for piece in entries)
    return pieces, len(found), time.perf_counter() - start


def theirs(program: str, path: Path, option: str) -> tuple[Counter[str], float]:
    """(pieces by name, seconds); a file without any makes the program fail, and say so."""
    start = time.perf_counter()
    done = subprocess.run([program, option, str(path)], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode and "does not contain device code" not in done.stderr + done.stdout:
        sys.exit(f"{program} {option} {path}: {done.stderr}")
    return Counter(f"{number}{variant}" for number, variant in LINE.findall(done.stdout)), seconds


def named(pieces: Counter[CodeTarget | None], kind: str) -> Counter[str]:
    """Return the targets as cuobjdump names them."""
    found: Counter[str] = Counter()
    for target, count in pieces.items():
        if target and target.kind == kind:
            found[f"{target.arch}{'a' if target.variant == 'a' else ''}"] += count
    return found


def shown(pieces: Counter[CodeTarget | None], kind: str) -> str:
    rows = sorted((target.arch, target.variant, n) for target, n in pieces.items() if target and target.kind == kind)
    total: Counter[str] = Counter()
    for arch, variant, count in rows:
        total[f"{arch}{variant}"] += count
    return " ".join(f"{name}:{count}" for name, count in total.items()) or "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("files", nargs="+", type=Path)
    results.add_option(parser)
    options = parser.parse_args()
    rows: list[list[results.Value]] = []
    wrong = 0
    for path in options.files:
        pieces, containers, own = ours(path)
        machine_code, first = theirs(options.cuobjdump, path, "-lelf")
        text, second = theirs(options.cuobjdump, path, "-lptx")
        lacking = [
            f"{kind}: {dict(left)} here, {dict(right)} there"
            for kind, left, right in (
                ("SASS", named(pieces, "sass"), machine_code),
                ("PTX", named(pieces, "ptx"), text),
            )
            if left != right
        ]
        wrong += bool(lacking)
        verdict, other = "; ".join(lacking) or "yes", first + second
        codes = [shown(pieces, "sass"), shown(pieces, "ptx")]
        rows.append([path.name, path.stat().st_size / 1e6, containers, *codes, verdict, own, other, other / own])
        print(*rows[-1], flush=True)
    columns = {"file": 0, "MB": 0, "containers": 0, "SASS pieces": 0, "PTX pieces": 0, "agree": 0}
    columns |= {"imagegen, s": 2, "cuobjdump, s": 1, "ratio": 0}
    results.publish(options.save, {"pieces of GPU code": results.Table(columns, rows)})
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
