"""The image's config and manifest: a pure function of the lock and the layers.

Source: OCI image-spec v1.1, config.md and manifest.md. The promise of reproducibility is on the manifest's digest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imagegen.core.store import Store, digest_of
from imagegen.core.store.layout import MANIFEST_TYPE
from imagegen.image.layers.install import PREFIX
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.support import ENTRYPOINT, ENV, WORKDIR
from imagegen.plan.lock import inputs_hash
from imagegen.plan.lock.model import Lock
from imagegen.plan.lock.title import main_versions, title

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LABEL = "dev.imagegen."
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """An image in the store, known by the digest of its manifest."""

    digest: str
    manifest: bytes
    config: bytes
    layers: tuple[Layer, ...]


def local_tags(lock: Lock) -> tuple[str, str]:
    """Return the tags in an engine: the mutable one that users type, and the immutable one with the inputs' hash."""
    repository = f"imagegen/{lock.image}"
    rest = lock.cell.removeprefix(f"{lock.image}-")
    return f"{repository}:{rest}", f"{repository}:{rest}-{inputs_hash(lock).removeprefix('sha256:')[:12]}"


def environment(lock: Lock) -> dict[str, str]:
    """The container's environment: what the base has, then the venv, home and constraints, then what the lock sets."""
    before = base_environment(lock)
    own = {
        "PATH": f"{PREFIX}/bin:{before.get('PATH') or _PATH}",
        "VIRTUAL_ENV": PREFIX,
        "LANG": "C.UTF-8",
        **{variable.name: variable.value for variable in ENV},
    }
    return before | own | {variable.name: variable.value for variable in lock.env}


def base_environment(lock: Lock) -> dict[str, str]:
    """Return the environment that the registry image sets."""
    pairs = (each.partition("=") for each in lock.base.content.config.env) if lock.base.content else ()
    return {name: value for name, _, value in pairs}


def entrypoint(lock: Lock) -> list[str]:
    """The preflight, which then becomes the base's own entry point, where that has one, and at last the command."""
    return [ENTRYPOINT, *(lock.base.content.config.entrypoint if lock.base.content else ())]


def labels(lock: Lock) -> dict[str, str]:
    """Return the image's labels, independent of the clock, the host and the record; the inputs hash identifies the
    lock.
    """
    found = {
        "org.opencontainers.image.title": lock.image,
        "org.opencontainers.image.created": lock.as_of,
        "org.opencontainers.image.version": title(lock),
        f"{LABEL}cell": lock.cell,
        f"{LABEL}inputs": inputs_hash(lock),
        **{f"{LABEL}version.{name}": version for name, version in main_versions(lock).items()},
    }
    if lock.base.content:
        found["org.opencontainers.image.base.name"] = str(lock.base.image)
        found["org.opencontainers.image.base.digest"] = lock.base.content.digest
    if lock.gpu:
        found[f"{LABEL}gpu.capabilities"] = ",".join(lock.gpu.capabilities)
        if lock.gpu.driver:
            found[f"{LABEL}gpu.driver"] = lock.gpu.driver
    return found


def image(lock: Lock, layers: Sequence[Layer]) -> Image:
    """The cell's image: config and manifest for these layers, from the bottom up."""
    settings = _of_base(lock) | {
        "Env": [f"{name}={value}" for name, value in environment(lock).items()],
        "Entrypoint": entrypoint(lock),
        "Cmd": ["/bin/bash"],
        "WorkingDir": WORKDIR,
        "Labels": labels(lock),
    }
    return _image(lock, settings, layers)


def base_image(lock: Lock, base: Sequence[Layer]) -> Image:
    """Return what lies under the venv as an image: a rendered Dockerfile starts FROM it."""
    env = [f"{name}={value}" for name, value in base_environment(lock).items()]
    return _image(lock, _of_base(lock) | ({"Env": env} if env else {}), base)


def _of_base(lock: Lock) -> dict[str, Any]:
    """Return the settings that containers keep of a registry's image: user and entry point."""
    config = lock.base.content.config if lock.base.content else None
    kept = {"User": config.user, "Entrypoint": list(config.entrypoint)} if config else {}
    return {name: value for name, value in kept.items() if value}


def _image(lock: Lock, settings: dict[str, Any], layers: Sequence[Layer]) -> Image:
    os, _, architecture = lock.platform.partition("/")
    config = _json(
        {
            "created": lock.as_of,
            "architecture": architecture,
            "os": os,
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": lock.as_of, "created_by": f"imagegen: {layer.name}"} for layer in layers],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": digest_of(config), "size": len(config)},
            "layers": [{"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size} for layer in layers],
        }
    )
    return Image(digest_of(manifest), manifest, config, tuple(layers))


def keep(store: Store, built: Image) -> Image:
    """Write config, then manifest, so that a manifest in the store always has its config."""
    store.write(built.config)
    store.write(built.manifest)
    return built


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
