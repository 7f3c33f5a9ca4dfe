"""Variables, interpreter and folders are what the lock says and what a user of the image expects."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from smoke.program import Details, Findings, Spec


def check(spec: Spec) -> Details:
    findings = Findings()
    expected = {**spec.env, "VIRTUAL_ENV": spec.prefix}
    for name, value in sorted(expected.items()):
        actual = os.environ.get(name)
        findings.expect(name, actual == value, f"{name} is {actual!r}, the image promises {value!r}")
    _interpreter(spec, findings)
    for name, folder in (("HOME", str(Path.home())), ("TMPDIR", tempfile.gettempdir()), ("/dev/shm", "/dev/shm")):  # noqa: S108
        findings.expect(name, _writable(folder), f"{name} ({folder}) cannot be written")
    # Set in an image, either would put other code before the locked one.
    for name in ("PYTHONPATH", "PYTHONHOME"):
        findings.expect(name, name not in os.environ, f"{name} is set: {os.environ.get(name)}")
    findings.expect("encoding", sys.getfilesystemencoding() == "utf-8", "file names are not UTF-8: set LANG=C.UTF-8")
    shm = os.statvfs("/dev/shm")  # noqa: S108
    return findings.done(
        {
            "python": sys.version.split()[0],
            "cpus": len(os.sched_getaffinity(0)),
            "uid": os.getuid(),
            "shm_bytes": shm.f_frsize * shm.f_blocks,
        }
    )


def _interpreter(spec: Spec, findings: Findings) -> None:
    found = shutil.which("python")
    binary = f"{spec.prefix}/bin/python"
    findings.expect("python", found == binary, f"`python` is {found}, the image promises {binary}")
    findings.expect("prefix", sys.prefix == spec.prefix, f"sys.prefix is {sys.prefix}, not {spec.prefix}")
    version = ".".join(map(str, sys.version_info[:2]))
    findings.expect("version", version == spec.python, f"Python is {version}, the lock is for {spec.python}")


def _writable(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError:
        return False
    return True
