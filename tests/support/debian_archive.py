"""An archive of Debian packages as files: pockets, components, flat parts; real .debs, signed by a key of ours."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from imagegen.lock.foundation import LockedDeb

KEY = "archive@imagegen.invalid"


def gpg(home: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run gpg without an agent's questions."""
    command = ["gpg", "--homedir", str(home), "--batch", "--pinentry-mode", "loopback", "--passphrase", "", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout


@dataclass(frozen=True)
class Archive:
    """`root` is served, `keys` is gpg's home with the key that signs."""

    root: Path
    keys: Path

    @property
    def keyring(self) -> bytes:
        """The public key, as `signed-by` names it."""
        return gpg(self.keys, "--export", KEY)

    def publish(self, suite: str, components: Mapping[str, Sequence[Path]], *, signed: bool = True) -> None:
        """Write a suite of these .debs by component; one that ends in a slash is flat, with the one component ""."""
        folder = self.root / suite if suite.endswith("/") else self.root / "dists" / suite
        lists = {}
        for component, debs in components.items():
            place = f"{component}/binary-amd64/Packages" if component else "Packages"
            text = "\n".join(self._stanza(deb, suite, component) for deb in debs).encode()
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(text)
            lists[place] = text
        rows = "".join(f" {hashlib.sha256(text).hexdigest()} {len(text)} {place}\n" for place, text in lists.items())
        codename = "" if suite.endswith("/") else f"Codename: {suite.partition('-')[0]}\nSuite: {suite}\n"
        release = f"Origin: Ubuntu\n{codename}Date: {formatdate(time.time() - 3600, usegmt=True)}\nSHA256:\n{rows}"
        content = release.encode()
        signature = gpg(self.keys, "--local-user", KEY, "--clearsign", stdin=content) if signed else content
        (folder / "InRelease").write_bytes(signature)

    def _stanza(self, deb: Path, suite: str, component: str) -> str:
        control = subprocess.run(["dpkg-deb", "--field", str(deb)], capture_output=True, text=True, check=True).stdout
        where = f"./{deb.name}" if suite.endswith("/") else f"pool/{component}/{deb.name}"
        target = self.root / (suite if suite.endswith("/") else "") / where
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(deb, target)
        data = deb.read_bytes()
        return f"{control}Filename: {where}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"


def make_key(home: Path) -> None:
    """Make the key that signs archives, in an empty directory."""
    home.chmod(0o700)
    gpg(home, "--quick-generate-key", KEY, "ed25519", "sign", "1d")


def deb(name: str, data: bytes, archive: str = "debian") -> LockedDeb:
    path = f"pool/{name}_1~2+b1.deb"
    return LockedDeb(name, "1:1~2+b1", "amd64", len(data), hashlib.sha256(data).hexdigest(), archive, path)
