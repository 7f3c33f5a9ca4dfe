"""Bases, which are the operating-system layers under the stack, resolved into a lock and built to the bit.

The `debian` kind is a root file tree made by mmdebstrap from signed packages; the `registry` kind any image by digest.
"""

from imagegen.image.base.debian import build, fetch_files, key, missing, needed
from imagegen.image.base.file_tree import PrebuiltBase, keep, merged_tree, rootfs
from imagegen.image.base.packages_layer import (
    build_packages,
    fetch_packages,
    missing_packages,
    needed_packages,
    packages_key,
)
from imagegen.image.base.registry_image import fetch as fetch_layers
from imagegen.image.base.registry_image import require_published
from imagegen.image.base.resolution import resolve, resolve_packages
from imagegen.image.base.unpack import verified
from imagegen.lock.foundation import LockedBase
