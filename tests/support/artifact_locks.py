"""Small locks of the kinds that no shipped lock has, for the golden test of artifact keys."""

from __future__ import annotations

from dataclasses import replace

from imagegen.core.types import Submodule
from imagegen.lock.builds import keyed
from imagegen.lock.model import (
    GIT,
    LOCAL,
    PATCHED,
    CopiedFile,
    FileConflict,
    Lock,
    LockedArchive,
    LockedBase,
    LockedBuild,
    LockedCopy,
    LockedFile,
    LockedGit,
    LockedPackages,
    LockedPatch,
    LockedSdist,
    LockedWheel,
    WheelPatch,
)
from imagegen.oci.documents import GZIP_TYPE, ZSTD_TYPE, ImageConfig, LayerDescriptor, RemoteImage
from imagegen.spec.model import LibraryDirectory
from tests.support.environment_samples import combined
from tests.support.interpreters import STANDALONE
from tests.support.lock_samples import deb
from tests.support.shipped_locks import shipped_lock
from tests.support.source_builds import BUILD, BUILT_WHEEL, WITH_BUILD
from tests.support.tiny_lock import LOCK, A, B, C, D, wheel

_COMMIT = LockedGit("main", "https://git.example.org/demo", "1" * 40, "2" * 40)
_REGISTRY = LockedBase(
    "vendor",
    "registry",
    image="docker.io/vendor/base:1",
    content=RemoteImage(
        f"sha256:{A}",
        f"sha256:{B}",
        ImageConfig(("PATH=/usr/bin", "LD_LIBRARY_PATH=/opt/vendor/lib"), ("/start",), (), "vendor", ""),
        (
            LayerDescriptor(GZIP_TYPE, f"sha256:{C}", 10, f"sha256:{D}"),
            LayerDescriptor(ZSTD_TYPE, f"sha256:{D}", 20, f"sha256:{C}"),
        ),
    ),
)
_PACKAGES = LockedPackages(
    {"libnuma1": "It is needed."},
    (LockedArchive("debian", "bookworm", ("main",), "2026-11-20T08:13:05Z"),),
    (deb("libnuma1"), deb("python3.11")),
)
_COPY = LockedCopy(
    "/srv/code",
    "code",
    "It is ours.",
    (CopiedFile("/srv/code/run.py", "0755", 7, A), CopiedFile("/srv/code/texts/a.txt", "0644", 5, B)),
)
_LDCONFIG = (LibraryDirectory("/opt/a", "Why a."), LibraryDirectory("/opt/b/lib", "Why b."))
_CONFLICT = FileConflict("numpy-over-torch", "numpy", ("torch",), "*/site-packages/shared/*", "They share it.")


def _with_wheels(lock: Lock, *wheels: LockedWheel) -> Lock:
    by_name = {**{locked.name: locked for locked in lock.wheels}, **{added.name: added for added in wheels}}
    return replace(lock, wheels=tuple(by_name[name] for name in sorted(by_name)))


def _with_builds(lock: Lock, *builds: LockedBuild) -> Lock:
    return replace(lock, builds=tuple(keyed(build, lock) for build in builds))


def _from_sdist(name: str, version: str, index: str, commit: LockedGit | None = None) -> LockedWheel:
    """Return a wheel that is made of an archive: of a commit, or of the project's own source distribution."""
    archive = LockedFile(f"{name}-{version}.tar{'' if commit else '.gz'}", 5, D, index)
    return wheel(name, version, D, index, sdist=LockedSdist(archive, (wheel("wheel", "1.0", C),), git=commit))


def _patched() -> LockedWheel:
    locked = wheel("numpy", "2.4.6", B)
    patches = (WheelPatch("a.patch", C, 3, "It is broken."), WheelPatch("b.patch", D, 4, "It is slow."))
    file = replace(locked.file, sha256=D, index=PATCHED, path=None)
    return replace(locked, file=file, original=locked.file, patches=patches)


def sample_locks() -> dict[str, Lock]:
    """Return the locks by a name that says what they have."""
    commit = replace(_COMMIT, subdirectory="python", exclude=("docs",))
    build = replace(
        BUILD,
        source=LockedFile("demo-ext-1.0.tar", 5, D, GIT),
        git=_COMMIT,
        submodules=(Submodule("third/cutlass", "https://git.example.org/cutlass", "3" * 40, "4" * 40),),
        patches=(LockedPatch("fix.patch", A),),
    )
    large = wheel("large", "1.0", A, LOCAL)
    return {
        "sample: sdist of an index": LOCK,
        "sample: sdist of a commit, standalone interpreter": _with_wheels(
            replace(LOCK, axes={**LOCK.axes, "python": "3.12"}, interpreter=STANDALONE, bytecode_base=LOCK.base),
            _from_sdist("member", "1.0", GIT, commit),
        ),
        "sample: source build": _with_builds(WITH_BUILD, BUILD),
        "sample: source build of a commit, built": _with_wheels(_with_builds(WITH_BUILD, build), BUILT_WHEEL),
        "sample: patched wheel, file conflict": _with_wheels(replace(LOCK, file_conflicts=(_CONFLICT,)), _patched()),
        "sample: own packages": _with_wheels(
            LOCK,
            _from_sdist("member", "1.0", LOCAL),
            wheel("other", "2.0", B, LOCAL),
            replace(large, file=replace(large.file, size=1 << 30)),
        ),
        "sample: copied files, library directories, added packages": replace(
            LOCK, copies=(_COPY,), ldconfig=_LDCONFIG, added=_PACKAGES
        ),
        "sample: base of a registry, added packages": replace(
            LOCK, base=_REGISTRY, added=_PACKAGES, ldconfig=_LDCONFIG
        ),
        "sample: several environments": combined(
            {"main": shipped_lock("verl06-vllm-cu128-py311"), "other": shipped_lock("verl06-sglang-cu128-py311")}
        ),
    }
