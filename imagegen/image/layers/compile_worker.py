"""Runs in the sandbox, under the base's own interpreter: Python sources in, byte-code out.

Protocol on stdin and stdout, all integers 4 bytes big-endian:
    request:  count, then per file: length of path, path, length of source, source
    answer:   per file: length of pyc, pyc; length 0 where the file does not compile (as installers do, no pyc then)

Each request is compiled in a fresh fork, since CPython's marshalled bytes depend on what the process has interned
before (cpython#129724). The pycs are unchecked-hash ones (PEP 552): no times in them, and no stat at import.

Whether a file has byte-code depends on the file alone. What the interpreter refuses, for whatever reason, has none, as
with installers; but where memory was short, or a request took too long, the request fails and with it the build: on a
larger machine it might have gone well, and the image's digest may not depend on that.

A name in this file is interned when the sources are compiled, which shows in their marshalled bytes. So no name may
come in that the interpreter does not have already: that changes layers, as raising LAYER_FORMAT does.
"""

import importlib._bootstrap_external as bootstrap
import importlib.util
import os
import resource
import struct
import sys
import warnings

SECONDS_PER_REQUEST = 300  # of processor time, so that load does not count


def read_exactly(stream, count):
    data = stream.read(count)
    if len(data) != count:
        raise EOFError
    return data


def read_block(stream):
    return read_exactly(stream, struct.unpack(">I", read_exactly(stream, 4))[0])


def compile_one(path, source):
    try:
        code = compile(source, path, "exec", dont_inherit=True)
        return bytes(bootstrap._code_to_hash_pyc(code, importlib.util.source_hash(source), checked=False))
    except Exception:
        # The parser raises MemoryError for deep nesting too: short of memory is who has used much, in KiB.
        if int(open("/proc/self/status").read().split("VmPeak:")[1].split()[0]) > 512 << 10:  # noqa: SIM115
            raise
        return b""


def answer(files):
    out = sys.stdout.buffer
    for path, source in files:
        pyc = compile_one(path, source)
        out.write(struct.pack(">I", len(pyc)) + pyc)
        out.flush()  # so that the reader knows which file was the last


def main():
    warnings.simplefilter("ignore")
    stdin = sys.stdin.buffer
    while header := stdin.read(4):
        count = struct.unpack(">I", header)[0]
        files = [(read_block(stdin).decode(), read_block(stdin)) for _ in range(count)]
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_PER_REQUEST, SECONDS_PER_REQUEST + 1))
            answer(files)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            code = "no more processor time" if status & 127 == 24 else f"wait status {status}"  # 24 is SIGXCPU
            sys.exit(f"compiling {files[0][0]} and {count - 1} more: {code}")


if __name__ == "__main__":
    main()
