"""Python environments in a file tree: where modules are imported from, and by which program.

Sources: CPython's documentation of sys.prefix, `site` and `venv` (pyvenv.cfg next to the program or one level up);
Debian's Python policy for dist-packages; sysconfig's schemes for lib64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from imagegen.image.inventory.tree import Directory, FileTree, file_at, join, parent, place, read_file, walk

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("python", "python3")
_SITES = ("site-packages", "dist-packages")
_VERSIONED = re.compile(r"python(3\.[0-9]{1,2})t?")
_METADATA = (".dist-info", ".egg-info")
_MAX_CONFIGURATION = 1 << 16  # bytes


@dataclass(frozen=True)
class Environment:
    """`sites` lead through no link; files are named relative to the first. `program` is None where none is there."""

    prefix: str
    sites: tuple[str, ...]
    python: str | None  # "3.11"
    program: str | None

    @property
    def site(self) -> str:
        return self.sites[0]


def environment_of_path(tree: FileTree, variables: Mapping[str, str]) -> Environment | None:
    """The environment of the `python`, or else `python3`, that a shell with these variables would start."""
    directories = [path for path in (variables.get("PATH") or _PATH).split(":") if path.startswith("/")]
    for name in _PROGRAMS:
        for directory in directories:
            program = join(directory, name)
            if file_at(tree, program):
                return environment_of_program(tree, program, variables.get("PYTHONPATH", ""))
    return None


def environment_of_program(tree: FileTree, program: str, python_path: str = "") -> Environment | None:
    """The environment of the program at this path, which may be a link; None where it has no directory of modules."""
    for prefix in (parent(program), parent(parent(program))):
        if (settings := configuration(tree, prefix)) is not None:
            return _virtual(tree, prefix, settings, program, python_path)
    real = place(tree, program)
    if real is None:
        return None
    prefix = parent(parent(real))
    version = _VERSIONED.fullmatch(real.rpartition("/")[2])
    python = version[1] if version else next(_versions(tree, prefix), None)
    return _environment(tree, prefix, _system_sites(prefix, python), python, program, python_path)


def environment_of_site(tree: FileTree, site: str) -> Environment:
    """The environment that a directory of modules, which leads through no link, belongs to."""
    above = parent(site)
    prefix = parent(parent(above))
    if site.rpartition("/")[2] not in _SITES or not above.rpartition("/")[2].startswith("python"):
        return Environment(site, (site,), None, None)
    version = _VERSIONED.fullmatch(above.rpartition("/")[2])
    settings = configuration(tree, prefix)
    python = version[1] if version else _configured_version(settings or {})
    homes = [prefix] if prefix != "/usr/local" else [prefix, "/usr"]
    names = [f"python{python}", *_PROGRAMS] if settings is None else ["python", "python3"]
    programs = [join(home, f"bin/{name}") for name in names for home in homes]
    program = next((path for path in programs if file_at(tree, path)), None)
    whole = environment_of_program(tree, program) if program else None
    other_sites = (
        [other_site for other_site in whole.sites if other_site != site] if whole and site in whole.sites else []
    )
    return Environment(prefix, (site, *other_sites), python, program)


def all_sites(tree: FileTree) -> list[str]:
    """Return every directory of modules with distributions in it, each once: links are not followed."""
    sites: dict[str, None] = {}
    for path, _ in walk(tree, "/"):
        site, _, below_site = path.rpartition("-packages/")
        top = below_site.partition("/")[0]
        if top.endswith(_METADATA) and site.endswith(("/site", "/dist")):
            sites[f"{site}-packages"] = None
    return sorted(sites)


def is_site(tree: FileTree, directory: str) -> bool:
    """Return whether distributions are installed in it."""
    return any(name.endswith(_METADATA) for name, _ in tree.entries(directory))


def configuration(tree: FileTree, prefix: str) -> dict[str, str] | None:
    """Parse pyvenv.cfg; None where there is none."""
    text = read_file(tree, join(prefix, "pyvenv.cfg"), _MAX_CONFIGURATION)
    if text is None:
        return None
    lines = (line.partition("=") for line in text.decode(errors="replace").splitlines())
    return {key.strip().lower(): value.strip() for key, equals, value in lines if equals}


def _virtual(
    tree: FileTree, prefix: str, settings: Mapping[str, str], program: str, python_path: str
) -> Environment | None:
    python = next(_versions(tree, prefix), None) or _configured_version(settings)
    sites = _sites(prefix, python)
    if settings.get("include-system-site-packages", "").lower() == "true":
        real = place(tree, program)
        home = place(tree, settings.get("home", "")) or (parent(real) if real else None)
        sites += _system_sites(parent(home), python) if home else []
    return _environment(tree, prefix, sites, python, program, python_path)


def _environment(
    tree: FileTree, prefix: str, sites: Iterable[str], python: str | None, program: str, python_path: str
) -> Environment | None:
    extra_sites = [directory for directory in python_path.split(":") if directory.startswith("/")]
    placed = [(directory, site in extra_sites) for site in (*sites, *extra_sites) if (directory := place(tree, site))]
    # A directory of PYTHONPATH is often a project's whole tree.
    real = [
        directory
        for directory, extra in placed
        if isinstance(tree.look(directory), Directory) and (not extra or is_site(tree, directory))
    ]
    return Environment(prefix, tuple(dict.fromkeys(real)), python, program) if real else None


def _system_sites(prefix: str, python: str | None) -> list[str]:
    """Return the site directories of a Python installed under `prefix`.

    The distribution's own leaves /usr/local to pip.
    """
    if prefix not in ("/usr", "/"):
        return _sites(prefix, python)
    return [*_sites("/usr/local", python), *_sites("/usr", python), "/usr/lib/python3/dist-packages"]


def _sites(prefix: str, python: str | None) -> list[str]:
    return (
        [join(prefix, f"{lib}/python{python}/{name}") for lib in ("lib", "lib64") for name in _SITES] if python else []
    )


def _versions(tree: FileTree, prefix: str) -> Iterator[str]:
    """The Pythons for which something lies under `prefix`, the newest first."""
    library = place(tree, join(prefix, "lib"))
    names = [match[1] for name, _ in tree.entries(library) if (match := _VERSIONED.fullmatch(name))] if library else []
    yield from sorted(names, key=lambda version: int(version.partition(".")[2]), reverse=True)


def _configured_version(settings: Mapping[str, str]) -> str | None:
    match = re.match(r"3\.[0-9]{1,2}", settings.get("version_info") or settings.get("version") or "")
    return match[0] if match else None
