"""The ENTRYPOINT of every image: print the startup banner, then execute the command, even if the banner failed.

A child process with a limit of PATIENCE seconds makes the banner; standard input and output stay the command's own.
"""

import os
import select
import signal
import sys

PATIENCE = 5.0  # seconds
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(command):
    """Execute `command`; never returns. The exit code is the command's; 127 and 126 as in a shell if it cannot run."""
    if os.environ.get("IMAGEGEN_PREFLIGHT") != "0":
        try:
            _print_banner()
        except Exception:  # no process, no pipe: the command may do without  # noqa: BLE001, S110
            pass
    _undo()
    try:
        os.execvp(command[0], command)
    except IndexError:
        _end("no command", 127)
    except OSError as error:
        _end(f"{command[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126)


def _print_banner():
    for number in _STOPPING:  # the first process of a container gets no signal that it does not ask for
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os._exit(128 + number))
    done, held = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _as_child()
        finally:
            os._exit(0)
    os.close(held)
    finished = select.select([done], [], [], PATIENCE)[0]  # at its end: the child holds the other side
    os.close(done)
    if not finished:
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0 if finished else os.WNOHANG)  # one that hangs in the kernel is not waited for


def _as_child():
    os.setpgid(0, 0)
    for number in _STOPPING:
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        text = _text()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no matter of the command's
        text = f"imagegen: the preflight failed: {error!a}\n"
    os.write(2, text.encode("ascii"))


def _text():
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from preflight import snapshot
    from preflight.model import read_image

    own = read_image()
    begun = snapshot.begin(os.environ) if own.cuda else None

    from preflight import formatting, table  # while nvidia-smi looks around

    machine = snapshot.gather(os.environ, begun)
    return formatting.banner(own, machine, table.examine(own, machine))


def _undo():
    """Restore what Python changed for itself and the command would inherit."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if "LC_CTYPE" in os.environ:  # PEP 538: in the C locale, Python sets it
        with open("/proc/self/environ", "rb") as file:
            if not any(each.startswith(b"LC_CTYPE=") for each in file.read().split(b"\0")):
                del os.environ["LC_CTYPE"]


def _end(text, code):
    try:
        os.write(2, f"imagegen: {text}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
