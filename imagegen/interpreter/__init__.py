"""Interpreters of stacks: a distribution's own, or standalone builds, fetched by hash, below /opt/python."""

from imagegen.interpreter.model import (
    InterpreterArchive,
    LockedInterpreter,
    interpreter_key,
    lock_interpreter,
    own_python,
)

__all__ = ["InterpreterArchive", "LockedInterpreter", "interpreter_key", "lock_interpreter", "own_python"]
