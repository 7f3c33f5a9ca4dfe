"""Bases: the operating-system layers under the stack, resolved into a lock and built to the bit.

The `debian` kind is a root file tree made by mmdebstrap from signed packages; the `registry` kind any image by digest.
"""

from imagegen.base.build import BaseLayer, build, fetch_files, key, missing, needed
from imagegen.base.image import fetch as fetch_layers
from imagegen.base.image import require_complete, require_published
from imagegen.base.model import Deb, LockedBase
from imagegen.base.resolve import resolve
from imagegen.base.rootfs import Bring, Made, keep, rootfs
from imagegen.base.unpack import verified

__all__ = [
    "BaseLayer",
    "Bring",
    "Deb",
    "LockedBase",
    "Made",
    "build",
    "fetch_files",
    "fetch_layers",
    "keep",
    "key",
    "missing",
    "needed",
    "require_complete",
    "require_published",
    "resolve",
    "rootfs",
    "verified",
]
