"""The JSON that commands print about shipped cells stays what it is: programs read its fields and values.

The golden file has a section for each command line with its exit code and a digest of all that it prints, then a line
for each element of a list. It changes where locks, matrices or harvested data change; a change of code alone must leave
it unchanged, but for one that means to change the output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.artifact_keys import digest_of_text
from tests.support.command_line import call

_QUESTIONS = (
    "hopper-vllm-cu130-py311",
    "hopper-vllm-cu130-py311 --set torch=2.9.1",
    "openrlhf-cu130-py312 --set vllm=0.11.0",
    "cpu-grpo-cpu-py311",
    "torch==2.9.1 vllm==0.11.0",
    "torch==2.11.0 vllm==0.20.0 gpu==sm_120",
    "torch==2.8.0 flash-attn==2.8.3 py312 cu128",
    "verl==0.9.1 sglang==0.5.14",
    "transformers==5.0.0 trl==0.24.0",
    "numpy>=2 vllm>=0.11,<0.13 driver==580 aarch64",
    "vllm==0.11.0 model==qwen3",
    "megatron-core==0.16.1 mbridge==0.15.1",
    "torch==2.9.1 not-a-package==1.0",
    "sglang==99.0 torch==2.9.1",
    "torch==2.6.0 H100 cuda==12.8 base==ubuntu22.04",
)
_COMMANDS = (
    ("list", "--json"),
    ("list", "*", "--json"),
    ("matrix", "--json"),
    ("show", "*", "--json"),
    ("show", "*", "--size", "--json"),
    ("diff", "hopper-vllm-cu130-py311", "hopper-vllm-cu130-py312", "--json"),
    ("diff", "verl06-vllm-cu128-py311", "verl06-sglang-cu128-py311", "--json"),
    *(("why", *question.split(), "--json") for question in _QUESTIONS),
)


def test_json_output(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "UV_OFFLINE": "1"}
    lines: list[str] = []
    for command in _COMMANDS:
        ended = call(*command, env=env, directory=tmp_path)
        lines += [" ".join(command), f" exit code {ended.returncode}, output {_short(ended.stdout)}"]
        lines += [f" {line}" for line in _elements(json.loads(ended.stdout))]
    golden("json-output.txt", "\n".join([*lines, ""]))


def _elements(output: object) -> Iterator[str]:
    """Yield a line for each cell of a list, else for each field of an object."""
    if isinstance(output, list):
        yield from (f"{element['cell']} {_short(json.dumps(element))}" for element in output)
    elif isinstance(output, dict):
        yield from (f"{name}: {_short(json.dumps(value))}" for name, value in output.items())


def _short(text: str) -> str:
    return text if len(text) <= 32 and "\n" not in text else digest_of_text(text)[:32]
