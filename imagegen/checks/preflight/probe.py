"""Call cuInit in a separate process, since some broken set-ups abort inside it (exit by signal).

Source: CUDA Driver API, "Data types" (CUresult) and cuInit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from .model import CudaProbe
from .program import answer, start

_PATIENCE = 60  # seconds; the first cuInit on a machine that keeps no driver state takes several
_PROGRAM = """
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    raise SystemExit("no libcuda.so.1: %s" % error)
result, count = cuda.cuInit(0), ctypes.c_int(0)
if result == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
with open("/proc/self/maps") as maps:
    files = [line.split()[-1] for line in maps if "libcuda.so" in line]
print(json.dumps([files[0] if files else None, result, count.value]))
"""


def probe(environ: Mapping[str, str]) -> CudaProbe:
    """Return the result of cuInit."""
    said = answer(start([sys.executable, "-BIS", "-c", _PROGRAM], environ), _PATIENCE)
    return parse(*said) if said else CudaProbe(None, None, died=f"no answer within {_PATIENCE} s")


def parse(code: int, said: str) -> CudaProbe:
    """Parse the output of the probe program; a negative exit code is the signal that ended it."""
    if code < 0:
        return CudaProbe(None, None, died=_signal(-code))
    lines = said.strip().splitlines() or [f"exit code {code}"]
    try:
        library, init, devices = json.loads(lines[-1])
        return CudaProbe(library and os.path.realpath(str(library)), int(init), int(devices))
    except (ValueError, TypeError):
        return CudaProbe(None, None, died=lines[-1])


def _signal(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
