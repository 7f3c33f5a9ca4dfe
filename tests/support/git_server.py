"""Real git on loopback: repositories made object by object, served by git's own http-backend."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.http_server import Loopback

_WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "t"), ("EMAIL", "t@example.com"), ("DATE", "2026-01-01T00:00:00Z"))
}
FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"


class Bare:
    """A bare repository whose trees need not be what git itself would make."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "--quiet", "--bare", str(path), cwd=path.parent)

    def git(self, *arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **_WHO}
        done = subprocess.run(
            ["git", *arguments], cwd=cwd or self.path, input=stdin, capture_output=True, check=True, env=env
        )
        return done.stdout.decode().strip()

    def blob(self, data: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", stdin=data)

    def tree(self, files: Mapping[str, bytes | tuple[str, bytes]]) -> str:
        """Write a tree of path -> contents, or (mode, contents), with `git mktree` for each folder."""
        entries: dict[str, tuple[str, str]] = {}
        folders: dict[str, dict[str, bytes | tuple[str, bytes]]] = {}
        for path, value in files.items():
            first, slash, rest = path.partition("/")
            mode, data = value if isinstance(value, tuple) else (FILE, value)
            if slash:
                folders.setdefault(first, {})[rest] = value
            else:
                entries[first] = (mode, data.decode() if mode == SUBMODULE else self.blob(data))
        entries |= {name: ("40000", self.tree(inside)) for name, inside in folders.items()}
        return self.raw_tree([(mode, name.encode(), object_) for name, (mode, object_) in entries.items()])

    def raw_tree(self, entries: list[tuple[str, bytes, str]]) -> str:
        """The object itself (gitformat-pack(5)), so that it may hold anything."""
        ordered = sorted(entries, key=lambda entry: entry[1] + (b"/" if entry[0] == "40000" else b""))
        data = b"".join(mode.encode() + b" " + name + b"\0" + bytes.fromhex(id_) for mode, name, id_ in ordered)
        return self.git("hash-object", "-w", "-t", "tree", "--stdin", "--literally", stdin=data)

    def commit(self, tree: str, *, branch: str | None = "main", message: str = "x") -> str:
        commit = self.git("commit-tree", tree, "-m", message)
        if branch:
            self.git("update-ref", f"refs/heads/{branch}", commit)
        return commit


class GitServer(Loopback):
    """Serves the bare repositories in `root` by git-http-backend(1); `seen` has the paths that were asked for."""

    def __init__(self, root: Path) -> None:
        self.root, self.seen = root, []  # type: tuple[Path, list[str]]
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)
        self.url = f"http://{self.host}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts, headers = urlsplit(handler.path), handler.headers
        self.seen.append(handler.path)
        body = handler.rfile.read(int(headers.get("Content-Length") or 0))
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_PROTOCOL": headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": handler.command,
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "CONTENT_TYPE": headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": headers.get("Content-Encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        # In the repositories' folder another user's are not served: they are ours.
        env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        handler.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(rest)))
        handler.end_headers()
        handler.wfile.write(rest)
