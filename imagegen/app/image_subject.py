"""The audit subject of an image in Docker, in a registry, or in an OCI layout, whether imagegen built it or not.

Layers are read one after the other as streams and are not unpacked to disk.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from imagegen.audit.model import Subject
from imagegen.core import data
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError, UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.layer_tar import Allowance
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.image.inventory import archive, libraries
from imagegen.image.inventory.archive import ArchivedImage
from imagegen.image.inventory.distributions import installed, python_of
from imagegen.image.inventory.environments import Environment, all_sites, environment_of_path, environment_of_site
from imagegen.image.inventory.layers import LayeredTree, LayerEntry
from imagegen.image.inventory.module_sources import TreeModules
from imagegen.image.inventory.site_subject import describe
from imagegen.image.inventory.streams import ChunkReader, layer, piped
from imagegen.image.inventory.tree import FileTree
from imagegen.image.layers.image_config import LABEL
from imagegen.oci import registry
from imagegen.oci.documents import PLATFORMS, Platform
from imagegen.oci.layout import INDEX_FILE, Layout

LAYOUT = "oci:"
_NAMED = 3  # of the directories that are not audited


def image_subject(
    reference: str, gpus: tuple[Gpu, ...], settings: Settings, progress: Progress, *, known_gpus: Iterable[Gpu] = ()
) -> Subject:
    """Return the image of this name in an engine, else in a registry; `oci:DIR` or `oci:DIR@DIGEST` names a layout.

    If imagegen built the image, its labels give the driver and, unless `gpus` are given, the GPUs (from `known_gpus`).

    Raises UsageError for an image without Python packages, FetchError, EngineError, StoreError.
    """
    with Store(settings.store).temporary_directory("audit") as scratch:
        contents = read_image(reference, scratch, settings, progress)
    tree = LayeredTree()
    for layer_entries in contents.layers:
        tree.add(layer_entries)
    variables = {
        name: value for name, equals, value in (variable.partition("=") for variable in contents.config.env) if equals
    }
    main = main_environment(tree, variables, reference, progress)
    packages, editables = installed(tree, main)
    describe(editables, progress)
    labels = contents.config.labels
    capabilities = labels.get(f"{LABEL}gpu.capabilities", "").split(",")
    return Subject(
        name=reference,
        packages=packages,
        system=libraries.of(tree, environment=variables, interpreter=main.program),
        python=main.python or python_of(packages),
        gpus=gpus or tuple(gpu for gpu in known_gpus if gpu.capability in capabilities),
        driver=labels.get(f"{LABEL}gpu.driver"),
        modules=TreeModules(tree, main.site),
        cuda=f"{LABEL}gpu.capabilities" in labels if f"{LABEL}cell" in labels else None,
    )


def main_environment(tree: FileTree, variables: Mapping[str, str], reference: str, progress: Progress) -> Environment:
    """Return the environment that the image's `python` uses, else the one with the most files; log the others.

    Raises UsageError where the image has no Python packages.
    """
    sites = all_sites(tree)
    if not sites:
        raise UsageError(
            f"{reference} holds no Python packages",
            code="usage-no-packages",
            why="nothing in it was installed by pip or its like",
        )
    environment = environment_of_path(tree, variables)
    if environment is None or not set(environment.sites) & set(sites):
        largest = max(sites, key=lambda site: sum(1 for _ in tree.entries(site)))
        environment = environment_of_site(tree, largest)
        progress.say(f"note: reading {largest}, because the python on PATH has no packages")
    if unused_sites := [site for site in sites if site not in environment.sites]:
        suffix = f" and {len(unused_sites) - _NAMED} more" if len(unused_sites) > _NAMED else ""
        site_names = ", ".join(unused_sites[:_NAMED]) + suffix
        progress.say(f"note: not read, since {environment.program or 'its Python'} does not use it: {site_names}")
    return environment


def read_image(reference: str, scratch: Path, settings: Settings, progress: Progress) -> ArchivedImage:
    """Return config and layers of an image in an engine, else in a registry, or of a layout; see `image_subject`.

    `scratch` is a directory for large files. Raises UsageError, FetchError, EngineError.
    """
    machine_platform = host_platform()
    if reference.startswith(LAYOUT):
        return _of_layout(reference.removeprefix(LAYOUT), machine_platform, scratch)
    from imagegen.engine.client import exported  # late: a build into a layout needs no engine

    name = registry.parse(reference)
    with exported(reference, settings) as archive_stream:
        if archive_stream is not None:
            progress.say(f"reading {reference} from the engine")
            stream = ChunkReader(archive_stream.pieces)
            return archive.read(stream, Platform("linux", archive_stream.architecture), reference, scratch)
    progress.say(f"no engine here has {reference}: asking {name.registry}")
    return _of_registry(name, machine_platform, scratch, settings, progress)


def host_platform() -> Platform:
    """Return the platform of this machine."""
    machine = platform.machine()
    return Platform("linux", PLATFORMS.get(machine, machine).rpartition("/")[2])


def _of_registry(
    name: registry.Reference, machine_platform: Platform, scratch: Path, settings: Settings, progress: Progress
) -> ArchivedImage:
    with Client(settings) as client:
        image = registry.resolve(name, machine_platform, client, settings)
        repository = registry.Repository(name, client, settings)
        layers: list[list[LayerEntry]] = []
        allowance = Allowance()
        with progress.meter(f"read {name}", sum(descriptor.size for descriptor in image.layers)) as meter:
            for blob in image.layers:
                with piped(repository, blob, client) as stream:
                    layers.append(layer(stream, blob.digest, f"{name}: {blob.digest}", scratch, allowance))
                meter.advance(blob.size)
        return ArchivedImage(image.config, tuple(layers))


def _of_layout(text: str, machine_platform: Platform, scratch: Path) -> ArchivedImage:
    """Read the image of a layout, DIR or DIR@DIGEST."""
    directory, at, digits = text.partition("@sha256:")
    layout, where = Layout(Path(directory)), f"{LAYOUT}{text}"

    def document(digest: str) -> bytes | None:
        try:
            return data.read(layout.path(digest))
        except OSError:
            return None

    try:
        index = data.read(layout.root / INDEX_FILE)
        digest = f"sha256:{digits}" if at else None
        config, descriptors = archive.chosen(index, document, machine_platform, where, digest)
        layers, allowance = [], Allowance()
        for descriptor in descriptors:
            with layout.open(descriptor.digest) as blob:
                layers.append(layer(blob, descriptor.digest, f"{where}: {descriptor.digest}", scratch, allowance))
    except OSError as error:
        raise FetchError(
            f"{where} is not an OCI layout", code="fetch-not-a-layout", why=f"{error.filename}: {error.strerror}"
        ) from error
    return ArchivedImage(config, tuple(layers))
