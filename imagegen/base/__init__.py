"""Bases: the operating-system layers under the stack, resolved into a lock and built to the bit.

The `debian` kind is a root file tree made by mmdebstrap from signed packages; the `registry` kind any image by digest.
"""

from imagegen.base.added import (
    build_packages,
    fetch_packages,
    missing_packages,
    needed_packages,
    packages_built,
    packages_key,
)
from imagegen.base.build import TAR, BaseLayer, build, fetch_files, key, missing, needed
from imagegen.base.image import fetch as fetch_layers
from imagegen.base.image import require_published
from imagegen.base.model import Deb, LockedBase, LockedPackages
from imagegen.base.packages import resolve_packages
from imagegen.base.resolve import resolve
from imagegen.base.rootfs import Bring, Made, keep, merged_tree, rootfs
from imagegen.base.unpack import verified

__all__ = [
    "TAR",
    "BaseLayer",
    "Bring",
    "Deb",
    "LockedBase",
    "LockedPackages",
    "Made",
    "build",
    "build_packages",
    "fetch_files",
    "fetch_layers",
    "fetch_packages",
    "keep",
    "key",
    "merged_tree",
    "missing",
    "missing_packages",
    "needed",
    "needed_packages",
    "packages_built",
    "packages_key",
    "require_published",
    "resolve",
    "resolve_packages",
    "rootfs",
    "verified",
]
