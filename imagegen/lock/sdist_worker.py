"""Runs inside the sandbox, with the base's interpreter: an sdist becomes a wheel (PEP 517).

Called as `python -s -c <this text> SDIST DIRECTORY WHEEL...`: a tar, compressed or not, the project's directory in it
("": its root), and the wheels that the build backend needs. Writes the wheel's file name, a newline, and the wheel to
stdout; whatever the backend prints goes to stderr. It imports nothing but the standard library; its input is hostile,
and the sandbox is what contains it.
"""

import importlib
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11: imagegen's own is mounted as /tomllib
    sys.path.append("/")
    import tomllib

    sys.path.remove("/")

_TMP = Path("/tmp")  # noqa: S108 - the sandbox's own
_SITE, _BIN, _SOURCE, _OUT = (_TMP / name for name in ("site", "bin", "source", "out"))


def main(sdist: str, project: str, wheels: list[str]) -> None:
    os.umask(0o022)
    result = os.dup(1)
    os.dup2(2, 1)
    for directory in (_SITE, _SOURCE, _OUT):
        directory.mkdir()
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(_SITE)  # noqa: S202 - extractall of zipfile stays below its directory
    _BIN.mkdir()
    for script in _SITE.glob("*.data/scripts/*"):  # a backend may be a program, as uv's is
        shutil.copy(script, _BIN)
        (_BIN / script.name).chmod(0o755)
    os.environ["PATH"] = f"{_BIN}:{os.environ.get('PATH', os.defpath)}"
    os.chdir(_unpacked(sdist) / project)
    system = tomllib.loads(Path("pyproject.toml").read_text("utf-8")) if Path("pyproject.toml").exists() else {}
    system = system.get("build-system", {})
    sys.path[:0] = [*(str(Path(path).resolve()) for path in system.get("backend-path", [])), str(_SITE)]
    module, _, attribute = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
    backend = importlib.import_module(module)
    for name in filter(None, attribute.split(".")):
        backend = getattr(backend, name)
    built = backend.build_wheel(str(_OUT))
    with open(result, "wb") as file:
        file.write(built.encode() + b"\n" + (_OUT / built).read_bytes())


def _unpacked(sdist: str) -> Path:
    with tarfile.open(sdist, "r:*") as archive:
        for member in archive:
            inside = Path(member.name)
            plain = member.isreg() or member.isdir() or (member.issym() and _leads_inside(member))
            if inside.is_absolute() or ".." in inside.parts or not plain:
                sys.exit(f"{member.name} is no plain file or folder inside the archive")
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.extract(member, _SOURCE)
    tops = list(_SOURCE.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        sys.exit("the archive does not hold one folder")
    return tops[0]


def _leads_inside(link: tarfile.TarInfo) -> bool:
    target = os.path.normpath(os.path.join(os.path.dirname(link.name), link.linkname))
    return not link.linkname.startswith("/") and target.split("/")[0] == link.name.split("/")[0]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
