"""Make an entry from an image: its packages of pip and dpkg, its variables and its entry point."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.version import Version
from pydantic import TypeAdapter, ValidationError

from imagegen.app.entries import entry_path
from imagegen.app.image_subject import LAYOUT, host_platform, main_environment, read_image
from imagegen.app.import_project import (
    BASE_SYSTEM,
    WHOLE,
    Imported,
    Selection,
    choose_platform,
    choose_python,
    write_imported,
)
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core import types as t
from imagegen.core.errors import FetchError, Location, UsageError
from imagegen.core.layer_tar import DAMAGED, Bounded
from imagegen.core.text import counted, redact
from imagegen.image.inventory import archive, system
from imagegen.image.inventory.archive import ArchivedImage
from imagegen.image.inventory.freeze import InstalledDistribution, distributions, requested_debs
from imagegen.image.inventory.layers import LayeredTree
from imagegen.image.inventory.tree import FileTree
from imagegen.image.layers.support import ENTRYPOINT, ENV, WORKDIR
from imagegen.oci.layout import INDEX_FILE
from imagegen.projects import entry
from imagegen.projects.model import COMMIT, OWN_PACKAGE, Omission, PackagePin, Recovered, malformed
from imagegen.projects.names import describes_base
from imagegen.spec.foundation import Base
from imagegen.spec.model import ConfigName

_OWN_VARIABLES = frozenset({"LANG", "PATH", "VIRTUAL_ENV", *(variable.name for variable in ENV)})  # of every image here
_SHELLS = frozenset({("/bin/bash",), ("bash",), ("/bin/sh",), ("sh",), ("python3",)})  # default commands of bases
_PATHS = frozenset({"CUDA_HOME", "LD_LIBRARY_PATH", "LIBRARY_PATH", "PYTHONPATH"})
_FILES = frozenset({".txt", ".in", ".toml", ".lock", ".yml", ".yaml", ".dockerfile"})  # of missing files
_NAMED = 5
_MOST_VARIABLES = 1000  # of an image
_COPY = "copy it into the project, and name it under `files` and `config`"


def is_image(name: str) -> bool:
    """Return whether a name is of an image: an archive or a layout on this disk, or a reference."""
    path = Path(name)
    if name.startswith(LAYOUT):
        return True
    if path.is_dir():
        return (path / INDEX_FILE).is_file()
    if path.is_file():
        with suppress(*DAMAGED, OSError), tarfile.open(path, tarinfo=Bounded):
            return True
        return False
    is_file = path.suffix.lower() in _FILES or path.name.startswith("Dockerfile")
    return not is_file and re.fullmatch(r"[a-z0-9][A-Za-z0-9._/:@-]*", name) is not None


def import_image(session: Session, reference: str, name: str | None, selection: Selection = WHOLE) -> Imported:
    """Write matrices/<name>.yaml with an image of the packages of another one.

    `reference` names an image of an engine or a registry, an OCI layout (`oci:DIR` or DIR), or an archive as `docker
    save` writes it. `selection` has the user's CUDA and GPU. Raises UsageError, FetchError, EngineError, and as
    `write_imported`; then nothing is written.
    """
    if name is None:
        raise UsageError("the image needs a name", code="usage-name-missing", fix="add --name IMAGE")
    entry_path(session.matrices, name, entry.MARK)  # reads the matrix first: cheaper than reading an image
    with session.project.store.temporary_directory("import") as scratch:
        contents = _read(session.project, reference, scratch)
    tree = LayeredTree()
    for layer in contents.layers:
        tree.add(layer)
    source = Path(reference).name if Path(reference).exists() else redact(reference)
    location = Location(source)
    variables = {
        key: value for key, equals, value in (variable.partition("=") for variable in contents.config.env) if equals
    }
    if len(variables) > _MOST_VARIABLES:
        raise malformed(
            f"the image sets {len(variables):,} variables", location, f"at most {_MOST_VARIABLES:,} are read"
        )
    main = main_environment(tree, variables, reference, session.project.progress)
    asked = [(f"=={main.python}.*", source)] if main.python else []
    python = choose_python(session.matrices, asked, location)
    recovered = _recovered(contents, distributions(tree, main), variables, location)
    base = choose_platform(session.matrices, recovered, python, selection).base
    recovered = _with_system(
        recovered, tree, next(cell.base for cell in session.matrix.all_cells if cell.base.name == base), location
    )
    return write_imported(session, name, recovered, python, source, location, selection=selection)


def _read(project: ProjectContext, reference: str, scratch: Path) -> ArchivedImage:
    path = Path(reference)
    if path.is_dir():
        reference = f"{LAYOUT}{reference}"
    if not path.is_file():
        return read_image(reference, scratch, project.settings, project.progress)
    try:
        with path.open("rb") as stream:
            return archive.read(stream, host_platform(), reference, scratch)
    except OSError as error:
        raise FetchError(f"{path} cannot be read", code="fetch-not-an-image", why=error.strerror) from error


def _recovered(
    contents: ArchivedImage, installed: tuple[InstalledDistribution, ...], variables: dict[str, str], location: Location
) -> Recovered:
    omissions = []
    pins = []
    for distribution in installed:
        omission = _unnamed(distribution, location)
        if omission is None or not omission.is_package:
            pins.append(PackagePin(distribution.name, f"=={distribution.version}", (location,)))
        omissions += [omission] if omission else []
    config, config_omissions = _config(contents, location)
    env: dict[str, tuple[str, Location]] = {}
    for key, value in variables.items():
        if key in _OWN_VARIABLES or describes_base(key):
            continue
        if why := _why_no_variable(key, value):
            config_omissions.append(
                Omission(location, f"the variable {key}", why, "add it to `env` with the value of your image")
            )
        else:
            env[key] = value, location
    cuda = re.match(r"\d+\.\d+", variables.get("CUDA_VERSION", ""))
    return Recovered(
        tuple(pins), (*omissions, *config_omissions), cuda=(cuda[0], location) if cuda else None, env=env, config=config
    )


def _with_system(recovered: Recovered, tree: FileTree, base: Base, location: Location) -> Recovered:
    """Return the contents with the requested Debian packages that the base lacks."""
    debs, nvidia_debs = requested_debs(tree, base.packages)
    omissions = list(recovered.omissions)
    if nvidia_debs:
        package_names = f"{counted(len(nvidia_debs), 'Debian package')} of NVIDIA: {', '.join(nvidia_debs[:_NAMED])}"
        omissions.append(
            Omission(location, package_names, "wheels bring CUDA", "name libraries that no wheel brings as components")
        )
    release = system.release(tree)
    if release and f"{release.id}{release.version}" != BASE_SYSTEM:
        why = f"the base is {base.name}, whose packages have other versions, and sometimes other names"
        omissions.append(Omission(location, f"the system {release.id} {release.version}", why, "check `packages`"))
    return replace(recovered, debian=dict.fromkeys(debs, location), omissions=tuple(omissions))


def _unnamed(distribution: InstalledDistribution, location: Location) -> Omission | None:
    """Return the reason why a pin cannot name the whole installed distribution; None if it can."""
    release_name = f"{distribution.name} {distribution.version}"
    try:
        Version(distribution.version)
    except ValueError:
        return Omission(location, release_name, f"{distribution.path} gives no version", OWN_PACKAGE, is_package=True)
    url = redact(str(distribution.direct_url.get("url", "")))
    if commit := distribution.direct_url.get("vcs_info"):
        why = f"it was installed from {url} at {commit.get('commit_id') if isinstance(commit, dict) else 'a commit'}"
        return Omission(location, release_name, why, COMMIT, is_package=True)
    if "dir_info" in distribution.direct_url or url.startswith("file:"):
        return Omission(
            location,
            release_name,
            f"it was installed from {url}, which is not part of the image",
            OWN_PACKAGE,
            is_package=True,
        )
    if not (distribution.installer and distribution.is_recorded):
        why = f"{distribution.path} has no INSTALLER or no RECORD: no installer of Python packages brought it"
        return Omission(location, release_name, why, OWN_PACKAGE, is_package=True)
    if url:
        why = "an entry pins the release, so the lock takes the file of the index or of the wheel finder"
        return Omission(location, f"the address {url} of {release_name}", why, "name it with `url:` and `sha256:`")
    return None


def _config(
    contents: ArchivedImage, location: Location
) -> tuple[dict[ConfigName, tuple[tuple[str, ...], Location]], list[Omission]]:
    """Return the config's fields that differ from the defaults of imagegen, and the fields that cannot be taken."""
    config = contents.config
    entrypoint = config.entrypoint[1:] if config.entrypoint[:1] == (ENTRYPOINT,) else config.entrypoint
    fields: dict[ConfigName, tuple[tuple[str, ...], Location]] = {}
    omissions = []
    if entrypoint and "/" in entrypoint[0] and not entrypoint[0].startswith(("/bin/", "/usr/bin/")):
        omissions.append(Omission(location, f"the entry point {entrypoint[0]}", "it is a file of the image", _COPY))
    elif entrypoint:
        fields["entrypoint"] = entrypoint, location
    if config.command and config.command not in _SHELLS and (not entrypoint or "entrypoint" in fields):
        fields["cmd"] = config.command, location
    if config.directory not in ("", "/", WORKDIR):
        fields["workdir"] = (config.directory,), location
    if config.user.partition(":")[0] not in ("", "0", "root"):
        fields["user"] = (config.user,), location
    for name, (value, _) in list(fields.items()):
        if why := next(_refusals(name, value), None):
            del fields[name]
            omissions.append(Omission(location, f"the {name} {' '.join(value)[:70]}", why, "add it to `config`"))
    return fields, omissions


def _refusals(name: ConfigName, value: tuple[str, ...]) -> Iterator[str]:
    kinds = {"user": t.User, "workdir": t.AbsolutePath}
    for word in value:
        try:
            TypeAdapter(kinds.get(name, t.Argument)).validate_python(word)
        except ValidationError as error:
            yield str(error.errors()[0]["msg"]).removeprefix("Value error, ")


def _why_no_variable(name: str, value: str) -> str | None:
    """Return why an entry does not take a variable of the image; None where it does."""
    if name in _PATHS:
        return "it names directories of that image"
    try:
        TypeAdapter(t.EnvName).validate_python(name)
        TypeAdapter(t.EnvValue).validate_python(value)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return None
