"""Fetch one commit of a repository without its history, with the system's git, into a temporary directory.

git runs with no configuration, hooks, prompts, credential helpers or submodules, only over https (plain http to this
machine and the user's addresses; the user's directories), and is limited in size and time. git verifies
that objects match their hashes; imagegen verifies that the commit has the tree that the matrix names, so that a
lock pins the sources twice. Sources: git(1) and git-config(1), git 2.39; gitprotocol-v2(5) for fetching one commit
by its hash; gitrevisions(7) for the meaning of a short name.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.git import command
from imagegen.core.git.location import RemoteLocation, hint, places
from imagegen.core.net import Client, UnreachableError
from imagegen.core.net.address import netrc_auth
from imagegen.core.store import Store
from imagegen.core.text import redact

_SAID = 4  # lines of git's own words
_ARGUMENTS = 1000  # object ids in one command line
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_CONFIGURATION = {
    "fetch.recurseSubmodules": "false",
    "transfer.bundleURI": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.lowSpeedLimit": "1000",  # bytes a second, for
    "http.lowSpeedTime": "60",  # so many seconds
}
_ABSENT = ("not our ref", "unadvertised object", "couldn't find remote ref", "no such remote ref")
_CLOSED = ("could not read Username", "Authentication failed", "not found", "returned error: 40", "not appear to be a")
_MOVED = "returned error: 30"

_SUFFIXES = ("", "/.git", ".git", ".git/.git")  # git-upload-pack(1): where a repository is, below a name

T = TypeVar("T")


class NoRepositoryError(FetchError):
    """The server has no such repository, or does not show it to this user."""

    code = "fetch-no-repository"


@dataclass(frozen=True)
class GitRepository:
    """A bare repository that holds one commit, of this tree; `env` is the user's.

    Of `names`, the top-level entries, it holds the files; () are all.
    """

    path: Path
    env: Mapping[str, str]
    tree: str
    names: tuple[str, ...] = ()

    def listing(self, tree: str) -> Iterator[bytes]:
        """Rows of `git ls-tree -r -l -z`, as they come: a small tree can name more files than memory holds."""
        arguments = ["ls-tree", "-r", "-l", "-z", "--full-tree", tree, "--", *self.names]
        with command.started(self.path, self.env, arguments) as process:
            assert process.stdout  # noqa: S101 - asked for a pipe
            unfinished = b""
            try:
                while chunk := process.stdout.read(1 << 16):
                    *rows, unfinished = (unfinished + chunk).split(b"\0")
                    yield from rows
            except GeneratorExit:
                process.kill()
                raise
        if process.returncode or unfinished:
            raise FetchError(
                f"git cannot list tree {tree}", code="fetch-git-failed", why=f"exit status {process.returncode}"
            )

    @contextmanager
    def blobs(self) -> Iterator[Callable[[str], bytes]]:
        """A function that gives a blob's bytes by its name."""
        with command.started(self.path, self.env, ["cat-file", "--batch"]) as process:
            stdin, stdout = process.stdin, process.stdout
            assert stdin and stdout  # noqa: S101 - asked for pipes

            def read(name: str) -> bytes:
                stdin.write(name.encode() + b"\n")
                stdin.flush()
                _, kind, size = [*stdout.readline().split(), b"", b""][:3]
                data = stdout.read(int(size) + 1)[:-1] if kind == b"blob" else None
                if data is None or len(data) != int(size):
                    raise FetchError(f"git cannot read object {name}", code="fetch-git-failed")
                return data

            try:
                yield read
            finally:
                process.kill()


@contextmanager
def fetched(
    url: str, commit: str, tree: str | None, store: Store, settings: Settings, exclude: Collection[str] = ()
) -> Iterator[GitRepository]:
    """Yield a repository of the commit, which is removed at the end; with `tree`, the commit must have that one.

    Files below the top-level entries in `exclude` are not fetched, if the server can leave out files. Raises
    FetchError: out of reach, absent, with another tree, without an entry of `exclude`.
    """
    fetch = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"]
    fetch += ["--filter=blob:none"] if exclude else []
    with store.temporary_directory("git") as work_dir:
        repository = work_dir / "repository"

        def ask(location: RemoteLocation, env: dict[str, str]) -> tuple[str, tuple[str, ...]]:
            create = ["init", "--quiet", "--bare", "--object-format=sha1", "--template=", str(repository)]
            command.run(work_dir, env, create)
            git_env = {**env, "GIT_DIR": str(repository)}
            # A repository that lacks objects records where it came from, and git takes no path for that.
            source = Path(location.url).as_uri() if exclude and location.address is None else location.url
            command.run(repository, git_env, [*fetch, "--depth=1", "--", source, commit])
            tree_id = command.run(repository, git_env, ["rev-parse", "--verify", f"{commit}^{{tree}}"]).strip()
            if tree not in (None, tree_id):
                raise FetchError(
                    f"{location.url} at {commit} is not what the matrix says",
                    code="fetch-git-tree-mismatch",
                    why=f"expected tree {tree}, got {tree_id}",
                    fix="a commit has one tree: correct whichever of the two was written down wrongly",
                )
            if not exclude:
                return tree_id, ()
            names = _included(repository, git_env, tree_id, exclude, f"{location.url} at {commit}")
            for blobs in _batches(_blobs(repository, git_env, tree_id, names)):
                command.run(repository, git_env, [*fetch, "--", source, *blobs])
            return tree_id, names

        tree_id, names = _from_one(url, f"commit {commit}", ask, work_dir, store, settings)
        yield GitRepository(repository, settings.env, tree_id, names)


def _included(
    repository: Path, env: Mapping[str, str], tree: str, exclude: Collection[str], where: str
) -> tuple[str, ...]:
    """Return the names of a tree's top-level entries without those in `exclude`. Raises FetchError for a name that it
    lacks, and where none is left.
    """
    names = command.run(repository, env, ["ls-tree", "-z", "--name-only", tree]).split("\0")[:-1]
    absent = sorted({*exclude} - {*names})
    included = tuple(name for name in names if name not in exclude)
    if absent or not included:
        raise FetchError(
            f"{where} cannot be fetched without {', '.join(sorted(exclude))}",
            code="fetch-git-exclude",
            why=f"the tree has no {', '.join(absent)}" if absent else "the tree has nothing else",
            fix="correct `exclude`: it names top-level files and folders of the tree",
        )
    return included


def _blobs(repository: Path, env: Mapping[str, str], tree: str, names: Sequence[str]) -> list[str]:
    """Return the ids of the files below a tree's entries `names`, each once."""
    rows = command.run(repository, env, ["ls-tree", "-r", "-z", "--full-tree", tree, "--", *names]).split("\0")
    entries = [row.partition("\t")[0].split() for row in rows if row]
    return sorted({name for _, kind, name in entries if kind == "blob"})


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield parts of `names`, each short enough for one command line."""
    for start in range(0, len(names), _ARGUMENTS):
        yield names[start : start + _ARGUMENTS]


def check_ref(url: str, ref: str, commit: str, store: Store, settings: Settings) -> None:
    """Raise FetchError unless the tag or branch leads to the commit; a tag takes precedence over a branch."""
    full = ref.startswith("refs/")
    names = [ref] if full else [f"refs/tags/{ref}", f"refs/heads/{ref}"]

    def ask(location: RemoteLocation, env: dict[str, str]) -> None:
        rows = command.run(
            work_dir, env, ["ls-remote", "--", location.url, *names, *(f"{name}^{{}}" for name in names)]
        )
        commits = {name: at for at, _, name in (row.partition("\t") for row in rows.splitlines())}
        name = next((name for name in names if name in commits), None)
        if name is None:
            raise FetchError(
                f"{location.url} has no tag or branch {ref}",
                code="fetch-git-no-ref",
                why=f"the matrix says that it leads to {commit}",
                fix="correct `ref`, or leave it out: commit and tree say all that is built",
            )
        now = commits.get(f"{name}^{{}}", commits[name])  # an annotated tag is an object of its own
        if now != commit:
            raise _moved(location.url, name, ref, commit, now)

    with store.temporary_directory("git") as work_dir:
        _from_one(url, ref, ask, work_dir, store, settings)


def _moved(url: str, name: str, ref: str, commit: str, now: str) -> FetchError:
    if name.startswith("refs/tags/"):
        kind = "tag"
        fix = "see what changed; then write down the new commit and tree, or leave `ref` out to stay with the old ones"
    else:
        kind = "branch"
        fix = "branches move: name a tag, or leave `ref` out, since commit and tree say all that is built"
    return FetchError(
        f"{kind} {ref} of {url} has moved",
        code="fetch-git-ref-moved",
        why=f"from {commit}, which the matrix names, to {now}",
        fix=fix,
    )


def _from_one(
    url: str,
    required: str,
    ask: Callable[[RemoteLocation, dict[str, str]], T],
    work_dir: Path,
    store: Store,
    settings: Settings,
) -> T:
    """Return the result of `ask` for the first place that has the repository. Raises FetchError."""
    refused: list[NoRepositoryError] = []
    for location in places(url, settings):
        _reach(location, url, settings)
        try:
            return ask(location, _environment(work_dir, location, settings))
        except command.FailedError as error:
            store.blame_disk(str(error))
            explained = _explained(location, required, str(error))
            if not isinstance(explained, NoRepositoryError):
                raise explained from error
            refused.append(explained)
    if len(refused) == 1:
        raise refused[0]
    why = "\n       ".join(error.summary for error in refused)
    raise NoRepositoryError(f"no mirror of {url} is to be found", why=why, fix=hint(url))


def _reach(location: RemoteLocation, url: str, settings: Settings) -> None:
    """Raise FetchError within seconds if the server does not respond: git itself waits for minutes."""
    if location.address is None:
        return
    try:
        with Client(settings).impatient() as client:
            client.size(f"{location.url}/info/refs?service=git-upload-pack")
    except UnreachableError as error:
        fix = f"{hint(url)}, or run this where it can be reached"
        if location.by:
            fix = f"{location.by} names it: correct that, or run this where it can be reached"
        raise UnreachableError(f"{location.url} cannot be reached", why=error.why, fix=fix) from error
    except FetchError:
        pass  # the server responds: git reports the error


def _environment(work_dir: Path, location: RemoteLocation, settings: Settings) -> dict[str, str]:
    """Return git's environment: of the user's variables only those for the network, and this host's credentials."""
    configuration, address, protocols = dict(_CONFIGURATION), location.address, ["https"]
    if address is None:
        protocols = ["file"]
    elif address.scheme == "http" and (location.by or address.host == "127.0.0.1"):
        protocols.append("http")
    if address and (auth := address.auth or netrc_auth(address, settings.env)):
        token = base64.b64encode(":".join(auth).encode()).decode()
        # Through the environment: others may read the arguments of a process.
        configuration[f"http.{address.scheme}://{address.host}:{address.port}/.extraHeader"] = (
            f"Authorization: Basic {token}"
        )
        configuration["http.followRedirects"] = "false"  # git would take the header along, to whatever host
    env = command.environment(settings.env, work_dir, configuration, protocols)
    if address is None:
        env["GIT_CONFIG_GLOBAL"] = str(_write_trust(work_dir, location.url))
    for name in _PROXIES:
        if proxy := settings.env.get(name) or settings.env.get(name.upper()):
            env[name] = proxy
    if bundle := settings.ca_bundle:
        env["GIT_SSL_CAPATH" if bundle.is_dir() else "GIT_SSL_CAINFO"] = str(bundle)
    return env


def _write_trust(folder: Path, directory: str) -> Path:
    """Write a configuration into a folder, with which git serves the repository at `directory` of any owner.

    The user names it, and the git that serves it runs nothing that it names. Only a file reaches that git.
    """
    path = os.path.realpath(directory).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    file = folder / "gitconfig"
    file.write_text("[safe]\n" + "".join(f'\tdirectory = "{path}{suffix}"\n' for suffix in _SUFFIXES))
    return file


def _explained(location: RemoteLocation, required: str, output: str) -> FetchError:
    url = location.url
    lines = [redact(line.strip()) for line in output.splitlines() if line.strip()]
    why = "\n       ".join(lines[:_SAID]) or None
    if any(sign in output for sign in _ABSENT):
        fix = f"bring what {location.by} names up to date" if location.by else None
        return FetchError(
            f"{url} has no {required}, or does not give it by its hash", code="fetch-git-no-commit", why=why, fix=fix
        )
    if any(sign in output for sign in _CLOSED):
        fix = f"correct {location.by}"
        if location.address:
            fix = f"if it is private, give credentials for {location.address.host} in ~/.netrc"
        return NoRepositoryError(f"{url} does not exist, or may not be read", why=why, fix=fix)
    if _MOVED in output:
        fix = "write the address that it leads to: credentials do not follow a redirect"
        return FetchError(f"{url} redirects", code="fetch-redirect-refused", why=why, fix=fix)
    return FetchError(
        f"git cannot fetch {required} from {url}", code="fetch-git-failed", why=why, fix="check network and proxy"
    )
