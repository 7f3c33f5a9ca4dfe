"""Interpreters for tests: Debian 12's own, and a standalone one that no server has."""

from __future__ import annotations

from imagegen.lock.interpreter import InterpreterArchive, LockedInterpreter
from imagegen.spec.foundation import Interpreter

DEBIAN = Interpreter("debian12-3.11", "3.11", "/usr/bin/python3.11", ("debian12",))
LOCKED = LockedInterpreter("debian12-3.11", "3.11.2", "/usr/bin/python3.11")

_NAME = "cpython-3.12.14+20260814-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
ARCHIVE = InterpreterArchive(_NAME, "c" * 64, f"https://downloads.example.org/20260814/{_NAME.replace('+', '%2B')}")
STANDALONE = LockedInterpreter("standalone-3.12", "3.12.14", "/opt/python/3.12/bin/python3.12", "20260814", ARCHIVE)
