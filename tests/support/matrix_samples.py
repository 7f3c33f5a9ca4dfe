"""A small matrix in the language that users write, and the few verbs that its tests need."""

from __future__ import annotations

import functools
from pathlib import Path

from imagegen import spec as matrix
from imagegen.core.errors import MatrixErrors

SHIPPED = Path(__file__).parents[2] / "matrices"

SMALL = """\
indexes:
  pypi: {description: the default}
  wheels-cpu: {description: cpu builds, url: "https://example.org/cpu"}
axes:
  cuda: {description: c, values: [cpu, cu130], default: cpu}
  python: {description: p, values: ["3.11", "3.12"], default: "3.11"}
  platform: {description: f, values: [linux/amd64, linux/arm64], default: linux/amd64}
bases:
  deb:
    description: d
    kind: debian
    suite: bookworm
    system: sys
    packages: {python3: the interpreter}
components:
  torch: {description: t, index: {cpu: wheels-cpu}, local: {cpu: cpu}}
  numpy: {description: n}
images:
  small:
    description: d
    purpose: p
    base: deb
    components:
      torch: {version: "==2.13.0", because: t}
      numpy: {because: n}
    gpus: [sm_90]
systems:
  sys: {glibc: "2.36", source: s}
interpreters:
  sys-3.11:
    {provider: distribution, python: "3.11", systems: [sys], path: /usr/bin/python3.11, source: s, date: "2026-11-20"}
  standalone-3.12:
    provider: standalone
    python: "3.12"
    version: 3.12.14
    release: "20260814"
    files:
      linux/amd64:
        path: 20260814/cpython-3.12.14%2B20260814-amd64.tar.gz
        sha256: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      linux/arm64:
        path: 20260814/cpython-3.12.14%2B20260814-arm64.tar.gz
        sha256: "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    source: s
    date: "2026-11-20"
gpus:
  sm_90: {capability: "9.0", family: hopper, products: [H100], source: s}
"""


def large(count: int, named: str = "c") -> str:
    """SMALL with components c0 to c(count - 1), and its image with as many, whose names begin with `named`."""
    defined = "".join(f"  c{each}: {{description: d}}\n" for each in range(count))
    used = "".join(f"      {named}{each}: {{because: b}}\n" for each in range(count))
    text = SMALL.replace("components:\n  torch", f"components:\n{defined}  torch", 1)
    return text.replace("    gpus: [sm_90]", f"{used}    gpus: [sm_90]")


RULE = """\
rules:
  old-torch:
    when: {torch: "<2.3"}
    conflict: {numpy: ">=2"}
    because: b
    source: https://example.org/1
    date: "2026-11-20"
    severity: error
    evidence: measured
    kind: breaks
    fix: f
"""


@functools.cache
def shipped_matrix() -> matrix.Matrix:
    """Loaded once for all tests that only read it."""
    return matrix.load([SHIPPED])


@functools.cache
def shipped_matrix_and_recipes() -> matrix.Matrix:
    """Loaded once for all tests that only read it."""
    return matrix.load([SHIPPED, SHIPPED.parent / "wheels"])


def load(folder: Path, *texts: str) -> matrix.Matrix:
    """Load the texts as files of one directory."""
    folder.mkdir(exist_ok=True)
    for position, text in enumerate(texts):
        (folder / f"{position}.yaml").write_text(text, encoding="utf-8", newline="")
    return matrix.load([folder])


def complaint(folder: Path, *texts: str) -> str:
    """Return the loader's error for the texts; empty if there is none. File names are shown without their directory."""
    try:
        load(folder, *texts)
    except MatrixErrors as errors:
        return str(errors).replace(f"{folder}/", "")
    return ""
