"""Source distributions in the real sandbox: those that attack it, and one that builds in another order each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

import pytest

from imagegen.core.errors import SandboxError, WheelError
from imagegen.core.progress import Quiet
from imagegen.lock import sdist
from imagegen.lock.model import LockedFile, LockedSdist
from imagegen.lock.sdist import SdistBuilder
from tests.support.machines import Debian
from tests.support.sdists import PYPROJECT

pytestmark = pytest.mark.integration

WRITE = (
    "import os, zipfile\ndef build_wheel(out, *_):\n"
    "    name = 'demo-1.0-py3-none-any.whl'\n    path = f'{out}/{name}'\n"
)
ZIP = WRITE + "    zipfile.ZipFile(path, 'w').writestr(zipfile.ZipInfo('demo.py'), '')\n"


def build(debian: Debian, backend: str, *members: tarfile.TarInfo) -> LockedFile:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in (("pyproject.toml", PYPROJECT), ("backend.py", backend.encode())):
            info = tarfile.TarInfo(f"demo-1.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for member in members:
            archive.addfile(member)
    data = gzip.compress(packed.getvalue(), mtime=0)
    debian.store.write(data)
    source = LockedFile("demo-1.0.tar.gz", len(data), hashlib.sha256(data).hexdigest(), "pypi")
    workshop = SdistBuilder(debian.layer.diff_id, "/usr/bin/python3.11", lambda: debian.rootfs, debian.store, Quiet())
    return sdist.build("demo", "1.0", LockedSdist(source, ()), workshop)


@pytest.mark.fault(
    "Wheels",
    "an sdist builds a wheel that is no zip file, lies about itself, or is another's",
    "refused: names the sdist",
)
@pytest.mark.parametrize(
    "backend",
    [
        WRITE + "    open(path, 'wb').write(b'PK')\n    return name\n",
        ZIP + "    data = bytearray(open(path, 'rb').read())\n    data[data.index(b'PK\\x01\\x02') + 6] = 255\n"
        "    open(path, 'wb').write(data)\n    return name\n",
        ZIP + "    os.rename(path, f'{out}/other-1.0-py3-none-any.whl')\n    return 'other-1.0-py3-none-any.whl'\n",
        ZIP + "    return '../out/' + name\n",
        WRITE + "    os.symlink('/etc/passwd', path)\n    return name\n",
    ],
    ids=["no zip", "zip version", "another's", "path", "link"],
)
def test_what_is_built_is_not_trusted(backend: str, debian: Debian) -> None:
    with pytest.raises(WheelError, match=r"demo-1\.0\.tar\.gz gave"):
        build(debian, backend)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.fault(
    "Wheels", "an sdist holds absolute paths, `..`, links or devices", "refused in the sandbox: names the member"
)
@pytest.mark.parametrize(
    "evil",
    [
        member("/tmp/x"), member("demo-1.0/../../x"), member("demo-1.0/l", tarfile.SYMTYPE, "/etc"),
        member("demo-1.0/h", tarfile.LNKTYPE, "/etc/passwd"), member("demo-1.0/d", tarfile.CHRTYPE),
    ],
    ids=["absolute", "above", "symlink", "hard link", "device"],
)  # fmt: skip
def test_what_an_archive_may_not_hold(evil: tarfile.TarInfo, debian: Debian) -> None:
    with pytest.raises(SandboxError, match="no plain file or folder inside the archive"):
        build(debian, ZIP + "    return name\n", evil)


def test_a_set_that_is_written_has_the_same_order_in_each_build(debian: Debian) -> None:
    """As in the setup.py of deepspeed, whose extra `all` is a list of a set."""
    names = ", ".join(f"'name-{number}'" for number in range(100))
    order = f"    archive.writestr(zipfile.ZipInfo('order'), ' '.join({{{names}}}))\n"
    built = build(
        debian, WRITE + "    archive = zipfile.ZipFile(path, 'w')\n" + order + "    archive.close()\n    return name\n"
    )
    assert built.filename == "demo-1.0-py3-none-any.whl"
