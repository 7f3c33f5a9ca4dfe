"""Lock -> Dockerfile, the recipe that needs nothing else.

Byte-for-byte stable. Templates run in jinja2's sandbox with undefined names as errors, and a value that could end a
line is refused here once more, though matrix and lock have refused it before.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import StrictUndefined
from jinja2.loaders import FileSystemLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment

from imagegen.core.data import shipped
from imagegen.core.errors import LockError
from imagegen.core.image_format import EPOCH, PREFIX
from imagegen.image.base.installer import COMMAND, ENVIRONMENT
from imagegen.image.layers.image_config import command, entrypoint, environment, labels, user, working_directory
from imagegen.image.layers.support import ENV, LINKS, LOADER_CONFIGURATION, OPEN, ROOT, base_environment, support_links
from imagegen.lock import inputs_hash
from imagegen.lock.main_versions import reason
from imagegen.lock.model import Lock, LockedBuild, LockedWheel
from imagegen.spec.model import EnvVar
from imagegen.spec.recipe import Recipe

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

_SPEC_FORMAT = 2  # of the input of checks/worker/build.py
_HEX = 12  # digits of the key in the cache's name


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


def toolchain(lock: Lock) -> Lock:
    """Return the lock of the stage that every build starts from, with the wheels that the builds compile against."""
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
    """Return the worker's input: everything that decides the wheel, and how to pass the number of jobs."""
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
