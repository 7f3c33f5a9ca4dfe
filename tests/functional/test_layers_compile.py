"""The compile worker against hostile sources: no byte-code, or no image, but never an image that depends on luck.

The sandbox is a stand-in, its limit on memory is real: prlimit, as in the sandbox, but lower.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from imagegen.image.layers import byte_code
from imagegen.image.layers.byte_code import Compiler, Source
from tests.support.errors import raises

# Names of the worker that its interpreter does not have of itself, as they were when the locks were recorded.
OWN = {
    *(
        ".0",
        "SECONDS_PER_REQUEST",
        "_",
        "answer",
        "bootstrap",
        "child",
        "compile_one",
        "count",
        "data",
        "files",
        "header",
    ),
    *("main", "out", "path", "pyc", "read_block", "read_exactly", "source", "status", "stdin", "stream"),
}
GOOD = ("/opt/venv/good.py", b"x = 1\n")


class LimitedSandbox:
    """The worker under the interpreter of the tests, with 600 MiB of address space and little time."""

    seconds = 20

    def __init__(self, rootfs: Path) -> None:
        pass

    def popen(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        *options, worker = argv[1:]
        assert "SECONDS_PER_REQUEST = 300 " in worker
        command = ["prlimit", f"--as={600 << 20}", "--core=0", "--", sys.executable, *options]
        command.append(worker.replace("SECONDS_PER_REQUEST = 300 ", f"SECONDS_PER_REQUEST = {self.seconds} "))
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    monkeypatch.setattr(byte_code, "Sandbox", LimitedSandbox)
    rootfs: Future[Path] = Future()
    rootfs.set_result(tmp_path)
    with Compiler(rootfs, "python", 1) as compiler:
        yield compiler


@pytest.mark.fault(
    "Wheels", "sources that do not compile: deep nesting, null bytes, odd codings, bad syntax", "no byte-code"
)
@pytest.mark.parametrize(
    "source",
    [
        b"(" * 1_000_000,
        b"x = " + b"-" * 1_000_000 + b"1\n",
        b"x = " + b"not " * 100_000 + b"1\n",
        b"x" + b".a" * 100_000 + b"\n",
        b"x = 1" + b"+1" * 100_000 + b"\n",
        b"x = " + b"lambda:" * 5000 + b"0\n",
        b"x = 1\0\n",
        b"x = '\xff'\n",
        b"# coding: no-such\nx = 1\n",
        b"# coding: rot13\nk = 1\n",
        b"# coding: undefined\nx = 1\n",
        b"# coding: punycode\n-\xff\n",
        b"# coding: ../../etc/passwd\n",
        b"print 'Python 2'\n",
        b"break\n",
        b"x = " + b"9" * 100_000 + b"\n",
    ],
    ids=lambda source: repr(source[:24]),
)
def test_what_does_not_compile_has_no_byte_code(compiler: Compiler, source: bytes) -> None:
    alone = compiler.submit([GOOD]).result()
    assert compiler.submit([("/opt/venv/bad.py", source), GOOD]).result() == [b"", *alone]


@pytest.mark.parametrize(
    "source",
    [
        b"x = 9 ** 9 ** 9 ** 9\n",
        b"x = 'a' * 10 ** 12\n",
        b"x = (1,) * 10 ** 9\n",
        b"# coding: utf-7\nx = 1\n",
        b"x = '\\ud800'",
    ],
)
def test_constants_are_not_folded_without_bound(compiler: Compiler, source: bytes) -> None:
    (pyc,) = compiler.submit([("/opt/venv/odd.py", source)]).result()
    assert 0 < len(pyc) < 1000


@pytest.mark.fault(
    "Wheels", "a source whose compilation takes all memory", "refused: never an image without its byte-code"
)
def test_short_of_memory_is_no_answer(compiler: Compiler) -> None:
    with raises("sandbox-compiler-stopped"):
        compiler.submit([GOOD, ("/opt/venv/huge.py", b"a;" * 600_000)]).result()
    assert compiler.submit([GOOD]).result() != [b""]


@pytest.mark.fault("Wheels", "a source whose compilation takes for ever", "refused after 300 s of processor time")
def test_taking_too_long_is_no_answer(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedSandbox, "seconds", 1)
    with raises("sandbox-compiler-stopped"):
        compiler.submit([("/opt/venv/slow.py", b"def f():0\n" * 40_000)]).result()
    assert compiler.submit([GOOD]).result() != [b""]


class Impostor(LimitedSandbox):
    """A base whose interpreter is another program."""

    program = ""

    def popen(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", self.program], stdin=pipe, stdout=pipe, stderr=pipe, env=env)


@pytest.mark.fault("Wheels", "a base's interpreter does not answer, or answers without end", "stopped, and named")
@pytest.mark.parametrize(
    "program",
    [
        "import time; time.sleep(100)",
        "import os; os.write(1, bytes.fromhex('ffffffff'))\nwhile True: os.write(1, bytes(1 << 20))",
        "import os\nwhile True: os.write(1, bytes.fromhex('00080000') + bytes(1 << 19))",
    ],
)
def test_an_interpreter_that_is_none_is_stopped(
    program: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_code, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(byte_code, "ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(byte_code, "Sandbox", Impostor)
    monkeypatch.setattr(Impostor, "program", program)
    with raises("sandbox-compiler-stopped"):
        compiler.submit([GOOD] * 64).result()


def test_the_worker_adds_no_names_to_the_interpreter() -> None:
    """Names of the worker are interned, which shows in the byte-code of sources that use them (cpython#129724)."""
    path = Path(byte_code.__file__).with_name("compile_worker.py")
    names: set[str] = set()
    todo = [compile(path.read_text(), str(path), "exec")]
    while todo:
        code = todo.pop()
        names |= {*code.co_names, *code.co_varnames}
        names |= {const for const in code.co_consts if isinstance(const, str) and const.isidentifier()}
        todo += [const for const in code.co_consts if hasattr(const, "co_names")]
    fresh = "import importlib._bootstrap_external, importlib.util, os, resource, struct, sys, warnings, gc\n"
    fresh += "known = {key for each in gc.get_objects() if isinstance(each, dict) for key in each}\n"
    fresh += f"print(sorted({names!r} - known))"
    out = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", fresh], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(out.stdout)) <= OWN, "raise LAYER_FORMAT, and record the locks again, if it must be"


class CountingCompiler(Compiler):
    """A compiler without sandboxes that counts the requests that run at the same time."""

    running = most = 0

    def _answer(self, sources: Sequence[Source]) -> list[bytes]:
        with self._counting:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.1)
        with self._counting:
            self.running -= 1
        return [b"" for _ in sources]

    _counting = threading.Lock()


@pytest.mark.parametrize(("size", "most"), [(1 << 10, 4), (1 << 18, 2)])
def test_half_of_the_workers_compile_large_sources(size: int, most: int) -> None:
    compiler = CountingCompiler(Future(), "python", 4)
    with compiler:
        requests = [compiler.submit([GOOD, ("/opt/venv/long.py", b"#" * size)]) for _ in range(8)]
        for request in requests:
            request.result()
        assert compiler.most == most
