"""A sample lock, and strategies for locks of any content."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from imagegen.lock.model import (
    Lock,
    LockedBase,
    LockedDeb,
    LockedFile,
    LockedGpus,
    LockedSdist,
    LockedWheel,
    Record,
    RecordedLayer,
)
from imagegen.spec.model import EnvVar
from tests.support.interpreters import LOCKED

A, B, C = "a" * 64, "b" * 64, "c" * 64


def wheel(name: str, version: str = "1.0", **more: object) -> LockedWheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    file = LockedFile(filename, 1000, A, "pypi", f"packages/a/{filename}")
    return replace(LockedWheel(name, version, file, via=()), **more)  # type: ignore[arg-type]


def deb(name: str) -> LockedDeb:
    return LockedDeb(name, "1:2.3+dfsg-4~deb12u1", "amd64", 10, B, "debian", f"pool/main/x/{name}_2.3_amd64.deb")


LOCK = Lock(
    cell="tiny-cpu-py311",
    image="tiny",
    axes={"cuda": "cpu", "python": "3.11", "platform": "linux/amd64"},
    inputs={"image": A, "component torch": B},
    uv=wheel("uv", "0.13.8"),
    as_of="2026-11-20T00:00:00Z",
    interpreter=LOCKED,
    base=LockedBase(
        "debian12",
        "debian",
        "bookworm",
        {"debian/bookworm": "2026-11-20T08:13:05Z"},
        (deb("adduser"), deb("libc6")),
    ),
    wheels=(
        wheel(
            "antlr4-python3-runtime",
            sdist=LockedSdist(
                LockedFile(
                    "antlr4-python3-runtime-1.0.tar.gz", 5, C, "pypi", "packages/b/antlr4-python3-runtime-1.0.tar.gz"
                ),
                (wheel("setuptools"), wheel("wheel", via=("setuptools",))),
            ),
        ),
        wheel("torch", "2.13.0+cpu", because='it says "torch" \\ é', via=("peft", "trl")),
    ),
    env=(EnvVar("OMP_NUM_THREADS", "2", "the runners have two cores"),),
    gpu=LockedGpus(("9.0", "12.0"), "580.65.06"),
    record=Record(
        1, "zstd 1.5.7 level 1", f"sha256:{A}", (RecordedLayer("base", 7, f"sha256:{C}", f"sha256:{B}", f"sha256:{A}"),)
    ),
)
texts = st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=20)
names = st.from_regex(r"[a-z0-9]([a-z0-9]|-[a-z0-9]){0,8}", fullmatch=True)
sizes = st.integers(0, 1 << 40)
hashes = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
versions = st.from_regex(r"(0|[1-9][0-9]?)(\.(0|[1-9][0-9]?)){0,2}(\+[a-z0-9]{1,5})?", fullmatch=True)
wheels = st.builds(
    lambda name, version, because, via, sha256, size: replace(
        wheel(name, version, because=because, via=tuple(via)),
        file=LockedFile(f"{name.replace('-', '_')}-{version}-py3-none-any.whl", size, sha256, "pypi"),
    ),
    names, versions, st.none() | texts, st.lists(names, max_size=3), hashes, sizes,
)  # fmt: skip
locks = st.builds(
    lambda found, values, inputs: replace(
        LOCK,
        wheels=tuple(sorted({w.name: w for w in found}.values(), key=lambda w: w.name)),
        env=tuple(EnvVar(f"V{i:03}", value, value) for i, value in enumerate(values)),
        inputs=inputs,
    ),
    st.lists(wheels, max_size=4), st.lists(texts, max_size=3), st.dictionaries(texts, hashes, max_size=3),
)  # fmt: skip
