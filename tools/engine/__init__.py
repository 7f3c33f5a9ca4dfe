"""A private Docker engine from Debian packages, for machines without a usable one: `python -m tools.engine up`.

`private` starts and stops it, `network` is its bridge, `emulation` registers emulators of other processors, `packages`
fetches Debian packages, and `processes` ends processes and removes their mounts and control groups.
"""
