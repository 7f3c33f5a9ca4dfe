"""Write specifications that run an image by digest on Docker, Kubernetes, SkyPilot or Slurm."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import yaml
from jinja2 import StrictUndefined
from jinja2.loaders import FileSystemLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment

from imagegen.app.lock_files import LockFiles
from imagegen.app.project import ProjectContext
from imagegen.app.publisher import known_digest
from imagegen.core.data import shipped
from imagegen.core.errors import LockError, UsageError
from imagegen.image.layers.support import HOME
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.oci.registry import reference as references
from imagegen.spec.model import Cell
from imagegen.trust import project as projects
from imagegen.wheels.wheelhouse import with_local_wheels

# Target -> the kind of its specification.
TARGETS: Mapping[str, str] = {
    "docker": "a `docker run` command",
    "compose": "a Compose file",
    "devcontainer": "a devcontainer.json",
    "kubernetes": "a Job and the claim of its cache",
    "kuberay": "a RayCluster",
    "skypilot": "a SkyPilot task",
    "slurm": "a batch script for Slurm with pyxis",
}
SHM = 16  # GiB of /dev/shm, as the startup checks recommend
CACHE = f"{HOME}/.cache"  # of Hugging Face, Triton, vLLM, FlashInfer
_CACHE_VOLUME = "imagegen-cache"
_USER = 1000  # any number will do: HOME and the caches are writable for every user
_LONGEST_NAME = 52  # characters of a Job's name: its pods get a suffix within the 63 of a DNS label
_SAFE = re.compile(r"[A-Za-z0-9 ._:/@;=,+-]*")  # no quote, newline, `$` or `#`: no value can end a field


@dataclass(frozen=True)
class LaunchSpec:
    """The values of a specification. Raises LockError for a value that could leave its field."""

    cell: str
    reference: str  # the image, by digest where one is known: "ghcr.io/acme/rl/tiny@sha256:..."
    published: bool  # whether the reference is the registry's of publish.yaml
    modules: tuple[str, ...]  # that the image's components import as
    capabilities: tuple[str, ...] = ()  # compute capabilities of the GPUs: "9.0"; empty if it needs no GPU
    products: tuple[str, ...] = ()  # "H100"
    accelerators: tuple[str, ...] = ()  # SkyPilot's names of them
    driver: str | None = None  # the oldest NVIDIA driver
    gpus: int | None = None  # the requested number; None for all if a target can express it, else one
    ray: str | None = None  # version of Ray in the image
    squashfs: str | None = None  # the image as a file, for Slurm

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not _SAFE.fullmatch(text):
                    raise LockError(
                        f"{field.name} cannot stand in a specification",
                        code="lock-value-unsupported",
                        where=self.cell if field.name != "cell" else None,
                        why=f"{text!r} has a character other than letters, digits and . _ - : / @ ; = , +",
                        fix="correct it in the matrix",
                    )

    @property
    def name(self) -> str:
        """The cell's id as a DNS label, for objects of Kubernetes."""
        return re.sub(r"[^a-z0-9]+", "-", self.cell.lower())[:_LONGEST_NAME].strip("-")

    @property
    def command(self) -> tuple[str, ...]:
        """A first command: import all components."""
        return "python", "-c", f"import {', '.join(self.modules)}"

    @property
    def driver_major(self) -> int:
        return int((self.driver or "0").partition(".")[0])

    @property
    def enroot_image(self) -> str:
        """The image as enroot and pyxis name it: a path with a directory, else a reference with `#` after the registry.

        Source: enroot, doc/cmd/import.md; pyxis, README.md.
        """
        if self.squashfs is not None:
            return self.squashfs if self.squashfs.startswith(("/", "./", "../")) else f"./{self.squashfs}"
        parsed = references.parse(self.reference)
        tail = self.reference.removeprefix(f"{parsed.registry}/")
        return tail if parsed.registry == references.HUB else f"{parsed.registry}#{tail}"


def launch_spec(
    cell: Cell, lock: Lock, reference: str, *, published: bool, gpus: int | None = None, squashfs: str | None = None
) -> LaunchSpec:
    """Return the specification's values for a cell, as its lock and the matrix have them."""
    products = gpu_products(cell)
    names = _accelerators()
    return LaunchSpec(
        cell=cell.id,
        reference=reference,
        published=published,
        modules=tuple(modules[0] for modules in cell.declarations.imports.values() if modules),
        capabilities=lock.gpu.capabilities if lock.gpu else (),
        products=products,
        accelerators=tuple(name for product in products for name in names.get(product, ())),
        driver=lock.gpu.driver if lock.gpu else None,
        gpus=gpus,
        ray=next((package.version for package in lock.packages if package.name == "ray"), None),
        squashfs=squashfs,
    )


def gpu_products(cell: Cell) -> tuple[str, ...]:
    """Return the GPUs of the cell whose hosts have its platform."""
    return tuple(product for gpu in cell.gpus for product in gpu.products if gpu.platform_of(product) == cell.platform)


def published_repository(project: ProjectContext, cell: Cell) -> str | None:
    """Return the repository of the cell's image in the registry of publish.yaml; None if that names none."""
    to = projects.load(project.directory).to
    return f"{to.rstrip('/')}/{cell.image}" if to else None


def read_launch_spec(
    lock_files: LockFiles, cell: Cell, gpus: int | None = None, squashfs: str | None = None
) -> LaunchSpec:
    """Return the values for a locked cell. Raises UsageError for GPUs of an image that runs on the CPU."""
    if gpus is not None and not cell.gpus:
        raise UsageError(
            f"--gpus {gpus} is for images with GPUs, and {cell.id} runs on the CPU",
            code="usage-no-gpus",
            fix="leave --gpus out",
        )
    lock, _ = with_local_wheels(lock_files.fresh(cell), lock_files.project.store)
    published = published_repository(lock_files.project, cell)
    repository = published or local_tags(lock)[0].partition(":")[0]
    return launch_spec(
        cell,
        lock,
        f"{repository}@{known_digest(lock_files, cell, lock)}",
        published=published is not None,
        gpus=gpus,
        squashfs=squashfs,
    )


def can_run(spec: LaunchSpec, target: str) -> bool:
    """Return whether the target has the image's GPUs, and the image the program that the target starts."""
    if target == "kuberay":
        return spec.ray is not None
    return target != "skypilot" or not spec.capabilities or bool(spec.accelerators)


def render(spec: LaunchSpec, target: str) -> str:
    """Return the specification for one of TARGETS.

    Raises UsageError if the image cannot run there: KubeRay without Ray, SkyPilot without a known GPU.
    """
    if target == "kuberay" and not can_run(spec, target):
        raise UsageError(
            f"{spec.cell} has no Ray, which KubeRay starts",
            code="usage-no-ray",
            fix="--for kubernetes; or add ray to the image's components",
        )
    if target == "skypilot" and not can_run(spec, target):
        raise UsageError(
            f"SkyPilot has no GPU of {spec.cell}",
            code="usage-no-accelerator",
            why=f"its catalogue has none of compute capability {', '.join(spec.capabilities)}",
            fix="name another target with --for",
        )
    template = _environment().get_template(f"{target}.j2")
    return template.render(spec=spec, target=target, shm=SHM, cache=CACHE, cache_volume=_CACHE_VOLUME, user=_USER)


@functools.cache
def _accelerators() -> Mapping[str, Sequence[str]]:
    document = yaml.safe_load((shipped("pages") / "launch" / "skypilot.yaml").read_text(encoding="utf-8"))
    names: Mapping[str, Sequence[str]] = document["accelerators"]
    return names


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(shipped("pages") / "launch"),
        undefined=StrictUndefined,
        autoescape=False,  # shell, YAML and JSON: values are quoted, and LaunchSpec admits none that could end a field
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shell"] = lambda value: shlex.quote(value) if isinstance(value, str) else shlex.join(value)
    environment.filters["tojson"] = json.dumps  # jinja's own escapes for HTML
    return environment
