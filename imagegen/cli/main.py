"""The entry point, with exit codes and signals. Only the standard library is imported before signals are handled."""

from __future__ import annotations

import _thread
import atexit
import gc
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from imagegen.cli import stored_answers
from imagegen.core.stopping import Stopped, is_stopped, stop_all

if TYPE_CHECKING:
    import click

    from imagegen.core.errors import ImagegenError

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_MAX_NAMED = 3  # stopped steps in the last sentence
_GRACE = 3.0  # seconds for which further signals count as the same, since make and CI systems send several


class _Raw(io.FileIO):
    """Raw stream of stdout or stderr that turns a write error into OutputError and discards later output."""

    is_empty = True  # no output was written

    def write(self, data: Any) -> int:
        from imagegen.core.errors import OutputError

        self.is_empty = False
        try:
            length = super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as in `imagegen list | head`
                raise Stopped(signal.SIGPIPE) from error
            name = "stdout" if self.fileno() == 1 else "stderr"
            raise OutputError(f"{name} cannot be written", why=error.strerror) from error
        stored_answers.record_output(self.fileno(), data[:length])
        return length


def main(command: click.Command | None = None, name: str = "imagegen") -> None:
    """Run a command, by default imagegen's, and report the end of the run in a sentence and an exit code.

    Each class of error (errors.py) has an exit code of its own.
    """
    try:
        _prepare()
        code = _run(command, name)
    except Stopped as stopped:
        if stopped.number != signal.SIGPIPE:
            _tell(_ending(stopped))
        code = 128 + stopped.number
        atexit.register(_set_handlers, signal.SIG_IGN)  # exit takes milliseconds, and must keep the exit code
        _set_handlers(_grace_handler())
    except Exception as error:  # noqa: BLE001 - the last resort for unexpected errors
        code = _unexpected(error)
        _set_handlers(signal.SIG_DFL)
    else:
        _set_handlers(signal.SIG_DFL)
    sys.exit(code)


def _ending(stopped: Stopped) -> str:
    """Return the sentence about a signal and the work that it ended."""
    from imagegen.core.text import shown

    ended = SIGNALS[signal.Signals(stopped.number)]
    remainder = f"; {len(stopped.steps) - _MAX_NAMED} more" if len(stopped.steps) > _MAX_NAMED else ""
    return shown(f"{ended}; stopped: {'; '.join(stopped.steps[:_MAX_NAMED])}{remainder}") if stopped.steps else ended


def _set_handlers(handler: Any) -> None:
    """Set the handler of each signal that ends a run, but of those that the parent process had ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _grace_handler() -> Callable[[int, FrameType | None], None]:
    """Return a handler that ignores signals for _GRACE seconds from now, and then takes the default action."""
    start = time.monotonic()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        if time.monotonic() - start > _GRACE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return handle


def _prepare() -> None:
    for descriptor in (0, 1, 2):  # else a file of the store could become stdout of a child process
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    os.umask(os.umask(0o077) | 0o002)  # other users of the machine must not write to the store
    atexit.register(gc.freeze)  # at exit, the search for reference cycles is useless
    last = -_GRACE

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        nonlocal last
        if time.monotonic() - last > _GRACE:
            last = time.monotonic()
            stop_all(number)
            raise Stopped(number)

    def redeliver(lost: sys.UnraisableHookArgs) -> None:
        """Send the signal again if a C library dropped the exception of its handler."""
        nonlocal last
        if isinstance(lost.exc_value, Stopped):
            last = -_GRACE
            _thread.start_new_thread(_send_soon, (lost.exc_value.number,))
        else:
            sys.__unraisablehook__(lost)

    sys.unraisablehook = redeliver
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _thread.start_new_thread(_stop_at_signal, (reader,))
    _set_handlers(stop)  # ignored signals stay ignored, for nohup and background jobs
    sys.stdout, sys.stderr = _output(sys.stdout), _output(sys.stderr)


def _stop_at_signal(reader: int) -> None:
    """Stop all work at the first signal that ends a run, since its handler must wait for the main thread."""
    while number := os.read(reader, 1):  # every signal with a handler is written here
        if number[0] in SIGNALS and not is_stopped():
            stop_all(number[0])


def _send_soon(number: int) -> None:
    time.sleep(0.01)
    os.kill(os.getpid(), number)


def _output(stream: TextIO) -> TextIO:
    """Wrap `stream`, to escape characters that its terminal lacks and to report write errors."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="backslashreplace")
    if not isinstance(getattr(stream.buffer, "raw", stream.buffer), io.FileIO):  # in tests
        return stream
    whole = io.BufferedWriter(_Raw(stream.fileno(), "w", closefd=False))
    lines = stream.isatty() or stream.write_through or stream is sys.stderr
    return io.TextIOWrapper(whole, stream.encoding, "backslashreplace", line_buffering=lines)


def _run(command: click.Command | None, name: str) -> int:
    try:
        if _print_stored_answer(command):
            return 0
        from imagegen.cli.commands import run

        code = run(command, name) if command else run()
        if sys.stdout:
            sys.stdout.flush()
        if not code:
            stored_answers.store()
    except Exception as raised:
        if is_stopped():  # the signal caused it
            raise Stopped from raised
        if not (error := _expected(raised)):
            raise
        if _debug():
            _traceback(raised)
        else:
            _tell(f"{_title(f'error[{error.code}]')}: {error}")
        _print_json(error)
        return error.exit_code
    except SystemExit as ended:
        code = ended.code
    return code if isinstance(code, int) else 0


def _print_stored_answer(command: click.Command | None) -> bool:
    """Print the answer of an earlier run, and return whether there is one; else record this run."""
    streams = {1: sys.stdout, 2: sys.stderr}
    if command or not all(isinstance(_raw(stream), _Raw) for stream in streams.values()):
        return False
    invocation = stored_answers.Invocation.of_process()
    if invocation and (writes := invocation.find()) is not None:
        for descriptor, content in writes:
            streams[descriptor].buffer.write(content)
            streams[descriptor].flush()
        return True
    if invocation:
        invocation.record()
    return False


def _raw(stream: TextIO) -> Any:
    return getattr(getattr(stream, "buffer", None), "raw", None)


def _expected(error: Exception) -> ImagegenError | None:
    """Return the error to report; None for a bug or an unforeseen state of the machine."""
    from imagegen.core.errors import ImagegenError

    if isinstance(error, OSError):
        from imagegen.core.store import disk  # late, because few runs need it

        return disk.system_failure(error)
    return error if isinstance(error, ImagegenError) else None


def _print_json(error: Any) -> None:
    """Print the error as the JSON document of a command with `--json`, unless its result is already printed."""
    import json

    with suppress(Exception):  # stderr has the error
        sys.stdout.flush()
    raw = _raw(sys.stdout)
    if "--json" in sys.argv[1:] and isinstance(raw, _Raw) and raw.is_empty:
        text = json.dumps({"error": error.as_dict()}, indent=2, sort_keys=True)
        with suppress(OSError):
            print(text, flush=True)  # noqa: T201 - the result of the run


def _unexpected(error: Exception) -> int:
    """Report an unexpected error, a bug or an unforeseen state of the machine, and return the exit code."""
    if _debug():
        _traceback(error)
    else:
        from imagegen.core.text import shown

        message = shown(" ".join(str(error).split()))
        fix = "`imagegen --debug ...` shows the traceback"
        _tell(f"{_title('internal error')}: {type(error).__name__}: {message}\n  fix: {fix}")
    return 70


def _debug() -> bool:
    return "--debug" in sys.argv[1:]


def _traceback(error: BaseException) -> None:
    import traceback  # late, because it imports further modules

    from imagegen.core.text import shown

    _tell(shown("".join(traceback.format_exception(error)).rstrip()))


def _title(text: str) -> str:
    """Return the word that begins an error, in red on terminals with colours unless the user disabled them."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not (sys.stderr and sys.stderr.isatty())
    return text if plain else f"\x1b[1;31m{text}\x1b[0m"


def _tell(text: str) -> None:
    from imagegen.core.errors import OutputError

    with suppress(OutputError, Stopped):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - the last words of a program are printed
