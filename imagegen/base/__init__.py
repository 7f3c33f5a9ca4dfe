"""Bases: the operating-system layers under the stack, resolved into a lock and built to the bit.

The `debian` kind is a root file tree made by mmdebstrap from signed packages (design, 4.4).
"""

from imagegen.base.build import BaseLayer, build, key, missing, needed
from imagegen.base.model import Deb, LockedBase
from imagegen.base.resolve import resolve
from imagegen.base.rootfs import rootfs

__all__ = ["BaseLayer", "Deb", "LockedBase", "build", "key", "missing", "needed", "resolve", "rootfs"]
