"""Resolution with uv, from static metadata only: no code of any package runs.

uv resolves for a machine other than this one (`uv pip compile --python-version --python-platform`), with an
interpreter that refuses to build (uv_interpreter.py), a cache of its own (metadata that an earlier build left in the
user's cache must not decide), and only the configuration that is written here. It runs twice: for the versions with
their dependent packages, and, restricted to these, for the files (PEP 751).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagegen.core import programs, temporary, toml
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, LockError, SdistMetadataError
from imagegen.core.net.package_index import DEFAULT, upload_day
from imagegen.core.store.cache import Cache
from imagegen.core.text import redact
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock import uv_interpreter
from imagegen.spec.model import Component

_PROJECT = "cell"
_PINS = "pins.txt"
OMITTED = "0+omitted"  # the version of a placeholder
TIMEOUT = 1800  # seconds; the largest cells resolve within a minute where nothing is cached
_OTHER_INDEX = "check network and proxy, or name another index: UV_DEFAULT_INDEX, or IMAGEGEN_INDEX_... for an alias"
# Messages of uv 0.13 about an index that fails, rather than about its contents.
_INDEX_FAILED = re.compile(r"Failed to fetch|Request failed after|`?Content-Type`? |unexpected (JSON|HTML)")
# The headline, which the error has already, and advice about an option that imagegen sets itself.
_OMITTED = re.compile(
    r"No solution found when resolving dependencies:?"
    r"|(?<!\s)\s++Consider\s++using\s++`exclude-newer-package`[^.]{0,300}\."
    r"|hint: Wheels are required for [^\n]{0,300}--no-build-package [^\n]*"
)
_NO_SDIST = "--only-binary="
_SDIST = re.compile(r"`([^`=]+)==([^`]+)`")  # the release of which uv would run code
# A package that another one requires.
_REQUIRED = re.compile(r"(?<!the cell)(?<!\s)\s++depends\s++on\s++([A-Za-z0-9._-]*[A-Za-z0-9])")
_WARNING = "warning: "
_EXPLANATION = 24  # lines of uv's own words that are passed on
_KEPT_ENV = re.compile(
    r"HOME|PATH|TMPDIR|NETRC|USER|XDG_CONFIG_HOME|SSL_CERT_FILE|SSL_CERT_DIR|SSL_CLIENT_CERT|(?i:(https?|all|no)_proxy)"
    r"|UV_(HTTP_TIMEOUT|HTTP_RETRIES|KEYRING_PROVIDER|INSECURE_HOST|SYSTEM_CERTS|NATIVE_TLS"
    r"|OFFLINE|CONCURRENT_DOWNLOADS)"
)

# uv 0.13 says "The requested version, v1.0, was published at T." or "The latest version satisfying the requirement is
# v1.0, published at T."; without "published at" where the index gives no upload time.
_EXCLUDED = re.compile(
    r"`([^`]+)` was filtered by `exclude-newer` to only include packages uploaded before \S+\."
    r"(?: The (?:requested|latest) version[^`]*? v\S+,(?: was)? published at (\S+)\.)?"
)
_UNDATED = re.compile(r"(?<![\w.-])([\w.-]+)(?:\[[\w,-]+\])?(?:[=<>!~]\S{0,200})? (?:has|have) no publish time")


@dataclass(frozen=True)
class Site:
    """The source of an index alias, as address of a PEP 503 index or of a page of files that replaces it.

    `undated` are packages of which the index lists files without an upload time: uv would ignore these files.
    """

    url: str
    flat: bool = False
    undated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ResolveRequest:
    """The input of a resolution. `routes` maps a package to the only alias that may give it."""

    requirements: tuple[str, ...]  # PEP 508
    target: WheelTarget
    as_of: str
    routes: Mapping[str, str]
    sites: Mapping[str, Site]  # alias -> where; without "pypi", uv's default
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()  # PEP 508, instead of the requirements of packages
    omitted: tuple[str, ...] = ()  # packages that a placeholder of version OMITTED replaces
    sdists: tuple[Component, ...] = ()
    only_wheels: tuple[str, ...] = ()  # packages of which no sdist is a candidate
    preferences: Mapping[str, str] | None = None  # package -> version that stays if it can

    @property
    def undated(self) -> list[str]:
        """Packages that are resolved whatever their files' upload times, sorted."""
        return sorted(
            name for name, alias in self.routes.items() if alias in self.sites and name in self.sites[alias].undated
        )


UPLOADS = Cache("upload", str)  # the day of the upload of a file that was locked, by its digest


@dataclass(frozen=True)
class Remote:
    """A file as an index offers it; `size` in bytes and `uploaded`, a day ("2026-07-03"), if the index states them."""

    filename: str
    url: str
    sha256: str
    size: int | None
    uploaded: str | None = None


@dataclass(frozen=True)
class Pinned:
    """A chosen release. `via` names the distributions that ask for it."""

    name: str
    version: str
    via: tuple[str, ...]
    wheels: tuple[Remote, ...]
    sdist: Remote | None


def resolve(question: ResolveRequest, settings: Settings) -> tuple[tuple[Pinned, ...], list[str]]:
    """Return the releases that satisfy the question, sorted by name, and the warnings of uv.

    Raises LockError with uv's explanation, shortened, and FetchError with the index's address if an index fails.
    """
    parent = _home(settings)
    parent.mkdir(parents=True, exist_ok=True)
    with temporary.temporary_directory(parent) as work_dir:
        _write_inputs(work_dir, question)
        pins = work_dir / _PINS
        pins.write_text("".join(f"{package}=={version}\n" for package, version in (question.preferences or {}).items()))
        shared = ["--constraints", "constraints.txt"] if question.constraints else []
        shared += ["--overrides", "overrides.txt"] if question.overrides or question.omitted else []
        shared += ["--python-platform", question.target.uv_platform]
        shared += ["--python-version", question.target.python, "--exclude-newer", question.as_of]
        shared += [f"--exclude-newer-package={name}=false" for name in question.undated]
        shared += [f"{_NO_SDIST}{name}" for name in question.only_wheels]
        releases, via, warnings = _locked(work_dir, settings, question, shared)
        # A release that has only an sdist is a candidate only if no other release of the package will do.
        while sdists := _only_sdists(question, releases) - {option.removeprefix(_NO_SDIST) for option in shared}:
            shared += [f"{_NO_SDIST}{name}" for name in sorted(sdists)]
            try:
                other = _locked(work_dir, settings, question, shared)
            except LockError:
                break
            if not sdists <= other[1].keys():
                break
            releases, via, warnings = other
    if {pinned.name for pinned in releases} != via.keys():
        odd = sorted({pinned.name for pinned in releases} ^ via.keys())
        raise LockError(
            "uv answered the same question in two ways",
            code="lock-nondeterministic",
            why=f"about {', '.join(odd)}",
            fix="lock again",
        )
    return releases, warnings


def _locked(
    work_dir: Path, settings: Settings, question: ResolveRequest, shared: Sequence[str]
) -> tuple[tuple[Pinned, ...], dict[str, tuple[str, ...]], list[str]]:
    """Return the releases with their files, the dependent packages of each, and the warnings of uv."""
    pins = work_dir / _PINS
    output = _uv(work_dir, settings, question, [*shared, "--annotation-style", "line", "--output-file", pins.name])
    warnings = [line.removeprefix(_WARNING) for line in output.splitlines() if line.startswith(_WARNING)]
    via = dict(_annotated(pins.read_text()))
    files = [*shared, "--constraints", pins.name, "--format", "pylock.toml", "--output-file", "pylock.toml"]
    _uv(work_dir, settings, question, files)
    packages = toml.loads((work_dir / "pylock.toml").read_text()).get("packages", [])
    releases = (_pinned(package, via) for package in packages)
    return tuple(sorted(releases, key=lambda pinned: pinned.name)), via, warnings


def _only_sdists(question: ResolveRequest, releases: Iterable[Pinned]) -> set[str]:
    """Return the packages whose release has no wheel that fits, except declared sdists and pins."""
    declared = {component.package for component in question.sdists}
    return {
        pinned.name
        for pinned in releases
        if pinned.sdist
        and pinned.name not in {*declared, *question.omitted}
        and question.target.best((remote.filename, remote) for remote in pinned.wheels) is None
        and not _is_pinned(question, pinned.name, pinned.version)
    }


def _home(settings: Settings) -> Path:
    """Return uv's directory next to the store. /tmp may forbid programs, and the interpreter is one."""
    return settings.store.parent / "uv"


def _write_inputs(work_dir: Path, question: ResolveRequest) -> None:
    """Write the input of uv: requirements with their routes, configuration, and the interpreter that it may query."""
    overrides = [*question.overrides, *(f"{name}=={OMITTED}" for name in question.omitted)]
    for text in (*question.requirements, *question.constraints, *overrides):
        _check(text)
    routed = sorted({package: alias for package, alias in question.routes.items() if alias != "pypi"}.items())
    lines = ["[project]", f'name = "{_PROJECT}"', 'version = "0"']
    lines += [f"dependencies = {json.dumps(list(question.requirements))}", "[tool.uv.sources]"]
    lines += [f"{package} = {{ index = {json.dumps(alias)} }}" for package, alias in routed]
    for alias in sorted({alias for _, alias in routed}):
        site = question.sites[alias]
        lines += ["[[tool.uv.index]]", f"name = {json.dumps(alias)}", f"url = {json.dumps(site.url)}"]
        lines += ["explicit = true", *(['format = "flat"'] if site.flat else [])]
    (work_dir / "pyproject.toml").write_text("\n".join(lines) + "\n")
    (work_dir / "constraints.txt").write_text("".join(f"{text}\n" for text in question.constraints))
    (work_dir / "overrides.txt").write_text("".join(f"{text}\n" for text in overrides))
    lines = _placeholders(work_dir, question.omitted) if question.omitted else []
    if "pypi" in question.sites:
        lines += ["[[index]]", f"url = {json.dumps(question.sites['pypi'].url)}", "default = true"]
    requested = map(Requirement, question.requirements)
    extras: dict[str, set[str]] = {canonicalize_name(requirement.name): requirement.extras for requirement in requested}
    for component in question.sdists:
        if component.sdist:
            lines += [
                "[[dependency-metadata]]",
                f'name = "{component.package}"',
                f'version = "{component.sdist.version}"',
            ]
            lines += [f"requires-dist = {json.dumps(list(component.sdist.requires))}"]
            # Declared metadata does not list the extras of the package, so uv warns of none of them.
            lines += [f"provides-extra = {json.dumps(sorted(extras.get(component.package, ())))}"]
    (work_dir / "uv.toml").write_text("\n".join(lines) + "\n")
    guarded = shlex.join([sys.executable, "-I", uv_interpreter.__file__])
    (work_dir / "python").write_text(f'#!/bin/sh\nexec {guarded} "$0" "$@"\n')
    (work_dir / "python").chmod(0o755)


def _placeholders(work_dir: Path, omitted: Sequence[str]) -> list[str]:
    """Write a page that offers a file without requirements for each omitted package; return its configuration for uv.

    An override with a marker that never holds would omit a package too, and hide which packages require it.
    """
    page, links, lines = work_dir / "omitted.html", [], []
    for name in omitted:
        file = f"{name.replace('-', '_')}-{OMITTED}.tar.gz"
        sha256 = hashlib.sha256(file.encode()).hexdigest()  # of no file: uv opens none whose metadata it has
        links.append(f'<a href="{(work_dir / file).as_uri()}#sha256={sha256}">{file}</a>')
        lines += ["[[dependency-metadata]]", f'name = "{name}"', f'version = "{OMITTED}"', "requires-dist = []"]
    page.write_text("<!DOCTYPE html>\n" + "<br>\n".join(links))
    return ["[[index]]", f"url = {json.dumps(page.as_uri())}", 'format = "flat"', *lines]


def _check(text: str) -> None:
    try:
        if Requirement(text).url is None:
            return
        why = "a requirement by address names no version that an index could tell"
    except ValueError as error:
        why = str(error)
    raise LockError(f"{text!r} cannot be resolved", code="lock-unresolvable", why=why)


def _uv(work_dir: Path, settings: Settings, question: ResolveRequest, arguments: Sequence[str]) -> str:
    """Run `uv pip compile` and return its stderr without credentials. Raises LockError, FetchError."""
    command = [uv.find_uv_bin(), "pip", "compile", "pyproject.toml", "--config-file", "uv.toml"]
    command += ["--python", str(work_dir / "python"), "--no-build-isolation", "--no-header", "--color", "never"]
    env = {name: value for name, value in settings.env.items() if _KEPT_ENV.fullmatch(name)}
    env |= {"UV_CACHE_DIR": str(_home(settings) / "cache"), "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    if settings.ca_bundle:
        env["SSL_CERT_FILE"] = str(settings.ca_bundle)
    command += arguments
    try:
        completed = programs.run(
            command, cwd=work_dir, env=env, capture_output=True, text=True, errors="replace", timeout=TIMEOUT
        )
    except programs.TimeoutExpired as error:
        # uv's own timeout is for a single read, which never comes where an index drips.
        raise FetchError(
            f"uv did not resolve the cell in {TIMEOUT // 60} minutes",
            code="fetch-resolution-timeout",
            why="an index is too slow",
            fix=_OTHER_INDEX,
        ) from error
    if completed.returncode:
        refusal = _explained(completed.stderr, question)
        refused = _SDIST.search(completed.stderr) if refusal.code == "lock-sdist-metadata" else None
        if refused and not _is_pinned(question, refused[1], refused[2]) and f"{_NO_SDIST}{refused[1]}" not in arguments:
            arguments = [*arguments, f"{_NO_SDIST}{refused[1]}"]
            result = _without_sdists(work_dir, settings, question, arguments)
            if isinstance(result, str) and refused[1] in dict(_annotated((work_dir / _PINS).read_text())):
                return result
            refusal = result if isinstance(result, LockError) else refusal
        raise refusal
    return redact(completed.stderr)


def _is_pinned(question: ResolveRequest, name: str, version: str) -> bool:
    roots = map(Requirement, (*question.requirements, *question.constraints, *question.overrides))
    pin = f"=={version}"
    return any(canonicalize_name(root.name) == name and str(root.specifier) == pin for root in roots)


def _without_sdists(
    work_dir: Path, settings: Settings, question: ResolveRequest, arguments: Sequence[str]
) -> str | LockError | None:
    """Return the output of a resolution without sdists of the packages in `arguments`, or the error that explains it.

    None stands for packages that only have sdists. uv goes back to old releases, which have only sdists, if a
    requirement excludes all others.
    """
    try:
        return _uv(work_dir, settings, question, arguments)
    except LockError as conflict:
        sdists = {argument.removeprefix(_NO_SDIST) for argument in arguments}
        if conflict.code != "lock-unresolvable" or not sdists.issuperset(_REQUIRED.findall(conflict.why or "")):
            return LockError(conflict.what, code="lock-sdist-metadata", why=conflict.why, fix=conflict.fix)
    except FetchError:
        pass
    return None


def _explained(stderr: str, question: ResolveRequest) -> LockError | FetchError:
    """Return a LockError with uv's explanation, without the parts that only concern the uv command line."""
    text = re.sub(rf"\b{_PROJECT}( \(pyproject\.toml\))? depends on", "the cell depends on", redact(stderr))
    if uv_interpreter.REFUSAL in text:
        match = _SDIST.search(text)
        name, version = (match[1], match[2]) if match else ("a package", "")
        return SdistMetadataError(
            f"{name} {version} has no wheel, and its metadata cannot be read without running its code",
            release=(name, version),
            why=uv_interpreter.REFUSAL,
            fix=f"declare {name} as a component with `sdist:` (version, requires, build_requires), or exclude it",
        )
    if undated := packages_without_upload_time(text):
        return _no_upload_time(undated, question)
    lines = [line.rstrip() for line in _OMITTED.sub("", text).splitlines() if not line.startswith(_WARNING)]
    lines = [line for line in (re.sub(r"^(error:)?(\s*cause:)?\s*", "", line) for line in lines) if line]
    if len(lines) > _EXPLANATION:
        lines = [*lines[:_EXPLANATION], f"… ({len(lines) - _EXPLANATION} more lines)"]
    why = "\n       ".join(lines) or "uv said nothing"
    if _INDEX_FAILED.search(text):
        fix = "set SSL_CERT_FILE to the CA bundle of your network" if "certificate" in text else _OTHER_INDEX
        return FetchError("an index does not answer as one", code="fetch-index-invalid", why=why, fix=fix)
    message = "the requirements cannot all be met" if "unsatisfiable" in text else "uv could not resolve the cell"
    as_of = "a later --as-of admits files that were uploaded since" if is_limited_by_cutoff(text) else None
    return LockError(message, code="lock-unresolvable", why=why, fix=as_of)


def _no_upload_time(packages: Sequence[str], question: ResolveRequest) -> FetchError:
    """The error for an index that lists files of these packages without the upload time that the cutoff needs."""
    alias = question.routes.get(packages[0], DEFAULT)
    names = ", ".join(packages)
    return FetchError(
        f"index {alias} gives no upload times for {names}",
        code="fetch-no-upload-times",
        why=f"a lock takes only files that were uploaded before its time ({question.as_of}), so these are left out",
        fix="name an index that gives upload times (PEP 700), as PyPI does: UV_DEFAULT_INDEX; or, for packages of your "
        f"own, declare {names} as a component with an `index:` of its own, which needs no upload times",
    )


def _annotated(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (package, its dependent packages) from lines like `click==8.5.1  # via typer, cell (pyproject.toml)`."""
    for line in text.splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)==\S+(?:\s+#\s+via\s++(.*))?$", line)
        if match:
            names = [name.partition("[")[0] for name in (match[2] or "").split(", ")]
            asking = {canonicalize_name(name) for name in names if re.fullmatch(r"[A-Za-z0-9._-]+", name)}
            yield canonicalize_name(match[1]), tuple(sorted(asking))


def _pinned(package: Mapping[str, Any], via: Mapping[str, tuple[str, ...]]) -> Pinned:
    name = canonicalize_name(package["name"])
    return Pinned(
        name=name,
        version=package["version"],
        via=via.get(name, ()),
        wheels=tuple(_remotes(name, package.get("wheels", []))),
        sdist=next(iter(_remotes(name, [package["sdist"]] if "sdist" in package else [])), None),
    )


def _remotes(name: str, files: Iterable[Mapping[str, Any]]) -> Iterator[Remote]:
    for file in files:
        url = file["url"]
        filename = file.get("name") or unquote(urlsplit(url).path.rpartition("/")[2])
        sha256 = file.get("hashes", {}).get("sha256")
        if sha256 is None:
            raise LockError(
                f"the index gives no sha256 for {filename}", code="lock-no-hash", why=f"{name} cannot be locked without"
            )
        day = upload_day(str(file.get("upload-time", "")))  # a time of TOML
        yield Remote(filename, url, sha256, file.get("size"), str(day) if day else None)


def is_limited_by_cutoff(explanation: str) -> bool:
    """Return whether uv ignored files that were uploaded after the cutoff."""
    late = any(uploaded for _, uploaded in _excluded(explanation))
    return late or "exclude newer time" in " ".join(explanation.split())


def packages_without_upload_time(explanation: str) -> list[str]:
    """Return the packages of which uv ignored files since the index gives no upload time, each once."""
    hinted = [name for name, uploaded in _excluded(explanation) if not uploaded]
    return list(dict.fromkeys([*hinted, *_UNDATED.findall(" ".join(explanation.split()))]))


def _excluded(explanation: str) -> list[tuple[str, str]]:
    return _EXCLUDED.findall(" ".join(explanation.split()))
