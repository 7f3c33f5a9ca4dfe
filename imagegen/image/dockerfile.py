"""Lock -> Dockerfile with the stages of source builds, and the folder that a plain `docker buildx build` needs."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined
from jinja2.loaders import FileSystemLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment

from imagegen.artifacts.graph import plan_package
from imagegen.checks import WORKER
from imagegen.checks.worker.source import PATCHED
from imagegen.core import data
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.errors import Location, LockError, StoreError
from imagegen.core.store import Store, disk, images
from imagegen.core.types import EPOCH, PREFIX
from imagegen.image import inputs, layers
from imagegen.image.base import fetch_packages
from imagegen.image.base.installer import COMMAND, ENVIRONMENT
from imagegen.image.layers.image import command, entrypoint, environment, labels, user, working_directory
from imagegen.image.layers.plan import (
    ENV,
    LINKS,
    LOADER_CONFIGURATION,
    OPEN,
    ROOT,
    base_environment,
    support_files,
    support_links,
)
from imagegen.lock import inputs_hash
from imagegen.lock.builds import fetch_sources, patched_sources
from imagegen.lock.model import Lock, LockedBuild, LockedCopy, LockedFile, LockedWheel, reason
from imagegen.spec.model import EnvVar
from imagegen.spec.recipe import Recipe

_SPEC_FORMAT = 2  # of what checks/worker/build.py reads
_HEX = 12  # digits of the key in the cache's name


def toolchain(lock: Lock) -> Lock:
    """Return the lock of the stage that every build starts from: the wheels that builds of this lock
    compile against.
    """
    names = {name for build in lock.builds for name in build.against}
    file_conflicts = [
        replace(file_conflict, over=over)
        for file_conflict in lock.file_conflicts
        if file_conflict.distribution in names and (over := tuple(name for name in file_conflict.over if name in names))
    ]
    return replace(
        lock,
        wheels=tuple(wheel for wheel in lock.wheels if wheel.name in names),
        file_conflicts=tuple(file_conflicts),
        builds=(),
        ldconfig=(),
        record=None,
    )


def cache_of(build: LockedBuild) -> str:
    """The id of the cache mount that keeps a build's objects until it has succeeded."""
    return f"imagegen-{build.key.removeprefix('sha256:')[:_HEX]}"


def spec(build: LockedBuild, recipe: Recipe) -> Mapping[str, Any]:
    """Return the worker's input: everything that decides the wheel, and how to pass the number of
    jobs, which does not.
    """
    return {
        "format": _SPEC_FORMAT,
        "name": build.name,
        "version": build.version,
        "source": build.source.filename,
        "build_requires": [wheel.file.filename for wheel in build.build_requires],
        "env": dict(sorted(build.env.items())),
        "jobs": recipe.jobs,
        "threads": recipe.threads,
        "modules": list(build.modules),
        "units": recipe.cost.units if recipe.cost else None,
        "epoch": EPOCH,
    }


# Lock -> Dockerfile, the recipe that needs nothing else.
#
# Byte-for-byte stable. Templates run in jinja2's sandbox with undefined names as errors, and a value that could end a
# line is refused here once more, though matrix and lock have refused it before.

_LONGEST_LINE = 65_535  # bytes: bufio.MaxScanTokenSize less the newline (parser.go of BuildKit)
_SAFE = re.compile(r"[^\x00-\x1f\x7f]*")
# Shell text, run in the written directory. An image without attestations, since those move its digest on every build;
# zstd, since gzip takes twice as long (measured); `--output type=docker` puts it into Docker whichever builder is used.
# The tag is its own: a plain build has another digest than the smoke-tested image, and must not take its name.
OUTPUT = "type=docker,oci-mediatypes=true,compression=zstd"
_ARGUMENTS = (
    'build CONTEXTS --secret "id=ca,src=${SSL_CERT_FILE:-/dev/null}" --provenance=false -t TAG --output '
    + OUTPUT
    + " ."
)
_OF_BASE = "The base's own image sets it."
_OWN = "The stack's venv comes first, and text is UTF-8."


@dataclass(frozen=True)
class Rendered:
    """The Dockerfile and the wheels that the build needs as files, because no public index serves them by default."""

    dockerfile: str
    arguments: str  # of buildx, as shell text for the written directory
    contexts: Mapping[str, str]  # name -> where it is, seen from the written directory
    tag: str
    wheels: tuple[LockedWheel, ...]


def render(lock: Lock, tag: str) -> Rendered:
    """The Dockerfile of a cell that is known as `tag`. LockError where a value cannot stand in one."""
    wheels = [wheel for wheel in lock.wheels if wheel.build is None]
    wheels_elsewhere = (wheel for wheel in wheels if wheel.sdist or wheel.file.index != "pypi")
    contexts = {"base": "oci-layout://./base", "wheels": "./wheels"} | ({"builds": "./builds"} if lock.builds else {})
    added = lock.foundation.added
    if added:
        contexts["packages"] = "./packages"
    options = " ".join(f"--build-context {name}={location}" for name, location in contexts.items())
    plain = f"{tag}-plain"
    arguments = _ARGUMENTS.replace("CONTEXTS", options).replace("TAG", plain)
    below = toolchain(lock)
    template = _environment().get_template("cell.Dockerfile.j2")
    text = template.render(
        lock=lock,
        wheels=wheels,
        toolchain=below,
        toolchain_links={path: target for path, target in support_links(below).items() if path not in LINKS},
        cache_of=cache_of,
        inputs=inputs_hash(lock),
        command=f"docker buildx {arguments}",
        environment=_reasons(lock),
        labels=labels(lock),
        workdir=working_directory(lock),
        ports=lock.ports,
        loader_configuration=LOADER_CONFIGURATION,
        config=lock.config,
        command_line=command(lock),
        prefix=PREFIX,
        support=ROOT,
        entrypoint=entrypoint(lock),
        base_user=lock.base.content.config.user if lock.base.content else "",
        user=user(lock),
        open=OPEN,
        links=support_links(lock),
        interpreter=lock.interpreter.path,
        packages=added.debs if added else (),
        bottom="packaged" if added else "base",
        install=COMMAND,
        install_environment=ENVIRONMENT,
        reason=reason,
    )
    _check_lines(text)
    return Rendered(text, arguments, contexts, plain, (lock.uv, *wheels_elsewhere))


def _check_lines(text: str) -> None:
    for number, line in enumerate(text.split("\n"), 1):
        if (size := len(line.encode())) > _LONGEST_LINE:
            raise LockError(
                f"line {number} of the Dockerfile would have {size} bytes",
                code="lock-too-large",
                why=f"BuildKit reads lines of {_LONGEST_LINE} bytes at most; this one begins with {line[:60]!r}",
                fix="shorten that value or reason in the matrix, and lock again",
            )


def _reasons(lock: Lock) -> list[tuple[str, list[EnvVar]]]:
    """Return each reason with its variables; those that every image sets share one."""
    why = dict.fromkeys(base_environment(lock).keys() - {"PATH", "LANG"}, _OF_BASE)
    why |= {variable.name: variable.because for variable in (*ENV, *lock.env)}
    variables = [EnvVar(name, value, why.get(name, _OWN)) for name, value in environment(lock).items()]
    return [
        (because, list(group)) for because, group in itertools.groupby(variables, key=lambda setting: setting.because)
    ]


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(shipped("dockerfiles")),
        undefined=StrictUndefined,
        autoescape=False,  # Dockerfiles are not HTML; `_finalize` is the gate
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["quoted"] = _quoted
    # A JSON array, in which no variable is replaced (Dockerfile reference, "Exec form").
    environment.filters["exec_form"] = functools.partial(json.dumps, ensure_ascii=False)
    return environment


def _finalize(value: object) -> object:
    if isinstance(value, str) and not _SAFE.fullmatch(value):
        raise LockError(
            "a value cannot stand in a Dockerfile",
            code="lock-value-unsupported",
            why=f"it holds a control character: {value!r}",
        )
    return value


def _quoted(value: str) -> str:
    """Return a double-quoted word of a Dockerfile; `$` is literal (Dockerfile reference, "Environment replacement")."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


# The folder of a rendered Dockerfile: all that a plain `docker buildx build` needs, and nothing of imagegen.

# The programs that run a build in its container.


def write(
    rendered: Rendered,
    locked: Lock,
    recipes: Mapping[str, Recipe],
    directory: Path,
    context: Context,
) -> None:
    """Write Dockerfile, base/ (an OCI layout), wheels/, support/, packages/ and builds/ where there are some.

    The directory is new; packages are above the base, and the Dockerfile installs them.

    All is fetched before anything is written, and the directory appears complete or not at all. Raises StoreError when
    it exists and is not empty; FetchError, BaseError and LockError as the build does.
    """
    images.require_new(directory)
    inputs.fetch(replace(locked, wheels=rendered.wheels), context)
    if locked.builds:
        fetch_sources(locked.builds, recipes, context)
    if locked.added:
        fetch_packages(locked.added, context)
    base = layers.assemble_base(replace(locked, added=None), context)
    with images.filling(directory) as fresh:
        images.export(context.store, base.digest, fresh / "base", "latest")
        folder = fresh / "wheels"
        folder.mkdir()
        for wheel in rendered.wheels:
            _place(context.store, wheel.file.digest, folder / wheel.file.filename)
        if added := locked.foundation.added:
            (fresh / "packages").mkdir()
            for deb in added.debs:
                _place(context.store, deb.digest, fresh / "packages" / f"{deb.name}.deb")
        if locked.builds:
            write_builds(locked.builds, recipes, fresh / "builds", context.store, context.settings)
        _write_support(locked, fresh / "support")
        for copy in locked.copies:
            _write_copy(copy, fresh / "files", context.store)
        (fresh / "Dockerfile").write_text(rendered.dockerfile, encoding="utf-8")


def write_builds(
    builds: Iterable[LockedBuild], recipes: Mapping[str, Recipe], directory: Path, store: Store, settings: Settings
) -> None:
    """Write the worker, and for each build its description, source, patched files and build requirements.

    `recipes` are by package. All that they begin with must be in the store: `lock.build_sources` brings it. Raises
    StoreError, and BuildError for sources that a patch does not fit.
    """
    directory.mkdir()
    for path in sorted(WORKER.rglob("*.py")):
        target = directory / "worker" / path.relative_to(WORKER)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for build in builds:
        recipe, folder = recipes[build.name], directory / build.name
        folder.mkdir()
        for file in plan_package(build).of_kind(LockedFile):
            _place(store, file.digest, folder / file.filename)
        if build.patches:
            _write_patched(build, folder / PATCHED, store, settings)
        (folder / "spec.json").write_text(json.dumps(spec(build, recipe), indent=2) + "\n", encoding="utf-8")
    for path in (directory, *directory.rglob("*")):  # BuildKit's caches know modes, and the umask decides none of them
        if path.is_dir():
            path.chmod(0o755)
        elif path.stat().st_nlink == 1:  # a linked file is the store's, and read-only
            path.chmod(0o555 if path.stat().st_mode & 0o100 else 0o444)


def _write_patched(build: LockedBuild, directory: Path, store: Store, settings: Settings) -> None:
    """Write the files that the build's patches change or add."""
    with patched_sources(build, store, settings) as (sources, paths):
        for path in paths:
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(sources / path, target)


def _place(store: Store, digest: str, target: Path) -> None:
    """Put a blob of the store at `target`, as a hard link where the disk allows."""
    store.verify(digest)
    try:
        os.link(store.path(digest), target)
    except OSError:
        shutil.copyfile(store.path(digest), target)


def _write_copy(copy: LockedCopy, directory: Path, store: Store) -> None:
    """Write the files of a copy, whose contents are in the store, with the modes that they have in the image."""
    for file in copy.files:
        path = directory / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        store.verify(file.digest)
        shutil.copyfile(store.path(file.digest), path)
        path.chmod(int(file.mode, 8))
    for path in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        path.chmod(0o755)


def _write_support(locked: Lock, directory: Path) -> None:
    """The files of the support layer, with the modes that COPY gives them in the image, whatever the umask."""
    for file in support_files(locked):
        path = directory / Path(file.path).relative_to(ROOT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)
    for path in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        path.chmod(0o755)


# docker-bake.json next to rendered folders, with one target for each, so that `docker buildx bake` builds them.
#
# Source of the format: Docker's Bake file reference (JSON; `${NAME}` is a variable, which the environment may set).

FILE = "docker-bake.json"
_CA = "SSL_CERT_FILE"


def bake(targets: Mapping[str, Rendered]) -> dict[str, Any]:
    """Return the bake file for folders below its own; `targets` is by folder. The group `default` is all of them."""
    return {
        "variable": {_CA: {"default": "/dev/null"}},
        "group": {"default": {"targets": sorted(map(_name, targets))}},
        "target": {_name(folder): _target(folder, targets[folder]) for folder in sorted(targets)},
    }


def write_bake(directory: Path, targets: Mapping[str, Rendered]) -> None:
    """Write the bake file of `directory`. Targets that an earlier call wrote stay as long as their folders are there.

    Raises StoreError when it cannot be written, or what is there is no bake file.
    """
    path = directory / FILE
    document = bake(targets)
    earlier_targets = {
        name: target
        for name, target in _before(path).items()
        if name not in document["target"] and (directory / target["context"]).is_dir()
    }
    document["target"] = dict(sorted((earlier_targets | document["target"]).items()))
    document["group"]["default"]["targets"] = list(document["target"])
    with disk.explained(directory, "the output directory", "name another one", 0):
        data.write(path, json.dumps(document, indent=2).encode() + b"\n")


def _name(folder: str) -> str:
    """Names of targets know no dots."""
    return folder.replace(".", "_")


def _target(folder: str, rendered: Rendered) -> dict[str, Any]:
    context = f"./{folder}"
    return {
        "context": context,
        "contexts": {name: path.replace("./", f"{context}/") for name, path in rendered.contexts.items()},
        "secret": [f"id=ca,src=${{{_CA}}}"],
        "tags": [rendered.tag],
        "attest": ["type=provenance,disabled=true"],  # it would move the digest on every build
        "output": [OUTPUT],
    }


def _before(path: Path) -> dict[str, Any]:
    try:
        targets: dict[str, Any] = json.loads(data.read(path))["target"]
        return {name: target for name, target in targets.items() if isinstance(target["context"], str)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            "the existing file is not a bake file of imagegen",
            code="store-foreign-file",
            where=Location(path),
            why=str(error),
            fix="move it away",
        ) from error
