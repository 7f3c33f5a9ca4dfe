"""Settings from the user's environment (store, indexes, mirrors, CA bundle), none of which enters an image.

The environment is passed in as a mapping, so that tests never patch os.environ.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagegen.core.errors import UsageError

REGISTRY_VARIABLE = "IMAGEGEN_REGISTRY_"  # and the registry's host, as in IMAGEGEN_REGISTRY_DOCKER_IO
WHEELHOUSE_VARIABLE = "IMAGEGEN_WHEELHOUSE"
MIRROR_VARIABLE = "IMAGEGEN_MIRROR"
APT_VARIABLE = "IMAGEGEN_APT_MIRROR_"  # and the host of an archive of Debian packages
GIT_VARIABLE = "IMAGEGEN_GIT_"  # and the host, as in IMAGEGEN_GIT_GITHUB_COM
_ARCHIVES = ("debian", "debian-security", "ubuntu")
GIT_MIRROR_VARIABLE = "IMAGEGEN_GIT_MIRROR"  # of all hosts that have no variable of their own


def mirror_name(name: str) -> str:
    """A host or an index's alias as the variables that name a mirror of it spell it: GITHUB_COM."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def archive_variable(archive: str) -> str:
    """Return the variable that names a mirror of a named archive of Debian packages: IMAGEGEN_DEBIAN_MIRROR."""
    return f"IMAGEGEN_{mirror_name(archive)}_MIRROR"


@dataclass(frozen=True)
class Settings:
    """This machine's store, indexes, mirrors, proxies and certificates.

    `index_urls` maps an index alias to the address that serves it here; an alias that is absent is served from the
    address in the matrix (or, for `pypi`, from the client library's default).
    """

    env: Mapping[str, str]
    store: Path
    find_links: tuple[str, ...]
    extra_indexes: tuple[str, ...]
    index_urls: Mapping[str, str]
    ca_bundle: Path | None
    archive_mirrors: Mapping[str, str]  # "debian", "debian-security", "ubuntu" -> URL of the archive's root
    registry_mirrors: Mapping[str, str] = field(default_factory=dict)  # "DOCKER_IO" -> address that serves docker.io
    apt_mirrors: Mapping[str, str] = field(default_factory=dict)  # "ARCHIVE_UBUNTU_COM" -> address in place of its host
    git_mirrors: Mapping[str, str] = field(default_factory=dict)  # "GITHUB_COM" -> address that serves github.com's
    git_mirror: str | None = None  # address or directory that serves the repositories of all other hosts
    mirror: str | None = None  # directory or repository that has all that locks name, asked before anything else
    wheelhouse: str | None = None  # "registry.example.com/team/wheels": where a team keeps the wheels that it compiled

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Settings:
        """Read the variables and files that pip, uv and XDG users expect.

        Raises UsageError when neither XDG_CACHE_HOME nor HOME says where the store can live.
        """
        pip = _pip_config(env)
        index_urls = {
            name.removeprefix("IMAGEGEN_INDEX_").lower().replace("_", "-"): value
            for name, value in env.items()
            if name.startswith("IMAGEGEN_INDEX_") and value
        }
        default = _first(env, "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL") or pip.get("index-url")
        if default:
            index_urls.setdefault("pypi", default)
        ca_bundle = _first(env, "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT") or pip.get("cert")
        mirrors = {name: env[archive_variable(name)] for name in _ARCHIVES if env.get(archive_variable(name))}
        return cls(
            env=dict(env),
            store=_cache_home(env).absolute() / "imagegen" / "store",  # programs with other directories get it
            find_links=_words(env, pip, "find-links", "PIP_FIND_LINKS", "UV_FIND_LINKS"),
            extra_indexes=_words(env, pip, "extra-index-url", "PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL"),
            index_urls=index_urls,
            ca_bundle=Path(ca_bundle) if ca_bundle else None,
            archive_mirrors=mirrors,
            registry_mirrors=_mirrors(env, REGISTRY_VARIABLE),
            apt_mirrors=_mirrors(env, APT_VARIABLE),
            git_mirrors=_mirrors({**env, GIT_MIRROR_VARIABLE: ""}, GIT_VARIABLE),
            git_mirror=env.get(GIT_MIRROR_VARIABLE) or None,
            mirror=env.get(MIRROR_VARIABLE) or None,
            wheelhouse=env.get(WHEELHOUSE_VARIABLE) or None,
        )


def _mirrors(env: Mapping[str, str], variable: str) -> dict[str, str]:
    return {name.removeprefix(variable): value for name, value in env.items() if name.startswith(variable) and value}


def _cache_home(env: Mapping[str, str]) -> Path:
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"])
    if env.get("HOME"):
        return Path(env["HOME"]) / ".cache"
    raise UsageError(
        "no place for the store",
        code="usage-no-store",
        why="neither XDG_CACHE_HOME nor HOME is set",
        fix="set XDG_CACHE_HOME",
    )


def _pip_config(env: Mapping[str, str]) -> dict[str, str]:
    """The [global] section of pip's configuration files, later files winning, keys spelled with dashes."""
    parser = configparser.RawConfigParser()
    for file in _pip_files(env):
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise UsageError(
                "pip's configuration cannot be read", code="usage-pip-configuration", where=str(file), why=str(error)
            ) from error
    section = parser.items("global") if parser.has_section("global") else []
    return {key.replace("_", "-"): value for key, value in section}


def _pip_files(env: Mapping[str, str]) -> list[Path]:
    """Return pip's configuration files, by the section "Location" of its documentation."""
    named_file = Path(env["PIP_CONFIG_FILE"]) if env.get("PIP_CONFIG_FILE") else None
    if named_file == Path(os.devnull):
        return []
    site = (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    files = [*(Path(directory) / "pip" / "pip.conf" for directory in site), Path("/etc/pip.conf")]
    if named_file and named_file.exists():
        return [*files, named_file]
    if env.get("HOME"):
        home = Path(env["HOME"])
        files += [home / ".pip" / "pip.conf", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"]
    return files


def _first(env: Mapping[str, str], *names: str) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


def _words(env: Mapping[str, str], pip: Mapping[str, str], key: str, *names: str) -> tuple[str, ...]:
    """Return every word of the named variables and of pip's key, in that order, each once (uv separates with commas
    too).
    """
    text = " ".join([*(env.get(name, "") for name in names), pip.get(key, "")])
    return tuple(dict.fromkeys(text.replace(",", " ").split()))
