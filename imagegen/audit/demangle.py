"""C++ symbols in readable form, for the evidence of findings. No finding depends on it.

LLVM's demangler (pycxxfilt) has no bound on memory or time, and the names come from wheels: 278 characters can stand
for 436 million. So each name is demangled in a separate process; docs/adr/0001-demangling.md has the measurements.
"""

from __future__ import annotations

import functools
import subprocess
import sys

_LONGEST_NAME = 10_000  # characters; the longest of torch's has 4,000
_LONGEST_ANSWER = 1 << 16  # bytes
_TIMEOUT = 2.0  # seconds; a name takes 0.012
_PROGRAM = """
import resource, sys
import pycxxfilt
resource.setrlimit(resource.RLIMIT_AS, (256 << 20,) * 2)
print(pycxxfilt.itanium_demangle(sys.argv[1]))
"""


@functools.cache
def demangle(symbol: str) -> str:
    """Return a mangled name of the Itanium C++ ABI as C++, at most _LONGEST_ANSWER long; else the symbol itself."""
    if not symbol.startswith("_Z") or len(symbol) > _LONGEST_NAME or "\0" in symbol:
        return symbol
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, symbol], capture_output=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return symbol
    answer = process.stdout.decode(errors="replace").strip()
    return (
        answer if process.returncode == 0 and answer not in ("", "None") and len(answer) <= _LONGEST_ANSWER else symbol
    )
