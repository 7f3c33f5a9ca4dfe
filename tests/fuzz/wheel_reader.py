"""Coverage-guided fuzzing of the wheel reader (atheris, libFuzzer): `make fuzz`, or with libFuzzer's own options:

    .venv/bin/python tests/fuzz/wheel_reader.py [--structured] CORPUS -max_total_time=900

An input is a wheel's bytes; with --structured it is what hypothesis draws a crooked wheel from (tests/fuzz/crooked.py).
Either WheelError says what is wrong with it, or its installation is what its own RECORD promises, inside the prefix.
Anything else (another exception, a file outside, other bytes, too much memory) is a find: a wheel belongs into
tests/fuzz/found/NAME.whl, where the unit tests replay it, a crooked one into their list of lies.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["imagegen.image.layers", "installer", "csv"]):
    from tests.fuzz.invariants import hold, hold_crooked

from hypothesis import given, settings

from tests.fuzz.crooked import Crooked
from tests.fuzz.strategies import CROOKED
from tests.support.wheels import seeds


def main() -> None:
    """Seeds come from tests/support/wheels.py; what the fuzzer finds interesting joins them in the corpus directory."""
    with tempfile.TemporaryDirectory(prefix="imagegen-fuzz-") as directory:
        structured = "--structured" in sys.argv
        arguments = [argument for argument in sys.argv if argument != "--structured"]
        corpus = next((Path(each) for each in arguments[1:] if not each.startswith("-")), None)
        if corpus is None:
            corpus = Path(directory, "corpus")
            arguments.append(str(corpus))
        corpus.mkdir(parents=True, exist_ok=True)
        path = Path(directory, "wheel")

        def raw(data: bytes) -> None:
            path.write_bytes(data)
            hold(path)

        @settings(database=None)
        @given(CROOKED)
        def crooked(made: Crooked) -> None:
            hold_crooked(path, made)

        if not structured:
            for name, data in seeds(Path(directory)).items():
                Path(corpus, name).write_bytes(data)
        target = crooked.hypothesis.fuzz_one_input if structured else raw
        atheris.Setup([*arguments, "-max_len=20000", "-rss_limit_mb=600", "-timeout=20"], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
