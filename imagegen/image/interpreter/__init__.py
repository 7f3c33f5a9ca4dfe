"""Interpreters of stacks: standalone builds, unpacked and patched below /opt/python."""

from imagegen.image.interpreter.archive import unpack

__all__ = ["unpack"]
