"""The time and memory that matrices take which are as large as they may be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from imagegen.core.data import MAX_SOURCE_FILE
from imagegen.spec import document as documents
from tests.support.matrix_samples import SHIPPED, large, shipped_matrix

_MEASURE = """\
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))  # seconds; not of the clock, which goes on while others work
from collections.abc import Callable
from pathlib import Path
from imagegen import spec as matrix
from imagegen.core.errors import MatrixErrors
cells = []
try:
    cells = matrix.load([Path(sys.argv[1])]).cells()
except MatrixErrors as errors:
    assert len(str(errors)) < 100_000
status = Path("/proc/self/status").read_text()  # ru_maxrss would count what the process was before exec
print(int(status.partition("VmHWM:")[2].split()[0]) >> 10, len(cells))
"""


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a file of 1 MB: an image of 16,000 components, each sound or each misspelt, or 100,000 faults of a kind",
    "seconds (minutes to hours before), and less than 400 MB of memory",
)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(large(16_000), id="sound"),
        pytest.param(large(16_000, named="x"), id="misspelt"),
        pytest.param("components:\n" + "".join(f" c{each}:\n" for each in range(100_000)), id="empty"),
        pytest.param("".join(f"s{each}: a\n" for each in range(100_000)), marks=pytest.mark.slow, id="sections"),
        pytest.param(
            "components:\n" + "".join(f" c{each}: {{description: d, override: true}}\n" for each in range(25_000)),
            marks=pytest.mark.slow,
            id="overrides",
        ),
    ],
)
def test_the_longest_files_take_seconds(tmp_path: Path, text: str) -> None:
    assert MAX_SOURCE_FILE // 2 < len(text) < MAX_SOURCE_FILE
    (tmp_path / "x.yaml").write_text(text)
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(tmp_path)], check=True, capture_output=True)
    assert int(done.stdout.split()[0]) < 400


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a project that has each shipped image ten times: 910 cells",
    "`list` takes 1.6 times as long as for 91, `matrix` 2.9 times; 80 MB of memory in place of 67",
)
def test_ten_times_the_cells_take_seconds(tmp_path: Path) -> None:
    for number, file in enumerate(sorted(SHIPPED.rglob("*.yaml"))):
        entries = documents.parse(file, file.read_bytes()).data
        images = entries.get("images", {})
        entries["images"] = images | {f"{name}-{each}": images[name] for name in images for each in range(9)}
        (tmp_path / f"{number}.yaml").write_text(json.dumps(entries))
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(tmp_path)], check=True, capture_output=True)
    megabytes, cells = map(int, done.stdout.split())
    assert cells == 10 * len(shipped_matrix().cells())
    assert megabytes < 200
