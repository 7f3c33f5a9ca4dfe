"""Archives of standalone interpreters, sound and not."""

from __future__ import annotations

import hashlib
import io
import tarfile

from imagegen.core.store import Store
from imagegen.lock.interpreter import InterpreterArchive

DATA = "lib/python3.12/_sysconfigdata__linux_x86_64-linux-gnu.py"


# Of python-build-standalone's data as its docs/quirks.rst and uv's tests have them; not a copy of a release's.
VARIABLES = {
    "AR": "/tools/llvm/bin/llvm-ar",
    "BLDSHARED": "clang -pthread -shared -Wl,--exclude-libs,ALL",
    "CC": "/tools/clang-linux64/bin/clang -pthread",
    "CFLAGS": "-Wsign-compare -fdebug-default-version=4 -DNDEBUG -I/tools/deps/include -fPIC",
    "CONFIG_ARGS": "'--prefix=/install' '--enable-shared'",
    "CXX": "clang++ -pthread",
    "INCLUDEPY": "/install/include/python3.12",
    "LDFLAGS": "-L/install/lib --sysroot=/sdk -isysroot /sdk -Wl,-z,now",
    "LDSHARED": "x86_64-linux-gnu-gcc-12 -shared",
    "SIZEOF_LONG": 8,
    "WASM_STDLIB": "./install/lib/python3.12/os.py",
    "installs": "/installed/elsewhere",
    "prefix": "/install",
}


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


SOUND = (
    member("python", type=tarfile.DIRTYPE, mode=0o755),
    member("python/bin/python3.12", b"\x7fELF", mode=0o755),
    member("python/bin/python3", type=tarfile.SYMTYPE, linkname="python3.12"),
    member("python/bin/pydoc3", b"#!/install/bin/python3.12\nprint()\n", mode=0o755),
    member("python/lib/libpython3.so", type=tarfile.LNKTYPE, linkname="python/bin/python3.12"),
    member("python/lib/pkgconfig/python3.pc", b"prefix=/install\nlibdir=${prefix}/lib\n"),
    member(f"python/{DATA}", f"build_time_vars = {VARIABLES!r}\n".encode()),
    member("python/lib/python3.12/os.py", b"# /install stays in what is no such file\n"),
    member("python/lib/python3.12/__pycache__/os.cpython-312.pyc", b"old"),
    member("python/lib/python3.12/EXTERNALLY-MANAGED", b"[externally-managed]\n"),
    member("python/lib/python3.12/config-3.12/Makefile", b"prefix=\t/install\nCC=\tclang -g\n\tgcc -c x\nAR=llvm-ar\n"),
)


def archive(store: Store, *members: tuple[tarfile.TarInfo, bytes]) -> InterpreterArchive:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return stored(store, out.getvalue())


def stored(store: Store, data: bytes) -> InterpreterArchive:
    store.write(data)
    return InterpreterArchive(
        "cpython.tar.gz", hashlib.sha256(data).hexdigest(), "https://example.org/1/cpython.tar.gz"
    )
