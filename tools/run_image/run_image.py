"""Run an exported image on a host that has no container engine.

`python -m tools.run_image export` writes this program next to the image's files. It needs Linux, root, and Python 3.9
or later with its standard library, and nothing of imagegen.

    run_image.py inventory FILE [DIRECTORY ...]   hash the files that this host has already
    run_image.py unpack                           write the image's files, and verify each of them
    run_image.py test [--limit SECONDS] [CHECK ...]   run smoke checks in the image; write results.json
    run_image.py exec COMMAND ...                 run a command in the image, through its entry point

In an image with several environments a CHECK runs in each that has it, or in one: "NAME: CHECK".

The image's file tree is the read-only lower layer of an overlay file system; files that the container writes go to a
tmpfs and are lost at the end. The container has mount, PID, IPC, UTS and network namespaces of its own, with only a
loopback interface, as a smoke-test container of `imagegen test` has. The files of the NVIDIA driver are bind-mounted as
NVIDIA's container toolkit does it (github.com/NVIDIA/nvidia-container-toolkit, internal/discover): device nodes,
the driver's libraries in the system's library directory, nvidia-smi, and an updated ldconfig cache.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import gzip
import hashlib
import json
import mmap
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, BinaryIO

Image = dict[str, Any]  # image.json.gz, as imagegen.export.write has it

HERE = Path(__file__).resolve().parent
IMAGE = HERE / "image.json.gz"
RESULTS = HERE / "results.json"
ROOT = HERE / "root"  # the image's files
CONTENTS = HERE / "contents"  # the unpacked parts, one after the other; removed once the files are written
UNPACKED = HERE / "unpacked"  # exists once every file of ROOT is verified
SUITE = "imagegen-smoke"  # directory of the smoke checks in the container
CHUNK = 1 << 20
MAX_IMAGE = 1 << 30  # bytes of the description: of more files than any image has
MAX_PART = 64 << 20  # bytes of a part
PATH_MAX = 4096
SHM_BYTES = 1 << 30
LIMIT = 1200  # seconds
GRACE = 10  # seconds that the runner has to report a check that does not end, before the container is killed
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# linux/sched.h and linux/mount.h
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
NODES = ("null", "zero", "full", "random", "urandom", "tty")
DRIVER_TOOLS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
MOUNTED = "/usr/local/nvidia"  # where GKE and Vertex AI mount the driver, which the loader does not search by itself
# Libraries of the driver that containers get for the capabilities "compute" and "utility".
DRIVER_LIBRARIES = (
    "libcuda",
    "libcudadebugger",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-sandboxutils",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    inventory = commands.add_parser("inventory")
    inventory.add_argument("file")
    inventory.add_argument(
        "directories", nargs="*", default=sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    )
    commands.add_parser("unpack")
    two = commands.add_parser("test")
    two.add_argument(
        "--limit", type=int, default=LIMIT, help=f"seconds for unpacking and all checks (default: {LIMIT})"
    )
    two.add_argument("checks", nargs="*")
    three = commands.add_parser("exec")
    three.add_argument("argv", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.command == "inventory":
        write_inventory(Path(arguments.file), arguments.directories)
        return
    if os.geteuid() != 0:
        sys.exit("error: root is needed to mount the image's files and to make namespaces")
    start = time.monotonic()
    try:
        image = read_image()
        if not is_unpacked(image):
            unpack(image)
    except (OSError, EOFError, ValueError) as error:
        sys.exit(f"error: the image cannot be unpacked: {error}")
    if arguments.command == "test":
        sys.exit(test(image, arguments.checks, start + arguments.limit))
    if arguments.command == "exec":
        argv = [*image["entrypoint"], *(arguments.argv or image["command"])]
        programs = image["environments"][0]["programs"]
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(enter(image, programs, argv, image["workdir"]), 0)[1]) % 256)


def write_inventory(path: Path, directories: list[str]) -> None:
    """Write {sha256: path} of all regular files below `directories`, less byte-code."""
    files = []
    for directory in directories:
        for folder, _, names in os.walk(directory):
            files += [f"{folder}/{name}" for name in names if not name.endswith(".pyc")]
    files = [file for file in files if stat.S_ISREG(os.lstat(file).st_mode)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        path.write_text(json.dumps(dict(zip(pool.map(sha256_of, files), files))), encoding="utf-8")  # noqa: B905  # Python 3.9
    print(f"{path}: {len(files)} files in {', '.join(directories)}")


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def open_file(path: Path | str) -> BinaryIO:
    """Open a regular file to read it; raises OSError for others: pipes may wait for ever, devices may never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(path, "rb")


def new_file(path: Path, mode: str) -> IO[Any]:
    """Open a new file at `path`, which replaces a file or link there. Raises OSError."""
    path.unlink(missing_ok=True)
    return path.open(mode)


def read_image() -> Image:
    with open_file(IMAGE) as packed, gzip.open(packed) as file:
        text = file.read(MAX_IMAGE + 1)
    if len(text) > MAX_IMAGE:
        raise ValueError(f"{IMAGE} has more than {MAX_IMAGE} bytes")
    image: Image = json.loads(text)
    return image


def is_unpacked(image: Image) -> bool:
    if ROOT.is_symlink() or not (ROOT.is_dir() and UNPACKED.exists()):
        return False
    with open_file(UNPACKED) as file:
        return bool(file.read(CHUNK).decode().strip() == image["image"])


def require_tree(entries: list[dict[str, Any]]) -> None:
    """Exit with an error unless each entry lies below ROOT, in a directory that is an entry before it.

    So no entry lies behind a link. The target of a link may be any path; a hard link leads to a file before it.
    """
    kinds = {"": "directory"}
    for entry in entries:
        path, kind = entry["path"], entry["kind"]
        folder, _, _ = path.rpartition("/")
        texts = (path, entry.get("target", "target"))
        is_path = all("\0" not in text and 0 < len(os.fsencode(text)) <= PATH_MAX for text in texts)
        if not is_path or not {"", ".", ".."}.isdisjoint(path.split("/")):
            why = "it is not a path below the image's root"
        elif path in kinds:
            why = "it is there twice"
        elif kinds.get(folder) != "directory":
            why = f"{folder} is not a directory of the image"
        elif kind not in ("file", "directory", "symlink"):
            why = "it is not a file, directory or link"
        elif "link" in entry and kinds.get(entry["link"]) != "file":
            why = f"{entry['link']} is not a file of the image"
        else:
            kinds[path] = kind
            continue
        sys.exit(f"error: image.json.gz has the entry {path[:200]!r}, and {why}\nfix: export the image again")


def unpack(image: Image) -> None:
    """Write the image's files to ROOT, after the check of all their paths.

    Exits with an error where a path does not lie below ROOT, or a file has another sha256 than the image's.
    """
    start = time.monotonic()
    require_tree(image["entries"])
    UNPACKED.unlink(missing_ok=True)
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(mode=0o700)  # only for root, because it has set-user-id programs
    offsets = unpack_parts(image)
    files, links = [], []
    for entry in image["entries"]:  # directories come before their contents
        path, kind = f"{ROOT}/{entry['path']}", entry["kind"]
        if kind == "directory":
            os.mkdir(path)
        elif kind == "symlink":
            os.symlink(entry["target"], path)
        elif "link" in entry:
            links.append((f"{ROOT}/{entry['link']}", path))
        else:
            files.append(entry)
    with CONTENTS.open("rb") as contents, ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = [
            fault
            for fault in pool.map(lambda entry: write_file(image, entry, contents.fileno(), offsets), files)
            if fault
        ]
    if wrong:
        shown = "\n  ".join(wrong[:10])
        fix = "make a new inventory of this host, and export again"
        sys.exit(f"error: {len(wrong)} files are not the image's:\n  {shown}\nfix: {fix}")
    for source, path in links:
        os.link(source, path)
    for entry in reversed(image["entries"]):  # a new entry changes a directory's time
        path = f"{ROOT}/{entry['path']}"
        os.chown(path, entry["uid"], entry["gid"], follow_symlinks=False)
        if entry["kind"] != "symlink":
            os.chmod(path, entry["mode"])
        os.utime(path, (entry["mtime"], entry["mtime"]), follow_symlinks=False)
    CONTENTS.unlink()
    size = sum(entry["size"] for entry in files)
    with new_file(UNPACKED, "x") as file:
        file.write(f"{image['image']}\n")
    count = f"{len(files)} files" + (f" and {len(links)} hard links" if links else "")
    print(f"{ROOT}: {count}, {size} bytes, all verified, in {time.monotonic() - start:.0f} s", flush=True)


def unpack_parts(image: Image) -> dict[str, int]:
    """Unpack the parts into CONTENTS; returns sha256 -> offset of the contents in it."""
    missing = [part["file"] for part in image["parts"] if not (HERE / part["file"]).exists()]
    if missing:
        sys.exit(f"error: {len(missing)} of {len(image['parts'])} parts are not here: {', '.join(missing)}")
    libzstd = load_libzstd()
    with new_file(CONTENTS, "x+b") as file:
        file.truncate(sum(part["bytes"] for part in image["parts"]) or 1)
        with mmap.mmap(file.fileno(), 0) as contents, ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda part: unpack_part(libzstd, part, contents), image["parts"]))
    offsets, offset = {}, 0
    for digest, size in image["contents"]:
        offsets[digest] = offset
        offset += size
    return offsets


def load_libzstd() -> ctypes.CDLL:
    try:
        libzstd = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        sys.exit(f"error: {error}\nfix: install libzstd (Debian and Ubuntu: libzstd1; Fedora: libzstd)")
    libzstd.ZSTD_decompress.restype = ctypes.c_size_t
    libzstd.ZSTD_decompress.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    return libzstd


def unpack_part(libzstd: ctypes.CDLL, part: dict[str, Any], contents: mmap.mmap) -> None:
    """Decompress a part, which is a sequence of zstd frames, to its place in `contents`."""
    with open_file(HERE / part["file"]) as file:
        packed = file.read(MAX_PART)  # a longer part is cut, and then fails as damaged
    address = ctypes.addressof((ctypes.c_char * part["bytes"]).from_buffer(contents, part["offset"]))
    size = libzstd.ZSTD_decompress(address, part["bytes"], packed, len(packed))
    if size != part["bytes"]:
        sys.exit(f"error: {part['file']} is damaged\nfix: copy it again")


def write_file(image: Image, entry: dict[str, Any], contents: int, offsets: dict[str, int]) -> str | None:
    """Write one file from the parts or from a file of this host; return the fault in words, or None."""
    digest, remaining = hashlib.sha256(), entry["size"]
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(f"{ROOT}/{entry['path']}", "xb"))
        offset = offsets.get(entry["sha256"])
        if offset is None:
            try:
                source = stack.enter_context(open_file(image["present"][entry["sha256"]])).fileno()
            except OSError as error:
                return f"{entry['path']}: {error.filename}: {error.strerror}"
            offset = 0
        else:
            source = contents
        while remaining and (chunk := os.pread(source, min(CHUNK, remaining), offset)):
            out.write(chunk)
            digest.update(chunk)
            offset += len(chunk)
            remaining -= len(chunk)
    return None if digest.hexdigest() == entry["sha256"] else f"{entry['path']}: another sha256"


def test(image: Image, checks: list[str], deadline: float) -> int:
    """Run the image's smoke checks, or those named; writes RESULTS after each. Returns the exit code."""
    unknown = [
        name
        for name in checks
        if not any(requested_checks(environment, [name]) for environment in image["environments"])
    ]
    if unknown:
        sys.exit(f"error: no environment of the image has the check {', '.join(unknown)}")
    document = {
        "format": 1,
        "image": image["image"],
        "cell": image["cell"],
        "suite": image["suite"],
        "results": [],
    }
    for environment in image["environments"]:
        if requested := requested_checks(environment, checks):
            run_checks(image, environment, requested, deadline, document)
    write_results(document)
    return int(any(result["status"] not in ("pass", "skip") for result in document["results"]))


def requested_checks(environment: dict[str, Any], checks: list[str]) -> list[str]:
    """Return the environment's checks, or the ones in `checks`, whose names may begin with the environment's name."""
    before = name_in_results(environment, "")
    if not checks:
        return list(environment["checks"])
    selected = [check for check in checks if check.startswith(before) or check in environment["checks"]]
    return [name.removeprefix(before) for name in selected]


def name_in_results(environment: dict[str, Any], check: str) -> str:
    return f"{environment['name']}: {check}" if environment["name"] else check


def run_checks(
    image: Image, environment: dict[str, Any], requested: list[str], deadline: float, document: dict[str, Any]
) -> None:
    """Run checks in an environment, in a container of its own, and add their results to `document`."""
    reader, writer = os.pipe()
    seconds = max(1, int(deadline - time.monotonic()))
    runner = ["python", "-m", "smoke.runner", "spec.json", "--seconds", str(max(1, seconds - GRACE))]
    argv = [*environment["activate"], *runner, *requested]
    child = enter(image, environment["programs"], argv, f"/{SUITE}", writer)
    os.close(writer)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))  # its PID namespace ends with it
    signal.alarm(seconds)
    with open(reader, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            result = json.loads(line)
            result["check"] = name_in_results(environment, result["check"])
            document["results"].append(result)
            write_results(document)
            print(f"{result['check']}: {result['status']}, {result['seconds']} s {result['reason'][:2000]}", flush=True)
    os.waitpid(child, 0)
    signal.alarm(0)
    ran = {result["check"] for result in document["results"]}
    for name in (name_in_results(environment, check) for check in requested):
        if name not in ran:
            document["results"].append(
                {
                    "check": name,
                    "status": "fail",
                    "seconds": 0,
                    "reason": "it did not run to its end",
                    "details": {},
                }
            )
            print(f"{name}: fail: it did not run to its end", flush=True)


def write_results(document: dict[str, Any]) -> None:
    fresh = RESULTS.with_suffix(".new")
    with new_file(fresh, "x") as file:
        json.dump(document, file, indent=1)
    fresh.replace(RESULTS)


def driver_version() -> str:
    """Return the version of NVIDIA's kernel module, "" without one."""
    try:
        match = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
    except OSError:
        return ""
    return match[1] if match else ""


libc = ctypes.CDLL(None, use_errno=True)


def check_call(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system, with the system call of that name. Raises OSError."""
    check_call(
        libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()),
        f"mount {source} at {target}",
    )


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Bind-mount a file or directory of the host, relative to its root; `target` is made if it is not there."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "xb").close()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount(source, target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def enter(image: Image, programs: dict[str, str], argv: list[str], directory: str, stdout: int | None = None) -> int:
    """Start `argv` in a new container of the image, with `programs` (path -> text) in it.

    Returns the id of the process that ends with it.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        check_call(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET), "unshare")
        first = os.fork()  # the first process of the new PID namespace: when it ends, the kernel ends the others
        if first == 0:
            check_call(libc.prctl(1, signal.SIGKILL, 0, 0, 0), "prctl")  # PR_SET_PDEATHSIG
            code = run_first(image, programs, argv, directory, stdout)
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) % 256
    except OSError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def run_first(image: Image, programs: dict[str, str], argv: list[str], directory: str, stdout: int | None) -> int:
    """Be the container's first process: make its file systems, start `argv`, reap other processes."""
    make_file_systems(programs)
    set_up_loopback()
    socket.sethostname("imagegen")
    os.chdir(directory)
    if driver_version():
        subprocess.run(["/sbin/ldconfig"], check=False)  # sonames of the driver's libraries
    environment = dict(pair.split("=", 1) for pair in image["env"])
    environment.setdefault("HOME", "/root")
    # Set where NVLink multicast must not be used on a host; a container would not have them otherwise.
    inherited = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
    environment.update({name: os.environ[name] for name in inherited if name in os.environ})
    program = shutil.which(argv[0], path=environment.get("PATH")) or argv[0]
    main = os.fork()
    if main == 0:
        if stdout is not None:
            os.dup2(stdout, 1)
        os.execve(program, argv, environment)
    if stdout is not None:
        os.close(stdout)
    while True:
        ended, status = os.wait()
        if ended == main:
            return os.waitstatus_to_exitcode(status) % 256


def make_file_systems(programs: dict[str, str]) -> None:
    """Mount the container's root with everything in it, and make it the root of this process.

    The image's links lead where they lead for a process in it, so nothing is written before that. The working directory
    stays the host's root until the last file of the host is mounted. Only then is /proc: a link of the image to
    /proc/self/cwd leads nowhere before, and into the container after.
    """
    driver = driver_files()
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    scratch = str(HERE / "scratch")
    os.makedirs(scratch, exist_ok=True)
    mount("scratch", scratch, "tmpfs", options="mode=755,size=75%")
    upper, work, root = (f"{scratch}/{name}" for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        os.mkdir(directory)
    mount("overlay", root, "overlay", options=f"lowerdir={ROOT},upperdir={upper},workdir={work}")
    os.chdir("/")
    os.chroot(root)
    for name, content in programs.items():
        path = Path("/", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    Path("/etc/hosts").write_text("127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.0.1\timagegen\n", encoding="utf-8")
    mount("dev", "/dev", "tmpfs", options="mode=755")
    for name in NODES:
        bind(f"dev/{name}", f"/dev/{name}")
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ):
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", options="newinstance,ptmxmode=0666,mode=0620")
    os.mkdir("/dev/shm")
    mount("shm", "/dev/shm", "tmpfs", options=f"mode=1777,size={SHM_BYTES}")
    add_driver(driver)
    bind("sys", "/sys", read_only=True)
    os.chdir("/")
    os.makedirs("/proc", exist_ok=True)
    mount("proc", "/proc", "proc")


def add_driver(files: dict[str, str]) -> None:
    """Bind-mount the files of NVIDIA's driver; `files` maps their paths in the container to the host's."""
    for target, source in files.items():
        bind(source.lstrip("/"), target, read_only=not target.startswith("/dev/"))
    if any(target.startswith(f"/{LIBRARIES}/") for target in files):
        # For a linker's -lcuda. NVIDIA's container toolkit makes this link too (nvidia-cdi-hook create-symlinks).
        link = Path(f"/{LIBRARIES}/libcuda.so")
        link.unlink(missing_ok=True)
        link.symlink_to("libcuda.so.1")


def driver_files() -> dict[str, str]:
    """Return the libraries, programs and devices of NVIDIA's driver on this host, by their paths in a container.

    Devices come last: while the others are mounted, no link of the image may lead to a directory of the host's /dev.
    """
    devices = {str(device): str(device) for device in sorted(Path("/dev").glob("nvidia*"))}
    version = driver_version()
    if not version:
        return devices
    files = {}
    libcuda = library_path("libcuda.so.1")
    for name in DRIVER_LIBRARIES:
        file = libcuda.parent / f"{name}.so.{version}"
        if file.exists():
            files[f"/{LIBRARIES}/{file.name}"] = os.path.realpath(file)
    for name in DRIVER_TOOLS:
        if tool := shutil.which(name) or shutil.which(name, path=f"{MOUNTED}/bin"):
            files[f"/usr/bin/{name}"] = os.path.realpath(tool)
    return files | devices


def library_path(name: str) -> Path:
    """Return the file that the dynamic loader opens for `name`, or that a cloud mounts. Raises OSError without one."""
    try:
        ctypes.CDLL(name)
    except OSError:
        ctypes.CDLL(f"{MOUNTED}/lib64/{name}")
    with open("/proc/self/maps", encoding="utf-8") as maps:
        stem = name.partition(".so")[0]
        return next(
            Path(path) for path in (line.split()[-1] for line in maps) if Path(path).name.startswith(f"{stem}.so")
        )


def set_up_loopback() -> None:
    """Set the loopback interface up, as `ip link set lo up` does (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(handle, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


if __name__ == "__main__":
    main()
