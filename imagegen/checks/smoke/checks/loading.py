"""Every library and extension module of the image loads, each in a process of its own, with torch if it wants torch.

It is the loader's own answer that counts: nothing is predicted. No failure, by rule, are
- files of another interpreter or another machine, which this Python never loads;
- plugins: they want a library that the image has in no version, which only some hosts bring, and are no part of a
  component that the image is made for;
- variants, distinguished by a release of CUDA or torch in their names ("_cu12", "torch24"), where another of them loads
  or the image has another torch.

Files that are made for LD_PRELOAD must load when a program starts, where nothing has loaded their libraries before.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.machinery
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from smoke import elf, forks, stub
from smoke.program import Details, Findings, Skipped, Spec, step

PATIENCE = 240  # seconds for one file: its package may have to be imported first, and a cold disk is slow
MOST_ABREAST = 8  # processes at a time: a package that is imported may take 1 GB
LIBRARY = re.compile(r"\.so(\.\d+)*$")
PRELOAD = re.compile(r"_preload_cu(\d+)\.")  # torch-memory-saver's, with which SGLang starts its scheduler
ABSENT = re.compile(r"([^/\s]+): cannot open shared object file")
UNDEFINED = re.compile(r"undefined symbol: (\w+)")
VARIANT = re.compile(r"_?cu(?:da)?\d+|(?<=torch)\d+|(?:_\d+){2,3}(?=\.)")
# An image for GPUs brings these, in the release that its files were built for; no host does.
OURS = re.compile(r"lib(torch|c10|cudart|cublas|cudnn|cufft|cupti|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink)")


# Files that their packages do without where they do not load: cupy 13's wrapper of cuDNN 8, while torch brings cuDNN 9;
# torchao's kernels, which each release has for one torch, while SGLang pins an old release.
OPTIONAL = ("cupy_backends/cuda/libs/cudnn.", "torchao/_C.")


def check(spec: Spec) -> Details:
    findings = Findings()
    image = image_of(spec)
    if not image.needed and is_pure(image.prefix):
        raise Skipped(f"no library lies below {spec.prefix}: its packages are pure Python")
    findings.expect("any", bool(image.needed), f"there is no library below {spec.prefix}: nothing was proven")
    unlinked, linked = image.split()
    with driver_or_stub(image) as functions:
        step(f"{len(unlinked)} files that do not want torch")
        deeds = list(loaded(unlinked, image))
        if linked:
            step(f"{len(linked)} files that want torch")
            importlib.import_module("torch")
            deeds += loaded(linked, image)
        for name in preloads(image):
            starts = loads_at_start(image.prefix / name)
            findings.expect(name, starts, f"{describe(name, image)}: no program starts with it in LD_PRELOAD")
    missed = set(image.needed) - {deed.name for deed in deeds}
    findings.expect("all", not missed, f"{len(missed)} files were not tried")
    details = judge(deeds, image, findings)
    if functions:
        details["stub"] = {"library": stub.LIBRARY, "functions": functions}
        details["note"] = f"against a stub {stub.LIBRARY} of {len(functions)} functions (cuInit ...)"
    return findings.done(details)


class Image:
    """The libraries below a folder that this interpreter may load, by their path in it."""

    def __init__(self, prefix: Path, declared: set[str], *, for_gpus: bool = False, torch: str = "") -> None:
        self.prefix = prefix
        self.torch = torch.split(".")[:2]
        self.declared = declared  # packages of the components that the image is made for
        self.needed: dict[str, frozenset[str]] = {}  # libraries that a file is linked with
        self.driver: set[str] = set()  # functions of the driver's library that a file names
        self.others = 0  # files that are not for this interpreter
        mine = elf.machine(Path(sys.executable).read_bytes()[: elf.HEADER.size])[0]
        for path in sorted(libraries(prefix)):
            with path.open("rb") as file:
                machine = elf.machine(file.read(elf.HEADER.size))[0]
            if not machine:
                continue  # a linker's script, or a file of another kind
            if machine != mine or of_another_interpreter(path.name):
                self.others += 1
                continue
            needed = elf.needed(path)
            self.needed[str(path.relative_to(prefix))] = needed
            if stub.LIBRARY in needed:
                self.driver |= {name for name in elf.dynamic(path).undefined if re.match(r"cu[A-Z]", name)}
        self.places = {Path(name).name: name for name in self.needed}
        self.cuda = for_gpus or any(name.startswith("libcudart") for name in self.places)

    def split(self) -> tuple[list[str], list[str]]:
        """Files that have nothing to do with torch, and torch's own with those that are linked with it in some way."""
        linked = {name for name in self.needed if "/torch/" in name}
        while True:
            names = {Path(name).name for name in linked}
            more = {name for name, needed in self.needed.items() if needed & names} - linked
            if not more:
                return [name for name in self.needed if name not in linked], sorted(linked)
            linked |= more

    def having(self, symbol: str) -> Iterator[str]:
        """The libraries that have a symbol for others."""
        return (name for name in self.needed if elf.defines(self.prefix / name, symbol))

    def another_release(self, library: str, name: str) -> bool:
        """Return whether the file's package has a needed library under another version number."""
        folder, stem = self.prefix / name, library.partition(".so")[0]
        like = (Path(other) for other in self.needed if Path(other).name.startswith(f"{stem}.so"))
        return any(top_of(self.prefix / other) == top_of(folder) for other in like)

    def for_another_torch(self, name: str) -> bool:
        """Return whether the file's name states another torch than the image's."""
        named = re.search(r"torch(\d)(\d+)(?!\d)", Path(name).name)
        return bool(named and self.torch != [""] and list(named.groups()) != self.torch)


def libraries(prefix: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(prefix):
        paths = (Path(folder, name) for name in names if LIBRARY.search(name))
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def of_another_interpreter(name: str) -> bool:
    own = importlib.machinery.EXTENSION_SUFFIXES[0]  # ".cpython-311-x86_64-linux-gnu.so"
    return ".cpython-" in name and not name.endswith(own)


def image_of(spec: Spec) -> Image:
    """Return the libraries of the image that `spec` describes."""
    declared = {name.partition(".")[0] for names in spec.imports.values() for name in names}
    return Image(Path(spec.prefix), declared, for_gpus=bool(spec.gpus), torch=spec.versions.get("torch", ""))


@contextlib.contextmanager
def driver_or_stub(image: Image) -> Iterator[list[str]]:
    """Load a stub of the driver's library, where there is no driver; files that ask for it by name then find it.

    Yields the functions that the stub has: those that the files of `image` name; none where there is a driver.
    """
    if not image.driver or stub.driver_here():
        yield []
        return
    with tempfile.TemporaryDirectory() as folder:
        functions = stub.write(Path(folder), image.driver)
        ctypes.CDLL(str(Path(folder) / stub.LIBRARY))
        yield functions


def preloads(image: Image) -> list[str]:
    """Return the files that are made for LD_PRELOAD and for a CUDA runtime that the image has."""
    found = [(name, PRELOAD.search(Path(name).name)) for name in image.needed]
    return [name for name, match in found if match and f"libcudart.so.{match[1]}" in image.places]


def loaded(names: Iterable[str], image: Image) -> Iterator[forks.Deed]:
    abreast = min(MOST_ABREAST, len(os.sched_getaffinity(0)))
    return forks.each(names, lambda name: load(name, image), abreast=abreast, patience=PATIENCE)


def load(name: str, image: Image) -> list[str]:
    """Load a file as Python does. Returns what had to come before it; raises the loader's error."""
    before: list[str] = []
    _load(name, image, before)
    return before


def _load(name: str, image: Image, before: list[str]) -> None:
    while True:
        try:
            ctypes.CDLL(str(image.prefix / name), os.RTLD_NOW)
        except OSError as error:
            if "static TLS block" in str(error) and loads_at_start(image.prefix / name):
                before.append("LD_PRELOAD")
                return
            if not _help(str(error), name, image, before):
                raise
        else:
            return


def loads_at_start(path: Path) -> bool:
    """Return whether a program starts with the file in LD_PRELOAD, beside a driver or a stub of it."""
    program = [sys.executable, "-S", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1], 2)", str(path)]
    needed = elf.needed(path)
    with tempfile.TemporaryDirectory() as folder:
        paths = [folder, os.environ.get("LD_LIBRARY_PATH", "")]
        if stub.LIBRARY in needed and not stub.driver_here():
            stub.write(Path(folder), {name for name in elf.dynamic(path).undefined if re.match(r"cu[A-Z]", name)})
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths)), "LD_PRELOAD": str(path)}
        return subprocess.run(program, env=environment, check=False).returncode == 0


def _help(error: str, name: str, image: Image, before: list[str]) -> bool:
    """Do the next thing that may let a file load. False where nothing is left.

    First its package is imported: some load their files' dependencies themselves. Then comes a library of the image
    that is on no path of the file, or has a symbol which the file is not linked with.
    """
    path = image.prefix / name
    package = package_of(path)
    if package and package not in sys.modules and f"import {package}" not in before:
        before.append(f"import {package}")
        with contextlib.suppress(Exception):  # what does not import is for the check of imports to say
            importlib.import_module(package)
        return True
    absent, undefined = ABSENT.search(error), UNDEFINED.search(error)
    wanted = [image.places[absent[1]]] if absent and absent[1] in image.places else []
    wanted += image.having(undefined[1]) if undefined else []
    for library in wanted:
        if library not in before and library != name:
            before.append(library)
            _load(library, image, before)
            ctypes.CDLL(str(image.prefix / library), os.RTLD_NOW | os.RTLD_GLOBAL)
            return True
    return False


def top_of(path: Path) -> Path:
    """The folder right below site-packages that a file is in, or its own."""
    return next((folder for folder in path.parents if folder.parent.name == "site-packages"), path.parent)


def package_of(path: Path) -> str:
    """The outermost package that a file is in, by the name under which it is imported; "" if it is in none."""
    folders = [folder for folder in path.parents if (folder / "__init__.py").is_file()]
    roots = [root for root in map(Path, sys.path) if folders and root in folders[-1].parents]
    return ".".join(folders[-1].relative_to(max(roots, key=lambda root: len(root.parts))).parts) if roots else ""


def judge(deeds: Iterable[forks.Deed], image: Image, findings: Findings) -> Details:
    deeds = list(deeds)
    fine = {deed.name: deed.answer for deed in deeds if not deed.signal and not deed.error}
    of_variants = {unmarked(name) for name in fine}
    plugins, variants = {}, []
    for deed in deeds:
        if deed.signal:
            end = f" ({deed.said})" if deed.said else ""
            findings.expect(deed.name, False, f"{describe(deed.name, image)}: killed by {deed.signal} as it loads{end}")
        elif deed.error and (unmarked(deed.name) in of_variants or image.for_another_torch(deed.name)):
            variants.append(deed.name)
        elif deed.error and (absent := plugin_of(deed, image)):
            plugins[deed.name] = absent
        elif deed.error and any(part in deed.name for part in OPTIONAL):
            plugins[deed.name] = deed.error
        elif deed.error:
            findings.expect(deed.name, False, f"{describe(deed.name, image)}: {deed.error}")
    after = {name: before for name, before in fine.items() if before}
    return {"loaded": len(fine), "after": after, "plugins": plugins, "variants": variants, "others": image.others}


def unmarked(name: str) -> str:
    """A file's path without what tells variants apart."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{VARIANT.sub('', file)}"


def plugin_of(deed: forks.Deed, image: Image) -> str:
    """The library that a plugin wants of its host, or "" where a file is no plugin or lacks something else."""
    absent = ABSENT.search(deed.error)
    if absent is None or absent[1] in image.places or image.another_release(absent[1], deed.name):
        return ""
    ours = (image.cuda and OURS.match(absent[1])) or image.declared & set(Path(deed.name).parts)
    return "" if ours else absent[1]


def is_pure(prefix: Path) -> bool:
    """Return whether no distribution below a folder says that it has compiled files (Root-Is-Purelib, PEP 427)."""
    found = (each for each in metadata.distributions() if Path(str(each.locate_file(""))).is_relative_to(prefix))
    return all("\nRoot-Is-Purelib: true" in (each.read_text("WHEEL") or "") for each in found)


def describe(name: str, image: Image) -> str:
    """Return a file with the distribution that it belongs to."""
    for distribution in metadata.distributions():
        record = distribution.read_text("RECORD") or ""
        site = Path(str(distribution.locate_file("")))
        if f"\n{os.path.relpath(image.prefix / name, site)}," in f"\n{record}":
            return f"{distribution.metadata['Name']} {distribution.version}: {name}"
    return name
