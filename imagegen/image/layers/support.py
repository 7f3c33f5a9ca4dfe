"""The files and links of the topmost layer, a pure function of the lock."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imagegen import checks
from imagegen.audit.readers.installation import site_packages
from imagegen.checks.preflight.model import Image as ImageFacts
from imagegen.checks.preflight.model import image_to_json
from imagegen.compat.rule import cuda_version
from imagegen.core.image_format import PREFIX
from imagegen.core.types import SEARCH_PATHS, join_paths
from imagegen.lock.model import Lock, LockedEnvironment
from imagegen.spec.model import EnvVar

ROOT = "/opt/imagegen"
ENTRYPOINT = f"{ROOT}/entrypoint"
CONSTRAINTS = f"{ROOT}/constraints.txt"
HOME = "/home/user"
WORKDIR = "/workspace"
OPEN = (HOME, f"{HOME}/.cache", WORKDIR)  # writable for every user, as /tmp is (1777)
# Mounts at the place that other images use end up where this image's caches are.
LINKS: Mapping[str, str] = {"/root/.cache": f"{HOME}/.cache"}
# NVIDIA's wheels make a CUDA toolkit but for these: wheel -> the libraries that linkers look for without a version, all
# of which carry CUDA's major version as their own.
LINKED = {"nvidia-cublas": ("cublas", "cublasLt"), "nvidia-cuda-nvrtc": ("nvrtc",), "nvidia-cuda-runtime": ("cudart",)}
CUDA_HOME = "/usr/local/cuda"
# Wheel -> the library that the loader must find by itself, since programs start with a file of the wheel in LD_PRELOAD:
# SGLang's scheduler does so with torch-memory-saver's, and ends with exit code 127 where libcudart is only in
# site-packages (seen 2026-11-24, verl 0.9.1 and sglang 0.5.14). NVIDIA's images have it in the loader's cache.
PRELOADED = {"torch-memory-saver": "cudart"}
# Directories of a lock come before the base's, as the first of the files that /etc/ld.so.conf includes.
LOADER_CONFIGURATION = "/etc/ld.so.conf.d/00-imagegen.conf"
LOADER_CACHE = "/etc/ld.so.cache"
LIBRARIES = {"linux/amd64": "/usr/lib/x86_64-linux-gnu", "linux/arm64": "/usr/lib/aarch64-linux-gnu"}

_HOME_BECAUSE = (
    "One home for every user, named or not: caches of Hugging Face, Triton, vLLM and flashinfer are below it."
)
_HELD_BECAUSE = "Packages installed later cannot change the stack: pip and uv reject other versions."
ENV = (
    EnvVar("HOME", HOME, _HOME_BECAUSE),
    EnvVar("LOGNAME", "user", "A name for users without one: Python's getpass.getuser() fails otherwise."),
    EnvVar("PIP_CONSTRAINT", CONSTRAINTS, _HELD_BECAUSE),
    EnvVar("UV_CONSTRAINT", CONSTRAINTS, _HELD_BECAUSE),
)


@dataclass(frozen=True)
class SupportFile:
    """A file of the support layer. `path` is absolute in the image."""

    path: str
    content: bytes
    executable: bool = False


def support_files(lock: Lock) -> tuple[SupportFile, ...]:
    """Return all files of the layer but byte-code, sorted by path."""
    files = [SupportFile(f"{ROOT}/{path}", source) for path, source in checks.modules().items()]
    files += [
        SupportFile(f"{ROOT}/{name}", program, executable=True)
        for name, program in checks.scripts(lock.interpreter.path).items()
    ]
    facts = json.dumps(image_to_json(image_facts(lock)), indent=2, sort_keys=True) + "\n"
    files += [SupportFile(CONSTRAINTS, constraints(lock).encode()), SupportFile(f"{ROOT}/image.json", facts.encode())]
    if lock.has_several:
        files += [file for environment in lock.environments for file in _files_of_environment(environment)]
    return tuple(sorted(files, key=lambda file: file.path))


def base_environment(lock: Lock) -> dict[str, str]:
    """Return the environment that the registry image sets."""
    pairs = (variable.partition("=") for variable in lock.base.content.config.env) if lock.base.content else ()
    return {name: value for name, _, value in pairs}


def locked_variables(lock: Lock, before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the lock sets; the directories of its search paths come before the ones in `before`."""
    return {
        variable.name: join_paths(variable.value, before.get(variable.name, ""))
        if variable.name in SEARCH_PATHS
        else variable.value
        for variable in lock.env
    }


def _constraints_of(environment: LockedEnvironment) -> str:
    return CONSTRAINTS if environment.prefix == PREFIX else f"{ROOT}/environments/{environment.name}/constraints.txt"


def _files_of_environment(environment: LockedEnvironment) -> Iterator[SupportFile]:
    """Yield the files of an environment of several: its constraints, and what a shell reads to use it."""
    variables = {
        "VIRTUAL_ENV": environment.prefix,
        **dict.fromkeys(("PIP_CONSTRAINT", "UV_CONSTRAINT"), _constraints_of(environment)),
        **locked_variables(environment.lock, {}),
    }
    paths = {name: variables.pop(name) for name in sorted(SEARCH_PATHS & variables.keys())}
    lines = [
        f"# The environment {environment.name}, for a shell to read: . {environment.prefix}/bin/activate",
        f'export PATH="{join_paths(f"{environment.prefix}/bin", paths.pop("PATH", ""))}:$PATH"',
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        *(f'export {name}="{value}${{{name}:+:${name}}}"' for name, value in paths.items()),
        "hash -r",
    ]
    yield SupportFile(f"{environment.prefix}/bin/activate", ("\n".join(lines) + "\n").encode())
    if environment.prefix != PREFIX:
        yield SupportFile(_constraints_of(environment), constraints(environment.lock).encode())


def support_links(lock: Lock) -> dict[str, str]:
    """Return the links of the support layer, path -> target.

    With nvcc from NVIDIA's wheels, CUDA_HOME is where compilers look for it, with lib64 and what -lcudart finds; the
    loader finds the libraries of PRELOADED. Where several environments have it, both find the first one's.
    """
    links = dict(LINKS)
    for environment in reversed(lock.environments):
        links |= _toolkit_links(environment.lock, environment.prefix)
    return links


def _toolkit_links(lock: Lock, prefix: str) -> dict[str, str]:
    """Return the links that make a CUDA toolkit of NVIDIA's wheels in the environment at `prefix`."""
    wheels = {wheel.name for wheel in lock.wheels}
    cuda = cuda_version(lock.axes.get("cuda", ""))
    if cuda is None or "nvidia-cuda-nvcc" not in wheels:
        return {}
    major = cuda.partition(".")[0]
    home = f"{site_packages(lock.python, prefix)}/nvidia/cu{major}"
    libraries = [name for wheel, names in LINKED.items() if wheel in wheels for name in names]
    preloaded = [f"lib{name}.so.{major}" for wheel, name in PRELOADED.items() if wheel in wheels]
    return {
        **{f"{LIBRARIES[lock.axes['platform']]}/{name}": f"{home}/lib/{name}" for name in preloaded},
        CUDA_HOME: home,
        f"{home}/lib64": "lib",
        **{f"{home}/lib/lib{name}.so": f"lib{name}.so.{major}" for name in libraries},
    }


def support_identity(lock: Lock) -> list[list[str]]:
    """Return all that decides the layer's bytes, for its key."""
    names = [[path, "open"] for path in OPEN] + [[path, target] for path, target in support_links(lock).items()]
    return names + [
        [file.path, "x" if file.executable else "-", hashlib.sha256(file.content).hexdigest()]
        for file in support_files(lock)
    ]


def loader_configuration(lock: Lock) -> str:
    """Return the file of /etc/ld.so.conf.d/ that names the lock's directories, each with its reason as a comment."""
    return "".join(f"# {directory.because}\n{directory.path}\n" for directory in lock.ldconfig)


def image_facts(lock: Lock) -> ImageFacts:
    """Return the facts about the image for its startup checks and `imagegen doctor`."""
    return ImageFacts(
        cell=lock.cell,
        cuda=cuda_version(lock.axes.get("cuda", "")),
        gpus=lock.gpu.capabilities if lock.gpu else (),
        driver=lock.gpu.driver if lock.gpu else None,
        packages=_packages(lock),
    )


def constraints(lock: Lock) -> str:
    """Return constraints.txt, which has the exact version of each package of the stack."""
    head = (
        f"# The versions of {lock.cell}: pip and uv take no others (PIP_CONSTRAINT, UV_CONSTRAINT).\n"
        "# To choose a version yourself, remove its line.\n"
    )
    return head + "".join(f"{name}=={version}\n" for name, version in _packages(lock).items())


def _packages(lock: Lock) -> dict[str, str]:
    """Name -> version of all that the stack holds, sorted, compiled or not."""
    return dict(sorted((package.name, package.version) for package in lock.packages))
