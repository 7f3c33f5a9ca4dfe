"""The audit subject of an image, also of one that imagegen did not build: in Docker, in a registry, or in an OCI
layout.

Layers are read one after the other as streams and are not unpacked to disk.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from imagegen.audit.model import Subject
from imagegen.core import data, registry
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.registry import Platform
from imagegen.core.store import Store
from imagegen.core.store.layout import is_digest
from imagegen.image.inventory import archive, environment, system
from imagegen.image.inventory.archive import Contents
from imagegen.image.inventory.distributions import installed, python_of
from imagegen.image.inventory.environment import Environment
from imagegen.image.inventory.layers import Entry, Layered
from imagegen.image.inventory.site import describe
from imagegen.image.inventory.stream import ChunkReader, layer, piped
from imagegen.image.inventory.tree import Tree
from imagegen.image.layers.image import LABEL
from imagegen.run.engine.export import exported

LAYOUT = "oci:"
_NAMED = 3  # of the directories that are not audited
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def subject(
    reference: str, gpus: tuple[Gpu, ...], settings: Settings, progress: Progress, *, known: Iterable[Gpu] = ()
) -> Subject:
    """Return the image of this name in an engine, else in a registry; `oci:DIR` or `oci:DIR@DIGEST` names a layout.

    For an image that imagegen built, its labels give the GPUs (those of `known` that they name, unless there are
    `gpus`) and the driver.

    Raises UsageError for an image without Python packages, FetchError, EngineError, StoreError.
    """
    with Store(settings.store).room("audit") as scratch:
        contents = _read(reference, scratch, settings, progress)
    tree = Layered()
    for each in contents.layers:
        tree.add(each)
    variables = {name: value for name, equals, value in (each.partition("=") for each in contents.config.env) if equals}
    main = _main(tree, variables, reference, progress)
    found = installed(tree, main)
    describe(found.editable, progress)
    labels = contents.config.labels
    capabilities = labels.get(f"{LABEL}gpu.capabilities", "").split(",")
    return Subject(
        name=reference,
        packages=found.packages,
        system=system.of(tree, environment=variables, interpreter=main.program),
        python=main.python or python_of(found.packages),
        gpus=gpus or tuple(gpu for gpu in known if gpu.capability in capabilities),
        driver=labels.get(f"{LABEL}gpu.driver"),
        cuda=f"{LABEL}gpu.capabilities" in labels if f"{LABEL}cell" in labels else None,
    )


def _main(tree: Tree, variables: Mapping[str, str], reference: str, progress: Progress) -> Environment:
    """Return the environment that the image's `python` uses, else the one with the most files; log the others."""
    sites = environment.all_sites(tree)
    if not sites:
        raise UsageError(
            f"{reference} holds no Python packages",
            code="usage-no-packages",
            why="nothing in it was installed by pip or its like",
        )
    found = environment.of_path(tree, variables)
    if found is None or not set(found.sites) & set(sites):
        largest = max(sites, key=lambda site: sum(1 for _ in tree.entries(site)))
        found = environment.of_site(tree, largest)
        progress.say(f"note: the python on PATH has no packages: {largest} is audited")
    if others := [site for site in sites if site not in found.sites]:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        named = ", ".join(others[:_NAMED]) + more
        progress.say(f"note: not audited, since {found.program or 'its Python'} does not use it: {named}")
    return found


def _read(reference: str, scratch: Path, settings: Settings, progress: Progress) -> Contents:
    here = Platform("linux", _ARCHITECTURES.get(platform.machine(), platform.machine()))
    if reference.startswith(LAYOUT):
        return _of_layout(reference.removeprefix(LAYOUT), here, scratch)
    name = registry.parse(reference)
    with exported(reference, settings) as found:
        if found is not None:
            progress.say(f"reading {reference} from the engine")
            stream = ChunkReader(found.pieces)
            return archive.read(stream, Platform("linux", found.architecture), reference, scratch)
    progress.say(f"no engine here has {reference}: asking {name.registry}")
    return _of_registry(name, here, scratch, settings, progress)


def _of_registry(
    name: registry.Reference, here: Platform, scratch: Path, settings: Settings, progress: Progress
) -> Contents:
    with Client(settings) as client:
        image = registry.resolve(name, here, client, settings)
        repository = registry.Repository(name, client, settings)
        layers: list[list[Entry]] = []
        with progress.meter(f"read {name}", sum(each.size for each in image.layers)) as meter:
            for each in image.layers:
                with piped(partial(repository.stream, each.digest, each.size), client.close) as stream:
                    layers.append(layer(stream, each.digest, f"{name}: {each.digest}", scratch))
                meter.advance(each.size)
        return Contents(image.config, tuple(layers))


def _of_layout(text: str, here: Platform, scratch: Path) -> Contents:
    """DIR or DIR@DIGEST."""
    directory, at, digits = text.partition("@sha256:")
    root, where = Path(directory), f"{LAYOUT}{text}"

    def document(digest: str) -> bytes | None:
        try:
            return data.read(_blob(root, digest)) if is_digest(digest) else None
        except OSError:
            return None

    try:
        index = data.read(root / "index.json")
        digest = f"sha256:{digits}" if at else None
        config, found = archive.chosen(index, document, here, where, digest)
        layers = []
        for each in found:
            with open(os.open(_blob(root, each.digest), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as blob:
                layers.append(layer(blob, each.digest, f"{where}: {each.digest}", scratch))
    except OSError as error:
        raise FetchError(
            f"{where} is no OCI layout", code="fetch-not-a-layout", why=f"{error.filename}: {error.strerror}"
        ) from error
    return Contents(config, tuple(layers))


def _blob(root: Path, digest: str) -> Path:
    return root / "blobs" / "sha256" / digest.removeprefix("sha256:")
