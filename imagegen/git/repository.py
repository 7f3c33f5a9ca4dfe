"""One commit of a repository, without its history: fetched by the system's git, in a room of its own.

git runs with no configuration, hooks, prompts, credential helpers or submodules, over https alone (plain http to this
machine), and is held to a size and a time. It checks that objects are what their hashes say; we check that the commit
has the tree that the matrix names, so that a lock says in two ways what was read.
Sources: git(1) and git-config(1), git 2.39; gitprotocol-v2(5) for fetching one commit by its hash.
"""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from imagegen.config import GIT_VARIABLE, Settings, mirror_name
from imagegen.errors import FetchError
from imagegen.net import Client, UnreachableError
from imagegen.net.address import Address, netrc_auth, parse
from imagegen.store import Store
from imagegen.text import redact

_TIMEOUT = 1800  # seconds for one fetch
_LONGEST_FILE = 4 << 30  # bytes: of a pack, before git stops
_SAID = 4  # lines of git's own words
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CONFIGURATION = {
    "protocol.allow": "never",
    "protocol.https.allow": "always",
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "credential.helper": "",
    "fetch.recurseSubmodules": "false",
    "transfer.bundleURI": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.lowSpeedLimit": "1000",  # bytes a second, for
    "http.lowSpeedTime": "60",  # so many seconds
}
_ABSENT = ("not our ref", "unadvertised object", "couldn't find remote ref", "no such remote ref")
_CLOSED = ("could not read Username", "Authentication failed", "not found", "returned error: 40")
_MOVED = "returned error: 30"


@dataclass(frozen=True)
class Repository:
    """A bare repository that holds one commit."""

    path: Path

    def listing(self, tree: str) -> Iterator[bytes]:
        """Rows of `git ls-tree -r -l -z`, as they come: a small tree can name more files than memory holds."""
        with _started(self.path, ["ls-tree", "-r", "-l", "-z", "--full-tree", tree]) as process:
            assert process.stdout  # noqa: S101 - asked for a pipe
            rest = b""
            try:
                while chunk := process.stdout.read(1 << 16):
                    *rows, rest = (rest + chunk).split(b"\0")
                    yield from rows
            except GeneratorExit:
                process.kill()
                raise
        if process.returncode or rest:
            raise FetchError(f"git cannot list tree {tree}", why=f"exit status {process.returncode}")

    @contextmanager
    def blobs(self) -> Iterator[Callable[[str], bytes]]:
        """A function that gives a blob's bytes by its name."""
        with _started(self.path, ["cat-file", "--batch"]) as process:
            stdin, stdout = process.stdin, process.stdout
            assert stdin and stdout  # noqa: S101 - asked for pipes

            def read(name: str) -> bytes:
                stdin.write(name.encode() + b"\n")
                stdin.flush()
                _, kind, size = [*stdout.readline().split(), b"", b""][:3]
                data = stdout.read(int(size) + 1)[:-1] if kind == b"blob" else None
                if data is None or len(data) != int(size):
                    raise FetchError(f"git cannot read object {name}")
                return data

            try:
                yield read
            finally:
                process.kill()


@contextmanager
def fetched(url: str, commit: str, tree: str, store: Store, settings: Settings) -> Iterator[Repository]:
    """The commit, in a repository that goes at the end. Raises FetchError: out of reach, absent, with another tree."""
    address = _place(parse(url), settings)
    _reach(address, parse(url).host, settings)
    with store.room("git") as room:
        repository = room / "repository"
        env = _environment(room, address, settings)
        fetch = ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"]
        try:
            _git(room, env, ["init", "--quiet", "--bare", "--object-format=sha1", "--template=", str(repository)])
            _git(repository, env, [*fetch, "--", address.url, commit])
            found = _git(repository, env, ["rev-parse", "--verify", f"{commit}^{{tree}}"]).strip()
        except _Failed as error:
            store.blame_disk(str(error))
            raise _explained(address.url, commit, str(error)) from error
        if found != tree:
            raise FetchError(
                f"{address.url} at {commit} is not what the matrix says",
                why=f"expected tree {tree}, got {found}",
                fix="a commit has one tree: correct whichever of the two was written down wrongly",
            )
        yield Repository(repository)


class _Failed(Exception):
    """What git said before it gave up."""


def _place(address: Address, settings: Settings) -> Address:
    """The address itself, or below the one that the environment names for its host."""
    mirror = settings.git_mirrors.get(mirror_name(address.host))
    if mirror is None:
        return address
    return parse(f"{mirror.rstrip('/')}{urlsplit(address.url).path}")


def _reach(address: Address, host: str, settings: Settings) -> None:
    """Raise FetchError, soon, where nobody answers: git itself waits for minutes."""
    try:
        with Client(settings).impatient() as client:
            client.size(f"{address.url}/info/refs?service=git-upload-pack")
    except UnreachableError as error:
        raise UnreachableError(
            f"{address.url} cannot be reached",
            why=error.why,
            fix=f"set {GIT_VARIABLE}{mirror_name(host)} to an address below which {host}'s repositories are mirrored, "
            "or run this where it can be reached",
        ) from error
    except FetchError:
        pass  # somebody answers: git hears what they have to say


def _environment(room: Path, address: Address, settings: Settings) -> dict[str, str]:
    """Nothing of the user's but the way to the network, and the credentials for this host."""
    configuration = dict(_CONFIGURATION)
    if address.scheme == "http" and address.host == "127.0.0.1":
        configuration["protocol.http.allow"] = "always"
    if auth := address.auth or netrc_auth(address, settings.env):
        token = base64.b64encode(":".join(auth).encode()).decode()
        # Through the environment: others may read the arguments of a process.
        configuration[f"http.{address.scheme}://{address.host}:{address.port}/.extraHeader"] = (
            f"Authorization: Basic {token}"
        )
        configuration["http.followRedirects"] = "false"  # git would take the header along, to whatever host
    env = {
        "PATH": settings.env.get("PATH", os.defpath),
        "HOME": str(room),
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_CONFIG_COUNT": str(len(configuration)),
    }
    for index, (name, value) in enumerate(configuration.items()):
        env |= {f"GIT_CONFIG_KEY_{index}": name, f"GIT_CONFIG_VALUE_{index}": value}
    for name in _PROXIES:
        if proxy := settings.env.get(name) or settings.env.get(name.upper()):
            env[name] = proxy
    if bundle := settings.ca_bundle:
        env["GIT_SSL_CAPATH" if bundle.is_dir() else "GIT_SSL_CAINFO"] = str(bundle)
    return env


def _git(where: Path, env: Mapping[str, str], arguments: Sequence[str]) -> str:
    """What git prints. Raises _Failed with what it says, FetchError where it cannot run or does not end."""
    # It ends with imagegen, however that ends, and fills no disk.
    bounds = ["setpriv", "--pdeathsig", "KILL", "prlimit", f"--fsize={_LONGEST_FILE}", "--core=0", "--"]
    # Files, since what a server has to say may be long.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                [*bounds, "git", *arguments],
                cwd=where,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                check=False,
                timeout=_TIMEOUT,
            )
        except FileNotFoundError as error:
            raise FetchError(f"{error.filename} is not installed", fix="apt-get install git util-linux") from error
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"git did not end in {_TIMEOUT // 60} minutes", why="the server is too slow") from error
        for file in (out, err):
            file.seek(0)
        said = err.read(1 << 16).decode(errors="replace")
        if done.returncode:
            raise _Failed(said or f"exit status {done.returncode}")
        return out.read(1 << 16).decode(errors="replace")


@contextmanager
def _started(repository: Path, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A git that reads what is there already."""
    with subprocess.Popen(
        ["git", "--no-replace-objects", *arguments],
        cwd=repository,
        env={"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield process


def _explained(url: str, commit: str, said: str) -> FetchError:
    lines = [redact(line.strip()) for line in said.splitlines() if line.strip()]
    why = "\n       ".join(lines[:_SAID]) or None
    if any(sign in said for sign in _ABSENT):
        return FetchError(f"{url} has no commit {commit}, or does not give it by its hash", why=why)
    if any(sign in said for sign in _CLOSED):
        host = parse(url).host
        fix = f"if it is private, give credentials for {host} in ~/.netrc"
        return FetchError(f"{url} does not exist, or may not be read", why=why, fix=fix)
    if _MOVED in said:
        fix = "write the address that it leads to: credentials do not follow a redirect"
        return FetchError(f"{url} redirects", why=why, fix=fix)
    return FetchError(f"git cannot fetch {url} at {commit}", why=why, fix="check network and proxy")
