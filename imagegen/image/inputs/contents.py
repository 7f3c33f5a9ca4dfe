"""The blobs that a lock refers to, by digest, with names for people: what the store keeps for it, and names in
errors.
"""

from __future__ import annotations

from imagegen.image import base
from imagegen.image.inputs.foundation import bottom_key, tree_key
from imagegen.plan.lock.model import Lock


def contents(lock: Lock) -> dict[str, str]:
    """Digest -> what it is: files of the indexes, of builds, Debian packages, recorded layers packed and unpacked."""
    wheels = [lock.uv, *lock.wheels]
    sdists = [wheel.sdist for wheel in wheels if wheel.sdist]
    wheels += [needed for sdist in sdists for needed in sdist.build_requires]
    wheels += [needed for build in lock.builds for needed in build.build_requires]
    files = [*(wheel.file for wheel in wheels), *(sdist.file for sdist in sdists)]
    files += [build.source for build in lock.builds]
    found = {file.digest: file.filename for file in files}
    found |= {f"sha256:{patch.sha256}": patch.filename for build in lock.builds for patch in build.patches}
    found |= {
        deb.digest: f"Debian package {deb.name} {deb.version}"
        for deb in (*lock.base.debs, *(lock.added.debs if lock.added else ()))
    }
    if lock.interpreter.file:
        found[lock.interpreter.file.digest] = lock.interpreter.file.filename
    if lock.interpreter.file or lock.added:
        found[tree_key(lock.foundation)] = f"what lies under the stack of {lock.cell}, unpacked"
    if lock.added:
        found[bottom_key(lock.foundation)] = f"base {lock.base.name} with packages, unpacked"
    if lock.base.content:
        found[base.key(lock.base)] = f"base {lock.base.name}, unpacked"
        own = enumerate(lock.base.content.layers, 1)
        found |= {layer.digest: f"layer {number} of {lock.base.image}" for number, layer in own}
    for layer in lock.record.layers if lock.record else ():
        found |= {layer.digest: f"layer {layer.name}", layer.diff_id: f"layer {layer.name}, unpacked"}
    return found
