"""The machine that a builder says it is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import EngineError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.image.layers import Image
from imagegen.wheels.builds import schedule
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.throttle import Machine
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.source_builds import WITH_BUILD

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

SAID = {"event": "probe", "cores": 16, "memory": 8, "available": 7, "limit": 8, "swap": 0}


def ask(root: Path, answer: str | None, builder: str | None = None) -> Machine:
    def buildx(args: Sequence[str], cwd: Path, *_: Any, output: SupportsWrite[str], **__: Any) -> str:
        output.write("#1 a line")
        assert "/usr/bin/python3.11 -I /mnt/worker/build.py probe" in (cwd / "Dockerfile").read_text()
        if answer is None:
            raise EngineError("buildx build failed with exit code 1", why=f'no builder "{builder}" found')
        out = Path(re.findall(r"type=local,dest=(\S+)", " ".join(args))[0])
        out.mkdir()
        (out / "said").write_text(answer)
        return ""

    engine = cast("Engine", SimpleNamespace(buildx=buildx))
    settings = Settings.from_environment({"HOME": str(root)})
    bench = BuildEnvironment(engine, builder, Context(Store(root / "store"), settings, Quiet()))
    return schedule.probe(WITH_BUILD, cast("Image", SimpleNamespace(digest="sha256:" + "0" * 64)), bench)


def test_a_builder_says_what_it_has(tmp_path: Path) -> None:
    said = ask(tmp_path, f"@imagegen {json.dumps(SAID)}\n")
    assert said == Machine(cores=16, memory=8, available=7, limited=True)


@pytest.mark.parametrize("answer", ["", "@imagegen {", "@imagegen 3", '@imagegen {"cores": 2}', "Killed\n"])
def test_an_answer_that_is_none_is_an_error(tmp_path: Path, answer: str) -> None:
    with raises("source-build-probe-failed"):
        ask(tmp_path, answer)


def test_a_builder_that_is_not_there_is_reported_with_where_to_look(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(EngineError) as caught:
        ask(tmp_path, None, "nosuch")
    golden.check(caught.value)
