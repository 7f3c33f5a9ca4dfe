"""Death at a chosen moment: put this directory on PYTHONPATH, and Python runs this file before anything else.

Every operation on files or programs that a build's fate can hang on is counted and written to the file that KILLER_LOG
names; before the one with the number KILLER_AT comes SIGKILL, or the signal that KILLER_SIGNAL names, for the process
alone, or with KILLER_GROUP for its whole group. Nothing in imagegen knows of it.
"""

import itertools
import os
import signal
import subprocess
import threading

_count = itertools.count(1)
_lock = threading.Lock()


def _operation(name, *where):
    with _lock:
        number = next(_count)
        with open(os.environ["KILLER_LOG"], "a", encoding="utf-8") as log:
            log.write(f"{number} {name} {' '.join(map(str, where))}\n")
        if number == int(os.environ.get("KILLER_AT", "0")):
            kill = os.killpg if os.environ.get("KILLER_GROUP") else os.kill
            kill(os.getpid(), signal.Signals[os.environ.get("KILLER_SIGNAL", "SIGKILL")])


def _wrap(module, name, describe):
    real = getattr(module, name)

    def counted(*args, **kwargs):
        described = describe(*args, **kwargs)
        if described is not None:
            _operation(name, *described)
        return real(*args, **kwargs)

    setattr(module, name, counted)


def _created(path, flags, *args, **kwargs):
    return (path,) if flags & os.O_CREAT else None


if "KILLER_LOG" in os.environ:
    for _name in ("replace", "rename", "link"):
        _wrap(os, _name, lambda source, target, **kwargs: (source, target))
    for _name in ("unlink", "mkdir", "rmdir"):
        _wrap(os, _name, lambda path, *args, **kwargs: (path,))
    _wrap(os, "fsync", lambda handle: (os.readlink(f"/proc/self/fd/{handle}"),))
    _wrap(os, "open", _created)
    _wrap(subprocess.Popen, "__init__", lambda self, command, *args, **kwargs: command[:12])
