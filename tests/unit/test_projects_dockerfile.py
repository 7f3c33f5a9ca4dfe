"""Dockerfiles: stages, variables, shell words and here-documents, and what is recovered of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import ProjectFileError
from imagegen.plan.projects import dockerfile
from imagegen.plan.projects.dockerfile_syntax import commands, parse
from imagegen.plan.projects.model import MarkerTarget, Recovered
from imagegen.plan.projects.names import known_image

LINUX = MarkerTarget("3.12.14")
TEXT = """\
# syntax=docker/dockerfile:1
ARG CUDA=12.8.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu22.04 AS base
ENV HF_HOME="/data/hf" PATH=/opt/x:$PATH
ARG VLLM=0.11.0
RUN apt-get update && apt-get install -y --no-install-recommends \\
    git \\
    # a comment
    libibverbs-dev=44.0-2 \\
    && rm -rf /var/lib/apt/lists/*
FROM scratch AS unused
RUN pip install never
FROM base
RUN --mount=type=cache,target=/root/.cache pip3 install --no-cache-dir "torch==2.8.0" \\
      "vllm==${VLLM}" --extra-index-url https://download.pytorch.org/whl/cu128 > /dev/null 2>&1
RUN <<EOF
set -e
python3 -m pip install 'ray[default]>=2.40' # why
if [ -n "$X" ]; then
  pip install apex
fi
EOF
RUN uv pip install --system "math-verify" git+https://token@example.org/b@main#egg=b && make -j
RUN ["pip", "install", "click==8.1"]
RUN bash -c "pip install click==8.2" && pip install $UNSET
COPY . /app
"""


def recover(folder: Path, text: str) -> Recovered:
    (folder / "Dockerfile").write_text(text)
    return dockerfile.read(folder / "Dockerfile").recover(LINUX)


def test_what_is_recovered_and_what_is_not(tmp_path: Path) -> None:
    found = recover(tmp_path, TEXT)
    pins = {pin.package: (pin.specifier, pin.places[0].line) for pin in found.pins}
    assert pins == {
        "click": ("==8.2", 25),
        "math-verify": ("", 23),
        "ray": (">=2.40", 18),
        "torch": ("==2.8.0", 14),
        "vllm": ("==0.11.0", 15),
    }
    assert {name: place.line for name, place in found.debian.items()} == {"git": 7, "libibverbs-dev": 9}
    assert {name: value for name, (value, _) in found.env.items()} == {"HF_HOME": "/data/hf"}
    assert found.cuda and (found.cuda[0], found.cuda[1].line) == ("12.8", 3)
    assert [each.line for each in found.indexes.values()] == [15]
    assert sorted(each.place.line or 0 for each in found.omissions) == [4, 9, 20, 23, 23, 25, 26]
    assert sorted(each.place.line or 0 for each in found.omissions if each.is_package) == [20, 23, 25]
    assert "token" not in str(found.omissions)


def test_files_of_requirements_are_read_beside_the_dockerfile(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy<2\n")
    found = recover(tmp_path, "FROM debian:12\nRUN pip install -r requirements.txt && pip install -r /other.txt\n")
    assert [pin.package for pin in found.pins] == ["numpy"]
    assert [(each.place.line, each.is_package) for each in found.omissions] == [(2, True)]


@pytest.mark.parametrize(
    ("image", "packages", "cuda"),
    [
        ("nvidia/cuda:13.0.2-devel-ubuntu24.04", {}, "13.0"),
        ("docker.io/vllm/vllm-openai:v0.11.0@sha256:0", {"vllm": "0.11.0"}, None),
        ("lmsysorg/sglang:v0.5.2-cu129", {"sglang": "0.5.2"}, "12.9"),
        ("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel", {"torch": "2.8.0"}, "12.8"),
    ],
)
def test_images_that_are_known_by_their_names(image: str, packages: dict[str, str], cuda: str | None) -> None:
    known = known_image(image)
    assert known and (known.packages, known.cuda) == (packages, cuda)
    assert known_image("acme/private:latest") is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("FROM a\nRUN <<EOF\npip install a\n", 2),
        ("FROM a\nINSTALL b\n", 2),
        ("FROM\n", 1),
        ("RUN pip install a\n", None),
        ("FROM a\nRUN pip install 'a\n", 2),
        ("FROM a\nENV A='b\n", 2),
    ],
)
def test_what_is_no_dockerfile(tmp_path: Path, text: str, line: int | None) -> None:
    with pytest.raises(ProjectFileError) as caught:
        recover(tmp_path, text)
    assert caught.value.code == "project-malformed"
    assert getattr(caught.value.where, "line", 0) == line


def test_another_escape_character(tmp_path: Path) -> None:
    found = recover(tmp_path, "# escape=`\nFROM debian:12\nRUN apt-get install -y `\n  git\n")
    assert list(found.debian) == ["git"]


@given(st.text(alphabet="FROMRUN abc\n\\\"'$({<#;&|EOF=-"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        for each in parse(f"FROM a\nRUN {text}", Path("Dockerfile")):
            list(commands(each.document or each.pieces, {}, Path("Dockerfile")))
    except ProjectFileError:
        pass
