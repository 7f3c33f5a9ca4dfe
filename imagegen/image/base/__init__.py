"""Bases, which are the operating-system layers under the stack, resolved into a lock and built to the bit.

The `debian` kind is a root file tree made by mmdebstrap from signed packages; the `registry` kind any image by digest.
"""

from imagegen.image.base.apt import resolve, resolve_packages
from imagegen.image.base.build import (
    build,
    build_packages,
    fetch_files,
    fetch_packages,
    key,
    missing,
    missing_packages,
    needed,
    needed_packages,
    packages_built,
    packages_key,
)
from imagegen.image.base.image import fetch as fetch_layers
from imagegen.image.base.image import require_published, verified
from imagegen.image.base.rootfs import PrebuiltBase, keep, merged_tree, rootfs
from imagegen.lock.foundation import LockedBase, LockedDeb, LockedPackages

__all__ = [
    "LockedBase",
    "LockedDeb",
    "LockedPackages",
    "PrebuiltBase",
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
