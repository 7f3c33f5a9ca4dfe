"""Coverage-guided fuzzing of the readers of ELF files and GPU code (atheris, libFuzzer): `make fuzz`, or

    .venv/bin/python tests/fuzz/binary_reader.py CORPUS -max_total_time=900

An input is a file's bytes. Whatever they are, they are read, or a line says why not: another exception, or more work or
memory than the file's size explains, is a find, and its bytes belong into tests/unit/test_audit_hostile.py.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["imagegen.audit"]):
    from tests.fuzz.binaries import hold, seeds


def main() -> None:
    """Seeds come from tests/fuzz/binaries.py; what the fuzzer finds interesting joins them in the corpus directory."""
    with tempfile.TemporaryDirectory(prefix="imagegen-fuzz-") as buffer:
        arguments = list(sys.argv)
        corpus = next((Path(each) for each in arguments[1:] if not each.startswith("-")), None)
        if corpus is None:
            corpus = Path(buffer, "corpus")
            arguments.append(str(corpus))
        corpus.mkdir(parents=True, exist_ok=True)
        for name, data in seeds().items():
            Path(corpus, name).write_bytes(data)
        atheris.Setup([*arguments, "-max_len=8000", "-rss_limit_mb=600", "-timeout=10"], hold)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
