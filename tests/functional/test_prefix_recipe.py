"""Sources that are no Python package: compiled by their own commands, and packed as a wheel below the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import imagegen.checks.worker.build as worker
from imagegen.audit.readers.installation import installation
from imagegen.audit.readers.wheel import Wheel
from imagegen.checks.worker.source import PATCHED
from imagegen.core.image_format import PREFIX
from imagegen.spec.prefix import Prefix, backend_patch
from imagegen.wheels.builds.wheel_check import check_wheel
from tests.support.source_builds import BUILD, WITH_BUILD

MAKEFILE = """\
libscore.so.1: score.c
\t$(CC) -shared -fPIC -Wl,-soname,$@ -o $@ $^
install: libscore.so.1
\tinstall -D -m 644 libscore.so.1 $(DESTDIR)$(PREFIX)/lib64/libscore.so.1
\tln -s libscore.so.1 $(DESTDIR)$(PREFIX)/lib64/libscore.so
\tinstall -D run $(DESTDIR)$(PREFIX)/bin/score
"""
SOURCES = {"Makefile": MAKEFILE, "score.c": "int score(int x) { return 2 * x; }\n", "run": "#!/bin/sh\n"}
MAKE = (("make", "-j{jobs}"), ("make", "install", "PREFIX={prefix}", "DESTDIR={destdir}"))
SCORE = Prefix("own-score", MAKE, ("bin/score", "lib64/libscore.so.1"))


def compiled(folder: Path, described: Prefix) -> tuple[list[dict[str, Any]], str]:
    """Return the worker's events and the end of its output; the wheel is in `folder`/out."""
    sources = folder / "sources"
    (sources / PATCHED).mkdir(parents=True)
    for name, text in SOURCES.items():
        (folder / name).write_text(text)
    with tarfile.open(sources / "own-score-1.0.tar", "w") as tar:
        for name in SOURCES:
            tar.add(folder / name, f"own-score-1.0/{name}")
    diff = backend_patch(described, "1.0", ("numpy",))
    subprocess.run(["git", "apply"], input=diff, cwd=sources / PATCHED, check=True)
    spec = {"format": 2, "name": "own-score", "version": "1.0", "source": "own-score-1.0.tar", "build_requires": []}
    (folder / "spec.json").write_text(json.dumps(spec | {"env": {}, "modules": [], "epoch": 1_700_000_000}))
    argv = [sys.executable, "-I", str(worker.HERE / "build.py"), "--spec", str(folder / "spec.json")]
    argv += ["--sources", str(sources), "--work", str(folder / "work"), "--out", str(folder / "out")]
    done = subprocess.run(argv, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    mark = "@imagegen "
    return [json.loads(line[len(mark) :]) for line in done.stdout.splitlines() if line.startswith(mark)], done.stdout


def test_what_is_installed_below_the_prefix_becomes_a_wheel(tmp_path: Path) -> None:
    hashes = [compiled(tmp_path / name, SCORE)[0][-1]["sha256"] for name in ("one", "two")]
    assert hashes[0] == hashes[1]
    (path,) = (tmp_path / "one/out").glob("*.whl")
    with Wheel(path, path.name) as wheel:
        files = {file.path: file.executable for file in installation(wheel, "3.11")}
        assert (wheel.distribution, wheel.version, wheel.requires) == ("own-score", "1.0", ("numpy",))
    assert {name: executable for name, executable in files.items() if ".dist-info/" not in name} == {
        f"{PREFIX}/bin/score": True,
        f"{PREFIX}/lib/libscore.so": False,  # lib64 is a link to lib
        f"{PREFIX}/lib/libscore.so.1": False,
    }
    build = replace(BUILD, name="own-score", requires=("numpy",), modules=(), architectures=())
    assert check_wheel(path, build, WITH_BUILD, (), ()) == []


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (replace(SCORE, files=("bin/other",)), "bin/other was not installed"),
        (replace(SCORE, commands=(MAKE[0], ("make", "install", "PREFIX=/usr", "DESTDIR={destdir}"))), "/usr/bin/score"),
        (replace(SCORE, commands=(("make", "nothing"),)), "make ended with exit code 2"),
        (replace(SCORE, commands=(("no-such-make",),)), "no-such-make cannot be started"),
    ],
)
def test_a_build_that_installs_something_else_fails(described: Prefix, said: str, tmp_path: Path) -> None:
    events, output = compiled(tmp_path, described)
    assert events[-1]["event"] == "failed"
    assert said in output
