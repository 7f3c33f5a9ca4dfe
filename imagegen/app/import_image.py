"""An image as the source of an entry: what pip and dpkg have in it, its variables and its entry point."""

from __future__ import annotations

import platform
import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.version import Version
from pydantic import TypeAdapter, ValidationError

from imagegen.app.audit import LAYOUT, main_environment, read_image
from imagegen.app.entries import entry_path
from imagegen.app.import_project import BASE_SYSTEM, Imported, choose_python, known_facts, write_imported
from imagegen.app.session import Session
from imagegen.core import types as t
from imagegen.core.errors import FetchError, Location, UsageError
from imagegen.core.layer_tar import DAMAGED, Bounded
from imagegen.core.oci import INDEX_FILE, PLATFORMS, Platform
from imagegen.core.text import counted, redact
from imagegen.image.inventory import archive, system
from imagegen.image.inventory.archive import ArchivedImage
from imagegen.image.inventory.freeze import InstalledDistribution, distributions, requested_debs
from imagegen.image.inventory.layers import LayeredTree
from imagegen.image.inventory.tree import FileTree
from imagegen.image.layers.plan import ENTRYPOINT, ENV, WORKDIR
from imagegen.plan.matrix.model import Base, ConfigName
from imagegen.plan.projects import entry
from imagegen.plan.projects.model import COMMIT, OWN_PACKAGE, Omission, PackagePin, Recovered, malformed
from imagegen.plan.projects.names import describes_base

_OWN_VARIABLES = frozenset({"LANG", "PATH", "VIRTUAL_ENV", *(each.name for each in ENV)})  # of every image here
_SHELLS = frozenset({("/bin/bash",), ("bash",), ("/bin/sh",), ("sh",), ("python3",)})  # commands that say nothing
_PATHS = frozenset({"CUDA_HOME", "LD_LIBRARY_PATH", "LIBRARY_PATH", "PYTHONPATH"})
_FILES = frozenset({".txt", ".in", ".toml", ".lock", ".yml", ".yaml", ".dockerfile"})  # of files that are not there
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


def import_image(session: Session, reference: str, name: str | None, cuda: str = "") -> Imported:
    """Write matrices/<name>.yaml with an image of the packages of another one.

    `reference` names an image of an engine or a registry, an OCI layout (`oci:DIR` or DIR), or an archive as `docker
    save` writes it. `cuda` is as in Selection. Raises UsageError, FetchError, EngineError, and as `write_imported`;
    then nothing is written.
    """
    if name is None:
        raise UsageError("the image needs a name", code="usage-name-missing", fix="add --name IMAGE")
    entry_path(session, name, entry.MARK)  # reads the matrix: what is wrong there is cheaper to find than an image
    with session.store.temporary_directory("import") as scratch:
        contents = _read(session, reference, scratch)
    tree = LayeredTree()
    for layer in contents.layers:
        tree.add(layer)
    source = Path(reference).name if Path(reference).exists() else redact(reference)
    place = Location(source)
    variables = {key: value for key, equals, value in (each.partition("=") for each in contents.config.env) if equals}
    if len(variables) > _MOST_VARIABLES:
        raise malformed(f"the image sets {len(variables):,} variables", place, f"at most {_MOST_VARIABLES:,} are read")
    main = main_environment(tree, variables, reference, session.progress)
    asked = [(f"=={main.python}.*", source)] if main.python else []
    python = choose_python(session, asked, place)
    found = _recovered(contents, distributions(tree, main), variables, place)
    base = entry.platform(found, python, known_facts(session), cuda_value=cuda).base
    found = _with_system(
        found, tree, next(cell.base for cell in session.matrix.all_cells if cell.base.name == base), place
    )
    return write_imported(session, name, found, python, source, place, cuda=cuda)


def _read(session: Session, reference: str, scratch: Path) -> ArchivedImage:
    path = Path(reference)
    if path.is_dir():
        reference = f"{LAYOUT}{reference}"
    if not path.is_file():
        return read_image(reference, scratch, session.settings, session.progress)
    machine = platform.machine()
    here = Platform("linux", PLATFORMS.get(machine, machine).rpartition("/")[2])
    try:
        with path.open("rb") as stream:
            return archive.read(stream, here, reference, scratch)
    except OSError as error:
        raise FetchError(f"{path} cannot be read", code="fetch-not-an-image", why=error.strerror) from error


def _recovered(
    contents: ArchivedImage,
    installed: tuple[InstalledDistribution, ...],
    variables: dict[str, str],
    place: Location,
) -> Recovered:
    omissions = []
    pins = []
    for each in installed:
        omission = _unnamed(each, place)
        if omission is None or not omission.is_package:
            pins.append(PackagePin(each.name, f"=={each.version}", (place,)))
        omissions += [omission] if omission else []
    config, more = _config(contents, place)
    env: dict[str, tuple[str, Location]] = {}
    for key, value in variables.items():
        if key in _OWN_VARIABLES or describes_base(key):
            continue
        if why := _why_no_variable(key, value):
            more.append(Omission(place, f"the variable {key}", why, "add it to `env` with the value of your image"))
        else:
            env[key] = value, place
    cuda = re.match(r"\d+\.\d+", variables.get("CUDA_VERSION", ""))
    return Recovered(
        tuple(pins),
        (*omissions, *more),
        cuda=(cuda[0], place) if cuda else None,
        env=env,
        config=config,
    )


def _with_system(found: Recovered, tree: FileTree, base: Base, place: Location) -> Recovered:
    """Return the contents with the Debian packages that were asked for and the base lacks."""
    debs, omissions = requested_debs(tree, base.packages), list(found.omissions)
    if debs.nvidia:
        what = f"{counted(len(debs.nvidia), 'Debian package')} of NVIDIA: {', '.join(debs.nvidia[:_NAMED])}"
        omissions.append(Omission(place, what, "wheels bring CUDA", "name as a component what no wheel brings"))
    release = system.release(tree)
    if release and f"{release.id}{release.version}" != BASE_SYSTEM:
        why = f"the base is {base.name}, whose packages have other versions, and sometimes other names"
        omissions.append(Omission(place, f"the system {release.id} {release.version}", why, "check `packages`"))
    return replace(found, debian=dict.fromkeys(debs.names, place), omissions=tuple(omissions))


def _unnamed(each: InstalledDistribution, place: Location) -> Omission | None:
    """Return why a pin does not name a distribution, or names it by less than what was installed; else None."""
    what = f"{each.name} {each.version}"
    try:
        Version(each.version)
    except ValueError:
        return Omission(place, what, f"{each.path} gives no version", OWN_PACKAGE, is_package=True)
    url = redact(str(each.direct_url.get("url", "")))
    if commit := each.direct_url.get("vcs_info"):
        why = f"it was installed of {url} at {commit.get('commit_id') if isinstance(commit, dict) else 'a commit'}"
        return Omission(place, what, why, COMMIT, is_package=True)
    if "dir_info" in each.direct_url or url.startswith("file:"):
        return Omission(
            place, what, f"it was installed of {url}, which is no part of the image", OWN_PACKAGE, is_package=True
        )
    if not (each.installer and each.is_recorded):
        why = f"{each.path} has no INSTALLER or no RECORD: no installer of Python packages brought it"
        return Omission(place, what, why, OWN_PACKAGE, is_package=True)
    if url:
        why = "an entry pins the release, so the lock takes the file of the index or of the wheel finder"
        return Omission(place, f"the address {url} of {what}", why, "name it with `url:` and `sha256:`")
    return None


def _config(
    contents: ArchivedImage, place: Location
) -> tuple[dict[ConfigName, tuple[tuple[str, ...], Location]], list[Omission]]:
    """Return the fields of the config that differ from those of every image here, and those that cannot be taken."""
    config = contents.config
    entrypoint = config.entrypoint[1:] if config.entrypoint[:1] == (ENTRYPOINT,) else config.entrypoint
    found: dict[ConfigName, tuple[tuple[str, ...], Location]] = {}
    omissions = []
    if entrypoint and "/" in entrypoint[0] and not entrypoint[0].startswith(("/bin/", "/usr/bin/")):
        omissions.append(Omission(place, f"the entry point {entrypoint[0]}", "it is a file of the image", _COPY))
    elif entrypoint:
        found["entrypoint"] = entrypoint, place
    if config.command and config.command not in _SHELLS and (not entrypoint or "entrypoint" in found):
        found["cmd"] = config.command, place
    if config.directory not in ("", "/", WORKDIR):
        found["workdir"] = (config.directory,), place
    if config.user.partition(":")[0] not in ("", "0", "root"):
        found["user"] = (config.user,), place
    for name, (value, _) in list(found.items()):
        if why := next(_refusals(name, value), None):
            del found[name]
            omissions.append(Omission(place, f"the {name} {' '.join(value)[:70]}", why, "add it to `config`"))
    return found, omissions


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
