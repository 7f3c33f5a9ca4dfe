"""The image: its LAYERS document, its config and manifest.

A client that trusts the signer need not build these layers: `layers_by_key` is for `assemble`, `gzip_by_key` for
`compress_with_gzip`, and `facts` names the scans that `image.inventory.subjects` imports. `trust` decides about
trust.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from imagegen.core.errors import TrustError
from imagegen.core.store import Store
from imagegen.core.store.cache import StoredBlob
from imagegen.core.types import PREFIX, Digest
from imagegen.image import base
from imagegen.image.layers.codec import CODEC, GZIP
from imagegen.image.layers.layer import Layer, PrintableName
from imagegen.image.layers.plan import ENTRYPOINT, ENV, WORKDIR, base_environment, locked_variables
from imagegen.lock import dumps_attached, inputs_hash
from imagegen.lock.model import Lock, main_versions, title
from imagegen.oci.documents import (
    CONFIG_TYPE,
    GZIP_TYPE,
    MAX_LAYERS,
    Descriptor,
    canonical_json,
    digest_of,
    read_manifest,
    write_manifest,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_DOCUMENT = 4 << 20  # bytes; the flagship's, with 249 wheels, has under 100 000
_MAX_FACTS = 10_000


@dataclass(frozen=True)
class CompressedBlobs:
    """The blobs of the image's layers in another compression, by the layers' keys, and the codec's name."""

    codec: PrintableName
    layers: Mapping[Digest, StoredBlob]


@dataclass(frozen=True)
class LayersDocument:
    """A LAYERS document. Digests and keys are "sha256:...", `layers` from the bottom up."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    inputs: Digest  # inputs hash of the lock
    lock: Digest  # digest of the lock as `lock.dumps_attached` writes it: of the LOCK document
    image: Digest  # digest of the image's manifest
    codec: PrintableName  # of the layers that imagegen made
    base: Digest  # key of the base
    layers: tuple[Layer, ...]
    facts: Mapping[Digest, Digest]  # key of facts -> digest of their bytes
    gzip: CompressedBlobs | None = None
    chunked: Any = None  # written by earlier versions, which published layers as zstd:chunked; ignored

    @property
    def layers_by_key(self) -> dict[str, Layer]:
        """The layers by key, for `assemble`; empty if they use another codec, because the image would be another."""
        return {layer.key: layer for layer in self.layers} if self.codec == CODEC else {}

    @property
    def gzip_by_key(self) -> dict[str, Layer]:
        """The gzip layers by key, for `compress_with_gzip`; empty if another codec compressed them."""
        if self.gzip is None or self.gzip.codec != GZIP:
            return {}
        layers = {layer.key: layer for layer in self.layers}
        return {
            key: replace(layers[key], digest=blob.digest, size=blob.size, media_type=GZIP_TYPE)
            for key, blob in self.gzip.layers.items()
        }


def description(lock: Lock, built: Image, facts: Mapping[str, str], other: Image | None = None) -> bytes:
    """Return the document for the image that was built from a lock; `other` is the same image with gzip layers."""
    pairs = zip(built.layers, other.layers, strict=True) if other else ()
    gzip = {packed.key: StoredBlob(packed.digest, packed.size) for layer, packed in pairs if packed != layer}
    return dump(
        LayersDocument(
            inputs_hash(lock),
            digest_of(dumps_attached(lock).encode()),
            built.digest,
            CODEC,
            base.key(lock.base),
            built.layers,
            facts,
            CompressedBlobs(GZIP, gzip) if gzip else None,
        )
    )


def dump(document: LayersDocument) -> bytes:
    """Serialise the document; equal documents give equal bytes."""
    table = asdict(document)
    for name in ("gzip", "chunked"):
        if table[name] is None:
            del table[name]
    return json.dumps(table, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def read_description(data: bytes) -> LayersDocument:
    """Parse a LAYERS document. Raises TrustError for one that no imagegen has written."""
    if len(data) > MAX_DOCUMENT:
        raise _malformed(f"it has {len(data)} bytes, and at most {MAX_DOCUMENT} are read")
    from pydantic import ValidationError  # late, here and below: few commands read such a document

    try:
        document = _adapter().validate_json(data)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(part) for part in first["loc"])
        raise _malformed(f"{location}: {first['msg']}" if location else first["msg"]) from invalid
    if not 0 < len(document.layers) <= MAX_LAYERS:
        raise _malformed(f"it has {len(document.layers)} layers, and an image has 1 to {MAX_LAYERS}")
    if len(document.facts) > _MAX_FACTS:
        raise _malformed(f"it has {len(document.facts)} facts, and at most {_MAX_FACTS} are read")
    keys = {layer.key for layer in document.layers}
    if len(keys) != len(document.layers):
        raise _malformed("two of its layers have one key")
    if docker := [layer.media_type for layer in document.layers if layer.media_type != layer.oci_type]:
        raise _malformed(f"a layer has the media type {docker[0]}")
    if document.gzip and (unknown := document.gzip.layers.keys() - keys):
        raise _malformed(f"gzip.layers: {min(unknown)} is the key of none of its layers")
    return document


@cache
def _adapter() -> TypeAdapter[LayersDocument]:
    from pydantic import TypeAdapter

    return TypeAdapter(LayersDocument)


def _malformed(why: str) -> TrustError:
    fix = "if imagegen attached it, a newer one may have: use that; else attach it again, by publishing the image"
    return TrustError(
        "the layers attached to an image are described in a way that is not known",
        code="trust-layers-unreadable",
        why=why,
        fix=fix,
    )


# The image's config and manifest: a pure function of the lock and the layers.
#
# Source: OCI image-spec v1.1, config.md and manifest.md. The promise of reproducibility is on the manifest's digest.

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
    """Return the image's labels, independent of the clock, the host and the record; the inputs hash identifies the
    lock.
    """
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
    manifest = write_manifest(
        Descriptor(CONFIG_TYPE, digest_of(config), len(config)),
        layers,
    )
    return Image(digest_of(manifest), manifest, config, tuple(layers))


def keep(store: Store, built: Image) -> Image:
    """Write config, then manifest, so that a manifest in the store always has its config."""
    store.write(built.config)
    store.write(built.manifest)
    return built
