"""The image's config and manifest: a pure function of the lock and the layers.

Source: OCI image-spec v1.1, config.md and manifest.md. The promise of reproducibility is on the manifest's digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imagegen.core.image_format import PREFIX
from imagegen.core.store import Store
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.support import ENTRYPOINT, ENV, WORKDIR, base_environment, locked_variables
from imagegen.lock import inputs_hash
from imagegen.lock.main_versions import main_versions, title
from imagegen.lock.model import Lock
from imagegen.oci.documents import CONFIG_TYPE, Descriptor, canonical_json, digest_of, read_manifest, write_manifest

LABEL = "dev.imagegen."
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """An image in the store, known by the digest of its manifest."""

    digest: str
    manifest: bytes
    config: bytes
    layers: tuple[Layer, ...]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Return config and layers, each blob once."""
        return read_manifest(self.manifest, self.digest).blobs


def environment(lock: Lock) -> dict[str, str]:
    """Return the container's environment, made of the base's variables, the stack's, and the lock's.

    Search paths are joined, and the venv's programs come first.
    """
    before = base_environment(lock)
    before["PATH"] = before.get("PATH") or _PATH
    settings = {"VIRTUAL_ENV": PREFIX, "LANG": "C.UTF-8", **{variable.name: variable.value for variable in ENV}}
    joined = before | settings | locked_variables(lock, before)
    return joined | {"PATH": f"{PREFIX}/bin:{joined['PATH']}"}


def entrypoint(lock: Lock) -> list[str]:
    """Return the startup checks; they become the lock's or the base's own entry point, and that the command."""
    base_entrypoint = lock.base.content.config.entrypoint if lock.base.content else ()
    return [ENTRYPOINT, *(config_value(lock, "entrypoint") or base_entrypoint)]


def command(lock: Lock) -> list[str]:
    """Return the lock's command, or no arguments for its entry point; else a shell."""
    return [*(config_value(lock, "cmd") or ([] if config_value(lock, "entrypoint") else ["/bin/bash"]))]


def user(lock: Lock) -> str:
    """Return the lock's user, else the base's; "" for root."""
    return next(iter(config_value(lock, "user")), lock.base.content.config.user if lock.base.content else "")


def working_directory(lock: Lock) -> str:
    return next(iter(config_value(lock, "workdir")), WORKDIR)


def config_value(lock: Lock, name: str) -> tuple[str, ...]:
    """Return the lock's value of a field of the config; empty where it has none."""
    return next((setting.value for setting in lock.config if setting.name == name), ())


def labels(lock: Lock) -> dict[str, str]:
    """Return the image's labels, independent of clock, host and record; the inputs hash identifies the lock."""
    values = {
        "org.opencontainers.image.title": lock.image,
        "org.opencontainers.image.created": lock.as_of,
        "org.opencontainers.image.version": title(lock),
        f"{LABEL}cell": lock.cell,
        f"{LABEL}inputs": inputs_hash(lock),
        **{f"{LABEL}version.{name}": version for name, version in main_versions(lock).items()},
        **{
            f"{LABEL}environment.{named_environment.name}": named_environment.prefix
            for named_environment in lock.environments
            if named_environment.name
        },
        **{label.name: label.value for label in lock.labels},
    }
    if lock.base.content:
        values["org.opencontainers.image.base.name"] = str(lock.base.image)
        values["org.opencontainers.image.base.digest"] = lock.base.content.digest
    if lock.gpu:
        values[f"{LABEL}gpu.capabilities"] = ",".join(lock.gpu.capabilities)
        if lock.gpu.driver:
            values[f"{LABEL}gpu.driver"] = lock.gpu.driver
    return values


def image(lock: Lock, layers: Sequence[Layer]) -> Image:
    """The cell's image: config and manifest for these layers, from the bottom up."""
    settings = _of_base(lock) | {
        "Env": [f"{name}={value}" for name, value in environment(lock).items()],
        "Entrypoint": entrypoint(lock),
        "Cmd": command(lock),
        "WorkingDir": working_directory(lock),
        "Labels": labels(lock),
    }
    if user_name := user(lock):
        settings["User"] = user_name
    if lock.ports:
        settings["ExposedPorts"] = {port.port: {} for port in lock.ports}
    return _image(lock, settings, layers)


def base_image(lock: Lock, base: Sequence[Layer]) -> Image:
    """Return the layers under the venv as an image, from which a rendered Dockerfile starts."""
    env = [f"{name}={value}" for name, value in base_environment(lock).items()]
    return _image(lock, _of_base(lock) | ({"Env": env} if env else {}), base)


def _of_base(lock: Lock) -> dict[str, Any]:
    """Return the settings that containers keep of a registry's image: user and entry point."""
    config = lock.base.content.config if lock.base.content else None
    base_settings = {"User": config.user, "Entrypoint": list(config.entrypoint)} if config else {}
    return {name: value for name, value in base_settings.items() if value}


def _image(lock: Lock, settings: dict[str, Any], layers: Sequence[Layer]) -> Image:
    os, _, architecture = lock.platform.partition("/")
    config = canonical_json(
        {
            "created": lock.as_of,
            "architecture": architecture,
            "os": os,
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": lock.as_of, "created_by": f"imagegen: {layer.name}"} for layer in layers],
        }
    )
    manifest = write_manifest(Descriptor(CONFIG_TYPE, digest_of(config), len(config)), layers)
    return Image(digest_of(manifest), manifest, config, tuple(layers))


def keep(store: Store, built: Image) -> Image:
    """Write config, then manifest, so that a manifest in the store always has its config."""
    store.write(built.config)
    store.write(built.manifest)
    return built
