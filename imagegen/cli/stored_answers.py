"""Answers of earlier runs, printed again while the command line, the code and all files behind them are unchanged.

The first run records the files and directories that it opens (audit events of Python), and those whose presence it
asks for (`watch`). A run with an effect, with a child process or a connection has no stored answer. Only the standard
library is imported, before click. docs/adr/0008-compiled-results.md has the reasons.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from imagegen.core.compiled import ResultCache, digest_of

_COMMANDS = {"list", "matrix", "show"}  # in addition to `lock --check`: neither time nor network decides their output
_SHELL = {"_", "OLDPWD", "SHLVL"}  # variables that a shell sets for each command
_READS = {"open", "os.listdir", "os.scandir"}
_EFFECTS = {
    *("os.chmod", "os.exec", "os.fork", "os.forkpty", "os.link", "os.posix_spawn", "os.remove"),
    *("os.rename", "os.rmdir", "os.symlink", "os.system", "os.truncate", "socket.bind", "socket.connect"),
    *("socket.getaddrinfo", "socket.sendto", "subprocess.Popen"),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_UNSETTLED = 2 * 10**9  # nanoseconds in which a second change of a file may have the time of the first one
_MAX_SIZE = 1 << 20  # bytes of an answer
_MAX_ENTRIES = 100

_Signature = tuple[int, ...]
_Writes = tuple[tuple[int, bytes], ...]  # descriptor and bytes, in their order
_recording: _Recording | None = None


class _Recording:
    """The reads and the output of this run."""

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation
        self.start = time.time_ns()
        self.signatures: dict[str, _Signature] = {}  # by path, before the first read
        self.writes: list[tuple[int, bytes]] = []
        self.is_storable = True

    def watch(self, path: str) -> None:
        if path not in self.signatures:
            self.signatures[path] = _signature(path)

    def observe(self, event: str, arguments: tuple[object, ...]) -> None:
        """Record an audit event of Python."""
        path = arguments[0] if arguments else None
        if isinstance(path, str | bytes | os.PathLike):
            name = os.path.abspath(os.fsdecode(path))
            if f"{name}/".startswith(self.invocation.unobserved):
                return
            writes = event == "open" and isinstance(flags := arguments[2], int) and flags & _WRITING
            if event in _READS and not writes and not _is_of_the_kernel(name):
                self.watch(name)
                return
        elif isinstance(path, int):  # a descriptor of a file that an earlier event named
            return
        self.is_storable = False

    def is_settled(self) -> bool:
        """Return whether all that was read is unchanged since, and was for some time before."""
        return all(
            signature == _signature(path) and signature[-1] < self.start - _UNSETTLED
            for path, signature in self.signatures.items()
        )


class Invocation:
    """A command line with its environment and terminal, which together with files decide the answer."""

    def __init__(self, directory: str) -> None:
        terminals = [tuple(os.get_terminal_size(number)) if os.isatty(number) else None for number in range(3)]
        encodings = [stream.encoding for stream in (sys.stdout, sys.stderr)]
        variables = sorted(item for item in os.environ.items() if item[0] not in _SHELL)
        self.subject = digest_of(repr((sys.argv[1:], os.getcwd(), variables, terminals, encodings)))
        self.inputs = [sys.prefix, repr(sys.path), repr(sys.flags)]
        self.answers = os.path.join(directory, "answers")
        # Results of the same inputs; locks and temporary files of the store.
        self.unobserved = tuple(os.path.join(directory, name, "") for name in ("compiled", "store/locks", "store/tmp"))

    @classmethod
    def of_process(cls) -> Invocation | None:
        """Return the invocation of this process; None for other commands, or if there is no cache."""
        home, cache = os.environ.get("HOME"), os.environ.get("XDG_CACHE_HOME")
        cache = cache or (home and os.path.join(home, ".cache"))
        if not cache or not _is_storable(sys.argv[1:]) or "_IMAGEGEN_COMPLETE" in os.environ:
            return None
        try:
            return cls(os.path.abspath(os.path.join(cache, "imagegen")))
        except OSError:  # the working directory was removed
            return None

    def find(self) -> _Writes | None:
        """Return the output of an earlier run, if its files are unchanged."""
        entry = ResultCache(Path(self.answers)).find("answer", self.subject, self.inputs)
        if entry is None or any(signature != _signature(path) for path, signature in entry[0]):
            return None
        writes: _Writes = entry[1]
        return writes

    def record(self) -> None:
        """Record this run from now on."""
        global _recording  # noqa: PLW0603 - an audit hook stays until the process ends
        _recording = _Recording(self)
        sys.addaudithook(_observe)


def record_output(descriptor: int, content: memoryview) -> None:
    if _recording:
        _recording.writes.append((descriptor, bytes(content)))


def watch(paths: Iterable[Path] | None) -> None:
    """Record paths whose presence decides the answer. With None the answer is not stored."""
    if _recording and paths is None:
        _recording.is_storable = False
    elif _recording:
        for path in paths or ():
            _recording.watch(os.path.abspath(path))


def store() -> None:
    """Store the recorded answer, if only the invocation and unchanged files decided it."""
    global _recording
    recording, _recording = _recording, None
    if recording is None or not recording.is_storable or not recording.is_settled():
        return
    if sum(len(content) for _, content in recording.writes) > _MAX_SIZE:
        return
    invocation, directory = recording.invocation, Path(recording.invocation.answers)
    entry = (tuple(recording.signatures.items()), tuple(recording.writes))
    ResultCache(directory).keep("answer", invocation.subject, invocation.inputs, entry)
    try:
        for path in sorted(directory.iterdir(), key=os.path.getmtime)[:-_MAX_ENTRIES]:
            path.unlink(missing_ok=True)
    except OSError:  # another process removed one
        return


def _observe(event: str, arguments: tuple[object, ...]) -> None:
    if _recording and (event in _READS or event in _EFFECTS):
        _recording.observe(event, arguments)


def _is_storable(arguments: list[str]) -> bool:
    """Return whether the answer may be stored. Arguments before the command are the global options."""
    words = iter(arguments)
    for word in words:
        if word == "--project":
            next(words, None)
        elif not (word == "--debug" or word.startswith("--project=")):
            return (word in _COMMANDS and "--size" not in arguments) or (word == "lock" and "--check" in arguments)
    return False


def _is_of_the_kernel(path: str) -> bool:
    """Return whether no signature shows a change of the file: of a device, or one that the kernel makes when read."""
    in_memory = path.startswith("/dev/shm/")  # noqa: S108 - ordinary files; nothing is written there
    return not in_memory and path.startswith(("/proc/", "/sys/", "/dev/"))


def _signature(path: str) -> _Signature:
    """Return identity, mode, size and times of a file or directory, last the time of its last change (ctime)."""
    try:
        status = os.stat(path)
    except OSError as error:
        return (error.errno or 0, 0)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_mode, status.st_size, *times)
