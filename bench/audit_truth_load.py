"""Load every library of some wheels beside several releases of torch, and write down what the loader said.

    python bench/audit_truth_load.py WORKDIR [TORCH ...]

WORKDIR is a folder for downloads (30 GB at a time; what was made for one torch is removed before the next). Wheels come
from PyPI through pip. Writes bench/audit_truth/outcomes.json and bench/audit_truth/files.json.xz: with these two,
bench/audit_truth.py compares the audit's verdicts without loading anything. Needs Python 3.11 on x86-64 and no GPU: a
stand-in for the driver's library has all functions that any of the files names. About half an hour on 2 cores.

Each file is loaded with RTLD_NOW in a process of its own, forked from one that has imported torch and nothing else, and
extension modules are initialised there too. Each package is then imported in a fresh process.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import json
import lzma
import mmap
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from email import message_from_bytes
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE / "audit_truth"
TORCHES = ("2.8.0", "2.9.1", "2.11.0", "2.13.0", "2.13.0+cpu")  # PyPI's; the last is from PyTorch's own index
# The method was made with wheels of these packages; of the others, no file had been looked at before.
TUNED = ("sgl-kernel", "sglang-kernel", "torchaudio", "torchvision", "vllm", "xformers")
WHEELS = (
    "autoawq-kernels==0.0.9",
    "bitsandbytes==0.48.1",
    "executorch==1.0.0",
    "executorch==1.2.0",
    "fbgemm-gpu==1.4.0",
    "fbgemm-gpu-genai==1.3.0",
    "fbgemm-gpu-genai==1.4.2",
    "fbgemm-gpu-genai==1.6.0",
    "fbgemm-gpu-genai==1.8.0",
    "intel-extension-for-pytorch==2.8.0",
    "k2==1.23.4",
    "lmcache==0.3.6",
    "lmcache==0.3.11",
    "lmcache==0.5.6",
    "mooncake-transfer-engine==0.3.8",
    "mooncake-transfer-engine==0.3.13.post1",
    "open3d==0.19.0",
    "sgl-kernel==0.3.21",
    "sglang-kernel==0.4.2",
    "tensordict==0.10.0",
    "torch-memory-saver==0.0.9",
    "torch-memory-saver==0.0.10",
    "torch-tensorrt==2.9.0",
    "torch-tensorrt==2.11.0",
    "torch-xla==2.9.0",
    "torchaudio==2.8.0",
    "torchaudio==2.11.0",
    "torchmonarch==0.2.0",
    "torchmonarch==0.5.0",
    "torchrl==0.10.0",
    "torchrl==0.13.3",
    "torchrl==0.14.1",
    "torchtext==0.18.0",
    "torchvision==0.24.1",
    "torchvision==0.26.0",
    "vllm==0.11.2",
    "vllm-flash-attn==2.6.2",
    "xformers==0.0.32.post2",
    "xformers==0.0.35",
)
# What some of the packages import beside torch; one that wants more says so, and its import proves nothing.
HELPERS = (
    *("absl-py", "cloudpickle", "importlib-metadata", "numpy", "orjson", "packaging", "pillow", "psutil", "pyyaml"),
    *("requests", "tqdm"),
)
MODULES = {
    "autoawq-kernels": ("awq_ext", "awq_ft_ext", "awq_v2_ext", "exl_ext", "exlv2_ext"),
    "fbgemm-gpu-genai": ("fbgemm_gpu.experimental.gen_ai",),
    "intel-extension-for-pytorch": ("intel_extension_for_pytorch",),
    "lmcache": ("lmcache.c_ops",),
    "mooncake-transfer-engine": ("mooncake.engine",),
    "sglang-kernel": ("sgl_kernel",),
    "torchmonarch": ("monarch",),
    "vllm": ("vllm._C", "vllm._moe_C"),
    "vllm-flash-attn": ("vllm_flash_attn_2_cuda",),
}
PATIENCE = 300  # seconds for one file
PIP = ("--disable-pip-version-check", "--quiet", "--no-cache-dir", "--only-binary=:all:")
DRIVER = {"libcuda.so.1": r"cu[A-Z]", "libnvidia-ml.so.1": r"nvml[A-Z]"}


def main(work_dir: Path, torches: tuple[str, ...]) -> None:
    from imagegen.audit.elf import read

    wheels = unpacked_wheels(work_dir)
    files = {name: dict(described(folder, read)) for name, folder in wheels.items()}
    files |= {"system": dict(system(read))}
    packages = {name: metadata(folder) for name, folder in wheels.items()}
    helpers = work_dir / "helpers"
    if not helpers.exists():
        pip("install", "--target", str(helpers), *HELPERS)
    outcomes = kept(files, torches)
    for torch in torches:
        site = work_dir / f"torch-{torch}"
        if not site.exists():
            pip("install", "--no-compile", "--target", str(site), f"torch==={torch}")
        files[f"torch=={torch}"] = dict(described(site, read))
        for row in tried(site, helpers, wheels, files, stand_in(work_dir / "driver", files)):
            outcomes["loads" if "file" in row else "imports"].append({"torch": torch, **row})
        shutil.rmtree(site)
        written(DATA, outcomes, files, packages)


def kept(files: dict[str, Any], torches: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return an earlier run's results of other releases of torch; their files are added to `files`."""
    if not (DATA / "outcomes.json").exists():
        return {"loads": [], "imports": []}
    earlier = json.loads(lzma.decompress((DATA / "files.json.xz").read_bytes()))["files"]
    afresh = {f"torch=={torch}" for torch in torches}
    files |= {name: group for name, group in earlier.items() if name.startswith("torch==") and name not in afresh}
    reported = json.loads((DATA / "outcomes.json").read_text())
    return {kind: [row for row in rows if row["torch"] not in torches] for kind, rows in reported.items()}


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", arguments[0], *PIP, *arguments[1:]], check=True)


def unpacked_wheels(work_dir: Path) -> dict[str, Path]:
    """Return requirement -> the folder that is its site-packages. Each wheel is downloaded once."""
    folders = {}
    for required in WHEELS:
        folders[required] = folder = work_dir / "unpacked" / required
        if folder.exists():
            continue
        with tempfile.TemporaryDirectory(dir=work_dir) as fresh:
            pip("download", "--no-deps", "--dest", fresh, required)
            (wheel,) = Path(fresh).glob("*.whl")
            unpack(wheel, folder)
    return folders


def unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            top, _, rest = member.filename.partition("/")
            inside = rest.partition("/")[2] if re.search(r"\.data$", top) else member.filename
            if member.is_dir() or (top.endswith(".data") and not re.match("(pure|plat)lib/", rest)):
                continue
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)


def described(folder: Path, read: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each ELF file below a folder, as the audit reads it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                        yield str(path.relative_to(folder)), plain(read(data))


def metadata(folder: Path) -> dict[str, list[str]]:
    """Return a wheel's metadata, as far as the audit reads it."""

    def said(file: str, field: str) -> list[str]:
        (path,) = folder.glob(f"*.dist-info/{file}")
        return [value for key, value in message_from_bytes(path.read_bytes()).items() if key == field]

    return {"requires": said("METADATA", "Requires-Dist"), "tags": said("WHEEL", "Tag")}


def system(read: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The libraries that ldconfig has in its list, which is where the loader looks last."""
    listed = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    for name, path in re.findall(r"^\t(\S+) \(libc6,x86-64\b.*\) => (\S+)", listed, re.MULTILINE):
        if Path(path).is_file():
            if re.match("libcuda|libtorch", name):
                sys.exit(
                    f"{path} would stand in for what the wheels lack: hide it first, as a mount over its folder does"
                )
            yield name, {**plain(read(Path(path).read_bytes())), "path": path}
    interpreter = plain(read(Path(sys.executable).resolve().read_bytes()))
    yield "python", {key: value for key, value in interpreter.items() if key not in ("rpath", "runpath")}


def plain(elf: Any) -> dict[str, Any]:
    fields = asdict(elf)
    fields["requires"] = {name: sorted(nodes) for name, nodes in elf.requires.items()}
    return {key: sorted(value) if isinstance(value, frozenset) else value for key, value in fields.items() if value}


def stand_in(folder: Path, files: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Path:
    """A folder with libraries in the place of the driver's, that have whatever any file wants of it."""
    sys.path.insert(0, str(HERE.parent / "imagegen" / "checks"))
    from smoke import stub

    folder.mkdir(exist_ok=True)
    required = {symbol for group in files.values() for file in group.values() for symbol in file.get("undefined", ())}
    for name, pattern in DRIVER.items():
        stub.LIBRARY = name
        functions = sorted(symbol for symbol in required if re.match(pattern, symbol))
        (folder / name).write_bytes(stub.library(functions, "x86_64"))
    return folder


def tried(
    site: Path, helpers: Path, wheels: Mapping[str, Path], files: Mapping[str, Any], driver: Path
) -> Iterator[dict[str, Any]]:
    """Return the outcome of each library and each import of the wheels."""
    env = {**os.environ, "PYTHONPATH": f"{site}:{helpers}", "LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": ""}
    jobs = []
    for name, folder in wheels.items():
        package = name.partition("==")[0]
        libraries = [path for path, elf in files[name].items() if not elf.get("program") or elf.get("soname")]
        modules = MODULES.get(package, (package.replace("-", "_"),))
        jobs.append({"wheel": name, "folder": str(folder), "libraries": libraries, "modules": modules})
    argv = [sys.executable, "-P", __file__, "--load", str(site)]
    process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=driver)
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(jobs))
    process.stdin.close()
    roots = {**{str(folder): "" for folder in wheels.values()}, str(site): "", str(helpers): ""}
    roots[str(driver.parent)] = ""
    for line in process.stdout:
        if line.startswith('{"wheel"'):
            row = json.loads(line)
            yield {key: cleaned(value, roots) if isinstance(value, str) else value for key, value in row.items()}
            print(line, end="", flush=True)
    if process.wait():
        sys.exit(f"{site}: the process that loads ended with exit code {process.returncode}")


def cleaned(text: str, roots: Mapping[str, str]) -> str:
    """Return the text without the paths of temporary directories."""
    for root, name in roots.items():
        text = text.replace(f"{root}/", f"{name}/" if name else "")
    return re.sub(r"\s+", " ", text)[:300]


def load(site: Path) -> None:
    """Runs with torch on the path: one JSON line for each file, and for each import."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    jobs = json.load(sys.stdin)
    import torch  # noqa: F401

    beside = libraries_below(site)
    for job in jobs:
        folder = Path(job["folder"])
        lying = {**beside, **libraries_below(folder)}
        for path in job["libraries"]:
            said = forked(partial(loaded, folder / path, lying, module=importable(path)))
            print(json.dumps({"wheel": job["wheel"], "file": path, **said}), flush=True)
        for module in job["modules"]:
            said = forked(partial(imported, folder, module))
            print(json.dumps({"wheel": job["wheel"], "module": module, **said}), flush=True)


def libraries_below(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.rglob("*.so*"))}


def imported(folder: Path, module: str) -> Iterator[tuple[str, str]]:
    yield "at", "import"
    sys.path.insert(0, str(folder))
    importlib.import_module(module)
    yield "import", "ok"


def importable(path: str) -> bool:
    """Return whether this interpreter would take the file for an extension module."""
    own, *rest = importlib.machinery.EXTENSION_SUFFIXES
    return path.endswith(own) or (".cpython-" not in path and any(path.endswith(suffix) for suffix in rest))


def loaded(path: Path, lying: Mapping[str, Path], *, module: bool) -> Iterator[tuple[str, Any]]:
    """(what was done, what came of it), each as soon as it is known: the next may end the process.

    A library that the loader does not find on its paths, but that lies in the wheel or beside torch, is loaded first:
    packages that are built so do that when they are imported.
    """
    before: list[Path] = []
    while True:
        yield "at", "load"
        try:
            library = opened(path, before)
            break
        except OSError as error:
            missing = re.match(r"(?:.*/)?([^/ ]+): cannot open shared object file", str(error))
            first = lying.get(missing[1]) if missing else None
            if first is None or first in before:
                raise
            before.insert(0, first)
    yield "load", "ok"
    if before:
        yield "after", [each.name for each in before]
    stem = path.name.partition(".")[0]
    if module and hasattr(library, f"PyInit_{stem}"):
        yield "at", "module"
        loader = importlib.machinery.ExtensionFileLoader(stem, str(path))
        spec = importlib.machinery.ModuleSpec(stem, loader, origin=str(path))
        loader.exec_module(importlib.util.module_from_spec(spec))
        yield "module", "ok"


def opened(path: Path, before: list[Path]) -> ctypes.CDLL:
    for each in before:
        ctypes.CDLL(str(each), os.RTLD_NOW)
    return ctypes.CDLL(str(path), os.RTLD_NOW)


def forked(act: Callable[[], Iterator[tuple[str, Any]]]) -> dict[str, Any]:
    """Run a generator in a child process and return its results; for the one at which it ended, the error or signal."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        try:
            for pair in act():
                os.write(into, json.dumps(pair).encode() + b"\n")
        except BaseException as raised:  # noqa: BLE001  # an extension may raise anything
            os.write(into, json.dumps(("error", f"{type(raised).__name__}: {raised}"[:2000])).encode() + b"\n")
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as stream:
        said = dict(json.loads(line) for line in stream)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    at = said.pop("at", "load")
    error = signal.Signals(-code).name if code < 0 else f"exit code {code}" if code else None
    error = said.pop("error", error)
    return {**said, at: error} if error else said


def written(
    folder: Path, outcomes: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]], packages: Mapping[str, Any]
) -> None:
    """Both files. Of what is exported, only what any of the wheels wants is kept: no verdict on a wheel needs more."""
    folder.mkdir(exist_ok=True)
    rows = {kind: ",\n  ".join(map(json.dumps, lines)) for kind, lines in outcomes.items()}
    body = ",\n ".join(f'"{kind}": [\n  {text}\n ]' for kind, text in rows.items())
    (folder / "outcomes.json").write_text(f"{{\n {body}\n}}\n")
    required = {symbol for name in packages for file in files[name].values() for symbol in file.get("undefined", ())}
    useful = {
        name: {path: of_use(file, required, undefined=name in packages) for path, file in group.items()}
        for name, group in files.items()
    }
    data = json.dumps({"files": useful, "packages": packages}, sort_keys=True).encode()
    (folder / "files.json.xz").write_bytes(lzma.compress(data, preset=9))


def of_use(file: Mapping[str, Any], required: set[str], *, undefined: bool) -> dict[str, Any]:
    every = file.get("exported", [])
    exported = [symbol for symbol in every if symbol in required or symbol.startswith("PyInit_")]
    exported = exported or every[:1]  # which shows that it exports something
    rest = {key: value for key, value in file.items() if key not in ("exported", "undefined")}
    return {**rest, "exported": exported, **({"undefined": file.get("undefined", [])} if undefined else {})}


if __name__ == "__main__":
    if sys.argv[1] == "--load":
        load(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]).resolve(), tuple(sys.argv[2:]) or TORCHES)
