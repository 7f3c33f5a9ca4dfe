"""Interpreters of stacks: a distribution's own, or standalone builds, fetched by hash, below /opt/python."""

from imagegen.interpreter.model import (
    DOWNLOADS,
    InterpreterArchive,
    LockedInterpreter,
    directory,
    interpreter_key,
    lock_interpreter,
    own_python,
)
from imagegen.interpreter.unpack import unpack

__all__ = [
    "DOWNLOADS",
    "InterpreterArchive",
    "LockedInterpreter",
    "directory",
    "interpreter_key",
    "lock_interpreter",
    "own_python",
    "unpack",
]
