"""A pure-Python source distribution becomes a wheel: in the sandbox, by the base's interpreter, without network."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.core import toml
from imagegen.core.errors import ReproducibilityError, SandboxError, WheelError
from imagegen.core.git import LARGEST_POINTER, is_pointer
from imagegen.core.image_format import EPOCH
from imagegen.core.progress import Progress, human, timed
from imagegen.core.sandbox import Sandbox
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.lock.model import LockedFile, LockedSdist
from imagegen.oci.documents import digest_of

_FORMAT = 1  # of this way of building; a new number builds everything anew
_TIMEOUT = 600  # seconds
_MEMORY = 2 << 30  # bytes
_MAX_WHEEL = 128 << 20  # bytes of a build requirement's wheel; files in it may then exceed the sandbox's limit
_TORCH = "torch"
# Frames of a traceback that are not in the sources, with their lines, and the heading of a traceback without frames.
_FRAMES = re.compile(r'^  File "(?:/(?!tmp/source/)|<)[^\n]*+\n(?:    [^\n]*+\n)*+', re.MULTILINE)
_HEADING = re.compile(r"Traceback \(most recent call last\):\n(?!  File)")
_WORKER = Path(__file__).with_name("sdist_worker.py")
_WHEELS = Cache("sdist", LockedFile)


_RECIPE = """\
if {name} is pure Python, leave {required} out of `build-system.requires`; if it is compiled against {required}, name \
`version: "=={version}"` in the image instead of its `path:`, and let wheels/{name}.yaml say how it is compiled:
  components:
    {name}: {{description: Our own code., compiled: true}}
  recipes:
    {name}:
      releases: {{"{version}": {{path: {path}}}}}
      requires: [{required}]
      build_requires: [{build}]
      against: [{required}]
      modules: [{module}._C]  # the compiled modules that the wheel must have
      source: Its own setup.py."""


@dataclass(frozen=True)
class SdistBuilder:
    """The environment of sdist builds. `key` ("sha256:...") and `interpreter` are the base's; `rootfs` unpacks it."""

    key: str
    interpreter: str
    rootfs: Callable[[], Path]
    store: Store
    progress: Progress


def require_small(
    name: str, sdist: LockedSdist, build_names: Collection[str] = (), path: str = "DIRECTORY", version: str = "VERSION"
) -> None:
    """Raise SandboxError if a build requirement is torch, or has a wheel that the sandbox cannot hold.

    The index states the sizes, so nothing has to be fetched. The error proposes a recipe for the package `name`, with
    its `path`, its `version` and the build requirements that it names itself.
    """
    wheels = {wheel.name: wheel for wheel in sdist.build_requires}
    large = [wheel for wheel in wheels.values() if wheel.name == _TORCH or (wheel.file.size or 0) > _MAX_WHEEL]
    if not large:
        return
    wheel = wheels.get(_TORCH) or max(large, key=lambda wheel: wheel.file.size or 0)
    required, seen = wheel, {wheel.name}
    while (
        via := next((dependent for dependent in required.via if dependent in wheels.keys() - seen), None)
    ) is not None:
        seen.add(via)
        required = wheels[via]
    pins = [
        f"{build_wheel.name}=={build_wheel.version}"
        for build_wheel in wheels.values()
        if build_wheel.name in build_names and build_wheel != required
    ]
    size = f"has {human(wheel.file.size)}" if wheel.file.size else "has an unknown size"
    raise SandboxError(
        f"{name} requires {required.name} for its build, which the sandbox cannot hold",
        code="sandbox-build-requirement-large",
        why=f"{wheel.file.filename} is compiled and {size}; a wheel in the sandbox has at most {human(_MAX_WHEEL)}",
        fix=_RECIPE.format(
            name=name,
            module=name.replace("-", "_"),
            required=required.name,
            path=path,
            version=version,
            build=", ".join(pins),
        ),
    )


def build(name: str, version: str | None, sdist: LockedSdist, builder: SdistBuilder) -> LockedFile:
    """Build the wheel twice, compare the two, and store one with an entry in the cache.

    `version` is None where only the wheel states it. The sdist and its build requirements must be in the store. Raises
    SandboxError when the build fails, WheelError when it gives no pure wheel of this release, ReproducibilityError when
    it gives two wheels.
    """
    store, key = builder.store, wheel_key(sdist, builder)
    with store.lock(f"sdist-{key}"):
        cached = _WHEELS.get(store, key)
        if cached and store.has(cached.digest, cached.size):
            return replace(cached, index=sdist.file.index)
        with timed(builder.progress, f"building a wheel from {sdist.file.filename}, twice"):
            filename, wheel = _build_twice(name, version, sdist, builder)
        require_pure_wheel(name, version, filename, wheel, sdist.file.filename)
        built = LockedFile(filename, len(wheel), store.write(wheel).removeprefix("sha256:"), sdist.file.index)
        _WHEELS.put(store, key, built)
    return built


def wheel_key(sdist: LockedSdist, builder: SdistBuilder) -> str:
    """Return the digest of all inputs of the wheel that is built from an sdist."""
    inputs = [_FORMAT, sdist.file.sha256, [wheel.file.sha256 for wheel in sdist.build_requires]]
    inputs += [sdist.git.subdirectory] if sdist.git else []
    text = json.dumps([*inputs, builder.key, builder.interpreter, _WORKER.read_text()])
    return digest_of(text.encode())


def _build_twice(name: str, version: str | None, sdist: LockedSdist, builder: SdistBuilder) -> tuple[str, bytes]:
    first = _build_once(version, sdist, builder)
    if _build_once(version, sdist, builder) != first:
        raise ReproducibilityError(
            f"{sdist.file.filename} gives another wheel each time it is built",
            code="not-reproducible-sdist",
            fix=f"choose a release of {name} that has a wheel",
        )
    return first


def _build_once(version: str | None, sdist: LockedSdist, builder: SdistBuilder) -> tuple[str, bytes]:
    # At the top level: directories that bubblewrap makes for mounts cannot be entered by the sandbox's user.
    files = {f"/{file.filename}": file for file in (sdist.file, *(require.file for require in sdist.build_requires))}
    mounts = {inside: builder.store.path(file.digest) for inside, file in files.items()}
    mounts["/tomllib"] = toml.TOMLLIB
    sandbox = Sandbox(builder.rootfs(), read_only=mounts, memory=_MEMORY)
    env = {"SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
    if sdist.git and version:  # setuptools-scm and hatch-vcs ask git for the version, and the archive has no repository
        env["SETUPTOOLS_SCM_PRETEND_VERSION"] = version
    try:
        directory = sdist.git.subdirectory if sdist.git else ""
        sources, *wheels = files
        # Not -I, which ignores the sandbox's PYTHONHASHSEED: setup.py of deepspeed writes a set into the metadata.
        argv = [builder.interpreter, "-s", "-c", _WORKER.read_text(), sources, directory, *wheels]
        filename, _, wheel = sandbox.run(argv, env=env, timeout=_TIMEOUT).partition(b"\n")
    except SandboxError as error:
        raise SandboxError(
            f"{sdist.file.filename} could not be made into a wheel",
            code="sandbox-sdist-failed",
            why=_HEADING.sub("", _FRAMES.sub("", f"{error.why}\n")).strip() if error.why else error.what,
            fix="its component's `build_requires` must name all that its build backend needs",
        ) from error
    return filename.decode(errors="replace"), wheel


def require_pure_wheel(name: str, version: str | None, filename: str, wheel: bytes, source: str) -> None:
    """Raise WheelError unless it is a pure wheel of this release, and whole."""
    try:
        package, release, _, tags = parse_wheel_filename(filename)
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            members = archive.namelist()
            absent = [info.filename for info in archive.infolist() if _stands_for_another(archive, info)]
    # RuntimeError: encrypted, or of a future version.
    except (zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, EOFError, struct.error) as error:
        raise WheelError(
            f"{source} gave a file that is not a wheel", code="wheel-invalid", where=filename, why=str(error)
        ) from error
    if (package, release) != (name, Version(version) if version else release):
        raise WheelError(
            f"{source} gave a wheel of another release",
            code="wheel-wrong-release",
            where=filename,
            why=f"not {name} {version or ''}".strip(),
        )
    binary = [member for member in members if member.endswith((".so", ".a", ".o", ".dll"))]
    if binary or any(tag.abi != "none" or tag.platform != "any" for tag in tags):
        raise WheelError(
            f"{source} is not pure Python",
            code="wheel-not-pure",
            where=filename,
            why=f"the wheel holds {binary[0]}" if binary else "the wheel is for one platform only",
            fix="declare it `compiled: true`, with a recipe in wheels/*.yaml: then it is compiled against the cell",
        )
    if absent:
        raise WheelError(
            f"{source} lacks files that Git LFS stores",
            code="wheel-lfs-missing",
            where=f"{filename}: {absent[0]}",
            why="this file is a pointer, and imagegen does not fetch the file behind it",
            fix="take a release that has a wheel",
        )


def _stands_for_another(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without a bound
        raise zipfile.BadZipFile(f"{member.filename} is compressed in a way that wheels do not use")
    return member.file_size <= LARGEST_POINTER and is_pointer(archive.read(member))
